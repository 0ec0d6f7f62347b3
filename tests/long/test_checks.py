"""The long run's checks find what they look for."""

from __future__ import annotations

import functools
from pathlib import Path
from typing import Any

from bastion.core.bucket import keys
from bastion.emulators.tpu.fault_plan import FaultPlan
from bastion.testing.memory_store import MemoryStore
from tests.long import checks
from tests.long.workload import LongJob

RUN = "aaaaaaaaaa-1"
JOB = LongJob(
    name="job",
    project="a",
    instance_type="tpu-v4-8",
    num_replicas=1,
    bursts=1,
    fails_on=None,
    tries=1,
    cancelled_after=None,
)
RESULTS: dict[str, dict[str, Any]] = {"job": {"uid": "aaaaaaaaaa", "outcome": "succeeded", "exit_code": 0}}


def event(name: str, fault_type: str, units: int) -> dict[str, Any]:
    return {"at": 1.0, "event": fault_type, "name": name, "units": units}


def test_more_units_than_the_pool_has_are_found_and_what_went_in_between_does_not_count() -> None:
    events = [event("a", "accepted", 8), event("b", "accepted", 8), event("a", "gone", 0), event("c", "accepted", 8)]
    assert checks.overcommitted(events, 16) == (16, [])
    most, problems = checks.overcommitted([*events, event("d", "accepted", 8)], 16)
    assert (most, len(problems)) == (24, 1)


def test_what_never_went_is_a_leak() -> None:
    assert checks.leaked([event("a", "accepted", 8), event("b", "accepted", 8), event("b", "gone", 0)]) == ["a"]


def problems_of_log(tmp_path: Path, lines: list[int], *, printed: int, crashed: bool = False) -> list[str]:
    store = MemoryStore(now=lambda: 1.0)
    text = "".join(f"2026-01-01T00:00:00.000000Z stdout F try 1 line {n}\n" for n in lines)
    store.put(keys.log_segment("job", RUN, 0, 0), text.encode(), generation=0)
    (tmp_path / f"printed.{RUN}.1.0").write_text(str(printed))
    plan = FaultPlan(rates={"crash": 1.0 if crashed else 0.0})
    return checks.logs(store, [JOB], RESULTS, tmp_path, functools.partial(checks.node_killed_hard, plan))[1]


def test_a_hole_and_a_missing_end_of_a_log_are_found(tmp_path: Path) -> None:
    assert problems_of_log(tmp_path, [*range(1, 11)], printed=10) == []
    assert "has a hole" in problems_of_log(tmp_path, [1, 2, *range(4, 12)], printed=10)[0]
    short = problems_of_log(tmp_path, [*range(1, 9)], printed=10)
    assert ["printed 10 lines, 8 are stored" in short[0], "succeeded with {0: 8} of 10" in short[1]] == [True, True]
    assert "has a hole" in problems_of_log(tmp_path, [1, 2, *range(4, 12)], printed=10, crashed=True)[0], "no gap line"


def test_an_incarnation_too_many_is_found(tmp_path: Path) -> None:
    (tmp_path / "begun").write_text(f"{RUN}.1.0\n{RUN}.2.0\n")
    assert checks.incarnations(tmp_path) == []
    (tmp_path / "begun").write_text(f"{RUN}.1.0\n{RUN}.1.0\n")
    (tmp_path / "twice").write_text(f"{RUN}.1.0\n")
    assert len(checks.incarnations(tmp_path)) == 2


def test_an_outcome_that_the_command_does_not_explain_is_found() -> None:
    assert checks.outcomes([JOB], RESULTS) == []
    lost = {"job": {"outcome": "failed", "exit_code": 75}}
    assert len(checks.outcomes([JOB], lost)) == 1
