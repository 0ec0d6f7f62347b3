"""The resumable uploads of this proxy: the progress of each, with one request at a time.

Invariants:

* One request at a time changes an upload.
* Bytes that the client was told are stored are with the service, or here in a tail of at most one segment. A tail is
  lost only when the process ends or the upload is evicted from memory.
* An upload that is not in memory is read from its file, and then compared with what the service has.
"""

from __future__ import annotations

import contextlib
import hashlib
import threading
from collections import OrderedDict
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from bastion.proxy.sealed.sealed_stream import START, SealedStream, md5_for
from bastion.proxy.sealed.sealing import Sealing
from bastion.proxy.sealed.segments import TAG_BYTES, plain_offset
from bastion.proxy.uploads.upload_journal import Beginning, JournalFile, Sent, UploadJournal, digest_of
from bastion.storage_wire.refusals import Refusal, invalid

# Each holds a tail of at most 256 KiB.
_UPLOADS_IN_MEMORY = 256


class Spoiled(Refusal):
    """The upload cannot continue; it is cancelled."""


class Session:
    """One sealed upload; used by one thread at a time.

    Attributes:
        edge: What the service has.
        tail: Plaintext after the edge.
        total: Bytes of plaintext; None: unknown so far.
        settled: Whether `edge` is what the service has; else ask it.
    """

    def __init__(self, file: JournalFile, key: bytes, *, settled: bool) -> None:
        beginning = file.beginning
        if beginning.envelope is None:
            raise AssertionError("only a sealed upload has a session")
        self.envelope = beginning.envelope
        self.declared = beginning.declared
        self.key = key
        self.edge = START
        self.tail = b""
        self.total = beginning.total
        self.settled = settled
        self._file = file
        self._sealing = Sealing(key, beginning.envelope.header)
        self._md5 = md5_for(beginning.declared)

    @property
    def received(self) -> int:
        """Bytes of plaintext that the client need not send again."""
        return plain_offset(self.edge.index) + len(self.tail)

    def watch_md5(self) -> bool:
        """Start computing an md5; return whether it will cover all bytes."""
        if self._md5 is None and self.edge == START:
            self._md5 = hashlib.md5(usedforsecurity=False)
        return self._md5 is not None

    def stream(self) -> SealedStream:
        """Return a stream that seals what follows the edge, tail included, without changing the session."""
        md5 = None if self._md5 is None else self._md5.copy()
        return SealedStream(self._sealing, edge=self.edge, md5=md5, most=self.total)

    def note(self, stream: SealedStream, sealed: memoryview) -> memoryview:
        """Record a newly sealed segment, before a byte of it is sent.

        Raises Spoiled (410) if other bytes were sealed in its place before, and Refusal (503) if it cannot be recorded.
        """
        edge = stream.edge
        sent = Sent(edge=edge, end=stream.plain_size, last=stream.complete, tag=bytes(sealed[-TAG_BYTES:]))
        if edge.index > self._file.count:
            self._file.append(sent)
        elif self._file.sent(edge.index - 1) != sent:
            raise Spoiled(
                410,
                "gone",
                "The upload sends other bytes than before in the same place, which must not be encrypted under the "
                "same key; it was cancelled; start a new upload.",
            )
        return sealed

    def advance(self, stream: SealedStream) -> None:
        """The service has everything that this stream has sealed."""
        self.edge = stream.edge
        self._md5 = stream.md5
        self.tail = b""
        self.settled = True

    def settle(self, segments: int) -> None:
        """Continue after that number of segments, which the service has. Raises Spoiled (410) if it is impossible."""
        if 0 < segments <= self._file.count and self._file.sent(segments - 1).last:
            # Send the last one again, because only a request with bytes ends an upload.
            segments -= 1
        if segments != self.edge.index:
            lost = segments < self.edge.index or segments > self._file.count
            if lost or self._md5 is not None:
                raise Spoiled(410, "gone", "The upload cannot continue from what the service has; start a new upload.")
            self.edge = self._file.sent(segments - 1).edge
            self.tail = b""
        self.settled = True

    @property
    def end(self) -> Sent | None:
        """The last segment; None if it was never sent."""
        sent = self._file.sent(self._file.count - 1) if self._file.count else None
        return sent if sent is not None and sent.last else None


