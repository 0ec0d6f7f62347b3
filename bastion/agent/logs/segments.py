"""A host's log in the bucket: segments, and for a job without a slice also the raw log. One store operation at a time.

Segments are `logs/<job>.d/<run>/worker-<i>/<seq>` (`proxy-<i>/` for the storage proxy), created once each, in order.
Others can create objects in the same folder, so each segment ends with its proof, and a number that is taken is left.

Invariants:
* A sequence number never has two contents: segments are create-only, and a restarted agent continues after the last
  one that this run's hosts wrote.
* A segment is stored if the store said so or its key holds the same bytes.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass

from bastion.core import limits
from bastion.core.bucket import keys, segment_proofs
from bastion.core.bucket.gap_lines import last_instant
from bastion.core.errors import AccessDenied, NotFound, ObjectTooLarge, PreconditionFailed
from bastion.core.run_keys import RunKey
from bastion.ports import ObjectMeta, ObjectStore

SEGMENT_MAX_BYTES = 4 * 1024 * 1024
# A reader of a job holds some segments of each host in memory.
_SEGMENTS_OF_ALL_HOSTS_BYTES = 16 * 1024 * 1024
# So many numbers in a row that others took are tried one by one, before a listing shows the next free one.
_TAKEN_IN_A_ROW = 3
# So many of the newest segments a restarted agent reads to find its own last one.
_OPENED_MAX = 64
_TAKEN_NOTE = "bastion: left out at "

_log = logging.getLogger(__name__)


def segment_bytes(hosts: int) -> int:
    return max(limits.LOG_SEGMENT_MAX_BYTES, min(SEGMENT_MAX_BYTES, _SEGMENTS_OF_ALL_HOSTS_BYTES // hosts))


@dataclass(slots=True)
class _Taken:
    """Numbers that objects of others have, since the last segment of ours."""

    first: int
    last: int

    def line(self, text: bytes) -> bytes:
        """What the log says of them, with the time of the text's first line."""
        which = f"{self.first:010d}" if self.first == self.last else f"{self.first:010d} to {self.last:010d}"
        at = text.partition(b" ")[0]
        note = f"{_TAKEN_NOTE}{which}: objects that prove no host of this attempt, where its log goes on"
        return b"%s stderr F %s\n" % (at, note.encode())


class SegmentStore:
    def __init__(
        self,
        store: ObjectStore,
        *,
        job: str,
        run: str,
        host: int,
        run_key: RunKey,
        source: keys.LogSource = "worker",
    ) -> None:
        self._store = store
        self._folder = keys.log_segments(job, run, host, source=source)
        self._run_key = run_key
        self._last_seq: int | None = None
        self._earlier = b""  # the last segment of an earlier agent
        self._taken: _Taken | None = None

    def open(self) -> float:
        """Find the last segment of an earlier agent; return its last line's time, or 0: new lines are not earlier."""
        newest: deque[int] = deque(maxlen=_OPENED_MAX)
        last = 0
        for number in self._numbers(after=0):
            if number <= limits.SEQUENCE_NUMBER_BELIEVED_MAX:
                newest.append(number)
                last = number
        self._earlier = b""
        for number in reversed(newest):
            text = segment_proofs.proved(self._key(number), self._content(number), self._run_key.public)
            if text is not None:
                self._earlier, last = text, number
                break
        else:
            # All are others', or nearly: before the last one may be ours, and readers are beyond those.
            last = last if len(newest) == _OPENED_MAX else 0
        self._last_seq = last
        return last_instant(self._earlier)

    def write(self, text: bytes) -> None:
        """Store one segment. After a StoreError call again with the same text; it is not stored twice."""
        if self._last_seq is None:
            self.open()
        assert self._last_seq is not None
        earlier, self._earlier = self._earlier, b""
        if text in (earlier, _without_note(earlier)):
            return
        in_a_row = 0
        while not self._create(self._last_seq + 1, text):
            self._last_seq += 1
            in_a_row += 1
            if in_a_row == _TAKEN_IN_A_ROW:
                in_a_row = 0
                free = segment_proofs.free_number(self._numbers(after=self._last_seq), self._last_seq)
                if self._taken is not None:
                    self._taken.last = free - 1
                self._last_seq = free - 1
        self._last_seq += 1
        self._taken = None

    def _create(self, number: int, text: bytes) -> bool:
        """Store the segment with that number; return whether it has it. Raises StoreError if that is unknown."""
        key = self._key(number)
        whole = text if self._taken is None else self._taken.line(text) + text
        data = segment_proofs.with_proof(key, whole, self._run_key)
        try:
            self._store.put(key, data, generation=0)
        except (PreconditionFailed, AccessDenied) as error:
            # Who may only create gets one or the other for an object that exists.
            if isinstance(error, AccessDenied) and self._store.head(key) is None:
                raise
            found = self._content(number)
            if found == data:
                return True  # our write whose reply was lost
            if segment_proofs.proved(key, found, self._run_key.public) is None:
                self._note_taken(number)
            return False
        return True

    def _note_taken(self, number: int) -> None:
        if self._taken is None:
            self._taken = _Taken(number, number)
            _log.warning("others wrote where the log goes on: %s", self._key(number))
        self._taken.last = number

    def _numbers(self, *, after: int) -> Iterator[int]:
        """The numbers in the folder beyond that one, ascending."""
        for meta in self._store.list(self._folder, start_after=self._key(after) if after else ""):
            number = keys.segment_number(meta.key.removeprefix(self._folder))
            if number is not None:
                yield number

    def _content(self, number: int) -> bytes:
        try:
            return self._store.get(self._key(number), max_bytes=limits.LOG_SEGMENT_READ_MAX_BYTES).data
        except (NotFound, ObjectTooLarge):
            return b""  # another's

    def _key(self, number: int) -> str:
        return keys.segment_in(self._folder, number)


def _without_note(segment: bytes) -> bytes:
    line, _, rest = segment.partition(b"\n")
    return rest if line.partition(b" stderr F ")[2].startswith(_TAKEN_NOTE.encode()) else segment


class RawLog:
    """The object that holds a command's unmodified output; others append to it too.

    An agent that is killed after an append, before it records it, repeats those bytes; segments are not repeated.
    """

    def __init__(self, store: ObjectStore, key: str) -> None:
        self._store = store
        self._key = key
        self._generation: int | None = None
        self._size = 0
        self._doubt: tuple[int, bytes] | None = None

    def append(self, raw: bytes) -> None:
        """Append bytes; after a StoreError, call again with the same ones."""
        if self._generation is None:
            meta = self._store.head(self._key)
            if self._has_landed(meta, raw):
                return
            self._generation, self._size = (0, 0) if meta is None else (meta.generation, meta.size)
        # Only a new look shows whether a failed append took effect, or someone else's did.
        generation, self._generation = self._generation, None
        self._doubt = (self._size, raw)
        meta = self._store.append(self._key, raw, generation=generation)
        self._doubt = None
        self._generation, self._size = meta.generation, meta.size

    def _has_landed(self, meta: ObjectMeta | None, raw: bytes) -> bool:
        """Whether an append with a lost reply added these bytes, and nobody appended since."""
        if meta is None or self._doubt is None:
            return False
        size, doubted = self._doubt
        if doubted != raw or meta.size != size + len(raw) or self._store.get(self._key, start=size).data != raw:
            return False
        self._doubt = None
        self._generation, self._size = meta.generation, meta.size
        return True
