"""Every scenario of this folder happens as its file says; `scenario` tells how they are written and rewritten."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.golden import scenario

FILES = sorted(Path(__file__).parent.glob("*.txt"))


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_what_happens_is_what_the_scenario_expects(path: Path) -> None:
    read = scenario.read(path.read_text("utf-8"))
    happened = scenario.run(read)
    if os.environ.get("BASTION_GOLDEN") == "rewrite":
        path.write_text(f"{read.head}expected\n{happened}", "utf-8")
        return
    assert happened == read.expected


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("world\n    tick=30s until=1m\n", "no intent"),
        ("Intent.\nworld\n    tick=30s until=1m speed=2\n", "unknown settings"),
        ("Intent.\nworld\n    tick=soon until=1m\n", "no duration"),
        ("Intent.\nworld\n    tick=30s until=1m\nquota\n    pond v4=8\n", "no such line"),
        ("Intent.\nworld\n    tick=30s until=1m\njobs\n    x a v4=8 prio=1x\n", "no such field"),
        ("Intent.\nworld\n    tick=30s until=1m\njobs\n    x a v4\n", "not KEY=VALUE"),
        ("Intent.\nworld\n  tick=30s until=1m\n", "neither a section nor indented"),
    ],
    ids=["intent", "setting", "duration", "quota", "field", "pair", "indentation"],
)
def test_a_scenario_that_is_misspelt_is_refused(text: str, problem: str) -> None:
    with pytest.raises(scenario.ScenarioError, match=problem):
        scenario.run(scenario.read(text))
