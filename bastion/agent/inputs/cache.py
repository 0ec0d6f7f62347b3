"""A folder on a host that outlives jobs, and holds objects that some job had as an input.

    <folder>/objects/<xx>/<name>   a complete object; its modification time is that of its last use
    <folder>/parts/<name>          one that is being fetched (`bastion.agent.inputs.parts`)
    <folder>/users/<name>          locked by each agent that uses the folder now
    <folder>/lock, <folder>/used   the bytes of all objects and parts, changed under the lock

The name is a digest of bucket, key, generation and size, so an object that changes is another one. Jobs get copies: a
job that writes into its input damages nothing, and the least recently used object may go at any time.

Invariants:
* One process at a time fetches an object. What it leaves when it dies is continued by the next.
* What an agent that is at work has used is not removed.
"""

from __future__ import annotations

import contextlib
import fcntl
import logging
import os
import secrets
import threading
import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import IO

from bastion.agent.inputs import parts
from bastion.agent.inputs.parts import PartFile

_log = logging.getLogger(__name__)

# What nobody continued for so long is removed.
_PART_MAX_SECONDS = 86400.0
# Fraction of the limit that is freed beyond what is needed: each look at all files is dear.
_SLACK = 0.05
_NUMBER_MAX_BYTES = 32
# An agent holds the lock while it looks at all files. A frozen one, or a job that sees the folder, may never free it.
_LOCK_SECONDS = 300.0
_LOCK_POLL_SECONDS = 0.005


class InputCache:
    """The cache of one agent; `close` ends its use. Raises OSError if the folder cannot be used.

    Args:
        limit_bytes: What objects and parts may use together.
    """

    def __init__(self, folder: Path, limit_bytes: int) -> None:
        self._folder = self.folder = folder
        self._limit_bytes = limit_bytes
        self._mutex = threading.Lock()
        self._is_kept = False
        for name in ("objects", "parts", "users"):
            (folder / name).mkdir(parents=True, exist_ok=True)
        self._user_path = folder / "users" / secrets.token_hex(8)
        self._user = _opened(self._user_path)
        fcntl.flock(self._user, fcntl.LOCK_EX | fcntl.LOCK_NB)
        try:
            with self._locked():
                self._write_used(sum(size for _, size, _ in self._files()))
        except OSError:
            self.close()
            raise

    def close(self) -> None:
        self._user_path.unlink(missing_ok=True)
        os.close(self._user)

    def path_of(self, name: str) -> Path:
        """The place of a complete object."""
        return self._folder / "objects" / name[:2] / name

    def part_of(self, name: str) -> Path:
        return self._folder / "parts" / name

    def last_write(self, name: str) -> float | None:
        """When something was written to an object that is being fetched, by the disk's clock; None if it is not."""
        try:
            return self.part_of(name).stat().st_mtime
        except FileNotFoundError:
            return None

    @staticmethod
    def touch(path: Path) -> None:
        """Record a use."""
        with contextlib.suppress(OSError):
            os.utime(path)

    def growth(self, objects: Iterable[tuple[str, int]]) -> int:
        """How many more bytes it will hold after these objects, by name and size."""
        missing = sum(parts.stored_size(size) for name, size in objects if not self.path_of(name).exists())
        with self._locked():
            return min(missing, max(0, self._limit_bytes - self._read_used()))

    def admit(self, part: PartFile) -> bool:
        """Make room for a part that the caller owns; False if there is no room that is not in use."""
        needed = parts.stored_size(part.size)
        if needed > self._limit_bytes:
            return False
        with self._locked():
            if part.is_prepared:
                return True  # already counted
            used = self._read_used()
            if used + needed > self._limit_bytes:
                used = self._evict(needed)
            if used + needed > self._limit_bytes:
                return False
            part.prepare()
            self._write_used(used + needed)
            return True

    def forget(self, path: Path) -> None:
        """Remove a part or an object that is damaged."""
        with self._locked():
            try:
                size = path.stat().st_size
                path.unlink()
            except FileNotFoundError:
                return
            self._write_used(max(0, self._read_used() - size))

    def _evict(self, needed: int) -> int:
        """Remove the least recently used objects until `needed` bytes fit; return what is used then."""
        self._remove_old_parts()
        protected = self._oldest_user()
        files = sorted(self._files())
        used = sum(size for _, size, _ in files)
        goal = max(0, self._limit_bytes - needed - int(self._limit_bytes * _SLACK))
        objects = str(self._folder / "objects")
        for last_use, size, path in files:
            if used <= goal or last_use >= protected:
                break
            if path.startswith(objects):
                with contextlib.suppress(FileNotFoundError):
                    Path(path).unlink()
                used -= size
        self._write_used(used)
        return used

    def _oldest_user(self) -> float:
        """When the first of the agents that use the cache now began."""
        oldest = time.time()
        for path in (self._folder / "users").iterdir():
            with contextlib.suppress(FileNotFoundError):
                began = path.stat().st_mtime
                if path != self._user_path and _is_free(path):
                    path.unlink()
                else:
                    oldest = min(oldest, began)
        return oldest

    def _remove_old_parts(self) -> None:
        for path in (self._folder / "parts").iterdir():
            with contextlib.suppress(FileNotFoundError):
                if time.time() - path.stat().st_mtime > _PART_MAX_SECONDS and _is_free(path):
                    path.unlink()

    def _files(self) -> Iterator[tuple[float, int, str]]:
        """Last use, size and path of all objects and parts."""
        folders = [str(self._folder / "parts")]
        with os.scandir(self._folder / "objects") as found:
            folders += [entry.path for entry in found if entry.is_dir(follow_symlinks=False)]
        for folder in folders:
            with os.scandir(folder) as entries:
                for entry in entries:
                    with contextlib.suppress(FileNotFoundError):
                        status = entry.stat(follow_symlinks=False)
                        yield status.st_mtime, status.st_size, entry.path

    def _read_used(self) -> int:
        try:
            with self._open_used() as file:
                return int(file.read(_NUMBER_MAX_BYTES))
        except ValueError:
            return sum(size for _, size, _ in self._files())

    def _write_used(self, used: int) -> None:
        with self._open_used() as file:
            file.truncate(0)
            file.write(str(used).encode())

    def _open_used(self) -> IO[bytes]:
        return open(_opened(self._folder / "used"), "r+b", buffering=0)

    @contextlib.contextmanager
    def _locked(self) -> Iterator[None]:
        with self._mutex:
            descriptor = _opened(self._folder / "lock")
            try:
                self._lock(descriptor)
                yield
            finally:
                os.close(descriptor)

    def _lock(self, descriptor: int) -> None:
        deadline = time.monotonic() + (0.0 if self._is_kept else _LOCK_SECONDS)
        while True:
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:  # noqa: PERF203 - the loop is a retry
                if time.monotonic() >= deadline:
                    self._is_kept = True  # the threads behind this one need not wait as long
                    raise TimeoutError(f"a process holds {self._folder / 'lock'} for {_LOCK_SECONDS:.0f} s") from None
                time.sleep(_LOCK_POLL_SECONDS)
            else:
                return


def _is_free(path: Path) -> bool:
    """Whether no living process has the file's lock."""
    try:
        descriptor = os.open(path, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
    except OSError:
        return False
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    finally:
        os.close(descriptor)
    return True


def _opened(path: Path) -> int:
    """Open or create a file of the cache. Jobs may see the folder: no link of theirs leads elsewhere."""
    return os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o644)
