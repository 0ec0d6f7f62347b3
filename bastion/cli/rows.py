"""Rows of `--output=table|wide|csv`: the same columns for a person, a pipe and a spreadsheet.

On a terminal a table fits its width: columns leave in the order of `leaves`, and then cells of `shortened` columns end
with `…`. In a pipe nothing is cut. CSV has all columns, with numbers and instants instead of ages.
"""

from __future__ import annotations

import csv
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Generic, TypeVar

from bastion.cli.output import plain, table

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

Row = TypeVar("Row")

# Below this a shortened cell says nothing.
_SHORTENED_MIN = 8
_BETWEEN = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class Column(Generic[Row]):
    """One column.

    Attributes:
        key: Its name in CSV.
        text: What people see.
        value: What CSV has; default: the text, and nothing instead of `-`.
        style: A style of rich for the cell with this text.
        wide: Only shown with `--output=wide`.
        leaves: The larger, the earlier it leaves a narrow terminal; 0: never.
        shortened: Its cells may be cut.
    """

    key: str
    title: str
    text: Callable[[Row], str]
    value: Callable[[Row], object] | None = None
    style: Callable[[str], str] = lambda _text: ""
    wide: bool = False
    leaves: int = 0
    shortened: bool = False


def write(columns: Sequence[Column[Row]], rows: Sequence[Row], output: str) -> None:
    """Print the rows on stdout as `output` says."""
    if output == "csv":
        _write_csv(columns, rows)
        return
    shown = [column for column in columns if output == "wide" or not column.wide]
    if sys.stdout.isatty():
        console = _console()
        console.print(fitted(shown, rows, console.width))
    else:
        print(table([column.title for column in shown], [[c.text(row) for c in shown] for row in rows]), end="")


def _write_csv(columns: Sequence[Column[Row]], rows: Sequence[Row]) -> None:
    writer = csv.writer(sys.stdout, lineterminator="\n")
    writer.writerow([column.key for column in columns])
    for row in rows:
        writer.writerow([_csv_cell(column, row) for column in columns])


def _csv_cell(column: Column[Row], row: Row) -> str:
    value = column.text(row) if column.value is None else column.value(row)
    text = "" if value is None or (column.value is None and value == "-") else plain(value)
    # A spreadsheet would run it as a formula.
    return f"'{text}" if text[:1] in ("=", "+", "-", "@") and not isinstance(value, (int, float)) else text


def fitted(columns: Sequence[Column[Row]], rows: Sequence[Row], width: int) -> Table:
    """The table for a terminal of so many columns."""
    from rich.cells import cell_len
    from rich.table import Table
    from rich.text import Text

    cells = {column.key: [plain(column.text(row)) for row in rows] for column in columns}
    needs = {c.key: max(map(cell_len, (c.title, *cells[c.key]))) for c in columns}
    kept = list(columns)

    def least() -> int:
        return sum(min(needs[c.key], _SHORTENED_MIN) if c.shortened else needs[c.key] for c in kept) + (
            _BETWEEN * (len(kept) - 1)
        )

    while least() > width and any(column.leaves for column in kept):
        kept.remove(max(kept, key=lambda column: column.leaves))
    over = sum(needs[column.key] for column in kept) + _BETWEEN * (len(kept) - 1) - width
    for column in reversed(kept):
        if column.shortened and over > 0:
            cut = min(over, max(0, needs[column.key] - _SHORTENED_MIN))
            needs[column.key] -= cut
            over -= cut
    found = Table(box=None, show_edge=False, padding=(0, _BETWEEN, 0, 0), pad_edge=False, header_style="bold")
    for column in kept:
        found.add_column(Text(_cut(column.title, needs[column.key])), no_wrap=True, overflow="ellipsis")
    for number in range(len(rows)):
        texts = [(column, cells[column.key][number]) for column in kept]
        found.add_row(*(Text(_cut(text, needs[c.key]), style=c.style(text)) for c, text in texts))
    return found


def _cut(text: str, width: int) -> str:
    from rich.cells import cell_len, set_cell_size

    return text if cell_len(text) <= width else set_cell_size(text, max(0, width - 1)).rstrip() + "…"


def _console() -> Console:
    """Stdout as rich sees it: NO_COLOR, TERM, and the terminal's width."""
    from rich.console import Console

    return Console(highlight=False, markup=False, emoji=False, soft_wrap=False)
