"""The record of a resumable upload on disk, so that it survives the proxy's process.

One file per upload: a JSON line about its beginning, then a record of fixed size for every segment, written before the
segment is sent. Files survive a crash of the process, not of the machine. Invariants:

* No unwrapped key, content or session name is stored; files are named by a hash.
* A segment that is sent again must match its record: no two plaintexts are sealed under one index.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import struct
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

from bastion.proxy.sealed.envelope import Envelope, EnvelopeBroken
from bastion.proxy.sealed.sealed_stream import Edge
from bastion.proxy.sealed.segments import TAG_BYTES
from bastion.storage_wire.declared_sums import Declared
from bastion.storage_wire.refusals import Refusal

_ENDING = ".upload"
# The service drops an upload after seven days.
_LIFE_SECONDS = 8 * 24 * 3600.0
_BEGINNING_MAX_BYTES = 64 * 1024
# Is it the last, the offset after it, both crc32c up to there, the tag.
_RECORD = struct.Struct(f">?QII{TAG_BYTES}s")


@dataclass(frozen=True, slots=True, kw_only=True)
class Beginning:
    """How an upload began.

    Attributes:
        envelope: With the wrapped keys; None if the bytes pass through.
        declared: The checksums that the plaintext must have.
        total: Bytes of plaintext; None if the client did not say.
        fields: The fields of the answer that the client wants.
        process: The number of the process that has its tail.
    """

    bucket: str
    name: str
    envelope: Envelope | None = field(repr=False)
    declared: Declared
    total: int | None
    fields: str
    process: int = 0

    def encoded(self) -> bytes:
        md5 = self.declared.md5
        document = {
            "bucket": self.bucket,
            "name": self.name,
            "envelope": None if self.envelope is None else self.envelope.to_metadata(),
            "crc32c": self.declared.crc32c,
            "md5": None if md5 is None else md5.hex(),
            "total": self.total,
            "fields": self.fields,
            "process": self.process,
        }
        return json.dumps(document).encode() + b"\n"

    @staticmethod
    def decoded(line: bytes) -> Beginning | None:
        """Parse a line; None if it is invalid."""
        try:
            document = json.loads(line)
            md5, envelope = document["md5"], document["envelope"]
            return Beginning(
                bucket=document["bucket"],
                name=document["name"],
                envelope=None if envelope is None else Envelope.from_metadata(envelope),
                declared=Declared(crc32c=document["crc32c"], md5=None if md5 is None else bytes.fromhex(md5)),
                total=document["total"],
                fields=document["fields"],
                process=document.get("process", 0),
            )
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError, EnvelopeBroken):
            return None


@dataclass(frozen=True, slots=True, kw_only=True)
class Sent:
    """A segment that was sent, or is about to be.

    `edge` and `end` (the offset in the plaintext) are after it. `tag`, its last sealed bytes, identifies its plaintext.
    """

    edge: Edge
    end: int
    last: bool
    tag: bytes

    def encoded(self) -> bytes:
        return _RECORD.pack(self.last, self.end, self.edge.plain_crc32c, self.edge.sealed_crc32c, self.tag)


class JournalFile:
    """The file of one upload, with `count` segments sent; used by one thread at a time."""

    def __init__(self, path: Path, beginning: Beginning, *, start: int, count: int) -> None:
        """`start` is the offset of the records."""
        self._path = path
        self._start = start
        self._file = -1
        self.beginning = beginning
        self.count = count

    @contextlib.contextmanager
    def opened(self) -> Iterator[None]:
        """Keep the file open for everything but `remove`. Raises Refusal (503)."""
        with _explained():
            self._file = os.open(self._path, os.O_RDWR | os.O_CLOEXEC)
        try:
            yield
        finally:
            os.close(self._file)
            self._file = -1

    def append(self, sent: Sent) -> None:
        """Record the next segment. Raises Refusal (503); the segment must then not be sent."""
        with _explained():
            if os.pwrite(self._file, sent.encoded(), self._place(self.count)) < _RECORD.size:
                raise OSError("the disk is full")
        self.count += 1

    def sent(self, index: int) -> Sent:
        """Segment `index`, below `count`. Raises Refusal (503)."""
        with _explained():
            record = os.pread(self._file, _RECORD.size, self._place(index))
            if len(record) < _RECORD.size:
                raise OSError("a record of the upload is missing")
        last, end, plain_crc32c, sealed_crc32c, tag = _RECORD.unpack(record)
        edge = Edge(index=index + 1, plain_crc32c=plain_crc32c, sealed_crc32c=sealed_crc32c)
        return Sent(edge=edge, end=end, last=last, tag=tag)

    def remove(self) -> None:
        self._path.unlink(missing_ok=True)

    def _place(self, index: int) -> int:
        return self._start + index * _RECORD.size


class UploadJournal:
    """The folder of all such files; created with the first upload. `now` is in seconds since the epoch."""

    def __init__(self, folder: Path, *, now: Callable[[], float] = time.time) -> None:
        self._folder = folder
        self._sweep(now() - _LIFE_SECONDS)

    def begin(self, digest: str, beginning: Beginning) -> JournalFile:
        """Create the file of an upload. Raises Refusal (503)."""
        path, line = self._path(digest), beginning.encoded()
        unfinished = path.with_suffix(".new")
        with _explained():
            self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            unfinished.unlink(missing_ok=True)
            with open(unfinished, "xb", opener=_private) as file:
                file.write(line)
            unfinished.replace(path)
        return JournalFile(path, beginning, start=len(line), count=0)

    def find(self, digest: str) -> JournalFile | None:
        """The file of an upload that an earlier process began, if any. Raises Refusal (503)."""
        path = self._path(digest)
        with _explained():
            try:
                with path.open("rb") as file:
                    line = file.readline(_BEGINNING_MAX_BYTES)
                    size = os.fstat(file.fileno()).st_size
            except FileNotFoundError:
                return None
        beginning = Beginning.decoded(line)
        if beginning is None:
            return None
        # A partial record does not count: the process ended before it sent the segment.
        return JournalFile(path, beginning, start=len(line), count=(size - len(line)) // _RECORD.size)

    def _path(self, digest: str) -> Path:
        return self._folder / f"{digest}{_ENDING}"

    def _sweep(self, before: float) -> None:
        """Remove files not changed since `before`: the service has dropped these uploads."""
        with contextlib.suppress(OSError):
            for path in self._folder.iterdir():
                if path.suffix in (_ENDING, ".new") and path.stat().st_mtime < before:
                    path.unlink(missing_ok=True)


def digest_of(upload_id: str) -> str:
    """The name of an upload's file: a hash, because the upload's own name is enough to end it."""
    return hashlib.sha256(upload_id.encode()).hexdigest()


def _private(path: str, flags: int) -> int:
    return os.open(path, flags | os.O_CLOEXEC, 0o600)


@contextlib.contextmanager
def _explained() -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise Refusal(
            503,
            "backendError",
            f"The encrypting proxy cannot write its record of an upload ({error.strerror or error}); check the disk of "
            "its state folder, then try again.",
        ) from error
