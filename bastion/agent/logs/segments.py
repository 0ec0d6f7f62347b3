"""A host's log in the bucket: segments, and for a job without a slice also the raw log. One store operation at a time.

Segments are `logs/<job>.d/<run>/worker-<i>/<seq>` (`proxy-<i>/` for the storage proxy), created once each, in order,
without gaps.

Invariants:
* A sequence number never has two contents: segments are create-only, and a restarted agent continues after the last
  one.
* A segment is stored if the store said so or its key holds the same bytes.
"""

from __future__ import annotations

from bastion.core import limits
from bastion.core.bucket import keys
from bastion.core.bucket.gap_lines import last_instant
from bastion.core.errors import NotFound, ObjectTooLarge, PreconditionFailed
from bastion.ports import ObjectMeta, ObjectStore

SEGMENT_MAX_BYTES = 4 * 1024 * 1024
# A reader of a job holds some segments of each host in memory.
_SEGMENTS_OF_ALL_HOSTS_BYTES = 16 * 1024 * 1024


def segment_bytes(hosts: int) -> int:
    return max(limits.LOG_SEGMENT_MAX_BYTES, min(SEGMENT_MAX_BYTES, _SEGMENTS_OF_ALL_HOSTS_BYTES // hosts))


class SegmentStore:
    def __init__(self, store: ObjectStore, *, job: str, run: str, host: int, source: keys.LogSource = "worker") -> None:
        self._store = store
        self._source = source
        self._job, self._run, self._host = job, run, host
        self._last_seq: int | None = None
        self._earlier = b""  # the last segment of an earlier agent

    def open(self) -> float:
        """Find the last segment of an earlier agent; return its last line's time, or 0: new lines are not earlier."""
        folder = keys.log_segments(self._job, self._run, self._host, source=self._source)
        last = 0
        for meta in self._store.list(folder):
            number = keys.segment_number(meta.key.removeprefix(folder))
            if number is not None and number <= limits.SEQUENCE_NUMBER_BELIEVED_MAX:
                last = number
        self._earlier = b""
        if last:
            key = keys.log_segment(self._job, self._run, self._host, last, source=self._source)
            self._earlier = self._content(key) or b""
        self._last_seq = last
        return last_instant(self._earlier)

    def write(self, text: bytes) -> None:
        """Store one segment. After a StoreError call again with the same text; it is not stored twice."""
        if self._last_seq is None:
            self.open()
        assert self._last_seq is not None
        earlier, self._earlier = self._earlier, b""
        if text == earlier:
            return
        while True:
            key = keys.log_segment(self._job, self._run, self._host, self._last_seq + 1, source=self._source)
            try:
                self._store.put(key, text, generation=0)
            except PreconditionFailed:
                # Our write whose reply was lost, or one of an agent that just died.
                if self._content(key) != text:
                    self._last_seq += 1
                    continue
            self._last_seq += 1
            return

    def _content(self, key: str) -> bytes | None:
        try:
            return self._store.get(key, max_bytes=limits.LOG_SEGMENT_READ_MAX_BYTES).data
        except (NotFound, ObjectTooLarge):
            return None  # another's


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
