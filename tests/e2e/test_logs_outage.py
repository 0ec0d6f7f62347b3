"""Following a job's output while the storage endpoint is killed and comes back, and on the directory store."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from google.auth.credentials import AnonymousCredentials
from google.cloud.storage import Client as StorageClient

from bastion.adapters.bucket_requests.retry import Patience
from bastion.adapters.forwarding_store import ForwardingStore
from bastion.adapters.gcs.client import prepared
from bastion.adapters.gcs.store import GcsStore
from bastion.client import Client, Ended, FollowOptions, Logged, Noted, follow
from bastion.core.bucket.objects import ObjectMeta
from bastion.core.instants import to_rfc3339
from bastion.ports import ObjectStore, StoredObject
from bastion.testing.cluster import ROOT, Cluster
from bastion.testing.scripted_hosts import runs_for
from bastion.wiring.roots import Root, open_root
from tests.support.storage_process import StorageProcess
from tests.support.store_calls import T

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(120)]
SEGMENTS = 30


class LogsElsewhere(ForwardingStore):
    """A simulated bastion's store whose logs lie in another one; for reading only."""

    def __init__(self, memory: ObjectStore, logs: ObjectStore) -> None:
        super().__init__(memory)
        self._logs = ForwardingStore(logs)

    def get(self, key: str, **range_: int) -> StoredObject:
        return self._logs.get(key, **range_) if key.startswith("logs/") else super().get(key, **range_)

    def head(self, key: str) -> ObjectMeta | None:
        return self._logs.head(key) if key.startswith("logs/") else super().head(key)

    def list(self, prefix: str, **bounds: str) -> Iterator[ObjectMeta]:
        return self._logs.list(prefix, **bounds) if prefix.startswith("logs/") else super().list(prefix, **bounds)

    def _call(self, method: str, key: str, call: Callable[[], T]) -> T:
        assert method in {"get", "head", "list"}, f"a follower did a {method} of {key}"
        return call()


class Follower:
    """Follows a job on two hosts that write a segment at each of its sleeps, but for those in an outage."""

    def __init__(
        self, logs: ObjectStore, storage: StorageProcess | None, *, hosts_logs: ObjectStore | None = None
    ) -> None:
        """`hosts_logs`: the hosts' own way to the logs, with a patience of its own."""
        self.cluster = Cluster()
        self.cluster.hosts.scripts["job"] = runs_for(3 * SEGMENTS)
        self.logs, self.hosts_logs, self.storage = logs, hosts_logs or logs, storage
        self.now, self.monotonic = self.cluster.clock.now, self.cluster.clock.monotonic
        self.uid = self.cluster.submit("job", instance_type="tpu-v4-16")
        self.cluster.run_until(lambda: (record := self.cluster.record("job")) and record.attempt)
        self.written = self.sleeps = 0
        self.shown: list[tuple[int, str]] = []
        self.notes: list[str] = []

    def write(self) -> None:
        self.written += 1
        for worker in (0, 1):
            text = f"{to_rfc3339(1000.0 + self.written)} stdout F {self.written}\n".encode()
            run = f"{self.uid}-1"
            self.cluster.run_keys.write_segment(self.hosts_logs, "job", run, worker, self.written, text)

    def sleep(self, seconds: float) -> None:
        self.sleeps += 1
        if self.storage is not None and self.sleeps == 8:
            self.storage.kill()
        if self.storage is not None and self.sleeps == 11:
            self.storage.start()
        if self.written < SEGMENTS and (self.storage is None or not 8 <= self.sleeps < 11):
            self.write()
        self.cluster.step(max(1.0, seconds))

    def run(self, what: FollowOptions) -> None:
        bucket, _, bastion = ROOT.rpartition("/")
        store = LogsElsewhere(self.cluster.store, self.logs)
        for event in follow(Client(store, Root(bucket=bucket, bastion=bastion), self), "job", self.uid, what=what):
            match event:
                case Logged(pieces=pieces):
                    self.shown += [(piece.worker, piece.text.decode()) for piece in pieces]
                case Noted(text=text):
                    self.notes.append(text)
                case Ended(exit_code=code):
                    assert code == 0

    def of(self, worker: int) -> list[str]:
        return [text for of, text in self.shown if of == worker]


@pytest.mark.parametrize("tail", [None, 4])
def test_a_killed_endpoint_that_comes_back_neither_loses_nor_repeats_a_line(tmp_path: Path, tail: int | None) -> None:
    storage = StorageProcess(tmp_path / "buckets", bucket="team")
    storage.start()
    client = prepared(
        StorageClient(project=None, credentials=AnonymousCredentials(), client_options={"api_endpoint": storage.url})
    )
    hasty = Patience(deadline_seconds=1.0, connect_seconds=1.0, read_seconds=5.0, first_pause_seconds=0.05)
    try:
        follower = Follower(
            GcsStore("team", client=client, patience=hasty),
            storage,
            hosts_logs=GcsStore("team", client=client, write_interval_seconds=0.0),
        )
        for _ in range(10):
            follower.write()
        follower.run(FollowOptions(tail=tail))
    finally:
        client.close()
        storage.stop()
    first = 1 if tail is None else 10 - tail // 2 + 1
    for worker in (0, 1):
        assert follower.of(worker) == [str(n) for n in range(first, SEGMENTS + 1)]
    assert follower.notes[0].startswith("the bucket does not answer; retrying")
    assert follower.notes[1] == "the bucket answers again"


def test_on_the_directory_store_the_last_lines_and_what_comes_are_followed(tmp_path: Path) -> None:
    follower = Follower(open_root(f"{tmp_path}/logs-bastion"), None)
    for _ in range(10):
        follower.write()
    follower.run(FollowOptions(tail=6, worker=1))
    assert follower.of(1) == [str(n) for n in range(5, SEGMENTS + 1)]
    assert follower.of(0) == []
