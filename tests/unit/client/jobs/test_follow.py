"""Following and reading logs through the Python API: late output, outages, a daemon that is gone."""

from __future__ import annotations

import contextlib
import itertools
import json
import threading

import pytest

from bastion.client import (
    CaughtUp,
    Client,
    Ended,
    Event,
    FollowOptions,
    Logged,
    LogPiece,
    Noted,
    Progressed,
    RunLogs,
    follow,
    runs_of,
)
from bastion.client.daemon_health import DaemonHealth
from bastion.client.logs.pieces import LineJoiner
from bastion.core import limits
from bastion.core.bucket import keys
from bastion.core.bucket.keys import Run
from bastion.core.errors import Refused, StoreUnavailable
from bastion.core.instants import to_rfc3339
from bastion.core.model import job_spec
from bastion.ports import ObjectStore, StoredObject
from bastion.processes import host_identity
from bastion.testing.cluster import BASTION, ROOT, Cluster
from bastion.testing.counting_store import CountingStore
from bastion.testing.faulty_store import FaultyStore
from bastion.testing.manual_clock import ManualClock
from bastion.testing.memory_store import MemoryStore
from bastion.testing.scripted_hosts import runs_for
from bastion.wiring.roots import Root
from tests.support.job_specs import new_spec
from tests.support.past_attempts import add_attempts

RUN = Run("aaaaaaaaaa", 1)


