"""A host that is lost leaves a log that says so: what it had not stored is missing, and readers are told."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from bastion.agent.logs.segments import SegmentStore
from bastion.client.logs.reader import RunLogs
from bastion.core.bucket import keys, segment_proofs
from bastion.core.bucket.keys import Run
from bastion.core.bucket.objects import ObjectMeta
from bastion.core.reconcile.effects import TellLogGap
from bastion.core.run_keys import RunKey
from bastion.daemon.act import lost_logs
from bastion.testing.cluster import Cluster
from bastion.testing.counting_store import CountingStore
from bastion.testing.faulty_store import Fault, FaultyStore
from bastion.testing.memory_store import MemoryStore
from bastion.testing.scripted_hosts import runs_for

AT = 1_800_000_000.0
KEY = RunKey(bytes(32))
GONE = TellLogGap(job="job", run="abcdefghij-1", host=0, at=0.0, reason="gone", run_key=KEY.text)
LINE = b"2027-01-15T08:00:02.000000Z stdout F step 7\n"


def read(cluster: Cluster, run: str, hosts: int = 2) -> list[tuple[int, str, str]]:
    parsed = Run.parse(run)
    assert parsed is not None
    public_key = cluster.run_keys.drawn(run).public
    pieces = RunLogs(cluster.store, "job", parsed, hosts=hosts, public_key=public_key).poll()
    return [(piece.worker, piece.stream, piece.text.decode().strip()) for piece in pieces]


def write(store: MemoryStore, number: int, key: RunKey = KEY) -> None:
    name = keys.log_segment("job", "abcdefghij-1", 0, number)
    store.put(name, segment_proofs.with_proof(name, LINE, key), generation=0)


def proved(store: MemoryStore, number: int) -> bytes:
    key = keys.log_segment("job", "abcdefghij-1", 0, number)
    return segment_proofs.proved(key, store.get(key).data, KEY.public) or b""


def running(cluster: Cluster) -> str:
    uid = cluster.submit("job", instance_type="tpu-v4-16")
    cluster.run_until(lambda: cluster.hosts.live("job"))
    return f"{uid}-1"


def is_gap(line: tuple[int, str, str], worker: int) -> bool:
    return line[:2] == (worker, "gap") and line[2].startswith("an unknown number of bytes of output are missing here:")


def test_the_log_of_each_lost_host_ends_with_a_gap_before_the_next_attempt(cluster: Cluster) -> None:
    run = running(cluster)
    host = SegmentStore(cluster.store, job="job", run=run, host=0, run_key=cluster.run_keys.drawn(run))
    host.write(LINE)
    cluster.slices.lose(cluster.slices.list()[0].ref.name)
    cluster.run_until(lambda: cluster.status("job") == "PENDING")
    lines = read(cluster, run)
    assert [line for line in lines if line[1] == "stdout"] == [(0, "stdout", "step 7")]
    assert is_gap([line for line in lines if line[0] == 0][-1], 0)
    assert is_gap([line for line in lines if line[0] == 1][-1], 1)
    host.write(b"2027-01-15T08:00:03.000000Z stdout F late\n")  # it was not dead after all
    assert (0, "stdout", "late") in read(cluster, run)
    assert [k[-10:] for k in cluster.listed(keys.log_segments("job", run, 0))] == [f"{n:010d}" for n in (1, 2, 3)]


def test_a_host_that_said_its_last_word_leaves_no_gap(cluster: Cluster) -> None:
    cluster.hosts.scripts["job"] = runs_for(3)
    run = running(cluster)
    cluster.run_until(lambda: cluster.result("job"))
    assert read(cluster, run) == []


@pytest.mark.parametrize("fault", [Fault.BEFORE, Fault.AFTER])
def test_a_gap_is_told_once_whatever_becomes_of_the_write(cluster: Cluster, fault: Fault) -> None:
    faulty = FaultyStore(cluster.store)
    cluster.daemon = cluster.new_daemon(faulty)
    run = running(cluster)
    faulty.fail_next("put", key=keys.log_segment("job", run, 1, 1), fault=fault)
    cluster.slices.lose(cluster.slices.list()[0].ref.name)
    cluster.run_until(lambda: cluster.status("job") == "PENDING")
    assert faulty.failed
    assert [(worker, stream) for worker, stream, _ in read(cluster, run)] == [(0, "gap"), (1, "gap")]


@pytest.mark.parametrize("segments", [0, 1, 999, 1000, 1001, 2500, 40_000])
def test_the_end_of_a_long_log_is_found_in_few_requests(segments: int) -> None:
    memory = MemoryStore(now=lambda: AT)
    first = 1 if segments < 2500 else 700  # somebody's lifecycle rule took the oldest
    for number in range(first, segments + 1):
        write(memory, number)
    store = CountingStore(memory)
    lost_logs.tell(store, GONE)
    told = proved(memory, segments + 1)
    since = b"2027-01-15T08:00:02" if segments else b"1970-01-01T00:00:00"
    assert told == since + b".000000Z gap F an unknown number of bytes of output are missing here: gone\n"
    assert sum(store.calls.values()) < 25


class _Impatient(CountingStore):
    def list(self, prefix: str, *, start_after: str = "", end_before: str = "") -> Iterator[ObjectMeta]:
        assert self.calls["list"] < 25, "it searches for ever"
        return super().list(prefix, start_after=start_after, end_before=end_before)


def test_a_number_that_no_host_reaches_does_not_hold_up_the_search_for_the_end() -> None:
    memory = MemoryStore(now=lambda: AT)
    for number in (*range(1, 1501), 9_999_999_999):
        write(memory, number)
    store = _Impatient(memory)
    lost_logs.tell(store, GONE)
    assert proved(memory, 1501).endswith(b"missing here: gone\n")


def test_who_takes_the_numbers_after_a_log_neither_hides_its_end_nor_holds_up_the_jobs() -> None:
    memory = MemoryStore(now=lambda: AT)
    theirs = RunKey(b"t" * 32)
    write(memory, 1)
    for number in (2, 3, 1_999_999_998, 1_999_999_999, 2_000_000_000, 2_000_000_001):
        write(memory, number, theirs)
    for _ in range(2):  # the second time after a crash
        lost_logs.tell(memory, GONE)
    found = [
        number
        for number in range(2_000_000_000, 2_000_000_010)
        if memory.head(keys.log_segment("job", "abcdefghij-1", 0, number))
    ]
    assert found == [2_000_000_000, 2_000_000_001, 2_000_000_002]
    assert proved(memory, 2_000_000_002).endswith(b"missing here: gone\n")
