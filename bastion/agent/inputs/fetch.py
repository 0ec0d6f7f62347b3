"""Fetch the pinned objects of one input into a folder: in parallel, by ranges, verified, continued after a kill.

Memory: a range for each request at work, and a part of the listing.
"""

from __future__ import annotations

import hashlib
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path

from bastion.agent.download import Cancelled
from bastion.agent.inputs import parts
from bastion.agent.inputs.cache import InputCache
from bastion.agent.inputs.parts import PartFile
from bastion.agent.inputs.problems import InputProblem, Patience, changed, full, is_full
from bastion.core.bucket import host_errors
from bastion.core.bucket.pinned import Listing, PinnedObject
from bastion.core.errors import NotFound, ObjectTooLarge
from bastion.ports import ObjectStore, StoredObject

# Requests at once, and objects at once.
AT_ONCE = 16
# The same on hosts that share a machine.
AT_ONCE_EMULATED = 4
# Folders that are known to exist; the set must not grow with the input.
_FOLDERS_KNOWN_MAX = 10_000
# After so many copies of an object that were damaged, the cache is not used for it.
_COPIES_MAX = 3
# How long to wait for another job that fetches the same object.
_OTHER_JOB_SECONDS = 0.1
# For so long it may write nothing: its agent may be frozen, or its credentials refused.
_OTHER_JOB_SILENT_SECONDS = 300.0


class Progress:
    """Bytes that are there, by where they came from."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self.fetched = 0
        self.found = 0  # from the cache, or from before a restart of the agent

    @property
    def done(self) -> int:
        return self.fetched + self.found

    def add(self, size: int, *, fetched: bool) -> None:
        with self._lock:
            if fetched:
                self.fetched += size
            else:
                self.found += size


def object_name(listing: Listing, each: PinnedObject) -> str:
    """Return the name of an object's file: the same in every input that has it."""
    in_bucket = listing.url.startswith(("gs://", "s3://"))
    bucket = "/".join(listing.url.split("/")[:3]) if in_bucket else listing.url
    text = f"{bucket}\n{listing.prefix}{each.path}\n{each.generation}\n{each.size}"
    return hashlib.sha256(text.encode()).hexdigest()


