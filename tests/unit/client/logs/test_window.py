"""Which part of a job's output is read, in what order it is merged, and how much of it is held."""

from __future__ import annotations

import random
import tracemalloc

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bastion.client import LogPiece, LogWindow, RunLogs
from bastion.client.logs.pieces import LineJoiner
from bastion.client.logs.tail import TailSearch
from bastion.client.logs.window import LastLines
from bastion.core import limits
from bastion.core.bucket import keys
from bastion.core.bucket.keys import Run
from bastion.core.errors import StoreUnavailable
from bastion.core.instants import to_rfc3339
from bastion.ports import ObjectStore, StoredObject
from bastion.testing.counting_store import CountingStore
from bastion.testing.faulty_store import FaultyStore
from bastion.testing.manual_clock import ManualClock
from bastion.testing.memory_store import MemoryStore

RUN = Run("aaaaaaaaaa", 1)


def segment(store: ObjectStore, worker: int, seq: int, *lines: tuple[float, str]) -> None:
    text = "".join(f"{to_rfc3339(at)} stdout F {line}\n" for at, line in lines)
    store.put(keys.log_segment("job", str(RUN), worker, seq), text.encode(), generation=0)


def drained(logs: RunLogs) -> list[LogPiece]:
    return [piece for pieces in logs.drain() for piece in pieces]


def texts(pieces: list[LogPiece]) -> list[str]:
    return [piece.text.decode() for piece in pieces]


def piece(text: bytes, *, worker: int = 0, at: str = "", ends: bool = True, stream: str = "stdout") -> LogPiece:
    return LogPiece(worker=worker, at=at, stream=stream, ends=ends, text=text)


# -- memory ------------------------------------------------------------------------------------------------------------


