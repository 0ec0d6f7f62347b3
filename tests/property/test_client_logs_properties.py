"""Whatever the hosts do and whenever it is looked: every line once, each worker's in order, nothing left out."""

from __future__ import annotations

import contextlib
import random
from collections import Counter
from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bastion.client import LogPiece, RunLogs
from bastion.core import limits
from bastion.core.bucket import keys
from bastion.core.bucket.keys import Run
from bastion.core.bucket.objects import ObjectMeta
from bastion.core.errors import StoreUnavailable
from bastion.core.instants import to_rfc3339
from bastion.testing.faulty_store import FaultyStore
from bastion.testing.memory_store import MemoryStore

RUN = Run("aaaaaaaaaa", 1)


class RacyStore(MemoryStore):
    """An object may be missing from the first listing that it could appear in: it was created meanwhile."""

    def __init__(self) -> None:
        super().__init__()
        self.racing: set[str] = set()

    def list(self, prefix: str, *, start_after: str = "", end_before: str = "") -> Iterator[ObjectMeta]:
        for meta in super().list(prefix, start_after=start_after, end_before=end_before):
            if meta.key in self.racing:
                self.racing.discard(meta.key)
            else:
                yield meta


class Hosts:
    """Workers that write numbered lines."""

    def __init__(self, store: RacyStore, count: int) -> None:
        self.store = store
        self.count = count
        self.lines: Counter[int] = Counter()
        self.segments: Counter[int] = Counter()

    def write(self, worker: int, lines: int, at: float, *, racing: bool) -> None:
        text = ""
        for _ in range(lines):
            self.lines[worker] += 1
            text += f"{to_rfc3339(at)} stdout F {self.lines[worker]}\n"
        self.segments[worker] += 1
        key = keys.log_segment("job", str(RUN), worker, self.segments[worker])
        self.store.put(key, text.encode(), generation=0)
        if racing:
            self.store.racing.add(key)


def check(hosts: Hosts, shown: list[LogPiece]) -> None:
    assert not [piece for piece in shown if piece.stream == "gap"]
    for worker in range(hosts.count):
        numbers = [int(piece.text) for piece in shown if piece.worker == worker]
        assert numbers == list(range(1, hosts.lines[worker] + 1))


@given(
    seed=st.integers(0, 2**32),
    count=st.integers(1, 6),
    page=st.integers(1, 12),
    known=st.booleans(),
    faults=st.sampled_from((0.0, 0.1)),
    connections=st.sampled_from((1, 3)),
)
def test_every_line_comes_once_and_in_its_workers_order(
    seed: int, count: int, page: int, known: bool, faults: float, connections: int
) -> None:
    chance = random.Random(seed)
    store = RacyStore()
    hosts = Hosts(store, count)
    faulty = FaultyStore(store, seed=seed, before=faults, after=faults / 2)
    shown: list[LogPiece] = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(limits, "LIST_PAGE_OBJECTS", page)
        logs = RunLogs(faulty, "job", RUN, hosts=count if known else None, connections=connections)
        # Some workers write much, some begin late, some say nothing.
        rates = [chance.choice((0.0, 0.1, 0.5, 0.9)) for _ in range(count)]
        begins = [chance.choice((0, 0, 20, 45)) for _ in range(count)]
        for step in range(60):
            for worker in range(count):
                while step >= begins[worker] and chance.random() < rates[worker]:
                    hosts.write(worker, chance.randint(1, 3), 1000.0 + step, racing=chance.random() < 0.2)
            for _ in range(chance.randint(0, 2)):
                with contextlib.suppress(StoreUnavailable):
                    shown += logs.poll(sparing=chance.random() < 0.8)
        while True:
            with contextlib.suppress(StoreUnavailable):
                # What raced must be over when the job has ended; the listings before the drain used it up.
                store.racing.clear()
                for pieces in logs.drain():
                    shown += pieces
                break
    check(hosts, shown)
    faulty.enabled = False
    assert logs.poll(sparing=True) == []


@given(
    gone=st.sets(st.integers(1, 30), max_size=12),
    count=st.integers(1, 3),
    page=st.integers(1, 40),
    sparing=st.booleans(),
)
def test_what_somebody_deleted_is_told_once_and_exactly(gone: set[int], count: int, page: int, sparing: bool) -> None:
    store = RacyStore()
    hosts = Hosts(store, count)
    for seq in range(1, 31):
        for worker in range(count):
            hosts.write(worker, 1, 1000.0 + seq, racing=False)
    for seq in gone:
        for worker in range(count):
            key = keys.log_segment("job", str(RUN), worker, seq)
            store.delete(key, generation=store.get(key).meta.generation)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(limits, "LIST_PAGE_OBJECTS", page)
        logs = RunLogs(store, "job", RUN, hosts=count)
        shown = logs.poll(sparing=sparing)
        for pieces in logs.drain():
            shown += pieces
    for worker in range(count):
        told: set[int] = set()
        for piece in (piece for piece in shown if piece.worker == worker and piece.stream == "gap"):
            numbers = [int(word) for word in piece.text.split() if word.isdigit()]
            span = set(range(numbers[0], numbers[-1] + 1))
            assert not span & told
            told |= span
        last = max(set(range(1, 31)) - gone)
        assert told == {seq for seq in gone if seq < last}
        kept = [int(piece.text) for piece in shown if piece.worker == worker and piece.stream != "gap"]
        assert kept == [seq for seq in range(1, 31) if seq not in gone]
