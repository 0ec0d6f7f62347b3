"""Where the last lines of many workers begin: segments are read back from the end until there are lines enough.

Layer: client, pure: `bastion.client.logs.reader` does the requests. Of what is read only instants are kept.

Invariant: each line that is among the last ones by the workers' own instants lies at or behind the places found. A line
that began in a segment before such a place counts, and is shown without its beginning.
"""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain, islice

from bastion.client.logs.pieces import read_pieces

# So many workers are read back at a time, those whose unread lines may be the latest.
_WORKERS_AT_ONCE = 8
# A worker is read back by twice as many segments each time, up to so many.
_STRIDE_MAX = 8


@dataclass(slots=True)
class _Place:
    """How far back one worker was read.

    Attributes:
        back: Numbers before those in `next`, descending.
        next: Numbers to be read next.
        read: What was read, descending, each with its last instant.
        first_at: The first instant of the last one of these that has any.
    """

    back: Iterator[int]
    next: deque[int] = field(default_factory=deque)
    read: list[tuple[int, str]] = field(default_factory=list)
    first_at: str = ""
    stride: int = 1

    def step(self) -> None:
        self.next.extend(islice(self.back, max(0, self.stride - len(self.next))))


class TailSearch:
    """The search of the last `lines` lines.

    Args:
        segments: Each worker's, ascending.
    """

    def __init__(self, lines: int, segments: Mapping[int, Sequence[range]]) -> None:
        self._lines = lines  # 0: begin behind all that is there
        # The latest instants, the earliest of them first.
        self._latest: list[str] = []
        self._places: dict[int, _Place] = {}
        for worker, ranges in segments.items():
            place = self._places[worker] = _Place(chain.from_iterable(map(reversed, reversed(ranges))))
            place.step()

    @property
    def found(self) -> int:
        """Lines found, at most as many as are searched."""
        return len(self._latest)

    @property
    def starts(self) -> dict[int, int]:
        """The segment of each worker to begin with; workers without any are left out.

        It is behind the worker's last one if none of its lines is among the last ones.
        """
        starts: dict[int, int] = {}
        for worker, place in self._places.items():
            numbers = [number for number, _ in place.read] or list(place.next)
            if numbers:
                wanted = [number for number, last_at in place.read if last_at >= self._horizon]
                starts[worker] = min(wanted, default=numbers[0] + 1)
        return starts

    @property
    def _horizon(self) -> str:
        """The instant of the earliest line among the last ones, of those known; empty if there are too few."""
        return self._latest[0] if self._latest and len(self._latest) >= self._lines else ""

    def wanted(self) -> list[tuple[int, int]]:
        """Workers and the numbers of their segments to be read next; none when the search is over."""
        if self._lines == 0:
            return []
        left = {worker: place for worker, place in self._places.items() if place.next}
        unread = [worker for worker, place in left.items() if not place.first_at]
        if not unread:
            # A line of the instant of the earliest one found may be among the last ones, too.
            open_ones = [worker for worker, place in left.items() if place.first_at >= self._horizon]
            unread = sorted(open_ones, key=lambda worker: left[worker].first_at, reverse=True)[:_WORKERS_AT_ONCE]
        return [(worker, number) for worker in unread for number in left[worker].next]

    def learn(self, worker: int, number: int, data: bytes | None) -> None:
        """The content of a segment; None: it is gone. Passed over unless it is the next one of that worker."""
        place = self._places[worker]
        if not place.next or place.next[0] != number:
            return
        place.next.popleft()
        if not place.next:
            place.stride = min(2 * place.stride, _STRIDE_MAX)
            place.step()
        first = last = ""
        for piece in read_pieces(data or b"", worker=worker, not_before=""):
            first, last = first or piece.at, piece.at
            if piece.ends:
                self._count(piece.at)
        place.read.append((number, last))
        place.first_at = first or place.first_at

    def _count(self, at: str) -> None:
        if len(self._latest) < self._lines:
            heapq.heappush(self._latest, at)
        elif at > self._latest[0]:
            heapq.heapreplace(self._latest, at)