class Flood(CountingStore):
    """Each segment has 4 MiB, made when it is read; its lines rise with its number."""

    SIZE = 4 * 1024 * 1024
    LINE = 16 * 1024

    def get(self, key: str, *, start: int = 0, max_bytes: int = limits.READ_MAX_BYTES) -> StoredObject:
        stored = super().get(key, start=start, max_bytes=max_bytes)
        line = stored.data.removesuffix(b"\n")
        line += b"." * (self.LINE - len(line) - 1) + b"\n"
        return StoredObject(meta=stored.meta, data=line * (self.SIZE // self.LINE))


def test_the_segments_of_many_flooding_workers_do_not_fill_the_memory() -> None:
    connections, workers, segments = 8, 40, 2
    store = Flood(MemoryStore())
    for seq in range(1, segments + 1):
        for worker in range(workers):
            segment(store, worker, seq, (1000.0 * seq, f"{seq} "))
    logs = RunLogs(store, "job", RUN, hosts=workers, connections=connections)
    lines: dict[int, list[int]] = {worker: [] for worker in range(workers)}
    tracemalloc.start()
    try:
        for pieces in logs.drain():
            for each in pieces:
                lines[each.worker].append(int(each.text.split()[0]))
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    per_segment = Flood.SIZE // Flood.LINE
    assert all(numbers == [1] * per_segment + [2] * per_segment for numbers in lines.values())
    # What may be held, what is under way (twice, while a text is being made), and what is given out.
    assert peak <= (64 + 2 * 4 * connections + 8) * 1024 * 1024
    assert workers * segments * Flood.SIZE > 2 * peak


def test_a_look_at_flooding_workers_asks_for_no_more_than_there_is_room_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("bastion.client.logs.reader._BYTES_HELD", 3 * Flood.SIZE)
    store = Flood(MemoryStore())
    logs = RunLogs(store, "job", RUN, hosts=10)
    assert logs.poll() == []
    for seq in (1, 2, 3):
        for worker in range(10):
            segment(store, worker, seq, (1000.0 * seq, f"{seq} "))
    counts = dict.fromkeys(range(10), 0)
    for look in range(400):
        before = len(store.read)
        for each in logs.poll():
            counts[each.worker] += 1
        assert len(store.read) - before <= 10 * (3 + 2), f"look {look}"
        assert sum(cursor.held_bytes for cursor in logs._cursors.values()) <= 4 * Flood.SIZE
    assert set(counts.values()) == {3 * Flood.SIZE // Flood.LINE}


def test_lines_without_an_end_of_many_workers_cost_bounded_memory_together() -> None:
    shown: list[LogPiece] = []
    joiner = LineJoiner(shown.append, max_bytes=100, max_bytes_of_all=250)
    for worker, size in enumerate((60, 90, 80)):
        joiner.add(piece(b"x" * size, worker=worker, ends=False, at=str(worker)))
    assert shown == []
    joiner.add(piece(b"x" * 30, worker=3, ends=False))
    assert [(line.worker, line.ends, len(line.text)) for line in shown] == [(1, True, 90)]
    joiner.finish()
    assert sorted(line.worker for line in shown) == [0, 1, 2, 3]


# -- since when --------------------------------------------------------------------------------------------------------


def test_segments_written_long_before_the_wanted_lines_are_not_read(clock: ManualClock) -> None:
    store = CountingStore(MemoryStore(now=clock.now))
    began = clock.now()
    for seq in range(1, 101):
        for worker in (0, 1):
            segment(store, worker, seq, (clock.now(), str(seq)))
        clock.advance(60)
    found = drained(RunLogs(store, "job", RUN, hosts=2, since=began + 90 * 60))
    numbers = [int(text) for text in texts(found)]
    assert set(range(91, 101)) <= set(numbers)
    assert min(numbers) == 81  # clocks may be ten minutes apart
    assert len(store.read) == 2 * 20
    assert [each for each in found if each.stream == "gap"] == []


def test_a_run_without_any_wanted_line_reads_nothing_and_goes_on_with_what_comes(clock: ManualClock) -> None:
    store = CountingStore(MemoryStore(now=clock.now))
    for seq in (1, 2, 3):
        segment(store, 0, seq, (clock.now(), str(seq)))
    clock.advance(3600)
    logs = RunLogs(store, "job", RUN, hosts=1, since=clock.now())
    assert logs.poll() == []
    assert store.read == []
    segment(store, 0, 4, (clock.now(), "4"))
    assert texts(logs.poll()) == ["4"]


def test_a_line_is_wanted_from_its_instant_on_and_a_gap_matches_anything() -> None:
    window = LogWindow(since=1000.0, matches=lambda line: b"loss" in line)
    before, at = to_rfc3339(999.999999), to_rfc3339(1000.0)
    assert not window.wants(piece(b"loss", at=before))
    assert window.wants(piece(b"loss", at=at))
    assert not window.wants(piece(b"other", at=at))
    assert window.wants(piece(b"17 bytes", at=at, stream="gap"))
    assert window.lines_back is None
    assert LogWindow(tail=3).lines_back == 3
    assert not LogWindow().narrow


# -- the last lines ----------------------------------------------------------------------------------------------------


@given(seed=st.integers(0, 2**32), workers=st.integers(1, 6), tail=st.integers(0, 40), faults=st.booleans())
def test_the_last_lines_are_those_of_the_whole_output(seed: int, workers: int, tail: int, faults: bool) -> None:
    chance = random.Random(seed)
    memory = MemoryStore()
    for worker in range(workers):
        at, number = chance.uniform(0, 100), 0
        for seq in range(1, chance.randint(0, 15) + 1):
            lines = []
            for _ in range(chance.choice((0, 1, 1, 5))):
                at += chance.choice((0.0, 0.0, 1.0, 20.0))
                number += 1
                lines.append((at, f"{worker}/{number}"))
            segment(memory, worker, seq, *lines)
    store = FaultyStore(memory, seed=seed, before=0.2 if faults else 0.0)
    logs = RunLogs(store, "job", RUN, hosts=workers, tail=tail)
    for _ in range(1000):
        try:
            found = logs.locate()
            break
        except StoreUnavailable:
            continue
    store.enabled = False
    whole = texts(drained(RunLogs(memory, "job", RUN, hosts=workers)))
    shown = texts(drained(logs))
    assert found == min(tail, len(whole))
    assert shown[len(shown) - found :] == whole[len(whole) - found :]
    if tail == 0:
        assert shown == []
    segment(memory, 0, 100, (10_000.0, "new"))
    assert texts(drained(logs))[-1] == "new"


def test_the_last_lines_of_many_long_logs_take_few_reads() -> None:
    store = CountingStore(MemoryStore())
    for seq in range(1, 51):
        for worker in range(64):
            segment(store, worker, seq, *((seq + n / 100, f"{worker}/{seq}/{n}") for n in range(10)))
    logs = RunLogs(store, "job", RUN, hosts=64, tail=100)
    assert logs.locate() == 100
    assert len(store.read) == 64
    shown = texts(drained(logs))
    assert len(shown) == 640
    assert shown[-1] == "63/50/9"


def test_of_a_talker_and_silent_workers_the_talker_is_read_back_in_few_steps() -> None:
    segments = {worker: [range(1, 11)] for worker in range(99)} | {99: [range(1, 200)]}
    search = TailSearch(50, segments)
    steps, reads = 0, 0
    while wanted := search.wanted():
        steps, reads = steps + 1, reads + len(wanted)
        for worker, number in wanted:
            search.learn(worker, number, f"{to_rfc3339(number)} stdout F x\n".encode())
    assert search.found == 50
    assert search.starts[99] == 150
    assert {search.starts[worker] for worker in range(99)} == {11}
    assert steps <= 12
    assert reads <= 300


def test_the_search_of_the_last_lines_goes_on_after_a_deleted_segment() -> None:
    search = TailSearch(2, {0: [range(1, 3), range(5, 7)]})
    order = []
    while wanted := search.wanted():
        for worker, number in wanted:
            order.append(number)
            search.learn(worker, number, None if number == 6 else f"{to_rfc3339(number)} stdout F x\n".encode())
    assert order == [6, 5, 2, 1]
    assert search.starts == {0: 2}


def test_last_lines_are_held_until_released_and_bounded_in_bytes() -> None:
    shown: list[str] = []
    last = LastLines(3, shown.append, max_bytes=100)
    for text in ("a", "b", "c", "d"):
        last.add(text, 30)
    assert shown == []
    last.release()
    assert shown == ["b", "c", "d"]
    assert not last.cut
    last.add("e", 1000)
    assert shown[-1] == "e"

    large = LastLines(3, shown.append, max_bytes=100)
    for text in ("f", "g", "h"):
        large.add(text, 60)
    large.release()
    assert shown[-1] == "h"
    assert large.cut
