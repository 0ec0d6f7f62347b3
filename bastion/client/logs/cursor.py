"""How far one worker's log segments were read, what a listing showed beyond, and what is held of it.

Layer: client, pure: `bastion.client.logs.reader` does the requests.

Invariants:

* Numbers are taken in ascending order, each once.
* A hole in the numbers counts as missing only when a second listing shows it too: a segment may be created while the
  folder is being listed. The second one may follow at once, since it begins after the first one has ended.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from bastion.client.logs.pieces import LogPiece, gap, read_pieces

# How many occasions for a further look are let pass, at most, after vain ones.
_PASSES_MAX = 7


@dataclass(slots=True)
class _Appetite:
    """Whether a further look is worth it: the oftener it was vain, the fewer occasions are used."""

    vain: int = 0
    passes: int = 0

    def takes(self) -> bool:
        """Whether this occasion is used."""
        if self.passes:
            self.passes -= 1
            return False
        return True

    def learn(self, *, found: bool) -> None:
        self.vain = 0 if found else self.vain + 1
        self.passes = 0 if found else min(2**self.vain - 1, _PASSES_MAX)


@dataclass(slots=True, eq=False)
class Cursor:
    """One worker's place.

    Attributes:
        folder: The key prefix of its segments.
        seq: The last segment that was taken; numbers from 1.
        seen: How many segments it is known to have had: what a listing of the whole run shows of it again.
        reserve: Contents taken and not yet read, and texts of gaps, in order.
        ahead: The next piece; None if nothing is in memory.
        at: The instant of the last piece that was given.
        lately: Looks in a row, up to the last one, that found something (negative: that found nothing).
        probes: Looks since the last listing.
        waking: For a look because another worker has news.
        going_on: For a second look at once, because the last looks have all found something.
    """

    worker: int
    folder: str
    seq: int = 0
    seen: int = 0
    reserve: deque[bytes | str] = field(default_factory=deque)
    ahead: LogPiece | None = None
    at: str = ""
    lately: int = 0
    probes: int = 0
    waking: _Appetite = field(default_factory=_Appetite)
    going_on: _Appetite = field(default_factory=_Appetite)
    # What is left of the segment that is being given out, and its size.
    _pieces: Iterator[LogPiece] = field(default_factory=lambda: iter(()))
    _reading: int = 0
    # Beyond `seq`, ascending and apart from each other, as the last listing showed them.
    _known: deque[range] = field(default_factory=deque)
    # Numbers with which holes begin: in the last listing, and in the one before as well.
    _holes: frozenset[int] = frozenset()
    _missing: frozenset[int] = frozenset()

    # -- what there is ------------------------------------------------------------------------------------------

    @property
    def key(self) -> str:
        """The last segment that was taken, as the start of a listing; empty before the first."""
        return f"{self.folder}{self.seq:010d}" if self.seq else ""

    @property
    def held(self) -> int:
        """Segments in memory."""
        return len(self.reserve) + (self.ahead is not None)

    @property
    def held_bytes(self) -> int:
        """What they take."""
        return sum(map(len, self.reserve)) + self._reading

    @property
    def behind(self) -> bool:
        """Whether there is anything to give out, in memory or in the bucket."""
        return self.ahead is not None or bool(self.reserve) or bool(self._known)

    @property
    def lacking(self) -> bool:
        """Whether it has nothing in memory while the bucket has more."""
        return not self.held and bool(self.next_numbers(1))

    @property
    def known(self) -> tuple[range, ...]:
        """The segments beyond its place, as the last listing showed them."""
        return tuple(self._known)

    @property
    def at_hole(self) -> bool:
        """Whether it cannot go on before another listing."""
        return not self.held and bool(self._known) and not self.next_numbers(1)

    def next_numbers(self, limit: int) -> list[int]:
        """The segments to fetch next, up to a hole that nobody has confirmed."""
        numbers: list[int] = []
        expected = self.seq + 1
        for known in self._known:
            if known.start > expected and expected not in self._missing:
                break
            numbers += known[: limit - len(numbers)]
            if len(numbers) == limit:
                break
            expected = known.stop
        return numbers

    # -- what was learned ---------------------------------------------------------------------------------------

    def listed(self, numbers: Sequence[range], *, unwanted: int = 0) -> bool:
        """A whole listing from `seq` on shows these; returns whether something is new.

        Args:
            numbers: Ascending, apart from each other, all beyond `seq`.
            unwanted: Segments up to this one are passed over, and what is missing among them is not told.
        """
        before = self._known[-1].stop if self._known else self.seq + 1
        for known in numbers:
            self.seen += len(range(max(known.start, before), known.stop))
        self._known = deque(numbers)
        self.skip_to(unwanted)
        holes, expected = set(), self.seq + 1
        for known in self._known:
            if known.start > expected:
                holes.add(expected)
            expected = known.stop
        self._missing = self._holes & holes
        self._holes = frozenset(holes)
        self.probes = 0
        return expected > max(before, self.seq + 1)

    def skip_to(self, number: int) -> None:
        """Passes over all segments up to that one, as if they had been taken."""
        if number <= self.seq:
            return
        self.seq = number
        while self._known and self._known[0].stop <= number + 1:
            self._known.popleft()
        if self._known and self._known[0].start <= number:
            self._known[0] = range(number + 1, self._known[0].stop)

    def take(self, number: int, data: bytes | None) -> None:
        """The content of the next segment; None: it was deleted after it had been listed."""
        if number > self.seq + 1:
            which = (
                f"segment {number - 1} is" if number == self.seq + 2 else f"segments {self.seq + 1} to {number - 1} are"
            )
            self.reserve.append(f"{which} not in the bucket any more")
        self.reserve.append(f"segment {number} was deleted from the bucket" if data is None else data)
        if not self._known:
            self.seen += 1  # found without a listing
        self.skip_to(number)

    def looked(self, *, found: bool) -> None:
        """Remembers what a look was worth."""
        self.lately = max(self.lately, 0) + 1 if found else min(self.lately, 0) - 1
        if found:
            self.waking.learn(found=True)

    # -- giving out ---------------------------------------------------------------------------------------------

    def unpack(self) -> None:
        """Fills `ahead` from what is in memory, if it is empty."""
        while self.ahead is None:
            self.ahead = next(self._pieces, None)
            if self.ahead is not None:
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
        """The next piece, which must be there."""
        piece = self.ahead
        assert piece is not None
        self.at = piece.at
        self.ahead = None
        self.unpack()
        return piece
