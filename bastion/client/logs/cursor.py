"""One worker's position in its log segments, what a listing showed beyond it, and what is in memory. Pure.

Invariants:

* Numbers are taken in ascending order, each once.
* A gap in the numbers counts as missing only if a second listing, begun after the first, shows it too: a segment may be
  created during a listing.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field

from bastion.client.logs.pieces import LogPiece, gap, read_pieces

# Maximum number of opportunities skipped after vain looks.
_PASSES_MAX = 7


@dataclass(slots=True)
class _LookBackoff:
    """Backoff for optional looks: the more were vain, the more opportunities it skips."""

    vain: int = 0
    passes: int = 0

    def takes(self) -> bool:
        """Whether to use this opportunity."""
        if self.passes:
            self.passes -= 1
            return False
        return True

    def learn(self, *, found: bool) -> None:
        self.vain = 0 if found else self.vain + 1
        self.passes = 0 if found else min(2**self.vain - 1, _PASSES_MAX)


@dataclass(slots=True, eq=False)
class Cursor:
    """One worker's position.

    Attributes:
        folder: The key prefix of its segments.
        seq: The last segment taken; numbers start at 1.
        seen: Number of segments it is known to have had: a listing of the whole run shows them again.
        reserve: Contents taken and not yet read, and texts of gaps, in order.
        next_piece: None if nothing is in memory.
        at: The instant of the last piece given.
        lately: Consecutive recent looks that found something (negative: that found nothing).
        probes: Looks since the last listing.
        waking: Backoff for a look because another worker has news.
        going_on: Backoff for a second look at once, after looks that all found something.
        left_out: Numbers beyond `seq` that objects have which prove no host of the run.
    """

    worker: int
    folder: str
    seq: int = 0
    seen: int = 0
    reserve: deque[bytes | str] = field(default_factory=deque)
    next_piece: LogPiece | None = None
    at: str = ""
    lately: int = 0
    probes: int = 0
    waking: _LookBackoff = field(default_factory=_LookBackoff)
    going_on: _LookBackoff = field(default_factory=_LookBackoff)
    left_out: set[int] = field(default_factory=set)
    # The rest of the segment that is being given, and its size.
    _pieces: Iterator[LogPiece] = field(default_factory=lambda: iter(()))
    _reading: int = 0
    # Segments beyond `seq` in the last listing, ascending and disjoint.
    _known: deque[range] = field(default_factory=deque)
    # First missing numbers, in the last listing and in the one before as well.
    _holes: frozenset[int] = frozenset()
    _missing: frozenset[int] = frozenset()

    # -- what there is ------------------------------------------------------------------------------------------

    @property
    def key(self) -> str:
        """The key of the last segment taken, from which to list; empty before the first."""
        return f"{self.folder}{self.seq:010d}" if self.seq else ""

    @property
    def held(self) -> int:
        """Number of segments in memory."""
        return len(self.reserve) + (self.next_piece is not None)

    @property
    def held_bytes(self) -> int:
        """Their size."""
        return sum(map(len, self.reserve)) + self._reading

    @property
    def behind(self) -> bool:
        """Whether there is more to give, in memory or in the bucket."""
        return self.next_piece is not None or bool(self.reserve) or bool(self._known)

    @property
    def lacking(self) -> bool:
        """Whether memory is empty and the bucket has more."""
        return not self.held and bool(self.next_numbers(1))

    @property
    def known(self) -> tuple[range, ...]:
        """The segments beyond the position, by the last listing."""
        return tuple(self._known)

    @property
    def at_hole(self) -> bool:
        """Whether another listing must come first."""
        return not self.held and bool(self._known) and not self.next_numbers(1)

    def next_numbers(self, limit: int) -> list[int]:
        """The next segments to fetch, up to an unconfirmed gap."""
        numbers: list[int] = []
        expected = self._next_after(self.seq)
        for known in self._known:
            if known.start > expected and expected not in self._missing:
                break
            numbers += known[: limit - len(numbers)]
            if len(numbers) == limit:
                break
            expected = self._next_after(known.stop - 1)
        return numbers

    def _next_after(self, number: int) -> int:
        """The next number that may be the host's."""
        number += 1
        while number in self.left_out:
            number += 1
        return number

    # -- what was learned ---------------------------------------------------------------------------------------

    def listed(self, numbers: Sequence[range], *, unwanted: int = 0) -> bool:
        """Record a complete listing from `seq` on; return whether it has news.

        Args:
            numbers: Ascending and disjoint, all beyond `seq`.
            unwanted: Skip segments up to this one, and report none of them as missing.
        """
        before = self._known[-1].stop if self._known else self.seq + 1
        if self.left_out:
            numbers = list(_without(numbers, self.left_out))
        for known in numbers:
            self.seen += len(range(max(known.start, before), known.stop))
        self._known = deque(numbers)
        self.skip_to(unwanted)
        holes, expected = set(), self._next_after(self.seq)
        for known in self._known:
            if known.start > expected:
                holes.add(expected)
            expected = self._next_after(known.stop - 1)
        self._missing = self._holes & holes
        self._holes = frozenset(holes)
        self.probes = 0
        return bool(self._known) and self._known[-1].stop > max(before, self.seq + 1)

    def skip_to(self, number: int) -> None:
        """Skip all segments up to that one."""
        if number <= self.seq:
            return
        self.seq = number
        if self.left_out:
            self.left_out = {each for each in self.left_out if each > number}
        while self._known and self._known[0].stop <= number + 1:
            self._known.popleft()
        if self._known and self._known[0].start <= number:
            self._known[0] = range(number + 1, self._known[0].stop)

    def take(self, number: int, data: bytes | None) -> None:
        """Take the content of the next segment; None: it was deleted after the listing."""
        first = self._next_after(self.seq)
        if number > first:
            which = f"segment {first} is" if number == first + 1 else f"segments {first} to {number - 1} are"
            self.reserve.append(f"{which} no longer in the bucket")
        self.reserve.append(f"segment {number} was deleted from the bucket" if data is None else data)
        if not self._known:
            self.seen += 1  # found without a listing
        self.skip_to(number)

    def leave_out(self, number: int) -> None:
        """Pass over an object that proves no host of the run.

        Only the host's next number can be passed for good: beyond a hole, the host may still write what is missing.
        """
        if number <= self.seq:
            return
        self.left_out.add(number)
        self.skip_to(self._next_after(self.seq) - 1)
        if number > self.seq:
            self._known = deque(_without(self._known, {number}))

    def looked(self, *, found: bool) -> None:
        """Record whether a look found something."""
        self.lately = max(self.lately, 0) + 1 if found else min(self.lately, 0) - 1
        if found:
            self.waking.learn(found=True)

    # -- giving out ---------------------------------------------------------------------------------------------

    def unpack(self) -> None:
        """Fill `next_piece` from memory, if it is empty."""
        while self.next_piece is None:
            self.next_piece = next(self._pieces, None)
            if self.next_piece is not None:
                return
            self._reading = 0
            if not self.reserve:
                return
            content = self.reserve.popleft()
            self._reading = len(content)
            if isinstance(content, str):
                self._pieces = iter((gap(self.worker, self.at, content),))
            else:
                self._pieces = read_pieces(content, worker=self.worker, not_before=self.at)

    def give(self) -> LogPiece:
        """Return the next piece, which must exist."""
        piece = self.next_piece
        assert piece is not None
        self.at = piece.at
        self.next_piece = None
        self.unpack()
        return piece


def _without(numbers: Iterable[range], left_out: set[int]) -> Iterator[range]:
    """The same numbers without those that are left out."""
    cuts = sorted(left_out)
    for known in numbers:
        start = known.start
        for cut in cuts[bisect_left(cuts, known.start) : bisect_left(cuts, known.stop)]:
            if cut > start:
                yield range(start, cut)
            start = cut + 1
        if start < known.stop:
            yield range(start, known.stop)
