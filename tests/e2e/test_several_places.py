"""One daemon, an emulated Cloud TPU zone and two emulated clusters: each place's trouble is that of its own jobs."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("kubernetes", reason="the extra `kubernetes` is not installed")

from bastion.core.bucket import keys
from bastion.core.errors import NotFound
from bastion.core.status import packing
from bastion.emulators.kubernetes import address as clusters
from bastion.emulators.kubernetes.client import ApiClient
from bastion.emulators.tpu import address as zones
from bastion.wiring.daemon import build_daemon
from bastion.wiring.local_home import LocalHome
from bastion.wiring.local_starter_quota import starter_quota
from bastion.wiring.roots import open_root, parse_root
from tests.support.local_root import USER, LocalRoot, RootJob
from tests.support.waiting import until

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(300)]

TYPES = {"zone": "tpu-v4-8", "west": "tpu-v5litepod-4", "east": "tpu-v6e-4"}
ZONE = """
project = "my-project"
endpoint = "{endpoint}"
token_file = "{token_file}"
"""
ZONE_TYPES = """
[types.v4]
zones = ["us-central2-b"]
service_account = ""
"""
SETTINGS = """
[clusters.west]
kubeconfig = "{west}/kubeconfig"
uid = "{west_uid}"
[clusters.east]
kubeconfig = "{east}/kubeconfig"
uid = "{east_uid}"
[defaults.pod]
image = "this-machine"
[types.v5litepod]
zones = ["k8s:west"]
[types.v6e]
zones = ["k8s:east"]
[[tiers]]
model = "on-demand"
"""
# What a cluster that hangs may cost a tick: a third of the lease's 5 s, and a busy machine.
HANGING_SECONDS = 5.0


class Places:
    """The three emulators, as processes, and the daemon, in a thread of this process, so that its ticks are timed."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.home = LocalHome(folder / "home")
        self.home.run_dir.mkdir(parents=True)
        url = str(folder / "root" / "e2e-bastion")
        self.root = LocalRoot(home=self.home, url=url, store=open_root(url))
        self.root.store.put(keys.PROJECT_QUOTAS, starter_quota(USER), generation=0)
        self.processes: dict[str, subprocess.Popen[bytes]] = {}
        self.clients: dict[str, ApiClient] = {}
        self.ticks: list[float] = []  # seconds that each took
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None
        self._daemons = 0

    def open(self, *, zone: bool = False) -> None:
        if zone:
            self._start("zone", "-m", "bastion.cli.main", "emulator", "tpu", f"--state_dir={self.folder / 'zone'}")
        for name in ("west", "east"):
            pool = f"--pool={TYPES[name].removeprefix('tpu-')}=2"
            self._start(name, "-m", "bastion.emulators.kubernetes", f"--state-dir={self.folder / name}", pool)
        until(lambda: not zone or zones.locate(self.folder / "zone"))
        for name in ("west", "east"):
            until(lambda name=name: clusters.locate(self.folder / name))
            found = clusters.locate(self.folder / name)
            assert found is not None
            self.clients[name] = ApiClient.connect(found)

    def configure(self, **uids: str) -> None:
        zone = zones.locate(self.folder / "zone")
        known = {
            f"{name}_uid": uids.get(name) or client.get("/api/v1/namespaces/kube-system")["metadata"]["uid"]
            for name, client in self.clients.items()
        }
        folders = {name: str(self.folder / name) for name in self.clients}
        text = SETTINGS.format(**folders, **known)
        if zone is not None:
            head = ZONE.format(endpoint=zone.endpoint, token_file=self.folder / "zone" / "emulator.json")
            text = head + text + ZONE_TYPES
        self.root.store.put(keys.DAEMON_SETTINGS, text.encode(), generation=0)

    def start_daemon(self) -> None:
        self._daemons += 1
        daemon = build_daemon(
            parse_root(self.root.url),
            home=self.home,
            owner=f"daemon-{self._daemons}",
            slices="cloud",
            tick_seconds=0.2,
            bastion_host_jobs="as-daemon",
            notify=lambda _: None,
        )
        tick = daemon.tick

        def timed() -> Any:
            began = time.monotonic()
            report = tick()
            self.ticks.append(time.monotonic() - began)
            return report

        daemon.tick = timed  # type: ignore[method-assign]
        self._stop = threading.Event()
        self._thread = threading.Thread(target=daemon.run, args=(self._stop.is_set,))
        self._thread.start()

    def stop_daemon(self) -> None:
        self._stop.set()
        if self._thread is not None:
            self._thread.join()

    def freeze(self, name: str) -> None:
        self.processes[name].send_signal(signal.SIGSTOP)

    def revive(self, name: str) -> None:
        self.processes[name].send_signal(signal.SIGCONT)

    def job(self, name: str, place: str) -> PlacedJob:
        return PlacedJob(self, name, TYPES[place])

    def alarms(self) -> str:
        try:
            return " ".join(packing.read(self.root.store.get(keys.STATUS).data).alarms)
        except NotFound:
            return ""

    def left(self, name: str) -> list[str]:
        """Names of the JobSets, Jobs and pods in a cluster."""
        paths = ("/apis/jobset.x-k8s.io/v1alpha2/jobsets", "/apis/batch/v1/jobs", "/api/v1/pods")
        client = self.clients[name]
        return [item["metadata"]["name"] for path in paths for item in client.list(path)["items"]]

    def close(self) -> None:
        self.stop_daemon()
        for client in self.clients.values():
            client.close()
        for process in self.processes.values():
            process.send_signal(signal.SIGCONT)
            process.send_signal(signal.SIGTERM)
        for process in self.processes.values():
            process.wait(60)

    def _start(self, name: str, *arguments: str) -> None:
        environment = {**os.environ, "BASTION_HOME": str(self.home.path)}
        with (self.folder / f"{name}.log").open("wb") as log:
            self.processes[name] = subprocess.Popen(
                [sys.executable, *arguments], stdout=log, stderr=log, env=environment
            )


