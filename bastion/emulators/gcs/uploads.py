"""Resumable uploads: sessions on disk, so that a crash loses neither a session nor an acknowledged byte.

    .objects/uploads/<token>.json    what the client said at the beginning, and how it ended
    .objects/uploads/<token>.data    the bytes so far; becomes the object

Invariants:

* Bytes are only appended, under the data file's lock.
* The object is made under the same lock. So an abandoned connection that wakes up late finds no file, and never writes
  into the object.
* The session records its end before the data file becomes the object, so that a repeated last request gets the same
  answer, also after a crash.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import re
import secrets
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace

from bastion.core.errors import StoreError
from bastion.emulators.gcs import sidecars
from bastion.emulators.gcs.buckets import Bucket, Buckets
from bastion.emulators.gcs.checksums import Sums
from bastion.emulators.gcs.names import check_object_name
from bastion.emulators.gcs.opened_bucket import OpenedBucket
from bastion.emulators.gcs.resources import (
    Attributes,
    InvalidRequest,
    NoSuchBucket,
    NoSuchUpload,
    ObjectResource,
    Preconditions,
)
from bastion.emulators.gcs.staging import Staging
from bastion.emulators.gcs.upload_sessions import Ending, Session, keep, kept, sweep, uploading, uploads_folder
from bastion.folder_format import files
from bastion.folder_format.places import Temporary
from bastion.storage_wire.declared_sums import Declared

_TOKEN = re.compile(r"[A-Za-z0-9_-]{43}")
_LIFE_SECONDS = 7 * 24 * 3600.0
_SWEEP_SECONDS = 3600.0
_NOTHING_DECLARED = Declared()


@dataclass(frozen=True, slots=True, kw_only=True)
class _Data:
    """The locked data file of an upload, its size, and the open bucket and folder."""

    opened: OpenedBucket
    folder: int
    name: str
    file: int
    size: int


class Uploads:
    """All resumable uploads into these buckets; thread-safe and process-safe. `now` is in seconds since the epoch."""

    def __init__(self, buckets: Buckets, *, now: Callable[[], float] = time.time) -> None:
        self._buckets = buckets
        self._now = now
        self._lock = threading.Lock()
        # Checksums of uploads that this process received, so that it need not read them again.
        self._sums: dict[str, Sums] = {}
        self._swept_at = 0.0

    def begin(
        self,
        bucket: str,
        name: str,
        attributes: Attributes,
        preconditions: Preconditions,
        *,
        size: int | None = None,
        declared: Declared = _NOTHING_DECLARED,
        caller: str = "",
    ) -> str:
        """Begin an upload; return its unguessable id of letters, digits and `-._~`.

        Whoever has the id may go on: the object is made with the rights of `caller`, who began.

        Raises NoSuchBucket or InvalidRequest if the object cannot exist, and ConditionFailed if a precondition does not
        hold; all are checked again at the end.
        """
        check_object_name(name)
        into = self._buckets.as_caller(caller).open(bucket)
        into.check(name, preconditions)
        self._sweep()
        token = secrets.token_urlsafe(32)
        session = Session(
            name=name,
            attributes=attributes,
            preconditions=preconditions,
            declared=declared,
            size=size,
            begun=self._now(),
            caller=caller,
        )
        with uploading(into), into.opened() as opened, uploads_folder(opened) as folder:
            os.close(os.open(f"{token}.data", os.O_WRONLY | os.O_CREAT | os.O_EXCL, files.FILE_MODE, dir_fd=folder))
        keep(into, token, session)
        return f"{token}~{bucket}"

    def find(self, upload_id: str) -> Upload:
        """Find an upload. Raises NoSuchUpload if it is unknown, cancelled, or older than a week."""
        token, _, bucket = upload_id.partition("~")
        unknown = NoSuchUpload(f"there is no upload {upload_id[:80]!r}; start a new one")
        if not _TOKEN.fullmatch(token):
            raise unknown
        try:
            into = self._buckets.open(bucket)
            session = kept(into, token)
        except NoSuchBucket as error:
            raise unknown from error
        if session is None or session.begun < self._now() - _LIFE_SECONDS:
            raise unknown
        return Upload(self._buckets.as_caller(session.caller).open(bucket), token, session, self)

    def sums(self, token: str) -> Sums:
        """The running checksums of an upload; change them under the data file's lock."""
        with self._lock:
            return self._sums.setdefault(token, Sums())

    def forget(self, token: str) -> None:
        with self._lock:
            self._sums.pop(token, None)

    def _sweep(self) -> None:
        """Remove, once an hour, the files of uploads older than a week."""
        now = self._now()
        with self._lock:
            if now < self._swept_at + _SWEEP_SECONDS:
                return
            self._swept_at = now
        before_ns = int((now - _LIFE_SECONDS) * 1_000_000_000)
        for name in self._buckets.names():
            with contextlib.suppress(NoSuchBucket, StoreError):
                sweep(self._buckets.open(name), before_ns=before_ns)


