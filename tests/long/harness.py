"""A bastion whose daemon is killed at random while it runs the jobs of `workload`, on the slices of any platform.

`make test` runs some jobs, `make long` many. $BASTION_LONG_SEED decides what the jobs do and which names faults hit;
which names there are depends on instants, so real runs are never quite repeatable. With $BASTION_LONG_DIR everything
stays there, in a folder for each platform, for a look at what happened.
"""

from __future__ import annotations

import contextlib
import os
import random
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from bastion.core import documents
from bastion.core.bucket import keys
from bastion.core.errors import PreconditionFailed
from bastion.ports import ObjectStore
from bastion.processes import marked
from bastion.wiring.local import down
from bastion.wiring.local_home import LocalHome
from bastion.wiring.roots import open_root
from tests.long import checks
from tests.long.workload import LongJob
from tests.support.job_specs import new_spec

SEED = int(os.environ.get("BASTION_LONG_SEED", "1"))
KEPT = os.environ.get("BASTION_LONG_DIR", "")
USERS = {"a": "alice", "b": "bob"}
# After the settings of a platform.
SETTINGS = """
[grace]
eviction_seconds = 2
failure_seconds = 2
[budgets]
infrastructure_attempts = 1000
zone_wait_seconds = 10
provision_seconds = {provision_seconds}
"""
QUOTA = """
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


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """What became of the jobs.

    Attributes:
        results: By job.
        seconds: From the first daemon to the last result.
    """

    results: dict[str, dict[str, Any]]
    seconds: float

    @property
    def causes(self) -> Counter[str]:
        """Why attempts ended."""
        return Counter(each["cause"] for found in self.results.values() for each in found["attempts"])


class LongRun:
    """One bastion, the emulator of its platform, and the daemon that is killed and started again."""

    def __init__(self, folder: Path, *, root: str = "") -> None:
        self.home = LocalHome(folder / "home")
        self.home.run_dir.mkdir(parents=True)
        self.witness = folder / "witness"
        self.witness.mkdir()
        self.root = root or f"{folder}/bucket/long-bastion"
        self.store: ObjectStore = open_root(self.root)
        self.emulator_folder = folder / "emulator"
        self.daemons = 0
        self._processes: dict[str, subprocess.Popen[bytes]] = {}

    def start_emulator(self, platform: str, *options: str) -> None:
        command = ("-m", "bastion.cli.main", "emulator", platform, f"--state_dir={self.emulator_folder}")
        self._start("emulator", *command, "--notice_seconds=5", "--grace_seconds=30", *options)

    def configure(self, settings: str, *, provision_seconds: float, units: Sequence[int]) -> None:
        """Write the settings, and the quota of each tier."""
        text = settings + SETTINGS.format(provision_seconds=provision_seconds)
        self.store.put(keys.DAEMON_SETTINGS, text.encode(), generation=0)
        tiers = "".join(f"[[total_resources]]\nv4 = {each}\n" for each in units)
        quota = f'[toml-schema]\nversion = "1"\n{tiers}{QUOTA}'
        self.store.put(keys.PROJECT_QUOTAS, quota.encode(), generation=0)

    def live(self, jobs: Sequence[LongJob], *, limit_seconds: float) -> Outcome:
        """Run the jobs to their ends."""
        began = time.monotonic()
        self._start_daemon()
        for job in jobs:
            self._submit(job)
        over = threading.Event()
        cancels = threading.Thread(target=self._cancel_in_time, args=(jobs, over))
        cancels.start()
        try:
            results = self._follow(jobs, random.Random(SEED), limit_seconds)
        finally:
            over.set()
            cancels.join()
        return Outcome(results=results, seconds=time.monotonic() - began)

    def judge(
        self,
        jobs: Sequence[LongJob],
        outcome: Outcome,
        killed_hard: Callable[[str, LongJob], bool],
        *,
        unlucky: Sequence[str] = (),
    ) -> list[str]:
        """Tell what happened; return what should not have. `unlucky` jobs need not end as their commands say."""
        seen, problems = checks.logs(self.store, jobs, outcome.results, self.witness, killed_hard)
        print(
            f"{len(jobs)} jobs with seed {SEED} took {outcome.seconds:.0f} s; "
            f"the daemon was killed {self.daemons - 1} times\n"
            f"outcomes: {dict(Counter(found['outcome'] for found in outcome.results.values()))}\n"
            f"attempts: {outcome.causes.total()}, ended by {dict(outcome.causes)}\n"
            f"logs: {dict(seen)}"
        )
        return [
            *checks.outcomes([job for job in jobs if job.name not in unlucky], outcome.results),
            *checks.histories(self.store, jobs),
            *checks.incarnations(self.witness),
            *problems,
        ]

    def close(self) -> None:
        self._kill_daemon()
        if (emulator := self._processes.pop("emulator", None)) is not None:
            emulator.send_signal(signal.SIGTERM)
            emulator.wait(60)
        down(self.home, say=lambda _: None)

    def _start_daemon(self) -> None:
        self.daemons += 1
        program = str(Path(__file__).with_name("hurried_daemon.py"))
        self._start("daemon", program, self.root, str(self.home.path), str(self.daemons))

    def _kill_daemon(self) -> None:
        if (daemon := self._processes.pop("daemon", None)) is not None:
            daemon.kill()
            daemon.wait()

    def _submit(self, job: LongJob) -> None:
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

    def _cancel_in_time(self, jobs: Sequence[LongJob], over: threading.Event) -> None:
        began = time.monotonic()
        cancelled = {job.name: job.cancelled_after for job in jobs if job.cancelled_after is not None}
        for name, after in sorted(cancelled.items(), key=lambda each: each[1]):
            if over.wait(max(0.0, began + after - time.monotonic())):
                return
            if self.store.head(keys.active(name)) is not None:
                with contextlib.suppress(PreconditionFailed):
                    self.store.put(keys.user_state(name), documents.dumps({"status": "CANCELLING"}), generation=0)

    def _follow(
        self, jobs: Sequence[LongJob], chance: random.Random, limit_seconds: float
    ) -> dict[str, dict[str, Any]]:
        """Wait until every job is over; the daemon is killed now and then."""
        results: dict[str, dict[str, Any]] = {}
        deadline = time.monotonic() + limit_seconds
        kill_at = time.monotonic() + chance.uniform(4.0, 10.0)
        while len(results) < len(jobs):
            for job in jobs:
                if job.name not in results and (found := checks.result(self.store, job.name)) is not None:
                    results[job.name] = found
            if time.monotonic() > deadline:
                left = [job.name for job in jobs if job.name not in results]
                pytest.fail(f"{len(left)} jobs are not over after {limit_seconds:g} s: {self._tell(left[:5])}")
            if time.monotonic() > kill_at:
                kill_at = time.monotonic() + chance.uniform(10.0, 40.0)
                self._kill_daemon()
                self._start_daemon()
            time.sleep(0.2)
        return results

    def _tell(self, names: Sequence[str]) -> str:
        return "; ".join(
            f"{name}: {self.store.get(keys.job_history(name)).data.decode()[-1500:]}"
            for name in names
            if self.store.head(keys.job_history(name)) is not None
        )

    def _start(self, name: str, *arguments: str) -> None:
        environment = {**os.environ, "BASTION_HOME": str(self.home.path), "BASTION_E2E": _marker()}
        with (self.home.run_dir / f"{name}.log").open("ab") as output:
            self._processes[name] = subprocess.Popen(
                [sys.executable, *arguments], stdout=output, stderr=output, env=environment
            )


@contextlib.contextmanager
def long_run(folder: Path, platform: str, *, root: str = "") -> Iterator[LongRun]:
    """A run in its folder, by default with its bucket; afterwards none of its processes may be left."""
    run = LongRun(Path(KEPT) / platform if KEPT else folder, root=root)
    try:
        yield run
    finally:
        run.close()
    assert [process for process in marked("BASTION_E2E", _marker()) if process.alive] == []


def _marker() -> str:
    return f"{os.getpid()}-long"
