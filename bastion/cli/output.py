"""What the commands print: notes on stderr, data on stdout, and nothing that a hostile spec could do to a terminal.

Layer: cli. Texts from the bucket (names, reasons, problems) pass `plain` before they are shown; the output of jobs is
`bastion.cli.terminal`'s.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from typing import Any

from bastion.core.plain_text import plain as plain


def say(text: str) -> None:
    """A note or progress for people, on stderr; lines of it may end in newlines, and all else is made plain."""
    print("\n".join(plain(line) for line in text.split("\n")), file=sys.stderr, flush=True)


def emit_json(document: Any) -> None:
    """The one JSON document of an `--output=json`; ASCII, so that it is harmless in a terminal too."""
    print(json.dumps(document, indent=2, sort_keys=False, ensure_ascii=True, allow_nan=False), flush=True)


def table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Columns two spaces apart, the last one ragged; every cell made plain; ends in a newline."""
    cells = [[plain(cell) for cell in row] for row in (header, *rows)]
    widths = [max(len(row[column]) for row in cells) for column in range(len(header))]
    lines = ("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in cells)
    return "".join(f"{line}\n" for line in lines)
