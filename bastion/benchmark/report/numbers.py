"""How reports and commands show numbers. Pure."""

from __future__ import annotations

from bastion.benchmark.layout import MetricSummary
from bastion.benchmark.noise import Noise
from bastion.benchmark.statistics import INTERVAL_JOBS_MIN


def number(value: float) -> str:
    """Four digits: `0.01234`, `1.234`, `1,234`, `1.234e+08`."""
    text = f"{value:.4g}"
    return f"{value:,.0f}" if 1000 <= abs(value) < 1e7 else text


def percent(part: float) -> str:
    """`4.2 %`: two digits, as no estimate has more."""
    return f"{float(f'{part * 100:.2g}'):g} %"


def change(ratio: float) -> str:
    """`+10.2 %`."""
    return f"{(ratio - 1) * 100:+.1f} %"


def interval_text(found: MetricSummary) -> str:
    if found.jobs == 1:
        return "one job"
    text = f"{number(found.low)} to {number(found.high)}"
    return text if found.jobs >= INTERVAL_JOBS_MIN else f"{text} ({1 - 2.0 ** (1 - found.jobs):.0%})"


def noise_text(found: Noise) -> str:
    if found.deviation is None:
        return "unknown"
    held = f"holds {percent(found.holds)}" if found.holds is not None else "holds no gate"
    return f"{percent(found.deviation)}; {held}"
