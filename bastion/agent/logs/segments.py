"""What a host's log is in the bucket: segments, and for a job without a slice the raw log.

Layer: worker; reaches the bucket through the port, does one store operation at a time and raises; `log_upload` repeats.

Segments are `logs/<job>.d/<run>/worker-<i>/<seq>`, created once each, in order, without holes; those of the encrypting
storage proxy beside the command lie in `proxy-<i>/`.

Invariants:

* A sequence number is never used for two contents: segments are create-only, and after an agent's restart numbering
  goes on behind the last one found.
* A segment counts as stored only when the store said so, or the same bytes are found under its key.
"""

from __future__ import annotations

from bastion.core import limits
from bastion.core.bucket import keys
from bastion.core.bucket.gap_lines import last_instant
from bastion.core.errors import NotFound, ObjectTooLarge, PreconditionFailed
from bastion.ports import ObjectMeta, ObjectStore

SEGMENT_MAX_BYTES = 4 * 1024 * 1024
# Who follows a job holds some segments of each of its hosts in memory.
_SEGMENTS_OF_ALL_HOSTS_BYTES = 16 * 1024 * 1024


def segment_bytes(hosts: int) -> int:
    """The most that a segment holds, of a job of so many hosts."""
    return max(limits.LOG_SEGMENT_MAX_BYTES, min(SEGMENT_MAX_BYTES, _SEGMENTS_OF_ALL_HOSTS_BYTES // hosts))


class SegmentStore:
    """The segments of one host of one run, of its command or of the proxy beside it."""

    def __init__(self, store: ObjectStore, *, job: str, run: str, host: int, source: keys.LogSource = "worker") -> None:
        self._store = store
        self._source = source
        self._job, self._run, self._host = job, run, host
        self._last_seq: int | None = None
        self._earlier = b""  # the last segment of an earlier agent

    def open(self) -> float:
        """Finds the last segment of an earlier agent.

        Returns:
            The instant of its last line, or 0: new lines must not be earlier.

        Raises:
            StoreError: try again.
        """
        folder = keys.log_segments(self._job, self._run, self._host, source=self._source)
        last = ""
        for meta in self._store.list(folder):
            if meta.key.removeprefix(folder).isdigit():
                last = meta.key
        if not last:
            self._last_seq = 0
            return 0.0
        self._earlier = self._content(last) or b""
        self._last_seq = int(last.removeprefix(folder))
        return last_instant(self._earlier)

    def write(self, text: bytes) -> None:
        """Stores one segment; calling again with the same text after an error does not store it twice.

        Nor does an agent that was restarted and finds in its spool what had been stored last.

        Raises:
            StoreError: nobody knows whether it is stored; call again with the same text.
        """
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
                # Ours whose reply was lost, or one of an agent that died a moment ago.
                if self._content(key) != text:
                    self._last_seq += 1
                    continue
            self._last_seq += 1
            return

    def _content(self, key: str) -> bytes | None:
        try:
            return self._store.get(key, max_bytes=limits.LOG_SEGMENT_READ_MAX_BYTES).data
        except (NotFound, ObjectTooLarge):
            return None  # the latter is no segment of a host


class RawLog:
    """The object that gets a command's output as it is; others append to it too.

    An agent that is killed between an append and its note of it repeats those bytes; the segments do not.
    """

    def __init__(self, store: ObjectStore, key: str) -> None:
        self._store = store
        self._key = key
        self._generation: int | None = None
        self._size = 0
        self._doubt: tuple[int, bytes] | None = None

    def append(self, raw: bytes) -> None:
        """Adds bytes at the end.

        Raises:
            StoreError: call again with the same bytes.
        """
        if self._generation is None:
            meta = self._store.head(self._key)
            if self._has_landed(meta, raw):
                return
            self._generation, self._size = (0, 0) if meta is None else (meta.generation, meta.size)
        # Only a fresh look can tell what became of an append that fails: it may have landed, or somebody else's did.
        generation, self._generation = self._generation, None
        self._doubt = (self._size, raw)
        meta = self._store.append(self._key, raw, generation=generation)
        self._doubt = None
        self._generation, self._size = meta.generation, meta.size

    def _has_landed(self, meta: ObjectMeta | None, raw: bytes) -> bool:
        """Whether an append of these bytes whose reply was lost has added them, and nobody anything since."""
        if meta is None or self._doubt is None:
            return False
        size, doubted = self._doubt
        if doubted != raw or meta.size != size + len(raw) or self._store.get(self._key, start=size).data != raw:
            return False
        self._doubt = None
        self._generation, self._size = meta.generation, meta.size
        return True