class Slot:
    """One upload, for the request that holds it.

    Attributes:
        session: None: not in memory, or over.
        outcome: The object, once the upload has created it.
        fields: The object's fields that the client wants.
    """

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.users = 0
        self.file: JournalFile | None = None
        self.session: Session | None = None
        self.outcome: dict[str, Any] | None = None
        self.fields = ""

    def forget(self) -> None:
        if self.file is not None:
            self.file.remove()
        self.file = self.session = None

    def end(self, outcome: dict[str, Any]) -> None:
        """End the upload with this outcome; the client may not know it yet."""
        self.fields = "" if self.file is None else self.file.beginning.fields
        self.forget()
        self.outcome = outcome


class Resumables:
    """All resumable uploads of one proxy; thread-safe.

    Args:
        folder: For records that survive the process.
        patience_seconds: How long a request waits for the one before it.
        most: Number of idle uploads kept in memory.
    """

    def __init__(self, folder: Path, *, patience_seconds: float = 20.0, most: int = _UPLOADS_IN_MEMORY) -> None:
        self._journal = UploadJournal(folder)
        self._patience_seconds = patience_seconds
        self._most = most
        self._lock = threading.Lock()
        self._slots: OrderedDict[str, Slot] = OrderedDict()

    def begin(self, upload_id: str, beginning: Beginning, key: bytes | None) -> None:
        """Register an upload; `key` is None if its bytes pass through. Raises Refusal (503) if it fails."""
        digest = digest_of(upload_id)
        with self._held(digest) as slot:
            slot.file = self._journal.begin(digest, beginning)
            slot.session = None if key is None else Session(slot.file, key, settled=True)
            slot.outcome = None

    def is_sealed(self, upload_id: str) -> bool:
        """Whether this is an active upload with encrypted bytes. Raises Refusal (503) if its record cannot be read."""
        file = self._journal.find(digest_of(upload_id))
        return file is not None and file.beginning.envelope is not None

    def process_of(self, upload_id: str) -> int | None:
        """The process where an upload began; None: this one, or unknown. Raises like `is_sealed`."""
        digest = digest_of(upload_id)
        with self._lock:
            slot = self._slots.get(digest)
            if slot is not None and (slot.file is not None or slot.outcome is not None):
                return None
        file = self._journal.find(digest)
        return None if file is None else file.beginning.process

    @contextlib.contextmanager
    def hold(
        self, bucket: str, upload_id: str, process: int | None, open_key: Callable[[Beginning], bytes]
    ) -> Iterator[Slot]:
        """Hold the upload for one request; an unknown one has neither file nor outcome.

        Args:
            process: From `process_of`, and found to be this process.
            open_key: Returns the object's key, for an upload that is not in memory.

        Raises Refusal: 503 if another request holds it for too long, it was created just now, or its record cannot be
        read; 400 if it belongs to another bucket.
        """
        digest = digest_of(upload_id)
        with self._held(digest) as slot:
            if slot.file is None and slot.outcome is None:
                found = self._journal.find(digest)
                if found is not None and found.beginning.process != process:
                    # Two processes must not seal under one key.
                    raise Refusal(503, "backendError", "An upload of that name has just started; try again.")
                slot.file = found
            file = slot.file
            if file is not None and file.beginning.bucket != bucket:
                raise invalid("The upload was started for another bucket.")
            if file is None:
                yield slot
                return
            if slot.session is None and file.beginning.envelope is not None:
                slot.session = Session(file, open_key(file.beginning), settled=False)
            with file.opened():
                yield slot

    @contextlib.contextmanager
    def _held(self, digest: str) -> Iterator[Slot]:
        with self._lock:
            slot = self._slots.setdefault(digest, Slot())
            self._slots.move_to_end(digest)
            slot.users += 1
        try:
            if not slot.lock.acquire(timeout=self._patience_seconds):
                raise Refusal(503, "backendError", "Another request of this upload is still active; try again.")
            try:
                yield slot
            finally:
                slot.lock.release()
        finally:
            with self._lock:
                slot.users -= 1
                self._drop_some(digest, slot)

    def _drop_some(self, digest: str, used: Slot) -> None:
        """Drop idle uploads: the one just used if it is unknown, and the oldest beyond the limit."""
        if not used.users and used.file is None and used.outcome is None:
            self._slots.pop(digest, None)
        if len(self._slots) <= self._most:
            return
        idle = [name for name, slot in self._slots.items() if not slot.users]
        for name in idle[: max(0, len(idle) - self._most)]:
            del self._slots[name]
