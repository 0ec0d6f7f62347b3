"""Measure the daemon's memory while jobs start and end: `python bench/daemon_memory.py [--jobs=2000] [--minutes=8]`.

The daemon runs in its own process, on a folder. This process simulates the slices and their hosts, and submits a job
whenever one ends, so the number of jobs stays the same. The clock starts when nearly all of them run. Prints the
resident memory at each minute, and its growth from minute 2 to the last. With --within it fails beyond that many
percent.
"""

from __future__ import annotations

import argparse
import itertools
import os
import random
import secrets
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from multiprocessing.managers import BaseManager
from pathlib import Path

from bastion import processes
from bastion.adapters.folder.store import DirectoryStore
from bastion.adapters.inbox_proof import BucketProof
from bastion.adapters.prefixed_store import PrefixedStore
from bastion.adapters.system_clock import SystemClock
from bastion.core.bucket import keys
from bastion.core.model import job_spec
from bastion.core.model.job_spec import JobOptions
from bastion.core.model.world import Installation
from bastion.core.run_keys import RunKeys
from bastion.daemon.daemon import Daemon
from bastion.daemon.observe.gangs import Provisioners
from bastion.daemon.tick import DaemonOptions
from bastion.ports import ObjectStore
from bastion.testing.fake_provisioner import FakeProvisioner
from bastion.testing.manual_clock import ManualClock
from bastion.testing.scripted_hosts import ScriptedHosts, runs_for

BASTION = "bench-bastion"
# The first jobs end at random times, so that about as many end in every minute.
RUN_SECONDS = (300.0, 900.0)
STEP_SECONDS = 2.0
PATIENCE_SECONDS = 600.0
# This many jobs have a slice at any time; the others are ending or starting.
LIVE = 0.95
WINDOW_SECONDS = 15.0
_KEY = "BENCH_SLICES_KEY"
QUOTA = b"""
[toml-schema]
version = "1"
[total_resources]
v4 = 1000000
[project_membership]
default = ["bench"]
[project_resources.default]
v4 = 1.0
"""


class _Slices(BaseManager):
    """Serves this process's provisioner to the daemon's process."""


def store_of(folder: str) -> ObjectStore:
    # The measurement does not depend on the disk.
    return PrefixedStore(DirectoryStore(Path(folder), fsync=False), f"{BASTION}/")


def be_daemon(folder: str, port: int) -> None:
    """Run the daemon in the child process."""
    _Slices.register("slices")
    manager = _Slices(address=("127.0.0.1", port), authkey=os.environ[_KEY].encode())
    manager.connect()
    store = store_of(folder)
    identity = processes.host_identity()
    daemon = Daemon(
        store=store,
        quota_store=store,
        provisioners=Provisioners(
            slices=manager.slices(),  # type: ignore[attr-defined]
            bastion_host=FakeProvisioner(ManualClock()),
        ),
        clock=SystemClock(),
        options=DaemonOptions(
            installation=Installation(
                root=f"{folder}/{BASTION}", bastion=BASTION, host_identity=identity, poll_seconds=1.0
            ),
            owner="bench",
            process=str(processes.ProcessId.of(os.getpid())),
            tick_seconds=1.0,
            busy_tick_seconds=1.0,
        ),
        entropy=lambda: os.urandom(16),
        run_keys=lambda: RunKeys(bytes(32)),
        proof=BucketProof(),
    )
    daemon.run(lambda: False)


def resident_kib(pid: int) -> int:
    """Return the VmRSS of a process."""
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("VmRSS:"):
            return int(line.split()[1])
    raise SystemExit("the daemon has ended")