class Upload:
    def __init__(self, bucket: Bucket, token: str, session: Session, uploads: Uploads) -> None:
        self._bucket = bucket
        self._token = token
        self._session = session
        self._uploads = uploads
        self._name = f"{token}.data"

    @property
    def resource(self) -> ObjectResource | None:
        """The object, if the upload created it."""
        ending = self._session.ending
        if ending is None or (ending.generation is None and self._data_size() is not None):
            # The program crashed just before the end.
            return None
        return self._ended(ending)

    @property
    def persisted(self) -> int:
        """Bytes that need not be sent again. Raises NoSuchUpload if cancelled."""
        size = self._data_size()
        return self._ending_on_disk().size if size is None else size

    def append(self, offset: int, pieces: Iterable[bytes]) -> None:
        """Append bytes as they come; skip those already stored. `offset` is that of the first byte in the object.

        Raises InvalidRequest if they leave a gap or exceed the object's size, NoSuchUpload if the upload ended
        meanwhile.
        """
        with contextlib.ExitStack() as stack:
            stack.enter_context(uploading(self._bucket))
            opened = stack.enter_context(self._bucket.opened())
            folder = stack.enter_context(uploads_folder(opened))
            file = stack.enter_context(self._file(folder))
            for piece in pieces:
                with self._locked(opened, folder, file) as data:
                    self._add(data, offset, piece)
                offset += len(piece)
            if self._bucket.fsync:
                os.fsync(file)

    def _add(self, data: _Data, offset: int, piece: bytes) -> None:
        if offset > data.size:
            raise InvalidRequest(f"The bytes begin at {offset}, but only {data.size} are stored.")
        if self._session.size is not None and offset + len(piece) > self._session.size:
            raise InvalidRequest(f"The upload exceeds its announced {self._session.size} bytes.")
        added = piece[data.size - offset :]
        if added:
            sums = self._sums(data)
            files.append_all(data.file, added, data.size)
            sums.add(added)

    def _sums(self, data: _Data) -> Sums:
        """The checksums of the stored bytes; reads what an earlier process received."""
        sums = self._uploads.sums(self._token)
        if not sums.add_file(data.file, data.size):
            raise StoreError(f"the data of an upload is shorter than {data.size} bytes; start a new upload")
        return sums

    def finish(self, declared: Declared = _NOTHING_DECLARED) -> ObjectResource:
        """Make the object of all bytes; idempotent.

        Raises:
            InvalidRequest: The number of bytes is not the announced one.
            ChecksumMismatch: They do not match the declared checksums.
            ConditionFailed: A precondition does not hold.
            NoSuchUpload: The upload was cancelled meanwhile.
        """
        try:
            with self._data() as data:
                resource = self._finished(data, declared)
        except NoSuchUpload:
            # Another request finished it, or the program crashed before it recorded that.
            resource = self._ended(self._ending_on_disk())
        self._uploads.forget(self._token)
        return resource

    def _finished(self, data: _Data, declared: Declared) -> ObjectResource:
        session = self._session
        if session.size not in (None, data.size):
            raise InvalidRequest(f"The upload has {data.size} bytes, but {session.size} were announced.")
        content = Temporary(folder=data.folder, name=data.name, file=data.file)
        staging = Staging(data.opened, content, self._sums(data))
        staging.check(session.declared)
        staging.check(declared)
        sidecar = self._bucket.new_sidecar(session.name, staging, session.attributes)

        def about_to(status: os.stat_result) -> None:
            name = sidecars.sidecar_name(session.name, status)
            stamp = files.stamp_of(status)
            self._end(Ending(content=name, size=data.size, stamp=stamp, generation=None, sidecar=sidecar))

        def done(resource: ObjectResource) -> None:
            if self._session.ending is not None:
                self._end(replace(self._session.ending, generation=resource.generation))

        return self._bucket.fill(session.name, staging, sidecar, session.preconditions, about_to=about_to, done=done)

    def cancel(self) -> None:
        """Forget the upload and its bytes; a finished object stays."""
        if self.resource is not None:
            return
        with contextlib.suppress(NoSuchUpload), self._data() as data:
            os.unlink(f"{self._token}.json", dir_fd=data.folder)
            os.unlink(data.name, dir_fd=data.folder)
        self._uploads.forget(self._token)

    def _ended(self, ending: Ending) -> ObjectResource:
        """The created object, whose generation may not be recorded."""
        generation = ending.generation
        if generation is None:
            with self._bucket.locked(ending.sidecar.name):
                # The creator of the object has recorded its generation by now, unless it crashed.
                ending = self._ending_on_disk()
                generation = ending.generation
                if generation is None:
                    generation = self._generation_found(ending)
                    self._end(replace(ending, generation=generation))
        return ending.sidecar.resource(self._bucket.name, generation=generation, size=ending.size)

    def _generation_found(self, ending: Ending) -> int:
        found = self._bucket.generation_of_content(ending.sidecar.name, ending.content)
        # It was replaced, so its generation is unknown. Preconditions need one that matches nothing.
        return ending.stamp << files.STAMP_BITS if found is None else found

    def _end(self, ending: Ending) -> None:
        self._session = replace(self._session, ending=ending)
        keep(self._bucket, self._token, self._session)

    def _ending_on_disk(self) -> Ending:
        session = kept(self._bucket, self._token)
        if session is None or session.ending is None:
            raise _ended_meanwhile()
        self._session = session
        return session.ending

    def _data_size(self) -> int | None:
        with uploading(self._bucket), self._bucket.opened() as opened, uploads_folder(opened) as folder:
            status = files.status_of(folder, self._name)
        return None if status is None else status.st_size

    @contextlib.contextmanager
    def _data(self) -> Iterator[_Data]:
        with (
            uploading(self._bucket),
            self._bucket.opened() as opened,
            uploads_folder(opened) as folder,
            self._file(folder) as file,
            self._locked(opened, folder, file) as data,
        ):
            yield data

    @contextlib.contextmanager
    def _file(self, folder: int) -> Iterator[int]:
        try:
            file = os.open(self._name, os.O_RDWR | os.O_APPEND | files.FILE, dir_fd=folder)
        except FileNotFoundError as error:
            raise _ended_meanwhile() from error
        try:
            yield file
        finally:
            os.close(file)

    @contextlib.contextmanager
    def _locked(self, opened: OpenedBucket, folder: int, file: int) -> Iterator[_Data]:
        """Lock the data file. Raises NoSuchUpload if it is no longer the data file."""
        fcntl.flock(file, fcntl.LOCK_EX)
        try:
            status = os.fstat(file)
            there = files.status_of(folder, self._name)
            if there is None or there.st_ino != status.st_ino:
                raise _ended_meanwhile()
            yield _Data(opened=opened, folder=folder, name=self._name, file=file, size=status.st_size)
        finally:
            fcntl.flock(file, fcntl.LOCK_UN)


def _ended_meanwhile() -> NoSuchUpload:
    return NoSuchUpload("the upload ended meanwhile; start a new one unless the object exists")
