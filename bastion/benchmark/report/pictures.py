"""The pictures of a report as SVG; the only module of benchmarks that imports matplotlib (extra `plot`).

The same numbers make the same bytes. Colors are variables of the page's style, so that light and dark pages show the
same picture.
"""

from __future__ import annotations

import importlib.util
import io
import re
import textwrap
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from bastion.core.plain_text import plain_line

# Rows of a picture of values; more cells make more pictures.
ROWS_MAX = 40
# Lines of a picture; there are as many colors.
LINES_MAX = 8
_LABEL_CHARS = 48
_LABEL_LINES = 3
# From this ratio on, an axis is logarithmic.
_LOGARITHMIC_FROM = 8.0
# Distance between lines with points at the same place.
_ASIDE = 0.04

# Placeholders that become variables of the page's style.
_INK, _FAINT = "#0a0b0c", "#0a0b0d"
_SERIES = tuple(f"#0a0c{number:02x}" for number in range(LINES_MAX))
_VARIABLES = {_INK: "--ink", _FAINT: "--faint", **{color: f"--s{number}" for number, color in enumerate(_SERIES)}}


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """A cell in a picture of values."""

    label: str
    values: Sequence[float]
    median: float
    low: float
    high: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Point:
    """A median at `x`, with its interval."""

    x: float
    y: float
    low: float
    high: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Line:
    label: str
    points: Sequence[Point]


def available() -> bool:
    return importlib.util.find_spec("matplotlib") is not None


def values(rows: Sequence[Row], *, axis: str) -> str:
    """Draw each cell's jobs as dots, and its median with the interval."""
    labels = [_label(row.label) for row in rows]
    tallest = max(label.count("\n") for label in labels)
    with _figure(width=8.0, height=0.9 + (0.26 + 0.15 * tallest) * len(rows)) as (figure, axes):
        for at, row in enumerate(rows):
            axes.plot(row.values, [at] * len(row.values), "o", color=_SERIES[0], markersize=4, alpha=0.45, mew=0)
            axes.plot([row.low, row.high], [at, at], color=_INK, linewidth=1.4)
            axes.plot([row.median], [at], "|", color=_INK, markersize=11, mew=2)
        axes.set_yticks(range(len(rows)), labels)
        axes.set_ylim(len(rows) - 0.4, -0.6)
        axes.grid(axis="x", color=_FAINT, linewidth=0.6)
        axes.set_xlabel(_label(axis))
        return _svg(figure)


def lines(found: Sequence[Line], *, x: str, y: str, ticks: Sequence[str] = ()) -> str:
    """Draw lines of medians with their intervals; `ticks` names the places 0, 1, 2 ... of the x axis."""
    with _figure(width=8.0, height=3.6) as (figure, axes):
        for number, (color, line) in enumerate(zip(_SERIES, found, strict=False)):
            # Beside each other, where many lines have a point at the same place.
            aside = _ASIDE * (number - (len(found) - 1) / 2) if ticks else 0.0
            at, medians = [point.x + aside for point in line.points], [point.y for point in line.points]
            errors = [
                [point.y - point.low for point in line.points],
                [point.high - point.y for point in line.points],
            ]
            axes.errorbar(
                at,
                medians,
                yerr=errors,
                color=color,
                marker="o",
                markersize=4,
                linewidth=1.4,
                capsize=2,
                label=line.label,
            )
        axes.grid(color=_FAINT, linewidth=0.6)
        if ticks:
            axes.set_xticks(range(len(ticks)), [_label(tick) for tick in ticks], rotation=30, ha="right")
        else:
            _scale(axes, "x", [point.x for line in found for point in line.points])
            _scale(axes, "y", [point.low for line in found for point in line.points] + _tops(found))
            marks = sorted({point.x for line in found for point in line.points})
            axes.set_xticks(marks, [f"{mark:g}" for mark in marks])
            axes.minorticks_off()
        axes.set(xlabel=_label(x), ylabel=_label(y))
        handles = axes.get_legend_handles_labels()[0]
        axes.legend(
            handles, [_label(line.label) for line in found], frameon=False, loc="center left", bbox_to_anchor=(1, 0.5)
        )
        return _svg(figure)


def _tops(found: Sequence[Line]) -> list[float]:
    return [point.high for line in found for point in line.points]


def _label(text: str) -> str:
    """Return the text in at most `_LABEL_LINES` lines; what does not fit is cut."""
    lines = textwrap.wrap(plain_line(text), _LABEL_CHARS, break_on_hyphens=False)
    if len(lines) > _LABEL_LINES:
        lines = [*lines[: _LABEL_LINES - 1], lines[_LABEL_LINES - 1][: _LABEL_CHARS - 1] + "…"]
    return "\n".join(lines)


def _scale(axes: Any, which: str, numbers: Sequence[float]) -> None:
    if min(numbers) > 0 and max(numbers) / min(numbers) >= _LOGARITHMIC_FROM:
        from matplotlib.ticker import FuncFormatter

        axes.set_xscale("log") if which == "x" else axes.set_yscale("log")
        shown = FuncFormatter(lambda value, _: f"{value:g}")
        (axes.xaxis if which == "x" else axes.yaxis).set_major_formatter(shown)


@contextmanager
def _figure(*, width: float, height: float) -> Iterator[tuple[Any, Any]]:
    from matplotlib import rc_context
    from matplotlib.figure import Figure

    settings: Any = {
        "svg.fonttype": "none",
        "svg.hashsalt": "bastion",
        "text.parse_math": False,  # a dollar sign in a name is no formula
        "axes.formatter.use_mathtext": False,
        "font.family": "sans-serif",
        "font.size": 9.0,
        "axes.spines.top": False,
        "axes.spines.right": False,
        **dict.fromkeys(("text.color", "axes.labelcolor", "axes.edgecolor", "xtick.color", "ytick.color"), _INK),
    }
    with warnings.catch_warnings(), rc_context(settings):
        warnings.simplefilter("ignore")  # of characters that the layout's font lacks; the reader's fonts draw them
        figure = Figure(figsize=(width, height), layout="constrained")
        yield figure, figure.subplots()


def _svg(figure: Any) -> str:
    """Return the `<svg>` element: no prolog, no metadata, and the page's colors."""
    written = io.StringIO()
    figure.savefig(written, format="svg", transparent=True, metadata={"Date": None})
    text = written.getvalue()
    # What is left out has the library's version, and a style that would apply to the whole page.
    text = re.sub(r"<metadata>.*?</metadata>|<style.*?</style>", "", text[text.index("<svg") :], flags=re.DOTALL)
    for color, variable in _VARIABLES.items():
        text = text.replace(color, f"var({variable})")
    return text.strip()
