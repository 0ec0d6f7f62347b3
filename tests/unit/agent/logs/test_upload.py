"""From the spool to the bucket, turn by turn."""

import heapq
import threading
from pathlib import Path
from random import Random

import pytest

from bastion.agent.backoff import Backoff
from bastion.agent.logs.lines import LogRecord, raw_of
from bastion.agent.logs.pace import Pace
from bastion.agent.logs.segments import SegmentStore
from bastion.agent.logs.spool import LogSpool
from bastion.agent.logs.upload import Uploader
from bastion.core.bucket import keys, segment_proofs
from bastion.core.run_keys import RunKey
from bastion.testing.faulty_store import FaultyStore
from bastion.testing.manual_clock import ManualClock
from bastion.testing.memory_store import MemoryStore

RUN = "abcdefghij-1"


class Lane:
    """One host's spool and uploader, by a clock that the test moves."""

    def __init__(
        self,
        folder: Path,
        store,
        clock: ManualClock,
        *,
        host: int = 0,
        hosts: int = 1,
        capacity: int = 10**9,
        backoff: float = 0.25,
    ) -> None:
        self.host = host
        self.clock = clock
        self.store = store
        self.urgent = False
        self.began: list[float] = []
        self.spool = LogSpool(
            folder,
            chunk_bytes=1000,
            cost_of=lambda record: len(record.data),
            monotonic=clock.monotonic,
            capacity_bytes=capacity,
        )
        self.spool.open()
        self.segments = SegmentStore(store, job="job", run=RUN, host=host, run_key=RunKey(bytes(32)))
        self.done = threading.Event()
        self.uploader = Uploader(
            self.spool,
            text_of=raw_of,
            write=self._write,
            pace=Pace.of_host(host, hosts, local=False, now=clock.now(), monotonic=clock.monotonic()),
            backoff=Backoff(Random(host), first_seconds=backoff),
            monotonic=clock.monotonic,
            is_urgent=lambda: self.urgent,
            on_done=self.done.set,
        )

    def _write(self, text: bytes) -> None:
        self.began.append(self.clock.monotonic())
        self.segments.write(text)

    def put(self, *lines: str) -> None:
        self.spool.put([LogRecord(stream="stdout", at=self.clock.now(), data=line.encode() + b"\n") for line in lines])

    def run(self, seconds: float) -> None:
        """Lets the uploader act until so much time is over."""
        end = self.clock.monotonic() + seconds
        while (delay := self.uploader.step()) is not None and self.clock.monotonic() + delay <= end:
            self.clock.advance(delay)
        self.clock.advance(max(0.0, end - self.clock.monotonic()))

    def finish(self) -> None:
        self.spool.close()
        while (delay := self.uploader.step()) is not None:
            self.clock.advance(delay)

    def log(self) -> list[str]:
        metas = self.store.list(keys.log_segments("job", RUN, self.host))
        return (
            b"".join(segment_proofs.without_proof(self.store.get(meta.key).data) for meta in metas)
            .decode()
            .splitlines()
        )


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


def test_lines_that_come_together_are_one_segment(tmp_path: Path, clock: ManualClock):
    lane = Lane(tmp_path, MemoryStore(), clock)
    lane.put("a", "b")
    lane.put("c")
    lane.run(2.0)
    assert len(lane.began) == 1
    assert lane.log() == ["a", "b", "c"]


def test_a_host_that_prints_all_the_time_writes_every_four_thirds_of_a_second(tmp_path: Path, clock: ManualClock):
    lane = Lane(tmp_path, MemoryStore(), clock)
    for number in range(600):
        lane.put(f"{number}")
        lane.run(0.1)
    assert len(lane.began) == pytest.approx(60 / 1.3, abs=2)
    lane.finish()
    assert lane.log() == [f"{number}" for number in range(600)]


def test_every_line_of_the_first_hosts_is_in_the_bucket_within_two_seconds(tmp_path: Path, clock: ManualClock):
    lane = Lane(tmp_path, MemoryStore(), clock, host=15, hosts=4096)
    rng = Random(5)
    for number in range(30):
        lane.put(f"{number}")
        printed = clock.monotonic()
        while f"{number}" not in lane.log():
            lane.run(0.02)
        assert clock.monotonic() - printed < 1.5
        lane.run(rng.choice([0.0, 0.3, 1.0, 7.0]))