class PlacedJob(RootJob):
    """A job that notes each of its beginnings, and runs until it may end."""

    def __init__(self, places: Places, name: str, instance_type: str) -> None:
        self._begun, self._may_end = places.folder / f"{name}.begun", places.folder / f"{name}.may-end"
        command = f"echo $BASTION_RUN >> {self._begun}; until [ -e {self._may_end} ]; do sleep 0.1; done"
        super().__init__(places.root, name, command, instance_type=instance_type)

    @property
    def begun(self) -> int:
        return len(self._begun.read_text().split()) if self._begun.exists() else 0

    def let_end(self) -> PlacedJob:
        self._may_end.touch()
        return self

    def succeeded_at_once(self) -> bool:
        """Whether it has ended well, in its first attempt. Raises AssertionError if it ended otherwise."""
        result = self.result()
        if result is None:
            return False
        assert (result["outcome"], len(result["attempts"]), self.begun) == ("succeeded", 1, 1), result
        return True


@pytest.fixture
def places(tmp_path: Path) -> Iterator[Places]:
    made = Places(tmp_path)
    with contextlib.ExitStack() as stack:
        stack.callback(made.close)
        yield made


def test_a_cluster_that_hangs_delays_its_own_jobs_only_and_nothing_starts_twice(places: Places) -> None:
    places.open(zone=True)
    places.configure()
    places.start_daemon()
    first = {place: places.job(f"first-{place}", place) for place in TYPES}
    until(lambda: all(job.begun for job in first.values()))

    places.freeze("east")
    places.ticks.clear()
    stuck = places.job("later-east", "east").let_end()
    began = time.monotonic()
    later = [places.job(f"later-{place}", place).let_end() for place in ("zone", "west")]
    until(lambda: all(job.succeeded_at_once() for job in later))
    took = time.monotonic() - began
    assert first["west"].let_end() and first["zone"].let_end()
    until(lambda: first["west"].succeeded_at_once() and first["zone"].succeeded_at_once())
    assert stuck.begun == 0
    assert first["east"].result() is None
    slow = [seconds for seconds in places.ticks if seconds > HANGING_SECONDS / 4]
    print(
        f"others took {took:.1f} s; the longest of {len(places.ticks)} ticks: {max(places.ticks):.1f} s; slow: {slow}"
    )
    assert max(places.ticks) < HANGING_SECONDS
    until(lambda: "east" in places.alarms(), 30)

    places.revive("east")
    began = time.monotonic()
    until(lambda: stuck.begun)
    print(f"a job in the cluster that was frozen began {time.monotonic() - began:.1f} s after it was revived")
    until(stuck.succeeded_at_once)
    first["east"].let_end()
    until(first["east"].succeeded_at_once)
    for name in ("west", "east"):
        until(lambda name=name: not places.left(name), 30)


@pytest.mark.skipif(os.environ.get("BASTION_TROUBLES") != "all", reason="`make long` runs it: BASTION_TROUBLES=all")
def test_a_cluster_with_another_uid_is_silent_with_an_alarm_and_no_job_starts_twice(places: Places) -> None:
    places.open()
    places.configure()
    places.start_daemon()
    job = places.job("job", "west")
    until(lambda: job.begun)
    places.stop_daemon()

    own = places.folder / "west" / "kubeconfig"
    right = own.read_bytes()
    own.write_bytes((places.folder / "east" / "kubeconfig").read_bytes())
    places.start_daemon()
    until(lambda: "the API server of cluster west belongs to another cluster" in places.alarms())
    other = places.job("other", "east").let_end()
    until(other.succeeded_at_once)
    late = places.job("late", "west").let_end()
    ticks = len(places.ticks)
    until(lambda: len(places.ticks) > ticks + 10)
    assert (job.begun, late.begun, job.result()) == (1, 0, None)
    assert not any(name.startswith("b-") for name in places.left("east") if "other" in name)
    places.stop_daemon()

    own.write_bytes(right)
    places.start_daemon()
    until(late.succeeded_at_once)
    job.let_end()
    until(job.succeeded_at_once)
    until(lambda: not places.left("west") and not places.left("east"), 30)


def test_a_cluster_whose_uid_is_wrong_in_the_settings_gets_no_job(places: Places) -> None:
    places.open()
    places.configure(west="00000000-0000-0000-0000-000000000000")
    places.start_daemon()
    job, other = places.job("job", "west").let_end(), places.job("other", "east").let_end()
    until(other.succeeded_at_once)
    until(lambda: "cluster west belongs to another cluster" in places.alarms())
    assert "correct the address or the uid of [clusters.west]" in places.alarms()
    assert (job.begun, job.result(), places.left("west")) == (0, None, [])
