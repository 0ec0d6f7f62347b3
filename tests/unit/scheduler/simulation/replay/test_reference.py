"""The replay reproduces published figures of the Philly trace.

The trace is not part of the repository: `make reference TRACE=FILE`, or $BASTION_TRACE.
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from bastion.cli.simulate.runs import Task, run_task

TRACE = os.environ.get("BASTION_TRACE", "")
QUOTA = Path(__file__).parents[5] / "bench" / "philly.toml"

pytestmark = pytest.mark.skipif(not TRACE, reason="$BASTION_TRACE names no copy of the Philly trace")

# Policy: eff, total and worst share deficit in percent, longest owner return in h, evictions, waste in percent, the
# most evictions of one job, mean wait in s, p95 and longest wait in h, bounded slowdown.
REFERENCE = {
    "fifo": (0.985, 18.4, 71.9, 34.0, 0, 0.0, 0, 52_759, 27.7, 37.0, 35.4),
    "static": (0.671, 0.06, 0.3, 29 / 3600, 0, 0.0, 0, 42_121, 28.9, 1002.0, 18.0),
    "greedy": (0.965, 0.05, 0.8, 8.5, 5505, 1.46, 98, 5075, 6.4, 100.0, 2.89),
}
TOLERANCE = (0.0006, 0.06, 0.06, 0.1, 5, 0.006, 0, 40, 0.06, 0.5, 0.06)


@pytest.mark.parametrize("policy", REFERENCE)
@pytest.mark.timeout(600)
def test_the_reference_row_is_reproduced(policy: str) -> None:
    task = Task(
        quota=QUOTA.read_bytes(),
        trace=TRACE,
        start_day=28,
        days=14,
        load=0.994,
        tick=30,
        checkpoint=1800,
        restart=300,
        policy=policy,
    )
    result = run_task(task)
    found = result.yardsticks
    row = (
        found["eff"],
        100 * found["share_deficit_total"],
        100 * found["share_deficit_worst"],
        found["owner_return_max_s"] / 3600,
        found["preemptions"],
        100 * found["waste_fraction"],
        found["max_preemptions"],
        found["wait_mean_s"],
        found["wait_p95_s"] / 3600,
        found["wait_max_s"] / 3600,
        found["bounded_slowdown_mean"],
    )
    assert result.pool == 608
    assert result.jobs + result.larger_than_quota == 24_282
    off = [abs(ours - theirs) for ours, theirs in zip(row, REFERENCE[policy], strict=True)]
    assert all(difference <= most for difference, most in zip(off, TOLERANCE, strict=True)), row