@pytest.mark.parametrize("hosts", [16, 40, 300])
def test_all_hosts_together_write_at_most_twenty_a_second_through_an_outage_and_back(
    tmp_path: Path, clock: ManualClock, hosts: int
):
    faulty = FaultyStore(MemoryStore())
    lanes = [Lane(tmp_path / str(host), faulty, clock, host=host, hosts=hosts) for host in range(hosts)]
    began = clock.monotonic()
    agenda = [(began, host) for host in range(hosts)]
    faulty.enabled = False
    while agenda[0][0] < began + 40.0:
        at, host = heapq.heappop(agenda)
        clock.advance(max(0.0, at - clock.monotonic()))
        faulty.enabled = 10.0 < at - began < 20.0
        if faulty.enabled:
            faulty.fail_next("put")
        lanes[host].put("x" * 600)
        delay = lanes[host].uploader.step()
        assert delay is not None
        heapq.heappush(agenda, (clock.monotonic() + min(max(delay, 0.001), 2.0), host))
    instants = sorted(instant for lane in lanes for instant in lane.began)
    for place, begun in enumerate(instants):
        assert sum(1 for instant in instants[place : place + 40] if instant < begun + 0.99) <= 20


@pytest.mark.parametrize("seconds", [1, 60, 3600])
def test_an_outage_of_any_length_loses_nothing_that_fits_the_spool(tmp_path: Path, clock: ManualClock, seconds: int):
    store = FaultyStore(MemoryStore(), before=1.0)
    lane = Lane(tmp_path, store, clock)
    for number in range(100):
        lane.put(f"{number}".ljust(200, "."))
        lane.run(seconds / 100)
    store.enabled = False
    lane.finish()
    assert lane.log() == [f"{number}".ljust(200, ".") for number in range(100)]


def test_an_outage_beyond_the_spool_leaves_the_end_and_an_exact_count_of_the_rest(tmp_path: Path, clock: ManualClock):
    store = FaultyStore(MemoryStore(), before=1.0)
    lane = Lane(tmp_path, store, clock, capacity=20_000)
    for number in range(1000):
        lane.put(f"{number}".ljust(99, "."))
        lane.run(0.1)
    store.enabled = False
    lane.finish()
    log = lane.log()
    (gap,) = (line for line in log if " gap " in line)
    lines = [line for line in log if " gap " not in line]
    assert log[0].startswith("0.")
    assert log[-1].startswith("999.")
    assert len(lines) * 100 + int(gap.split()[3]) == 1000 * 100


def test_what_is_left_at_the_end_goes_turn_by_turn(tmp_path: Path, clock: ManualClock):
    lane = Lane(tmp_path, MemoryStore(), clock)
    lane.put(*(f"{number}".ljust(900, ".") for number in range(5)))
    began = clock.monotonic()
    lane.finish()
    assert clock.monotonic() - began <= 5 * 0.05 + 0.01


def test_a_host_that_goes_away_waits_for_no_turn(tmp_path: Path, clock: ManualClock):
    lane = Lane(tmp_path, MemoryStore(), clock, host=4000, hosts=4096)
    lane.put(*(f"{number}".ljust(900, ".") for number in range(5)))
    lane.urgent = True
    began = clock.monotonic()
    lane.finish()
    assert clock.monotonic() == began
    assert len(lane.log()) == 5


def test_a_command_that_still_saves_its_work_takes_turns_though_its_host_goes_away(tmp_path: Path, clock: ManualClock):
    lane = Lane(tmp_path, MemoryStore(), clock)
    lane.urgent = True
    for number in range(100):
        lane.put(str(number))
        lane.run(0.1)
    assert len(lane.began) <= 9
    lane.finish()
    assert len(lane.log()) == 100


def test_an_agent_that_dies_between_a_segment_and_its_note_of_it_stores_nothing_twice(
    tmp_path: Path, clock: ManualClock
):
    store = MemoryStore()
    first = Lane(tmp_path, store, clock)
    first.put("a".ljust(900, "."), "b".ljust(900, "."))
    # Written, and never confirmed.
    first.segments.write(b"".join(record.data for record in first.spool.take()))
    again = Lane(tmp_path, store, clock)
    again.put("c")
    again.finish()
    assert [line.rstrip(".") for line in again.log()] == ["a", "b", "c"]


def test_the_thread_repeats_until_everything_is_stored(tmp_path: Path):
    # Each look at this clock moves it, so that turns come at once.
    class Hasty(ManualClock):
        def monotonic(self) -> float:
            self.advance(0.5)
            return super().monotonic()

    store = FaultyStore(MemoryStore(), seed=3, before=0.4, after=0.2)
    lane = Lane(tmp_path, store, Hasty(), backoff=0.0)
    lane.uploader.start()
    for number in range(20):
        lane.put(f"{number}".ljust(900, "."))
    lane.spool.close()
    assert lane.done.wait(20.0)
    assert lane.uploader.done
    store.enabled = False
    assert [line.rstrip(".") for line in lane.log()] == [f"{number}" for number in range(20)]
    assert store.failed


def test_an_abandoned_thread_ends_although_the_store_stays_away_and_leaves_the_spool(
    tmp_path: Path, clock: ManualClock
):
    lane = Lane(tmp_path, FaultyStore(MemoryStore(), before=1.0), clock)
    lane.put("a")
    lane.uploader.start()
    lane.uploader.abandon()
    lane.uploader.join(20.0)
    assert not lane.uploader.is_alive
    assert not lane.uploader.done
    assert lane.spool.waiting()
