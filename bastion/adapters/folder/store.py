"""A folder that behaves like a bucket: key K is the file K, which users can `cat`, `cp` and edit.

    <folder>/<key>                 the object, if a file can have that name
    <folder>/.objects/<sha256>     an object whose key cannot be a file; `<sha256>.key` beside it holds the key
    <folder>/.objects/locks/<xx>   locks of writers; must not be removed while one runs
    <folder>/.objects/tmp/         files being written; orphans are removed after an hour
    <folder>/.objects/reserve      disk space for writes that must not fail (`bastion.folder_format.reserve`)

Invariants:

* Nothing outside the folder is read or written: links inside it are neither objects nor folders, and no path is opened
  through one. (The folder itself may be given by a link.)
* A put is a rename of a complete file; an append extends the file in place. Both check the precondition and act under
  the key's lock.

Locks do not stop `cp` and editors: a foreign change in the microseconds between check and rename is overwritten. On a
file system that folds case, keys that differ in case only are the same.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable, Collection, Iterator
from pathlib import Path
from typing import TypeVar

from bastion.core import limits
from bastion.core.bucket.objects import ObjectMeta, check_key, check_read_size, check_size, check_start
from bastion.core.errors import NotFound, PreconditionFailed, StoreError, StoreFull, StoreUnavailable
from bastion.folder_format import files, listing, places
from bastion.folder_format.keys import HIDDEN_FOLDER, stripe
from bastion.folder_format.lock import HighWaterMark, locked
from bastion.folder_format.reserve import Reserve
from bastion.ports import StoredObject

_ORPHAN_NS = 3600 * 1_000_000_000
# Reads without a lock; each fails only if the file was written meanwhile.
_READS = 20

# Limits retries when other writers compete for the freed reserve.
_RELEASES = 100

T = TypeVar("T")

_READING = "read permission on it and search permission (x) on its folders"
_WRITING = "write and search permission on its folder and on the bucket's .objects, for an append also on the file"
_LISTING = "read and search permission on that folder and on the bucket's .objects"


class DirectoryStore:
    """`bastion.ports.ObjectStore` on a local or NFS folder; thread-safe and process-safe.

    Args:
        path: The bucket's folder.
        create: Creates the folder if missing; otherwise that is an error.
        fsync: Whether a mutation survives a power cut, not only the process's death. On a local SSD a put took 0.6 ms
            with and 0.2 ms without, an append 0.23 and 0.06 ms.
        now_ns: The clock for generations, in nanoseconds since the epoch.
        lock_timeout_seconds: How long a mutation waits for other writers of the same key.
        kept_folders: Folders that stay when empty, because users copy files into them.
        may_use_reserve: Whether a write of that key may use the reserve when the disk is full.
        lists_whole: Raise AccessDenied if a folder below the listed one cannot be read, and StoreError for the name of
            one that no key can have, instead of leaving it out.
        proved_below: Files of keys with this prefix prove who wrote them: nobody else may change what is put there, and
            `ObjectMeta.file` says whose it is. Empty: none do.

    Raises StoreError if the folder is missing, or is a file; AccessDenied if it may not be opened.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        create: bool = True,
        fsync: bool = True,
        now_ns: Callable[[], int] = time.time_ns,
        lock_timeout_seconds: float = 10.0,
        kept_folders: Collection[str] = (),
        may_use_reserve: Callable[[str], bool] = lambda _key: False,
        lists_whole: bool = False,
        proved_below: str = "",
    ) -> None:
        self._kept_folders = frozenset(kept_folders)
        self._path = str(Path(path).absolute())
        self._reserve = Reserve(self._path)
        self._may_use_reserve = may_use_reserve
        self._lists_whole = lists_whole
        self._proved_below = proved_below
        self._fsync = fsync
        self._now_ns = now_ns
        self._lock_timeout_seconds = lock_timeout_seconds
        if create:
            self._create()
        elif not Path(self._path).exists():
            raise StoreError(f"there is no folder {self._path}; check the bucket's name, or create the folder")
        with self._root() as root, contextlib.suppress(StoreError, OSError):
            # A reader without write access leaves them to others.
            objects = files.open_folder(root, [HIDDEN_FOLDER])
            try:
                places.remove_orphans(objects, before_ns=now_ns() - _ORPHAN_NS)
            finally:
                os.close(objects)

    def __repr__(self) -> str:
        return f"DirectoryStore({self._path!r})"

    def get(self, key: str, *, start: int = 0, max_bytes: int = limits.READ_MAX_BYTES) -> StoredObject:
        return self._read_at_rest(key, start, None, max_bytes)

    def get_range(self, key: str, *, start: int, size: int) -> StoredObject:
        check_size(size)
        return self._read_at_rest(key, start, size, size)

    def _read_at_rest(self, key: str, start: int, size: int | None, max_bytes: int) -> StoredObject:
        check_key(key)
        check_start(start)
        with self._explained("reading", key, _READING), self._root() as root:
            for _ in range(_READS):
                stored = self._read(root, key, start, size, max_bytes)
                if stored is not None:
                    return stored
            # Constantly written. Our own writers can be locked out, unless we have read access only.
            with contextlib.suppress(PermissionError), self._objects(root) as objects, self._locked(objects, key):
                stored = self._read(root, key, start, size, max_bytes)
                if stored is not None:
                    return stored
        raise StoreUnavailable(f"{self._shown(key)} changed during each of {_READS + 1} reads; try again")

    def head(self, key: str) -> ObjectMeta | None:
        check_key(key)
        with self._explained("looking up", key, _READING), self._root() as root:
            place = places.find(root, key)
            if place is None:
                return None
            with place:
                return self._meta(key, place.status)

    def list(self, prefix: str, *, start_after: str = "", end_before: str = "") -> Iterator[ObjectMeta]:
        with self._explained("listing", prefix, _LISTING):
            with self._root():
                # A missing folder means a missing disk; it must not look like an empty bucket.
                pass
            yield from listing.objects(
                self._path, prefix, start_after, end_before, whole=self._lists_whole, proved_below=self._proved_below
            )

    def put(self, key: str, data: bytes, *, generation: int) -> ObjectMeta:
        check_key(key)
        return self._with_reserve(key, len(data), lambda: self._put(key, data, generation))

    def _put(self, key: str, data: bytes, generation: int) -> ObjectMeta:
        with self._explained("writing", key, _WRITING), self._root() as root, self._objects(root) as objects:
            # Checked again under the lock; this check avoids writing a large object for nothing.
            with self._expected(root, key, generation):
                pass
            with (
                places.temporary(objects, data, sync=self._fsync) as content,
                self._locked(objects, key) as mark,
                self._expected(root, key, generation) as present,
            ):
                if self._proved_below and key.startswith(self._proved_below):
                    os.fchmod(content.file, files.PROOF_MODE)
                self._set_stamp(content.file, mark, generation)
                places.fill(root, objects, key, content, present, sync=self._fsync)
                return self._meta(key, os.fstat(content.file))

    def append(self, key: str, data: bytes, *, generation: int) -> ObjectMeta:
        if generation == 0:
            return self.put(key, data, generation=0)
        check_key(key)
        return self._with_reserve(key, len(data), lambda: self._append(key, data, generation))

    def _append(self, key: str, data: bytes, generation: int) -> ObjectMeta:
        with (
            self._explained("appending to", key, _WRITING),
            self._root() as root,
            self._objects(root) as objects,
            self._locked(objects, key) as mark,
            self._expected(root, key, generation) as place,
        ):
            if place is None:
                raise self._refusal(key, 0, generation)
            with self._opened_for_append(place) as file:
                files.append_all(file, data, place.status.st_size)
                status = os.fstat(file)
                if files.stamp_of(status) <= max(files.stamp(generation), mark.stamp):
                    # The clock, or an old kernel's millisecond steps, did not advance.
                    status = self._set_stamp(file, mark, generation)
                mark.raise_to(files.stamp_of(status))
                present = files.status_of(place.folder, place.name)
                if present is None or present.st_ino != status.st_ino:
                    # Another file was moved over it, and our bytes are gone.
                    raise self._refusal(key, 0 if present is None else files.generation_of(present), generation)
                if self._fsync:
                    os.fsync(file)
                return self._meta(key, status)

    def delete(self, key: str, *, generation: int) -> None:
        check_key(key)
        if self.head(key) is None:
            return
        self._with_reserve(key, 0, lambda: self._delete(key, generation))

    def _delete(self, key: str, generation: int) -> None:
        with (
            self._explained("deleting", key, _WRITING),
            self._root() as root,
            self._objects(root) as objects,
            self._locked(objects, key) as mark,
        ):
            place = places.find(root, key)
            if place is None:
                return
            with place:
                if place.generation != generation:
                    raise self._refusal(key, place.generation, generation)
                mark.raise_to(files.stamp(generation))
                places.empty(objects, key, place, sync=self._fsync)
            if place.natural and not (self._proved_below and key.startswith(self._proved_below)):
                places.remove_empty_folders(root, key, kept=self._kept_folders)

    def _with_reserve(self, key: str, needed: int, write: Callable[[], T]) -> T:
        """Write; if the disk is full and the key allows it, retry with the reserve's space."""
        for _ in range(_RELEASES if self._may_use_reserve(key) else 0):
            with contextlib.suppress(StoreFull):
                return write()
            if not self._reserve.release(needed):
                break
        return write()

    def _create(self) -> None:
        folder = Path(self._path)
        try:
            folder.mkdir(mode=files.FOLDER_MODE, parents=True, exist_ok=True)
        except (FileExistsError, NotADirectoryError) as error:
            raise StoreError(f"{self._path} is a file, so it cannot be a bucket; use a folder") from error
        except OSError as error:
            raise files.explain(
                error, doing="creating", path=self._path, needs="write permission on the folder above it"
            ) from error

    def _read(self, root: int, key: str, start: int, size: int | None, max_bytes: int) -> StoredObject | None:
        """Look once; None if the object is being changed. `size`: of the range; None: to the end."""
        place = places.find(root, key)
        if place is None:
            raise NotFound(f"there is no object {self._shown(key)}")
        with place:
            end = place.status.st_size if size is None else min(place.status.st_size, start + size)
            check_read_size(self._shown(key), end - start, max_bytes)
            data = files.read_file(place.folder, place.name, place.status, start, end)
            if data is None:
                return None
            return StoredObject(meta=self._meta(key, place.status), data=data)

    def _meta(self, key: str, status: os.stat_result) -> ObjectMeta:
        return files.meta_of(key, status, self._proved_below)

    def _shown(self, key: str) -> str:
        """Return a key's path for messages, without control characters."""
        path = f"{self._path}/{key}"
        return path if path.isprintable() else ascii(path)

    @contextlib.contextmanager
    def _explained(self, doing: str, key: str, needs: str) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            raise files.explain(error, doing=doing, path=self._shown(key), needs=needs) from error

    @contextlib.contextmanager
    def _root(self) -> Iterator[int]:
        """Open the bucket's folder each time: it may be moved away and come back."""
        try:
            root = os.open(self._path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        except FileNotFoundError as error:
            raise StoreUnavailable(
                f"the bucket's folder {self._path} is gone; mount or restore it, then try again"
            ) from error
        except NotADirectoryError as error:
            raise StoreError(f"{self._path} is not a folder, so it cannot be a bucket; use a folder") from error
        except OSError as error:
            raise files.explain(
                error, doing="opening", path=self._path, needs="read and search permission on it"
            ) from error
        try:
            yield root
        finally:
            os.close(root)

    @contextlib.contextmanager
    def _objects(self, root: int) -> Iterator[int]:
        """Open the hidden folder for writers; create it if missing."""
        try:
            objects = files.open_folder(root, [HIDDEN_FOLDER], create=True, sync=self._fsync)
        except OSError as error:
            if error.errno not in files.BARRED:
                raise
            raise StoreError(
                f"{self._path}/{HIDDEN_FOLDER} is not a folder; move it away: the bucket needs this name"
            ) from error
        try:
            yield objects
        finally:
            os.close(objects)

    @contextlib.contextmanager
    def _locked(self, objects: int, key: str) -> Iterator[HighWaterMark]:
        path = f"{self._path}/{HIDDEN_FOLDER}"
        with locked(objects, stripe(key), path=path, timeout_seconds=self._lock_timeout_seconds) as mark:
            yield mark

    @contextlib.contextmanager
    def _expected(self, root: int, key: str, generation: int) -> Iterator[places.Place | None]:
        """Yield the object's place (None: missing) if it has the expected generation."""
        place = places.find(root, key)
        with place or contextlib.nullcontext():
            present = 0 if place is None else place.generation
            if present != generation:
                raise self._refusal(key, present, generation)
            yield place

    def _refusal(self, key: str, present: int, expected: int) -> PreconditionFailed:
        return PreconditionFailed(
            f"{self._shown(key)} has generation {present}, not {expected} (0: it does not exist); read it again"
        )

    def _set_stamp(self, file: int, mark: HighWaterMark, generation: int) -> os.stat_result:
        stamp = files.next_stamp(self._now_ns(), mark.stamp, generation)
        status = files.set_stamp(file, stamp, path=self._path)
        mark.raise_to(stamp)
        return status

    @staticmethod
    @contextlib.contextmanager
    def _opened_for_append(place: places.Place) -> Iterator[int]:
        file = os.open(place.name, os.O_WRONLY | os.O_APPEND | files.FILE, dir_fd=place.folder)
        try:
            yield file
        finally:
            os.close(file)
