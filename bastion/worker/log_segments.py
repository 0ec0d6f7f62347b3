"""Log segments in the bucket: `logs/<job>.d/<run>/worker-<i>/<seq>`, created once each, in order, without holes.

Layer: worker; reaches the bucket through the port. `SegmentStore` does one store operation at a time and raises;
`Uploader` is the thread that repeats them until they succeed.

Invariants:

* A sequence number is never used for two contents: segments are create-only, and after an agent's restart numbering
  goes on behind the last one found.
* A segment counts as stored only when the store said so, or the same bytes are found under its key.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable

from bastion.core import keys
from bastion.core.errors import NotFound, PreconditionFailed, StoreError
from bastion.ports import ObjectMeta, ObjectStore
from bastion.worker.backoff import Backoff
from bastion.worker.log_buffer import LogBuffer, Segment
from bastion.worker.log_lines import last_instant

_log = logging.getLogger(__name__)

# On a bucket in the cloud every segment costs a write, so the interval grows while output goes on.
LOCAL_INTERVAL_SECONDS = 0.5
REMOTE_FIRST_INTERVAL_SECONDS = 1.0
REMOTE_LAST_INTERVAL_SECONDS = 10.0


class SegmentStore:
    """The segments of one host of one run, and its raw log if it has one."""

    def __init__(self, store: ObjectStore, *, job: str, run: str, host: int, raw_log: str = "") -> None:
        self._store = store
        self._job, self._run, self._host = job, run, host
        self._raw_log = raw_log
        self._raw_generation: int | None = None
        self._raw_size = 0
        self._raw_doubt: tuple[int, bytes] | None = None
        self._last_seq: int | None = None

    def open(self) -> float:
        """Finds the last segment of an earlier agent.

        Returns:
            The instant of its last line, or 0: new lines must not be earlier.

        Raises:
            StoreError: try again.
        """
        folder = keys.log_segments(self._job, self._run, self._host)
        last = ""
        for meta in self._store.list(folder):
            if meta.key.removeprefix(folder).isdigit():
                last = meta.key
        if not last:
            self._last_seq = 0
            return 0.0
        at = last_instant(self._store.get(last).data)
        self._last_seq = int(last.removeprefix(folder))
        return at

    def write(self, text: bytes) -> None:
        """Stores one segment; calling again with the same text after an error does not store it twice.

        Raises:
            StoreError: nobody knows whether it is stored; call again with the same text.
        """
        if self._last_seq is None:
            self.open()
        assert self._last_seq is not None
        while True:
            key = keys.log_segment(self._job, self._run, self._host, self._last_seq + 1)
            try:
                self._store.put(key, text, generation=0)
            except PreconditionFailed:
                # Ours whose reply was lost, or one of an agent that died a moment ago.
                if self._content(key) != text:
                    self._last_seq += 1
                    continue
            self._last_seq += 1
            return

    def append_raw(self, raw: bytes) -> None:
        """Adds to the raw log, if there is one.

        Raises:
            StoreError: call again with the same bytes.
        """
        if not self._raw_log or not raw:
            return
        if self._raw_generation is None:
            meta = self._store.head(self._raw_log)
            if self._raw_landed(meta, raw):
                return
            self._raw_generation, self._raw_size = (0, 0) if meta is None else (meta.generation, meta.size)
        # Only a fresh look can tell what became of an append that fails: it may have landed, or somebody else's did.
        generation, self._raw_generation = self._raw_generation, None
        self._raw_doubt = (self._raw_size, raw)
        meta = self._store.append(self._raw_log, raw, generation=generation)
        self._raw_doubt = None
        self._raw_generation, self._raw_size = meta.generation, meta.size

    def _raw_landed(self, meta: ObjectMeta | None, raw: bytes) -> bool:
        """Whether an append of these bytes whose reply was lost has added them, and nobody anything since."""
        if meta is None or self._raw_doubt is None:
            return False
        size, doubted = self._raw_doubt
        if doubted != raw or meta.size != size + len(raw) or self._store.get(self._raw_log, start=size).data != raw:
            return False
        self._raw_doubt = None
        self._raw_generation, self._raw_size = meta.generation, meta.size
        return True

    def _content(self, key: str) -> bytes | None:
        try:
            return self._store.get(key).data
        except NotFound:
            return None


class Uploader:
    """The thread that moves segments from the buffer to the bucket, for ever until the buffer is closed and empty."""

    def __init__(
        self,
        segments: SegmentStore,
        buffer: LogBuffer,
        *,
        poll_seconds: float,
        backoff: Backoff,
        on_done: Callable[[], None],
    ) -> None:
        self._segments = segments
        self._buffer = buffer
        self._local = poll_seconds <= 1.0
        self._backoff = backoff
        self._on_done = on_done
        self._abandoned = threading.Event()
        self._thread = threading.Thread(target=self._work, name="log-uploader", daemon=True)
        self.done = False

    def start(self) -> None:
        self._thread.start()

    def abandon(self) -> None:
        """Ends the thread after the operation it is in, whatever is left."""
        self._abandoned.set()
        self._buffer.close()

    @property
    def is_alive(self) -> bool:
        return self._thread.is_alive()

    def join(self, timeout_seconds: float) -> None:
        """Waits for the thread's end."""
        self._thread.join(timeout_seconds)

    def _work(self) -> None:
        interval = LOCAL_INTERVAL_SECONDS if self._local else REMOTE_FIRST_INTERVAL_SECONDS
        while self._buffer.wait_ready(interval) and not self._abandoned.is_set():
            segment = self._buffer.take()
            if not self._store(segment):
                return
            self._buffer.confirm()
            if not self._local:
                interval = min(interval * 1.5, REMOTE_LAST_INTERVAL_SECONDS)
        self.done = not self._abandoned.is_set()
        self._on_done()

    def _store(self, segment: Segment) -> bool:
        def write_text() -> None:
            self._segments.write(segment.text)

        def append_raw() -> None:
            self._segments.append_raw(segment.raw)

        return self._until_stored(write_text) and self._until_stored(append_raw)

    def _until_stored(self, operation: Callable[[], None]) -> bool:
        self._backoff.reset()
        while not self._abandoned.is_set():
            try:
                operation()
                return True
            except StoreError as error:  # noqa: PERF203 - repeating is what the loop is for
                delay = self._backoff.next()
                _log.warning("log upload failed, again in %.1f s: %s", delay, error)
                self._abandoned.wait(delay)
        return False
