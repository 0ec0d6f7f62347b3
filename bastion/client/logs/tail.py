"""Find where the last lines of many workers begin: read segments back from the end. Pure; keeps only instants.

Invariant: each of the last lines by the workers' instants is at or after the positions found. A line that began before
such a position counts, and is shown without its beginning.
"""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain, islice

from bastion.client.logs.pieces import read_pieces

# Workers read back at a time: those whose unread lines may be the latest.
_WORKERS_AT_ONCE = 8
# Each time a worker is read back by twice as many segments, up to this number.
_STRIDE_MAX = 8


@dataclass(slots=True)
class _Place:
    """How far one worker was read back.

    Attributes:
        back: Numbers before those in `next`, descending.
        next: Numbers to read next.
        read: Numbers read, descending, each with its last instant.
        first_at: The first instant in the last of these that has one.
    """

    back: Iterator[int]
    next: deque[int] = field(default_factory=deque)
    read: list[tuple[int, str]] = field(default_factory=list)
    first_at: str = ""
    stride: int = 1

    def step(self) -> None:
        self.next.extend(islice(self.back, max(0, self.stride - len(self.next))))


class TailSearch:
    """The search of the last `lines` lines. `segments`: each worker's, ascending.

    `checked`: Whether some of these may be others', so that even without lines the last one is looked at.
    """

    def __init__(self, lines: int, segments: Mapping[int, Sequence[range]], *, checked: bool = False) -> None:
        self._lines = lines  # 0: begin after everything
        self._checked = checked
        # A heap of the latest instants.
        self._latest: list[str] = []
        self._places: dict[int, _Place] = {}
        for worker, ranges in segments.items():
            place = self._places[worker] = _Place(chain.from_iterable(map(reversed, reversed(ranges))))
            place.step()

    @property
    def found(self) -> int:
        """Number of lines found, at most `lines`."""
        return len(self._latest)

    @property
    def starts(self) -> dict[int, int]:
        """Each worker's first segment to read; beyond its last one if none of its lines counts.

        Workers without segments are left out.
        """
        starts: dict[int, int] = {}
        for worker, place in self._places.items():
            numbers = [number for number, _ in place.read] or ([] if self._checked else list(place.next))
            if numbers:
                counts = self._lines or not self._checked
                wanted = [number for number, last_at in place.read if counts and last_at >= self._horizon]
                starts[worker] = min(wanted, default=numbers[0] + 1)
        return starts

    @property
    def _horizon(self) -> str:
        """The instant of the earliest of the last lines known so far; empty if there are too few."""
        return self._latest[0] if self._latest and len(self._latest) >= self._lines else ""

    def wanted(self) -> list[tuple[int, int]]:
        """Workers and segments to read next; none when the search is over."""
        if self._lines == 0:
            unknown = {worker: place for worker, place in self._places.items() if self._checked and not place.read}
            return [(worker, place.next[0]) for worker, place in unknown.items() if place.next]
        left = {worker: place for worker, place in self._places.items() if place.next}
        unread = [worker for worker, place in left.items() if not place.first_at]
        if not unread:
            # A line at the same instant as the earliest one may count, too.
            open_ones = [worker for worker, place in left.items() if place.first_at >= self._horizon]
            unread = sorted(open_ones, key=lambda worker: left[worker].first_at, reverse=True)[:_WORKERS_AT_ONCE]
        return [(worker, number) for worker in unread for number in left[worker].next]

    def learn(self, worker: int, number: int, data: bytes | None) -> None:
        """Take the content of a segment (None: it is gone); ignored unless it is that worker's next one."""
        place = self._places[worker]
        if not place.next or place.next[0] != number:
            return
        place.next.popleft()
        self._step(place)
        first = last = ""
        for piece in read_pieces(data or b"", worker=worker, not_before=""):
            first, last = first or piece.at, piece.at
            if piece.ends:
                self._count(piece.at)
        place.read.append((number, last))
        place.first_at = first or place.first_at

    def leave_out(self, worker: int, number: int) -> None:
        """Take note that a segment is another's: it is no place to begin at, or after."""
        place = self._places[worker]
        if place.next and place.next[0] == number:
            place.next.popleft()
            self._step(place)

    def _step(self, place: _Place) -> None:
        if not place.next:
            place.stride = min(2 * place.stride, _STRIDE_MAX)
            place.step()

    def _count(self, at: str) -> None:
        if not self._lines:
            return
        if len(self._latest) < self._lines:
            heapq.heappush(self._latest, at)
        elif at > self._latest[0]:
            heapq.heapreplace(self._latest, at)
