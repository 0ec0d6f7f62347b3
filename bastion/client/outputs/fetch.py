"""Fetch a job's outputs into a local folder, and go on where an earlier fetch ended.

Invariants:
* A file has its name only once all its bytes are there and verified by the digests of the manifest.
* Whatever ends a fetch (Ctrl-C, a kill, a full disk), the next one gets only what is missing or differs.
* At most one piece for each connection is in memory.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import os
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

from bastion.client.concurrently import concurrently
from bastion.client.outputs.destination import Blocked, Closed, Destination
from bastion.client.outputs.plan import Plan, Planned, is_ours, make_plan
from bastion.client.outputs.stored import CONNECTIONS, FileType, Outputs
from bastion.core import limits
from bastion.core.disk_limit import shown
from bastion.core.errors import BastionError, Refused, StoreUnavailable
from bastion.ports import ObjectStore

_FULL = (errno.ENOSPC, errno.EDQUOT)


@dataclass(frozen=True, slots=True)
class Progress:
    """How far a fetch is: bytes and files, without what was there before."""

    done_bytes: int
    total_bytes: int
    done_files: int
    total_files: int


@dataclass(slots=True, kw_only=True)
class Fetched:
    """What a fetch did.

    Attributes:
        path: The folder.
        files: Number of files, links and folders that were written.
        size: Bytes that were fetched.
        present: Number of those that were there before.
        failures: Why a file is not there, by its path below the folder.
        stopped: Why the rest was not tried; empty if it was.
        missing: Number of files that were not tried.
    """

    path: Path
    files: int = 0
    size: int = 0
    present: int = 0
    failures: dict[str, str] = field(default_factory=dict)
    stopped: str = ""
    missing: int = 0

    @property
    def complete(self) -> bool:
        return not (self.failures or self.stopped)


def fetch(
    store: ObjectStore,
    found: Outputs,
    into: Path,
    *,
    force: bool = False,
    connections: int = CONNECTIONS,
    on_progress: Callable[[Progress], None] = lambda _: None,
) -> Fetched:
    """Write the outputs into a folder; those of several hosts into `worker-0/`, `worker-1/` and so on.

    Args:
        store: The one that `found` was listed in.
        force: Also replace files that were not fetched from this job.
        connections: Maximum number of requests under way, each with up to 32 MiB in memory.
        on_progress: Called from several threads, one at a time.

    Raises:
        Refused: the folder cannot be written, has another's files, or has not enough space.
    """
    destination = Destination(into, found.uid)
    try:
        plan = make_plan(destination, found, force=force)
        _check_space(destination, plan)
        return _Fetch(store, destination, plan, force=force, on_progress=on_progress).run(connections)
    finally:
        destination.close()


def _check_space(into: Destination, plan: Plan) -> None:
    needed, free = sum(planned.missing_bytes for planned in plan.wanted), into.free_bytes
    if needed > free:
        raise Refused(
            f"{shown(needed)} are to be fetched, and the disk of {into.path} has {shown(free)} free; nothing was "
            "fetched; free space, choose another --to, or select files by PATTERN or --worker"
        )


class _Fetch:
    def __init__(
        self,
        store: ObjectStore,
        into: Destination,
        plan: Plan,
        *,
        force: bool,
        on_progress: Callable[[Progress], None],
    ) -> None:
        self._store = store
        self._into = into
        self._plan = plan
        self._force = force
        self._on_progress = on_progress
        self._lock = threading.Lock()
        self._left = {planned.path: len(planned.missing) for planned in plan.wanted}
        self._total_bytes = sum(planned.missing_bytes for planned in plan.wanted)
        self._result = Fetched(path=into.path, present=plan.present, failures=dict(plan.failures))
        # A process's own; it can only be read by setting it.
        self._umask = os.umask(0o077)
        os.umask(self._umask)

    def run(self, connections: int) -> Fetched:
        wanted = self._plan.wanted
        files = [planned for planned in wanted if planned.file.file_type is FileType.FILE]
        self._into.keep_partial({planned.version for planned in files})
        self._tell()
        for planned in wanted:
            if planned.file.file_type is FileType.FOLDER:
                self._try(planned, partial(self._make_folder, planned))
        for planned in files:
            if not planned.missing:
                self._try(planned, partial(self._finish, planned))
        pieces = [partial(self._piece, planned, number) for planned in files for number in planned.missing]
        concurrently(pieces, connections=connections)
        for planned in wanted:
            if planned.file.file_type is FileType.LINK:
                self._try(planned, partial(self._link, planned))
        result = self._result
        result.missing = len(wanted) + len(self._plan.failures) - result.files - len(result.failures)
        return result

    def _try(self, planned: Planned, act: Callable[[], None]) -> None:
        """Do a step of a file, unless it is in vain; keep its failure."""
        with self._lock:
            if self._result.stopped or planned.path in self._result.failures:
                return
        try:
            act()
        except Closed:
            return
        except StoreUnavailable as error:
            self._stop(f"the bucket does not answer: {error}; run the same command again to go on")
        except OSError as error:
            if error.errno in _FULL:
                self._stop(
                    f"the disk of {self._into.path} is full ({error.strerror}); free space and run the same command "
                    "again: it goes on where it stopped"
                )
            else:
                self._fail(planned, f"cannot be written: {error.strerror or error}")
        except (BastionError, Blocked, ValueError) as error:  # ValueError: a key that no store can hold
            self._fail(planned, str(error))

    def _stop(self, why: str) -> None:
        with self._lock:
            self._result.stopped = self._result.stopped or why

    def _fail(self, planned: Planned, why: str) -> None:
        with self._lock:
            self._result.failures.setdefault(planned.path, why)

    def _piece(self, planned: Planned, number: int) -> None:
        self._try(planned, partial(self._fetch_piece, planned, number))

    def _fetch_piece(self, planned: Planned, number: int) -> None:
        pieces = planned.file.pieces
        piece = pieces[number]
        if piece.size > limits.OUTPUT_PART_BYTES:
            raise Refused(f"its part {piece.key} is larger than {shown(limits.OUTPUT_PART_BYTES)}")
        stored = self._store.get_range(piece.key, start=piece.start, size=piece.size)
        digest = hashlib.sha256(stored.data).hexdigest()
        if len(stored.data) != piece.size or (piece.sha256 and digest != piece.sha256):
            raise Refused(f"its part {piece.key} is damaged: it has another SHA-256 than its manifest says")
        if not piece.sha256 and stored.meta.generation != piece.generation:
            raise Refused("it was written anew meanwhile; run the same command again")
        at = sum(before.size for before in pieces[:number])
        with self._into.in_use():
            opened = self._into.open_partial(planned.version)
            try:
                _write_at(opened, stored.data, at)
            finally:
                os.close(opened)
            if not piece.sha256:
                self._into.note(partial=planned.version, part=str(number), sha256=digest)
        with self._lock:
            self._result.size += piece.size
            self._left[planned.path] -= 1
            whole = self._left[planned.path] == 0
            self._report()
        if whole:
            self._finish(planned)

    def _finish(self, planned: Planned) -> None:
        """Give a whole file its mode, its time and its name."""
        file = planned.file
        with self._into.in_use():
            opened = self._into.open_partial(planned.version)
            try:
                os.ftruncate(opened, file.size)
                os.fchmod(opened, (file.mode & ~self._umask & 0o777) | 0o600)
                if file.modified is not None:
                    with contextlib.suppress(OverflowError, OSError):  # a time that no file can have
                        os.utime(opened, (file.modified, file.modified))
                status = os.fstat(opened)
            finally:
                os.close(opened)
            self._place(planned, status)

    def _link(self, planned: Planned) -> None:
        with self._into.in_use():
            with contextlib.suppress(FileNotFoundError):
                os.unlink(planned.version, dir_fd=self._into.partial)
            os.symlink(planned.file.target, planned.version, dir_fd=self._into.partial)
            self._check_end(planned)
            self._place(planned, os.stat(planned.version, dir_fd=self._into.partial, follow_symlinks=False))

    def _check_end(self, planned: Planned) -> None:
        """Raises Blocked for a link that leads out through what else is in the folder."""
        inner = self._into.path / planned.path.removesuffix(planned.file.path)
        end = os.path.realpath((self._into.path / planned.path).parent / planned.file.target)
        if os.path.commonpath([end, os.path.realpath(inner)]) != os.path.realpath(inner):
            os.unlink(planned.version, dir_fd=self._into.partial)
            raise Blocked("it is a link that leads out of the folder, through another link there")

    def _place(self, planned: Planned, status: os.stat_result) -> None:
        present = self._into.find(planned.path)
        if present is not None and not self._force and is_ours(self._into, planned.path, present) is None:
            raise Blocked("a file of this name appeared meanwhile; move it away, or use --force")
        self._into.note(
            path=planned.path,
            version=planned.version,
            size=status.st_size,
            mtime_ns=status.st_mtime_ns,
            inode=status.st_ino,
        )
        self._into.place(planned.version, planned.path)
        self._count()

    def _make_folder(self, planned: Planned) -> None:
        with self._into.in_use(), self._into.folder(planned.path):
            self._count()

    def _count(self) -> None:
        with self._lock:
            self._result.files += 1
            self._report()

    def _tell(self) -> None:
        with self._lock:
            self._report()

    def _report(self) -> None:
        self._on_progress(Progress(self._result.size, self._total_bytes, self._result.files, len(self._plan.wanted)))


def _write_at(opened: int, data: bytes, at: int) -> None:
    view = memoryview(data)
    while view:
        written = os.pwrite(opened, view, at)
        view, at = view[written:], at + written
