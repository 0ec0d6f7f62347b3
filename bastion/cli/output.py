"""What the commands print: notes on stderr, data on stdout, and nothing that a hostile spec could do to a terminal.

Layer: cli. Texts from the bucket (names, reasons, problems) pass `plain` before they are shown; the output of jobs is
passed through as it is, because it is theirs.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Sequence
from typing import Any

# Control characters of C0, DEL and C1, lone surrogates, and those that reorder text or hide in it.
_UNSAFE = re.compile("[\x00-\x1f\x7f-\x9f\ud800-\udfff\u200b-\u200f\u2028-\u202e\u2060-\u2069\ufeff]")


def plain(text: object) -> str:
    """The text with everything that could control a terminal shown as an escape."""
    return _UNSAFE.sub(lambda found: found[0].encode("unicode_escape").decode("ascii"), str(text))


def say(text: str) -> None:
    """A note or progress for people, on stderr."""
    print(text, file=sys.stderr, flush=True)


def emit_json(document: Any) -> None:
    """The one JSON document of an `--output=json`; ASCII, so that it is harmless in a terminal too."""
    print(json.dumps(document, indent=2, sort_keys=False, ensure_ascii=True, allow_nan=False), flush=True)


def table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Columns two spaces apart, the last one ragged; every cell made plain; ends in a newline."""
    cells = [[plain(cell) for cell in row] for row in (header, *rows)]
    widths = [max(len(row[column]) for row in cells) for column in range(len(header))]
    lines = ("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in cells)
    return "".join(f"{line}\n" for line in lines)