class Users:
    """Keep that many jobs queued or running."""

    def __init__(self, store: ObjectStore, hosts: ScriptedHosts, jobs: int) -> None:
        self._store = store
        self._hosts = hosts
        self._jobs = jobs
        self._chance = random.Random(1)
        self._names: Iterator[str] = (f"job-{number:06d}" for number in itertools.count())
        self._present: set[str] = set()
        self.submitted = 0

    def act(self) -> None:
        present = {meta.key[len(keys.JOBS_ACTIVE) :] for meta in self._store.list(keys.JOBS_ACTIVE)}
        for gone in self._present - present:
            del self._hosts.scripts[gone]
        first = self.submitted < self._jobs
        for name in itertools.islice(self._names, self._jobs - len(present)):
            shortest, longest = RUN_SECONDS
            runs = self._chance.uniform(shortest / 10 if first else shortest, longest)
            self._hosts.scripts[name] = runs_for(runs)
            spec = job_spec.new(
                name=name,
                bastion=BASTION,
                command="run",
                user_id="bench",
                project_id="default",
                now=time.time(),
                options=JobOptions(instance_type="tpu-v4-8"),
            )
            self._store.put(keys.active(name), spec.to_bytes(), generation=0)
            present.add(name)
            self.submitted += 1
        self._present = present


def measure(users: Users, hosts: ScriptedHosts, slices: FakeProvisioner, pid: int, *, jobs: int, minutes: int) -> float:
    """Run the jobs and print the memory; return the growth in percent."""
    began = time.monotonic()
    full_at = float("inf")
    samples: list[tuple[float, int]] = []
    said = 0
    while time.monotonic() < full_at + minutes * 60 + WINDOW_SECONDS:
        step_ends = time.monotonic() + STEP_SECONDS
        users.act()
        hosts.step(slices.live_slices())
        now = time.monotonic()
        if full_at == float("inf"):
            if len(slices.live_requests()) >= jobs * LIVE:
                full_at = now
                print(f"{len(slices.live_requests())} jobs run after {now - began:.0f} s; minute 0", flush=True)
            elif now - began > PATIENCE_SECONDS:
                raise SystemExit(f"only {len(slices.live_requests())} of {jobs} jobs run after {now - began:.0f} s")
        samples.append((now, resident_kib(pid)))
        if now - full_at >= said * 60 + WINDOW_SECONDS:
            gone = users.submitted - jobs
            print(
                f"minute {said}: {around(samples, full_at + said * 60) / 1024:.1f} MiB, "
                f"{len(slices.live_requests())} slices, {gone} jobs are over",
                flush=True,
            )
            said += 1
        time.sleep(max(0.0, step_ends - time.monotonic()))
    first, last = around(samples, full_at + 120), around(samples, full_at + minutes * 60)
    growth = (last / first - 1) * 100
    print(f"between minute 2 and minute {minutes} it grew by {growth:.1f} % to {last / 1024:.1f} MiB")
    return growth


def around(samples: list[tuple[float, int]], at: float) -> float:
    """Return the median of the values measured around that instant."""
    return statistics.median(kib for when, kib in samples if abs(when - at) <= WINDOW_SECONDS)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--jobs", type=int, default=2000)
    parser.add_argument("--minutes", type=int, default=8, help="3 or more")
    parser.add_argument("--within", type=float, default=0.0)
    parser.add_argument("--daemon", nargs=2, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.daemon:
        be_daemon(given.daemon[0], int(given.daemon[1]))
        return
    with tempfile.TemporaryDirectory(dir="/dev/shm" if Path("/dev/shm").is_dir() else None) as folder:
        clock = SystemClock()
        slices = FakeProvisioner(clock)
        _Slices.register("slices", lambda: slices)
        key = secrets.token_hex()
        server = _Slices(address=("127.0.0.1", 0), authkey=key.encode()).get_server()
        threading.Thread(target=server.serve_forever, daemon=True).start()
        store = store_of(folder)
        store.put(keys.PROJECT_QUOTAS, QUOTA, generation=0)
        hosts = ScriptedHosts(store=store, clock=clock)
        users = Users(store, hosts, given.jobs)
        command = [sys.executable, __file__, "--daemon", folder, str(server.address[1])]
        child = subprocess.Popen(command, env={**os.environ, _KEY: key})
        try:
            growth = measure(users, hosts, slices, child.pid, jobs=given.jobs, minutes=given.minutes)
        finally:
            child.kill()
            child.wait()
    if given.within and growth > given.within:
        raise SystemExit(f"{given.within:g} % are the most")


if __name__ == "__main__":
    main()
