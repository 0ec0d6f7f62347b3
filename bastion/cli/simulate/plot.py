"""The picture of `bastion simulate replay --plot=FILE.png`; the only module that imports matplotlib."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import TYPE_CHECKING

from bastion.cli.output import plain
from bastion.core.errors import Refused

if TYPE_CHECKING:
    from bastion.cli.simulate.runs import Result


def check(path: str) -> None:
    """Raise `Refused` if the picture cannot be written: matplotlib is missing, or the path is not valid."""
    if not path.endswith(".png"):
        raise Refused(f"--plot={plain(path)} must be the name of a .png file")
    if not Path(path).parent.is_dir():
        raise Refused(f"--plot={plain(path)}: no such folder: {plain(Path(path).parent)}")
    if importlib.util.find_spec("matplotlib") is None:
        raise Refused("--plot requires matplotlib, which is not installed: pip install 'bastion[plot]'")


def draw(path: str, result: Result, *, title: str, start_day: float) -> None:
    from matplotlib import colormaps
    from matplotlib.figure import Figure

    days = [start_day + at / 86_400.0 for at, _ in result.shares]
    projects = sorted(result.entitlements, key=lambda project: (-result.entitlements[project], project))
    figure = Figure(figsize=(12, 6), layout="constrained")
    axes = figure.subplots()
    axes.stackplot(
        days,
        [[held.get(project, 0) for _, held in result.shares] for project in projects],
        colors=[colormaps["tab20"](number % 20) for number in range(len(projects))],
        labels=[f"{project} ({result.entitlements[project]})" for project in projects],
    )
    axes.axhline(result.pool, color="black", linewidth=0.8)
    axes.set(title=title, xlabel="day", ylabel="chips in use", xlim=(days[0], days[-1]), ylim=(0, result.pool * 1.02))
    handles, labels = axes.get_legend_handles_labels()
    axes.legend(handles[::-1], labels[::-1], title="project (entitlement)", loc="center left", bbox_to_anchor=(1, 0.5))
    figure.savefig(path, format="png", dpi=120)