class InputFetch:
    """Fetches one input into `into`. Another process may go on after a failure.

    Args:
        parts_folder: For files that are not whole yet; on the file system of `into`.
        cache: None: nothing outlives the job.
        stop: Ends everything; set by the first failure, too.
        files: Gives a thread the rights to write the folders; the cache is the agent's own.

    Attributes:
        cache_problem: Why the cache was given up; empty if it was not.
    """

    def __init__(
        self,
        store: ObjectStore,
        listing: Listing,
        into: Path,
        *,
        parts_folder: Path,
        cache: InputCache | None,
        patience: Patience,
        stop: threading.Event,
        progress: Progress,
        at_once: int = AT_ONCE,
        files: Callable[[], AbstractContextManager[None]] = nullcontext,
    ) -> None:
        self._store = store
        self._url = listing.url
        self._prefix = listing.prefix
        self._listing = listing
        self._into = into
        self._parts_folder = parts_folder
        self._cache = cache
        self.cache_problem = ""
        self._patience = patience
        self._stop = stop
        self._problem: Exception | None = None
        self._progress = progress
        self._at_once = at_once
        self._files = files
        self._folders: set[Path] = set()

    def run(self, objects: Iterable[PinnedObject]) -> None:
        """Raises InputProblem, Cancelled, OSError."""
        with self._files():
            for folder in (self._into, self._parts_folder):
                folder.mkdir(parents=True, exist_ok=True)
        waiting: deque[Future[None]] = deque()
        files = ThreadPoolExecutor(self._at_once, thread_name_prefix="input-file")
        self._ranges = ThreadPoolExecutor(self._at_once, thread_name_prefix="input-range")
        try:
            for each in objects:
                if len(waiting) >= 2 * self._at_once:
                    waiting.popleft().result()
                waiting.append(files.submit(self._try_to_obtain, each))
            while waiting:
                waiting.popleft().result()
        except (InputProblem, Cancelled, OSError) as error:
            self._stop.set()
            problem = self._problem or error
            if isinstance(problem, OSError) and is_full(problem):
                raise full(str(self._into)) from problem
            raise problem from None
        finally:
            files.shutdown(cancel_futures=True)
            self._ranges.shutdown(cancel_futures=True)

    def _try_to_obtain(self, each: PinnedObject) -> None:
        try:
            self._obtain(each)
        except (InputProblem, Cancelled, OSError) as error:
            if not self._stop.is_set():
                self._problem = error
            self._stop.set()
            raise

    def _obtain(self, each: PinnedObject) -> None:
        """Put one object in its place."""
        self._check_wanted()
        target = self._into / each.path
        with self._files():
            try:
                if target.stat().st_size == each.size:  # only whole files are moved here
                    self._progress.add(each.size, fetched=False)
                    return
            except FileNotFoundError:
                pass
            self._make_folder(target.parent, each)
        name = object_name(self._listing, each)
        if not self._is_from_cache(name, each, target):
            with parts.owned(self._parts_folder / name, each.size, self._files) as file:
                if file is None:
                    raise OSError(f"another agent writes {self._parts_folder / name}")
                self._fill(file, each)
                file.strip()
                with self._files():
                    file.move(target)

    def _make_folder(self, folder: Path, each: PinnedObject) -> None:
        if folder in self._folders:
            return
        try:
            folder.mkdir(parents=True, exist_ok=True)
        except (FileExistsError, NotADirectoryError) as error:
            raise InputProblem(
                host_errors.INPUT_INVALID,
                f"the input {self._url} cannot become files: {each.path!r} is in a folder that is a file; rename one",
            ) from error
        if len(self._folders) >= _FOLDERS_KNOWN_MAX:
            self._folders.clear()
        self._folders.add(folder)

    def _is_from_cache(self, name: str, each: PinnedObject, target: Path) -> bool:
        """Put an object in its place by way of the cache; return False if that is not possible."""
        cache = self._cache
        try:
            return cache is not None and self._through_cache(cache, name, each, target)
        except OSError as error:
            # It may be the job's own disk: the fetch without the cache shows.
            if not is_full(error):
                self._cache, self.cache_problem = None, str(error)
            return False

    def _through_cache(self, cache: InputCache, name: str, each: PinnedObject, target: Path) -> bool:
        """Copy an object from the cache, after fetching it if it is not there.

        Returns False if there is no room, the cache damages it, or the job that fetches it has come to a halt.
        """
        place, fetched, damaged = cache.path_of(name), False, 0
        written, written_at = None, time.monotonic()
        while damaged < _COPIES_MAX:
            self._check_wanted()
            was_there = place.exists()
            with parts.opened(place, each.size) as file:
                if file is not None:
                    cache.touch(place)
                    if self._copied(file, target):
                        if not fetched:
                            self._progress.add(each.size, fetched=False)
                        return True
                    damaged += 1
                    if fetched:
                        self._progress.add(-each.size, fetched=True)
            if was_there:  # what another job has put there since is whole
                cache.forget(place)  # damaged
            with parts.owned(cache.part_of(name), each.size) as part:
                if part is None:
                    before, written = written, cache.last_write(name)
                    if written != before:
                        written_at = time.monotonic()
                    elif time.monotonic() - written_at >= _OTHER_JOB_SILENT_SECONDS:
                        return False
                    self._stop.wait(_OTHER_JOB_SECONDS)
                    continue
                if place.exists():
                    part.discard()  # another job has just fetched it
                    continue
                if not cache.admit(part):
                    part.discard()
                    return False
                try:
                    self._fill(part, each)
                    place.parent.mkdir(exist_ok=True)
                    part.move(place)
                    fetched = True
                except OSError as error:
                    if not is_full(error):
                        raise
                    cache.forget(part.path)
                    return False
        return False

    def _copied(self, file: PartFile, target: Path) -> bool:
        copy = self._parts_folder / f"{file.path.name}.copy"
        is_whole = file.copy(copy, self._files)
        with self._files():
            if is_whole:
                copy.rename(target)
            else:
                copy.unlink()
        return is_whole

    def _fill(self, file: PartFile, each: PinnedObject) -> None:
        """Fetch what is missing of an object."""
        file.prepare()
        missing = file.missing()
        left = sum(parts.range_of(each.size, number)[1] for number in missing)
        self._progress.add(each.size - left, fetched=False)
        if parts.ranges(each.size) == 1:
            if missing:
                self._fetch_whole(file, each)
            return
        waiting: deque[Future[None]] = deque()
        try:
            for number in missing:
                if len(waiting) >= self._at_once:
                    waiting.popleft().result()
                waiting.append(self._ranges.submit(self._fetch_range, file, each, number))
            while waiting:
                waiting.popleft().result()
        finally:
            # The file stays open until nobody writes into it.
            for future in waiting:
                if not future.cancel():
                    future.exception()

    def _fetch_whole(self, file: PartFile, each: PinnedObject) -> None:
        """Fetch a small object in one request, whose checksum the store verifies."""
        key = self._prefix + each.path
        data = self._read(each, lambda: self._store.get(key, max_bytes=parts.RANGE_BYTES))
        self._check_size(each, len(data), each.size)
        file.write(0, data)
        self._progress.add(len(data), fetched=True)

    def _fetch_range(self, file: PartFile, each: PinnedObject, number: int) -> None:
        self._check_wanted()
        key = self._prefix + each.path
        start, length = parts.range_of(each.size, number)
        data = self._read(each, lambda: self._store.get_range(key, start=start, size=length))
        self._check_size(each, len(data), length)
        file.write(number, data)
        self._progress.add(length, fetched=True)

    def _read(self, each: PinnedObject, ask: Callable[[], StoredObject]) -> bytes:
        def verified() -> bytes:
            try:
                stored = ask()
            except NotFound:
                raise changed(self._url, each.path, "no longer exists") from None
            except ObjectTooLarge:
                raise changed(self._url, each.path, "is larger now") from None
            if stored.meta.generation != each.generation:
                raise changed(self._url, each.path, "was replaced")
            return stored.data

        return self._patience.read(self._url, verified)

    def _check_size(self, each: PinnedObject, found: int, expected: int) -> None:
        if found != expected:
            raise changed(self._url, each.path, f"had {found} bytes where {expected} were listed")

    def _check_wanted(self) -> None:
        if self._stop.is_set():
            raise Cancelled
