"""Many jobs on emulated slices with everything going wrong that an emulator can do, and the daemon killed at random.

`make test` runs 25 jobs, `make long` 500 ($BASTION_LONG_JOBS). $BASTION_LONG_SEED decides what the jobs do and which
names the faults hit; which names there are depends on instants, so real runs are never quite repeatable. With
$BASTION_LONG_DIR everything stays there for a look at what happened.
"""

from __future__ import annotations

import contextlib
import functools
import os
import random
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from bastion.core import documents
from bastion.core.bucket import keys
from bastion.core.errors import PreconditionFailed
from bastion.emulators.tpu.address import locate
from bastion.emulators.tpu.fault_plan import FaultPlan, parse_rates
from bastion.emulators.tpu.faults import Faults
from bastion.ports import ObjectStore
from bastion.processes import marked
from bastion.wiring.local import LocalHome, down
from bastion.wiring.roots import open_root
from tests.long import checks
from tests.long.workload import LongJob, draw_jobs
from tests.support.job_specs import new_spec

JOBS = int(os.environ.get("BASTION_LONG_JOBS", "25"))
SEED = int(os.environ.get("BASTION_LONG_SEED", "1"))
KEPT = os.environ.get("BASTION_LONG_DIR", "")
# Of one-host slices, and so of hosts; by tier: reserved, on demand, spot.
TIERS = (16, 16, 32) if JOBS > 100 else (4, 4, 8)
UNITS_OF_A_HOST = 8
# 25 jobs take about 30 s on two idle cores.
LIMIT_SECONDS = 900.0 if JOBS > 100 else 480.0
# With few jobs so often that a run without any lost host does not come about.
TAKEN = ("preempt:0.15", "maintenance:0.05") if JOBS > 100 else ("preempt:0.3", "maintenance:0.25")
FAULTS = (
    *TAKEN, "stockout:0.08", "hang:0.02", "crash:0.04", "silent-crash:0.02",
    "unavailable:0.02", "throttled:0.02", "lost-reply:0.05",
)  # fmt: skip
FAULT_SECONDS = 6.0
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
[grace]
eviction_seconds = 2
failure_seconds = 2
[budgets]
infrastructure_attempts = 1000
zone_wait_seconds = 10
provision_seconds = {provision_seconds}
"""
QUOTA = """
[toml-schema]
version = "1"
[[total_resources]]
v4 = {0}
[[total_resources]]
v4 = {1}
[[total_resources]]
v4 = {2}
[project_membership]
a = ["alice"]
b = ["bob"]
[project_rules]
grace_seconds = 2.0
keep_idle_seconds = 0.0
[project_resources.a]
v4 = 0.5
[project_resources.b]
v4 = 0.5
"""
USERS = {"a": "alice", "b": "bob"}
pytestmark = [pytest.mark.e2e, pytest.mark.timeout(LIMIT_SECONDS + 240)]


class LongRun:
    """One bastion, its emulator, and the daemon that is killed and started again."""

    def __init__(self, folder: Path) -> None:
        self.home = LocalHome(folder / "home")
        self.home.run_dir.mkdir(parents=True)
        self.witness = folder / "witness"
        self.witness.mkdir()
        self.root = f"{folder}/bucket/long-bastion"
        self.store: ObjectStore = open_root(self.root)
        self.tpu = self.home.emulator_dir
        self.plan = FaultPlan(rates=parse_rates(FAULTS), seed=SEED, seconds=FAULT_SECONDS)
        self._daemon: subprocess.Popen[bytes] | None = None
        self._emulator: subprocess.Popen[bytes] | None = None
        self.daemons = 0

    def start_emulator(self) -> None:
        pool = sum(TIERS) * UNITS_OF_A_HOST
        self._emulator = self._start(
            "emulator.log",
            "-m", "bastion.cli.main", "emulator", "tpu", f"--state_dir={self.tpu}",
            "--create_seconds=0.2", "--wait_seconds=0.3", "--notice_seconds=5", "--grace_seconds=30",
            f"--fault_seed={SEED}", f"--fault_seconds={FAULT_SECONDS}", *(f"--fault={fault}" for fault in FAULTS),
            # The project has not quite what the quota file promises: some wait for capacity that nobody has.
            f"--quota=us-central2/v4={pool}", f"--capacity=us-central2-b/v4={pool * 3 // 4}",
        )  # fmt: skip
        deadline = time.monotonic() + 60
        while (address := locate(self.tpu)) is None:
            assert time.monotonic() < deadline, "the emulator did not start"
            time.sleep(0.05)
        Faults(self.tpu / "faults").fail_creations(2)  # at least; the others by chance
        settings = SETTINGS.format(
            endpoint=address.endpoint, token_file=self.tpu / "emulator.json", provision_seconds=60 if JOBS > 100 else 20
        )
        self.store.put(keys.DAEMON_SETTINGS, settings.encode(), generation=0)
        quota = QUOTA.format(*(hosts * UNITS_OF_A_HOST for hosts in TIERS))
        self.store.put(keys.PROJECT_QUOTAS, quota.encode(), generation=0)

    def start_daemon(self) -> None:
        self.daemons += 1
        program = str(Path(__file__).with_name("hurried_daemon.py"))
        self._daemon = self._start("daemon.log", program, self.root, str(self.home.path), str(self.daemons))

    def kill_daemon(self) -> None:
        if self._daemon is not None:
            self._daemon.kill()
            self._daemon.wait()

    def submit(self, job: LongJob) -> None:
        spec = new_spec(
            job.name,
            bastion="long-bastion",
            command=job.command(self.witness),
            user_id=USERS[job.project],
            project_id=job.project,
            now=time.time(),
            instance_type=job.instance_type,
            num_replicas=job.num_replicas,
            max_tries=job.tries,
        )
        self.store.put(keys.active(job.name), spec.to_bytes(), generation=0)

    def cancel(self, job: LongJob) -> None:
        if self.store.head(keys.active(job.name)) is not None:
            with contextlib.suppress(PreconditionFailed):
                self.store.put(keys.user_state(job.name), documents.dumps({"status": "CANCELLING"}), generation=0)

    def close(self) -> None:
        self.kill_daemon()
        if self._emulator is not None:
            self._emulator.send_signal(signal.SIGTERM)
            self._emulator.wait(60)
        down(self.home, say=lambda _: None)

    def _start(self, log: str, *arguments: str) -> subprocess.Popen[bytes]:
        with (self.home.run_dir / log).open("ab") as output:
            return subprocess.Popen(
                [sys.executable, *arguments],
                stdout=output,
                stderr=output,
                env={**os.environ, "BASTION_HOME": str(self.home.path), "BASTION_E2E": str(os.getpid())},
            )


@pytest.fixture
def long_run(tmp_path: Path) -> Iterator[LongRun]:
    run = LongRun(Path(KEPT) if KEPT else tmp_path)
    try:
        yield run
    finally:
        run.close()
    assert [process for process in marked("BASTION_E2E", str(os.getpid())) if process.alive] == []


def cancel_in_time(run: LongRun, jobs: list[LongJob], over: threading.Event) -> None:
    began = time.monotonic()
    for job in sorted((j for j in jobs if j.cancelled_after is not None), key=lambda j: j.cancelled_after or 0.0):
        if over.wait(max(0.0, began + (job.cancelled_after or 0.0) - time.monotonic())):
            return
        run.cancel(job)


def test_every_job_ends_as_it_should_whatever_goes_wrong_around_it(long_run: LongRun) -> None:
    jobs = draw_jobs(JOBS, SEED)
    began = time.monotonic()
    long_run.start_emulator()
    long_run.start_daemon()
    for job in jobs:
        long_run.submit(job)
    over = threading.Event()
    cancels = threading.Thread(target=cancel_in_time, args=(long_run, jobs, over))
    cancels.start()
    try:
        results = follow(long_run, jobs, random.Random(SEED))
    finally:
        over.set()
        cancels.join()
    took = time.monotonic() - began
    until_gone(long_run)
    events = checks.read_events(long_run.tpu)
    pool = sum(TIERS) * UNITS_OF_A_HOST
    most, problems = checks.overcommitted(events, pool)
    seen, log_problems = checks.logs(
        long_run.store, jobs, results, long_run.witness, functools.partial(checks.node_killed_hard, long_run.plan)
    )
    causes = Counter(each["cause"] for found in results.values() for each in found["attempts"])
    told = [
        f"{JOBS} jobs with seed {SEED} took {took:.0f} s; the daemon was killed {long_run.daemons - 1} times; "
        f"at most {most} of {pool} units were held",
        f"outcomes: {dict(Counter(found['outcome'] for found in results.values()))}",
        f"attempts: {causes.total()}, ended by {dict(causes)}",
        f"events: {dict(Counter(event['event'] for event in events))}",
        f"logs: {dict(seen)}",
    ]
    print("\n".join(told))
    problems += [
        *checks.outcomes(jobs, results),
        *(f"{name} was leaked" for name in checks.leaked(events)),
        *checks.histories(long_run.store, jobs),
        *checks.incarnations(long_run.witness),
        *log_problems,
    ]
    left = [
        meta.key
        for prefix in (keys.JOBS_ACTIVE, keys.JOBS_STATES, keys.RUNS)
        for meta in long_run.store.list(prefix)
        if not meta.key.endswith("/order")  # claims and orders stay for an hour
    ]
    assert problems == []
    assert {"infrastructure", "capacity"} <= set(causes), "nothing went wrong"
    assert left == []
    assert took < LIMIT_SECONDS


def follow(run: LongRun, jobs: list[LongJob], chance: random.Random) -> dict[str, dict[str, Any]]:
    """Waits until every job is over; the daemon is killed now and then."""
    results: dict[str, dict[str, Any]] = {}
    deadline = time.monotonic() + LIMIT_SECONDS
    kill_at = time.monotonic() + chance.uniform(5.0, 20.0)
    while len(results) < len(jobs):
        for job in jobs:
            if job.name not in results and (found := checks.result(run.store, job.name)) is not None:
                results[job.name] = found
        if time.monotonic() > deadline:
            left = [job.name for job in jobs if job.name not in results]
            pytest.fail(f"{len(left)} jobs are not over after {LIMIT_SECONDS:g} s: {tell(run, left[:5])}")
        if time.monotonic() > kill_at:
            kill_at = time.monotonic() + chance.uniform(10.0, 40.0)
            run.kill_daemon()
            run.start_daemon()
        time.sleep(0.3)
    return results


def until_gone(run: LongRun) -> None:
    """Deletions may be under way when the last job is over, and so is the sweep."""
    deadline = time.monotonic() + 120
    while checks.leaked(checks.read_events(run.tpu)) and time.monotonic() < deadline:
        time.sleep(0.3)
    while [m for m in run.store.list(keys.RUNS) if not m.key.endswith("/order")] and time.monotonic() < deadline:
        time.sleep(0.3)


def tell(run: LongRun, names: list[str]) -> str:
    return "; ".join(
        f"{name}: {run.store.get(keys.job_history(name)).data.decode()[-1500:]}"
        for name in names
        if run.store.head(keys.job_history(name)) is not None
    )
