"""Whatever is put, taken, confirmed and killed in between: every byte in order, or counted."""

from __future__ import annotations

import tempfile
from dataclasses import dataclass, field
from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

from bastion.agent.logs.lines import LogRecord
from bastion.agent.logs.spool import LogSpool

CHUNK = 200
CAPACITY = 1000

put = st.tuples(st.just("put"), st.lists(st.integers(10, 150), min_size=1, max_size=12))
step = st.tuples(st.sampled_from(["take", "confirm", "die"]), st.just([]))


@dataclass
class History:
    """A spool, what was put into it, and what was confirmed."""

    folder: Path
    sizes: list[int] = field(default_factory=list)
    stored: list[LogRecord] = field(default_factory=list)
    taken: list[LogRecord] | None = None

    def __post_init__(self) -> None:
        self.open()

    def open(self) -> None:
        self.spool = LogSpool(
            self.folder,
            chunk_bytes=CHUNK,
            cost_of=lambda record: len(record.data),
            monotonic=lambda: 0.0,
            capacity_bytes=CAPACITY,
        )
        self.spool.open()

    def act(self, what: str, sizes: list[int]) -> None:
        if what == "put":
            self.put(sizes)
        elif what == "die":
            before = self.taken
            self.open()
            self.taken = None
            if before is not None:
                self.act("take", [])
                assert self.taken == before
        elif what == "take" and self.spool.waiting():
            again = self.spool.take()
            assert self.taken in (None, again)
            self.taken = again
        elif what == "confirm" and self.taken is not None:
            self.spool.confirm()
            self.stored += self.taken
            self.taken = None
        held = sum(path.stat().st_size for path in self.folder.iterdir())
        assert held == self.spool.held_bytes <= CAPACITY

    def put(self, sizes: list[int]) -> None:
        records = []
        for size in sizes:
            line = b"%d " % len(self.sizes)
            records.append(LogRecord(stream="stdout", at=float(len(self.sizes)), data=line.ljust(size, b".")))
            self.sizes.append(size)
        self.spool.put(records)

    def finish(self) -> None:
        while self.spool.waiting():
            self.act("take", [])
            self.act("confirm", [])

    def check(self) -> None:
        """What is stored accounts for every byte that was put, in order, and instants never go back."""
        expected = 0
        gaps: list[int] = []
        for record in self.stored:
            if record.stream == "gap":
                gaps.append(int(record.data.split()[0]))
                continue
            number = int(record.data.split()[0])
            assert sum(gaps) == sum(self.sizes[expected:number])
            assert len(record.data) == self.sizes[number]
            expected, gaps = number + 1, []
        assert sum(gaps) == sum(self.sizes[expected:])
        instants = [record.at for record in self.stored]
        assert instants == sorted(instants)


@given(st.lists(st.one_of(put, step), max_size=40))
def test_the_log_holds_every_byte_in_order_or_says_exactly_how_many_are_missing(actions: list[tuple[str, list[int]]]):
    with tempfile.TemporaryDirectory() as folder:
        history = History(Path(folder))
        for what, sizes in actions:
            history.act(what, sizes)
        history.finish()
        history.check()
        assert list(Path(folder).iterdir()) == []
