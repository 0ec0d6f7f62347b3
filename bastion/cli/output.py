"""What commands print: notes on stderr, data on stdout, and no control characters.

Texts from the bucket (names, reasons, problems) pass through `plain`; `bastion.cli.terminal` cleans the output of jobs.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from typing import Any

from bastion.core.plain_text import plain as plain


def say(text: str) -> None:
    """Print a note on stderr; everything but newlines is made plain."""
    print("\n".join(plain(line) for line in text.split("\n")), file=sys.stderr, flush=True)


def emit_json(document: Any) -> None:
    """Print the document of `--output=json`, in ASCII."""
    print(json.dumps(document, indent=2, sort_keys=False, ensure_ascii=True, allow_nan=False), flush=True)


def table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Format plain cells in columns two spaces apart, with a final newline."""
    cells = [_plain_row(row) for row in (header, *rows)]
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    pattern = "  ".join(f"{{:<{width}}}" for width in widths)
    return "".join([pattern.format(*row).rstrip() + "\n" for row in cells])


def _plain_row(row: Sequence[str]) -> Sequence[str]:
    """One look at the row instead of one at each cell, since nearly all are plain."""
    whole = "".join(row)
    return row if whole.isascii() and whole.isprintable() else [plain(cell) for cell in row]
