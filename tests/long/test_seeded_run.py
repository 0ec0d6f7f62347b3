"""Many jobs on emulated slices with everything going wrong that an emulator can do, and the daemon killed at random.

`make test` runs 16 jobs, `make long` 500 ($BASTION_LONG_JOBS).
"""

from __future__ import annotations

import functools
import os
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from bastion.core.bucket import keys
from bastion.emulators.tpu.address import locate
from bastion.emulators.tpu.fault_plan import FaultPlan, parse_rates
from bastion.emulators.tpu.faults import Faults
from tests.long import checks
from tests.long.harness import SEED, LongRun, long_run
from tests.long.workload import draw_jobs
from tests.support.waiting import until

JOBS = int(os.environ.get("BASTION_LONG_JOBS", "16"))
# Of one-host slices, and so of hosts; by tier: reserved, on demand, spot.
TIERS = (16, 16, 32) if JOBS > 100 else (4, 4, 8)
UNITS_OF_A_HOST = 8
POOL = sum(TIERS) * UNITS_OF_A_HOST
# 25 jobs take about 30 s on two idle cores.
LIMIT_SECONDS = 900.0 if JOBS > 100 else 480.0
# With few jobs so often that a run without any lost host does not come about.
TAKEN = ("preempt:0.15", "maintenance:0.05") if JOBS > 100 else ("preempt:0.3", "maintenance:0.25")
FAULTS = (
    *TAKEN, "stockout:0.08", "hang:0.02", "crash:0.04", "silent-crash:0.02",
    "unavailable:0.02", "throttled:0.02", "lost-reply:0.05",
)  # fmt: skip
FAULT_SECONDS = 6.0
PLAN = FaultPlan(rates=parse_rates(FAULTS), seed=SEED, seconds=FAULT_SECONDS)
SETTINGS = """
project = "a-project"
endpoint = "{endpoint}"
token_file = "{token_file}"
[types.v4]
zones = ["us-central2-b", "us-central2-a"]
service_account = ""
[[tiers]]
model = "reserved"
reservation = "r"
[[tiers]]
model = "on-demand"
[[tiers]]
model = "spot"
"""
pytestmark = [pytest.mark.e2e, pytest.mark.timeout(LIMIT_SECONDS + 240)]


@pytest.fixture
def run(tmp_path: Path) -> Iterator[LongRun]:
    with long_run(tmp_path, "cloud-tpu") as run:
        yield run


def start(run: LongRun) -> None:
    folder = run.emulator_folder
    run.start_emulator(
        "tpu", "--create_seconds=0.2", "--wait_seconds=0.3",
        f"--fault_seed={SEED}", f"--fault_seconds={FAULT_SECONDS}", *(f"--fault={fault}" for fault in FAULTS),
        # The project has not quite what the quota file promises: some wait for capacity that nobody has.
        f"--quota=us-central2/v4={POOL}", f"--capacity=us-central2-b/v4={POOL * 3 // 4}",
    )  # fmt: skip
    until(lambda: locate(folder))
    address = locate(folder)
    assert address is not None
    Faults(folder / "faults").fail_creations(2)  # at least; the others by chance
    run.configure(
        SETTINGS.format(endpoint=address.endpoint, token_file=folder / "emulator.json"),
        provision_seconds=60 if JOBS > 100 else 20,
        units=[hosts * UNITS_OF_A_HOST for hosts in TIERS],
    )


def test_every_job_ends_as_it_should_whatever_goes_wrong_around_it(run: LongRun) -> None:
    jobs = draw_jobs(JOBS, SEED)
    start(run)
    outcome = run.live(jobs, limit_seconds=LIMIT_SECONDS)
    until_gone(run)
    events = checks.read_events(run.emulator_folder)
    most, problems = checks.overcommitted(events, POOL)
    problems += run.judge(jobs, outcome, functools.partial(checks.node_killed_hard, PLAN))
    print(f"at most {most} of {POOL} units were held; events: {dict(Counter(event['event'] for event in events))}")
    problems += [f"{name} was leaked" for name in checks.leaked(events)]
    left = [
        meta.key
        for prefix in (keys.JOBS_ACTIVE, keys.JOBS_STATES, keys.RUNS)
        for meta in run.store.list(prefix)
        if not meta.key.endswith("/order")  # claims and orders stay for an hour
    ]
    assert problems == []
    assert {"infrastructure", "capacity"} <= set(outcome.causes), "nothing went wrong"
    assert left == []
    assert outcome.seconds < LIMIT_SECONDS


def until_gone(run: LongRun) -> None:
    """Deletions may be under way when the last job is over, and so is the sweep."""
    deadline = time.monotonic() + 120
    while checks.leaked(checks.read_events(run.emulator_folder)) and time.monotonic() < deadline:
        time.sleep(0.1)
    while [m for m in run.store.list(keys.RUNS) if not m.key.endswith("/order")] and time.monotonic() < deadline:
        time.sleep(0.1)