class SteppingClock:
    """Each sleep is a step of the simulated bastion."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self.now = cluster.clock.now
        self.monotonic = cluster.clock.monotonic

    def sleep(self, seconds: float) -> None:
        self._cluster.step(seconds)


def client_of(cluster: Cluster, store: ObjectStore | None = None) -> Client:
    bucket, _, bastion = ROOT.rpartition("/")
    return Client(store or cluster.store, Root(bucket=bucket, bastion=bastion), SteppingClock(cluster))


def new(name: str = "job") -> job_spec.JobSpec:
    return new_spec(name, bastion=BASTION, command="x", user_id="alice", project_id="a")


def segment(store: ObjectStore, seq: int, *lines: str, worker: int = 0, at: float = 0.0, run: Run = RUN) -> None:
    text = "".join(f"{to_rfc3339(at or float(seq))} {line}\n" for line in lines)
    store.put(keys.log_segment("job", str(run), worker, seq), text.encode(), generation=0)


def proved(cluster: Cluster, seq: int, line: str, *, run: Run) -> None:
    text = f"{to_rfc3339(float(seq))} {line}\n".encode()
    cluster.run_keys.write_segment(cluster.store, "job", str(run), 0, seq, text)


def texts(pieces: list[LogPiece]) -> list[str]:
    return [piece.text.decode() for piece in pieces]


# -- submitting --------------------------------------------------------------------------------------------------------


def test_the_uid_given_at_submission_is_the_one_that_the_daemon_draws(cluster: Cluster) -> None:
    submitted = client_of(cluster).submit(new())
    cluster.settle(2)
    record = cluster.record("job")
    assert record is not None
    assert submitted.uid == record.uid


def test_a_job_that_is_ending_takes_no_update(cluster: Cluster) -> None:
    client = client_of(cluster)
    submitted = client.submit(new())
    cluster.settle(4)
    client.cancel("job", by="alice")
    cluster.run_until(lambda: cluster.status("job") in ("CANCELLING", "CLEANING"))
    document = json.loads(new().to_bytes())
    document["metadata"]["version"] = 1
    with pytest.raises(Refused, match=r"is ending \("):
        client.submit(job_spec.from_document(document, name="job"))
    assert cluster.record("job").uid == submitted.uid  # type: ignore[union-attr]


# -- following ---------------------------------------------------------------------------------------------------------


def test_all_output_that_lies_there_at_the_end_comes_before_the_end(cluster: Cluster) -> None:
    client = client_of(cluster)
    cluster.hosts.scripts["job"] = runs_for(1)
    submitted = client.submit(new())
    cluster.run_until(lambda: cluster.result("job"))
    add_attempts(cluster, "job", [2])
    for attempt in (1, 2):
        for seq in range(1, 40):
            proved(cluster, seq, f"stdout F {attempt}/{seq}", run=Run(submitted.uid, attempt))
    events = list(follow(client, "job", submitted.uid))
    shown = [text for event in events if isinstance(event, Logged) for text in texts(event.pieces)]
    assert shown == [f"{attempt}/{seq}" for attempt in (1, 2) for seq in range(1, 40)]
    assert isinstance(events[-1], Ended)
    assert events[-1].exit_code == 0


def test_what_earlier_attempts_wrote_is_shown_while_the_job_waits_for_another_one(cluster: Cluster) -> None:
    cluster.hosts.scripts["job"] = runs_for(10**9)
    submitted = cluster.submit("job", instance_type="tpu-v4-8")
    cluster.run_until(lambda: cluster.slices.live_requests())
    cluster.settle(3)
    for seq in range(1, 11):
        proved(cluster, seq, f"stdout F {seq}", run=Run(submitted, 1))
    for node in cluster.slices.live_requests():
        cluster.slices.lose(node.ref.name)
    cluster.run_until(lambda: (record := cluster.record("job")) and record.attempt is None)
    events: list[Event] = []
    for event in follow(client_of(cluster), "job", submitted, what=FollowOptions(tail=3)):
        events.append(event)
        if isinstance(event, CaughtUp):
            break
    assert cluster.record("job").attempt is None  # type: ignore[union-attr]
    *lines, gap = [text for event in events if isinstance(event, Logged) for text in texts(event.pieces)]
    assert lines == ["9", "10"] and "the host stopped" in gap


def test_a_namesake_that_ends_first_is_not_taken_for_the_job(cluster: Cluster) -> None:
    client = client_of(cluster)
    cluster.hosts.scripts["job"] = runs_for(1, code=3)
    first = client.submit(new())
    cluster.run_until(lambda: cluster.result("job"))
    cluster.hosts.scripts["job"] = runs_for(1, code=4)
    second = client.submit(new())
    cluster.run_until(lambda: (cluster.result("job") or {}).get("uid") == second.uid)
    ends = [list(follow(client, "job", job.uid))[-1] for job in (first, second)]
    assert [end.exit_code for end in ends if isinstance(end, Ended)] == [3, 4]


def test_an_outage_of_the_bucket_is_told_once_and_survived(cluster: Cluster) -> None:
    faulty = FaultyStore(cluster.store, seed=1, before=0.3)
    client = client_of(cluster, faulty)
    faulty.enabled = False
    cluster.hosts.scripts["job"] = runs_for(5, code=6)
    submitted = client.submit(new())
    cluster.run_until(lambda: (record := cluster.record("job")) and record.attempt)
    for seq in range(1, 10):
        proved(cluster, seq, f"stdout F {seq}", run=Run(submitted.uid, 1))
    faulty.enabled = True
    events = list(follow(client, "job", submitted.uid))
    assert isinstance(events[-1], Ended)
    assert events[-1].exit_code == 6
    assert len(faulty.failed) > 3
    shown = [text for event in events if isinstance(event, Logged) for text in texts(event.pieces)]
    assert shown == [str(seq) for seq in range(1, 10)]
    notes = [event.text for event in events if isinstance(event, Noted)]
    assert notes[0].startswith("the bucket does not answer; retrying: ")
    assert notes[1] == "the bucket answers again"
    assert all(a.split()[:3] != b.split()[:3] for a, b in itertools.pairwise(notes))


def test_a_spec_that_is_taken_away_before_it_was_read_ends_the_following(cluster: Cluster) -> None:
    client = client_of(cluster)
    submitted = client.submit(new())
    cluster.store.delete(keys.active("job"), generation=submitted.generation)
    end = list(follow(client, "job", submitted.uid))[-1]
    assert isinstance(end, Ended)
    assert (end.exit_code, end.result) == (143, None)
    assert "deleted or replaced before the scheduler picked it up" in end.message


def test_a_daemon_that_spells_the_root_in_another_way_does_not_lose_the_job(cluster: Cluster) -> None:
    cluster.hosts.scripts["job"] = runs_for(3, code=2)
    client = Client(cluster.store, Root(bucket="/a/link/to", bastion=BASTION), SteppingClock(cluster))
    submitted = client.submit(new())
    events = list(follow(client, "job", submitted.uid, generation=submitted.generation))
    assert isinstance(events[-1], Ended)
    assert events[-1].exit_code == 2
    again = client.submit(new("second"))
    cluster.settle(2)
    assert cluster.record("second").uid == again.uid  # type: ignore[union-attr]


def test_progress_is_told_on_change_only(cluster: Cluster) -> None:
    cluster.hosts.scripts["job"] = runs_for(20)
    submitted = client_of(cluster).submit(new())
    events: list[Event] = list(follow(client_of(cluster), "job", submitted.uid))
    phases = [event.phase for event in events if isinstance(event, Progressed)]
    assert phases[0] == "submitted"
    assert "running" in phases
    assert len(phases) <= 7


# -- logs --------------------------------------------------------------------------------------------------------------


def everything(logs: RunLogs) -> list[str]:
    """The texts that one look gives, with the whole backlog."""
    found = texts(logs.poll())
    while logs.behind:
        found += texts(logs.poll())
    return found


def test_each_poll_gives_only_what_is_new_and_reads_nothing_twice() -> None:
    store = CountingStore(MemoryStore())
    logs = RunLogs(store, "job", RUN, hosts=1)
    segment(store, 1, "stdout F one")
    assert texts(logs.poll()) == ["one"]
    assert logs.poll() == []
    segment(store, 2, "stdout F two")
    assert texts(logs.poll()) == ["two"]
    first, second, third = (keys.log_segment("job", str(RUN), 0, seq) for seq in (1, 2, 3))
    assert [key for key in store.read if key != third] == [first, second, second]  # once in vain
    assert store.calls["list"] == 1


def test_a_segment_that_a_listing_missed_is_waited_for(store: MemoryStore) -> None:
    """As when it was created while the folder was being listed."""
    logs = RunLogs(store, "job", RUN, hosts=1)
    segment(store, 1, "stdout F one")
    segment(store, 3, "stdout F three")
    assert texts(logs.poll()) == ["one"]
    assert logs.behind
    segment(store, 2, "stdout F two")
    assert everything(logs) == ["two", "three"]


def test_a_hole_that_two_listings_show_is_told_as_a_gap() -> None:
    store = CountingStore(MemoryStore())
    for seq in (3, 4, 8):
        segment(store, seq, f"stdout F {seq}")
    logs = RunLogs(store, "job", RUN, hosts=1)
    assert everything(logs) == [
        "segments 1 to 2 are no longer in the bucket",
        "3",
        "4",
        "segments 5 to 7 are no longer in the bucket",
        "8",
    ]
    assert store.calls["list"] == 2


def test_what_lies_behind_a_hole_is_found_in_the_end_and_also_before(store: MemoryStore) -> None:
    logs = RunLogs(store, "job", RUN, hosts=1)
    segment(store, 1, "stdout F one")
    assert everything(logs) == ["one"]
    segment(store, 3, "stdout F three")
    looks = [found for _ in range(40) if (found := everything(logs))]
    assert looks == [["segment 2 is no longer in the bucket", "three"]]
    segment(store, 6, "stdout F six")
    assert [text for pieces in logs.drain() for text in texts(pieces)][-1] == "six"


def test_a_segment_that_is_deleted_after_it_was_listed_is_told_as_a_gap(store: MemoryStore) -> None:
    for seq in range(1, 21):
        segment(store, seq, f"stdout F {seq}")
    logs = RunLogs(store, "job", RUN, hosts=1)
    found = texts(logs.poll())
    key = keys.log_segment("job", str(RUN), 0, 15)
    store.delete(key, generation=store.get(key).meta.generation)
    while logs.behind:
        found += texts(logs.poll())
    assert found == [str(seq) if seq != 15 else "segment 15 was deleted from the bucket" for seq in range(1, 21)]


@pytest.mark.parametrize("connections", [1, 8])
def test_a_failing_request_loses_nothing_and_repeats_nothing(store: MemoryStore, connections: int) -> None:
    for seq in range(1, 30):
        for worker in range(3):
            segment(store, seq, f"stdout F {worker}/{seq}", worker=worker)
    faulty = FaultyStore(store, seed=3, before=0.3)
    logs = RunLogs(faulty, "job", RUN, hosts=3, connections=connections)
    found: list[str] = []
    for _ in range(1000):
        with contextlib.suppress(StoreUnavailable):
            for pieces in logs.drain():
                found += texts(pieces)
            break
    assert found == [f"{worker}/{seq}" for seq in range(1, 30) for worker in range(3)]
    assert len(faulty.failed) > 10


def test_memory_holds_few_segments_of_each_worker_however_many_there_are() -> None:
    store = CountingStore(MemoryStore())
    for seq in range(1, 51):
        for worker in range(3):
            segment(store, seq, "stdout F x", worker=worker)
    logs = RunLogs(store, "job", RUN, hosts=3)
    given = len(logs.poll())
    assert len(store.read) - given <= 3 * 8


def test_segments_are_fetched_concurrently_and_given_in_order() -> None:
    class Slow(CountingStore):
        """Reads wait until three of them are under way."""

        def get(self, key: str, *, start: int = 0, max_bytes: int = limits.READ_MAX_BYTES) -> StoredObject:
            together.wait(timeout=20)
            return super().get(key, start=start, max_bytes=max_bytes)

    together = threading.Barrier(3)
    store = MemoryStore()
    for seq in range(1, 7):
        segment(store, seq, f"stdout F {seq}")
    logs = RunLogs(Slow(store), "job", RUN, hosts=1, connections=3)
    assert everything(logs) == [str(seq) for seq in range(1, 7)]


def test_a_backlog_of_one_worker_does_not_let_the_other_run_ahead(store: MemoryStore) -> None:
    for seq in range(1, 101):
        segment(store, seq, f"stdout F 0/{seq}", worker=0)
    segment(store, 1, "stdout F early", "stdout F again", worker=1, at=50.5)
    segment(store, 2, "stdout F late", worker=1, at=200.0)
    logs = RunLogs(store, "job", RUN, hosts=2)
    everything = [text for pieces in logs.drain() for text in texts(pieces)]
    assert everything.index("early") == 50
    assert everything[-1] == "late"
    assert len(everything) == 103


def test_workers_are_found_without_knowing_how_many_there_are(store: MemoryStore) -> None:
    for worker in (0, 2, 10):
        segment(store, 1, f"stdout F {worker}", worker=worker)
    for name in ("worker-x/0000000001", "worker-02/0000000001", "notes", "worker-0/notes"):
        store.put(f"logs/job.d/{RUN}/{name}", b"foreign", generation=0)
    logs = RunLogs(store, "job", RUN)
    assert [text for pieces in logs.drain() for text in texts(pieces)] == ["0", "2", "10"]
    assert logs.workers == (0, 2, 10)


def test_finding_the_runs_costs_one_listing_each_however_long_their_logs_are() -> None:
    store = CountingStore(MemoryStore())
    for attempt in (1, 2, 10):
        for seq in range(1, 50):
            segment(store, seq, "stdout F x", run=Run("aaaaaaaaaa", attempt))
    segment(store, 1, "stdout F x", run=Run("aaaaaaaaaa", 0))
    store.put("logs/job.d/stray", b"", generation=0)
    assert [str(run) for run in runs_of(store, "job", "aaaaaaaaaa")] == [
        "aaaaaaaaaa-1",
        "aaaaaaaaaa-2",
        "aaaaaaaaaa-10",
        "aaaaaaaaaa-cleanup",
    ]
    assert store.calls["list"] == 5


def test_a_line_without_an_end_is_shown_at_last_and_costs_bounded_memory() -> None:
    shown: list[LogPiece] = []
    joiner = LineJoiner(shown.append, max_bytes=10)
    joiner.add(LogPiece(worker=0, at="", stream="stdout", ends=False, text=b"123456"))
    joiner.add(LogPiece(worker=1, at="", stream="stdout", ends=False, text=b"other"))
    assert shown == []
    joiner.add(LogPiece(worker=0, at="", stream="stdout", ends=False, text=b"789012"))
    assert texts(shown) == ["123456789012"]
    joiner.finish()
    assert texts(shown) == ["123456789012", "other"]


def bar(text: bytes, *, worker: int = 0, ends: bool = False) -> LogPiece:
    return LogPiece(worker=worker, at="", stream="stderr", ends=ends, text=text)


def test_a_progress_bar_is_shown_now_and_then_and_once_when_it_ends() -> None:
    shown: list[LogPiece] = []
    joiner = LineJoiner(shown.append, rewriting=True)
    for second in range(31):
        joiner.add(bar(b"\r%d%%" % second))
        joiner.show_unfinished(float(second), every=10.0)
    assert texts(shown) == ["10%", "20%", "30%"]
    joiner.show_unfinished(90.0, every=10.0)
    assert texts(shown) == ["10%", "20%", "30%"]  # nothing is new
    joiner.add(bar(b"\r99%\r100%", ends=True))
    assert texts(shown)[3:] == ["100%"]
    joiner.add(bar(b"\r1%\r      \rdone", ends=True))
    joiner.add(bar(b"\r50%\r\x20\x20\x20", ends=True))
    assert texts(shown)[4:] == ["done", "50%"]


def test_a_bar_whose_last_state_was_shown_is_not_shown_again_at_its_end() -> None:
    shown: list[LogPiece] = []
    joiner = LineJoiner(shown.append, rewriting=True)
    joiner.add(bar(b"100%\r"))
    for now in (0.0, 5.0, 50.0):
        joiner.show_unfinished(now, every=5.0)
    joiner.add(bar(b"", ends=True))
    joiner.finish()
    assert texts(shown) == ["100%"]


def test_a_line_that_takes_long_to_end_is_continued_in_one_of_its_own() -> None:
    shown: list[LogPiece] = []
    joiner = LineJoiner(shown.append, rewriting=True)
    joiner.add(bar(b"loading ... "))
    joiner.add(bar(b"whole", worker=1, ends=True))
    joiner.show_unfinished(0.0, every=5.0)
    assert texts(shown) == ["whole"]
    joiner.show_unfinished(5.0, every=5.0)
    joiner.add(bar(b"done", ends=True))
    joiner.add(bar(b"", ends=True))
    assert texts(shown) == ["whole", "loading ... ", "done", ""]


def test_without_rewriting_a_carriage_return_is_a_character() -> None:
    shown: list[LogPiece] = []
    joiner = LineJoiner(shown.append)
    joiner.add(bar(b"\r1%"))
    joiner.add(bar(b"\r2%\r", ends=True))
    assert texts(shown) == ["\r1%\r2%\r"]


# -- the daemon's health -----------------------------------------------------------------------------------------------


def lease(store: ObjectStore, **fields: object) -> None:
    meta = store.head(keys.LEASE)
    document = {"owner": "daemon", "epoch": 1, **fields}
    store.put(keys.LEASE, json.dumps(document).encode(), generation=meta.generation if meta else 0)


def test_a_lease_that_moves_is_a_live_daemon_and_one_that_stands_is_not() -> None:
    store, clock = MemoryStore(), ManualClock()
    health = DaemonHealth(store, clock, local=True)
    for renewal in range(20):
        lease(store, renewal=renewal)
        assert health.look() == ""
        clock.advance(2)
    clock.advance(12)
    assert "has not renewed its lease for" in health.look()
    lease(store, renewal=21)
    clock.advance(2)
    assert health.look() == ""


def test_a_dead_process_of_this_machine_and_a_released_lease_are_known_at_once() -> None:
    store, clock = MemoryStore(), ManualClock()
    health = DaemonHealth(store, clock, local=True)
    lease(store, host_identity=host_identity(), process="\u00b2:1")
    assert health.look() == ""
    clock.advance(2)
    lease(store, host_identity=host_identity(), process="1:1")
    assert health.look() == "the daemon (process 1) has died"
    clock.advance(2)
    lease(store, host_identity="elsewhere", process="1:1")
    assert health.look() == ""
    clock.advance(2)
    lease(store, released=True)
    assert health.look().startswith("the daemon has ended")


def test_in_the_cloud_a_lease_that_moves_costs_one_request_a_look_and_is_read_when_it_stands_still() -> None:
    store, clock = CountingStore(MemoryStore()), ManualClock()
    lease(store, renewal=0)
    health = DaemonHealth(store, clock, local=False)
    store.reset()
    for renewal in range(1, 11):
        assert health.look() == ""
        lease(store._store, renewal=renewal)
        clock.advance(20)
    assert (store.calls["head"], store.calls["get"]) == (10, 1)
    lease(store._store, released=True)
    assert health.look() == ""
    clock.advance(20)
    assert health.look() == "the daemon has ended"
    assert store.calls["get"] == 2


def test_a_lease_that_was_given_back_before_the_first_look_is_known_at_once_in_the_cloud_too() -> None:
    store, clock = MemoryStore(), ManualClock()
    lease(store, released=True)
    assert DaemonHealth(store, clock, local=False).look() == "the daemon has ended"


def test_no_lease_at_all_is_given_some_seconds() -> None:
    store, clock = MemoryStore(), ManualClock()
    health = DaemonHealth(store, clock, local=True)
    assert health.look() == ""
    clock.advance(6)
    assert health.look() == "no daemon has ever run here"
