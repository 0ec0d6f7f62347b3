"""The resumable uploads that go through this proxy: how far each is, and whose turn it is.

Layer: proxy. Invariants:

* One request at a time changes an upload.
* What the client was told that we have is either with the service, or lies here as the tail of at most one segment;
  only the end of this process, or of an upload's place among the latest ones, loses a tail.
* An upload that is not in memory is known from its file, and then first compared with what the service has.
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
    """The upload cannot go on; it is cancelled."""


class Session:
    """One upload of an object that is sealed; used by one thread at a time.

    Attributes:
        key: The object's.
        edge: Up to which the service has it.
        tail: Plaintext after the edge.
        total: Bytes of plaintext; None: not known yet.
        settled: Whether `edge` is what the service has; False: it must be asked.
    """

    def __init__(self, file: JournalFile, key: bytes, *, settled: bool) -> None:
        beginning = file.beginning
        if beginning.envelope is None:
            raise AssertionError("only what is sealed has such a session")
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
        """Computes an md5 from now on; whether it will be that of all bytes."""
        if self._md5 is None and self.edge == START:
            self._md5 = hashlib.md5(usedforsecurity=False)
        return self._md5 is not None

    def stream(self) -> SealedStream:
        """Seals what comes after the edge, the tail included, without changing anything here."""
        md5 = None if self._md5 is None else self._md5.copy()
        return SealedStream(self._sealing, edge=self.edge, md5=md5, most=self.total)

    def note(self, stream: SealedStream, sealed: memoryview) -> memoryview:
        """Notes the segment that a stream has just sealed; to be called before a byte of it is sent.

        Raises:
            Spoiled: 410, other bytes were sealed in its place before.
            Refusal: 503, it cannot be noted.
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
                "same key; it was cancelled, begin it anew.",
            )
        return sealed

    def advance(self, stream: SealedStream) -> None:
        """The service has all that this stream has sealed."""
        self.edge = stream.edge
        self._md5 = stream.md5
        self.tail = b""
        self.settled = True

    def settle(self, segments: int) -> None:
        """Goes on from where the service is.

        Args:
            segments: That it has, in whole.

        Raises:
            Spoiled: 410, it is not known how to go on from there.
        """
        if 0 < segments <= self._file.count and self._file.sent(segments - 1).last:
            # The last one is sent again, because only a request with bytes ends an upload.
            segments -= 1
        if segments != self.edge.index:
            lost = segments < self.edge.index or segments > self._file.count
            if lost or self._md5 is not None:
                raise Spoiled(410, "gone", "The upload cannot go on from what the service has of it; begin it anew.")
            self.edge = self._file.sent(segments - 1).edge
            self.tail = b""
        self.settled = True

    @property
    def end(self) -> Sent | None:
        """The last segment; None: it was never sent."""
        sent = self._file.sent(self._file.count - 1) if self._file.count else None
        return sent if sent is not None and sent.last else None


class Slot:
    """The place of one upload; whoever has its turn may change it.

    Attributes:
        session: None: not in memory, or over.
        outcome: The object, once the upload has ended in one.
        fields: Which of its fields the client wants.
    """

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.users = 0
        self.file: JournalFile | None = None
        self.session: Session | None = None
        self.outcome: dict[str, Any] | None = None
        self.fields = ""

    def forget(self) -> None:
        """The upload is over."""
        if self.file is not None:
            self.file.remove()
        self.file = self.session = None

    def end(self, outcome: dict[str, Any]) -> None:
        """The upload is over, and this became of it; the client may not have heard of it yet."""
        self.fields = "" if self.file is None else self.file.beginning.fields
        self.forget()
        self.outcome = outcome


class Resumables:
    """All resumable uploads of one proxy; safe to use from many threads.

    Args:
        folder: For notes that outlive the process.
        patience_seconds: How long a request waits for the one before it.
        most: How many uploads are kept in memory beside those whose turn it is.
    """

    def __init__(self, folder: Path, *, patience_seconds: float = 20.0, most: int = _UPLOADS_IN_MEMORY) -> None:
        self._journal = UploadJournal(folder)
        self._patience_seconds = patience_seconds
        self._most = most
        self._lock = threading.Lock()
        self._slots: OrderedDict[str, Slot] = OrderedDict()

    def begin(self, upload_id: str, beginning: Beginning, key: bytes | None) -> None:
        """Knows an upload from now on.

        Args:
            key: The object's; None: its bytes pass as they are.

        Raises:
            Refusal: 503, it cannot be noted.
        """
        digest = digest_of(upload_id)
        with self._turn(digest) as slot:
            slot.file = self._journal.begin(digest, beginning)
            slot.session = None if key is None else Session(slot.file, key, settled=True)
            slot.outcome = None

    def is_sealed(self, upload_id: str) -> bool:
        """Whether this is an upload under way whose bytes are encrypted.

        Raises:
            Refusal: 503, its notes cannot be read.
        """
        file = self._journal.find(digest_of(upload_id))
        return file is not None and file.beginning.envelope is not None

    def process_of(self, upload_id: str) -> int | None:
        """The number of the process where an upload began; None: it is known here, or nobody knows it.

        Raises:
            Refusal: 503, its notes cannot be read.
        """
        digest = digest_of(upload_id)
        with self._lock:
            slot = self._slots.get(digest)
            if slot is not None and (slot.file is not None or slot.outcome is not None):
                return None
        file = self._journal.find(digest)
        return None if file is None else file.beginning.process

    @contextlib.contextmanager
    def turn(
        self, bucket: str, upload_id: str, process: int | None, open_key: Callable[[Beginning], bytes]
    ) -> Iterator[Slot]:
        """The upload, for one request; one that nobody knows has neither file nor outcome.

        Args:
            process: What `process_of` said, and what was found to be this process.
            open_key: The object's key, of an upload that is not in memory.

        Raises:
            Refusal: 503, another request has it and does not end, it has begun only now, or its notes cannot be read;
                400, it is another bucket's.
        """
        digest = digest_of(upload_id)
        with self._turn(digest) as slot:
            if slot.file is None and slot.outcome is None:
                found = self._journal.find(digest)
                if found is not None and found.beginning.process != process:
                    # Perhaps in another process, and two of them must not seal under one key.
                    raise Refusal(503, "backendError", "An upload of that name has only now begun; try again.")
                slot.file = found
            file = slot.file
            if file is not None and file.beginning.bucket != bucket:
                raise invalid("The upload was begun for another bucket.")
            if file is None:
                yield slot
                return
            if slot.session is None and file.beginning.envelope is not None:
                slot.session = Session(file, open_key(file.beginning), settled=False)
            with file.opened():
                yield slot

    @contextlib.contextmanager
    def _turn(self, digest: str) -> Iterator[Slot]:
        with self._lock:
            slot = self._slots.setdefault(digest, Slot())
            self._slots.move_to_end(digest)
            slot.users += 1
        try:
            if not slot.lock.acquire(timeout=self._patience_seconds):
                raise Refusal(503, "backendError", "Another request of this upload is still at work; try again.")
            try:
                yield slot
            finally:
                slot.lock.release()
        finally:
            with self._lock:
                slot.users -= 1
                self._drop_some(digest, slot)

    def _drop_some(self, digest: str, used: Slot) -> None:
        """Of what nobody uses: the slot just used if nothing is known of it, and the oldest beyond the most."""
        if not used.users and used.file is None and used.outcome is None:
            self._slots.pop(digest, None)
        if len(self._slots) <= self._most:
            return
        idle = [name for name, slot in self._slots.items() if not slot.users]
        for name in idle[: max(0, len(idle) - self._most)]:
            del self._slots[name]
