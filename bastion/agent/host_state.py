"""What a host remembers on its own disk: which tries of the command were begun here, and how the last one ended.

Layer: worker. One folder per run and host, `<state dir>/<run>.<i>/`, so that emulated hosts may share a state dir.

Invariants:

* `started-<try>` is on disk (fsync) before anything of that try is spawned, and is never removed: each runs at most
  once.
* `outcome` is on disk before the final report is uploaded, or the next try is waited for, so that an agent that dies
  after it does not call a finished command a restarted host.
* One agent at a time holds the folder's lock; the kernel frees it with the agent's death.
"""

from __future__ import annotations

import contextlib
import fcntl
import logging
import os
import secrets
import shutil
import threading
from pathlib import Path

from bastion.core import disk_limit
from bastion.core.bucket import protocol
from bastion.core.bucket.protocol import Report
from bastion.core.disk_limit import DiskNotice
from bastion.core.errors import InvalidDocument

_log = logging.getLogger(__name__)

_STARTED = "started-"


class HostState:
    """The folder of one host of one run."""

    def __init__(self, state_dir: Path, *, run: str, host: int) -> None:
        self.folder = state_dir / f"{run}.{host}"
        self._lock: int | None = None

    def open(self) -> bool:
        """Creates the folder and takes its lock; False if another agent of this host is alive.

        Raises:
            OSError: the disk refuses.
        """
        # What lies below (the environment of a command, its outputs) is nobody else's on this machine.
        self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        self.folder.chmod(0o700)
        # Not inherited by children (PEP 446): only this agent holds it.
        descriptor = os.open(self.folder / "lock", os.O_RDWR | os.O_CREAT, 0o600)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(descriptor)
            return False
        self._lock = descriptor
        with contextlib.suppress(OSError):
            # Made now, so that a disk that is full in the end does not keep the agent from ending.
            (self.folder / "reported.new").touch(mode=0o600)
        return True

    def close(self) -> None:
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None

    @property
    def work_dir(self) -> Path:
        """The command's working folder, with the job's code in it; stays from try to try."""
        return self.folder / "work"

    @property
    def environment_dir(self) -> Path:
        """The job's own Python environment, if it has one."""
        return self.folder / "env"

    @property
    def spool_dir(self) -> Path:
        """For output that the bucket does not have yet."""
        return self.folder / "spool"

    @property
    def proxy_spool_dir(self) -> Path:
        """The same for what the storage proxy beside the command prints."""
        return self.folder / "proxy-spool"

    @property
    def preempt_file(self) -> Path:
        return self.folder / "preempt"

    @property
    def checkpoint_file(self) -> Path:
        """The command's to create."""
        return self.folder / "checkpoint"

    @property
    def started(self) -> int:
        """The last try that may have run here; 0: none."""
        numbers = [path.name.removeprefix(_STARTED) for path in self.folder.glob(f"{_STARTED}*")]
        return max((int(number) for number in numbers if number.isdecimal()), default=0)

    def mark_started(self, boot_id: str, try_number: int) -> None:
        """Notes that a try runs from now on, and takes away what an earlier one was told and has told.

        Raises:
            FileExistsError: it did before.
            OSError: the disk refuses; then nothing may be started.
        """
        _write_durably(self.folder / f"{_STARTED}{try_number}", boot_id.encode(), os.O_EXCL)
        self.preempt_file.unlink(missing_ok=True)
        if self.checkpoint_file.is_dir() and not self.checkpoint_file.is_symlink():
            # Nobody's checkpoint; a command may make of this name what it likes.
            self.checkpoint_file.rename(self.folder / f"checkpoint-{try_number}")
        self.checkpoint_file.unlink(missing_ok=True)

    @property
    def prepared(self) -> bool:
        """Whether the command's folder is as the command needs it: code, packages."""
        return (self.folder / "prepared").exists()

    def mark_prepared(self) -> None:
        """Notes that it is.

        Raises:
            OSError: the disk refuses.
        """
        _write_durably(self.folder / "prepared", b"", os.O_TRUNC)

    def keep_outcome(self, report: Report) -> None:
        """Keeps how a try ended: its final report, or the one that waits for the next. A disk that refuses is no harm
        to the report that goes to the bucket; only a crash before that would lose it."""
        temporary = self.folder / "outcome.new"
        try:
            _write_durably(temporary, report.to_bytes(), os.O_TRUNC)
            temporary.replace(self.folder / "outcome")
            _sync_folder(self.folder)
        except OSError as error:
            _log.warning("the outcome could not be kept in %s: %s", self.folder, error)

    def outcome(self) -> Report | None:
        """What an earlier agent kept; None if there is nothing to read."""
        try:
            return protocol.read(Report, (self.folder / "outcome").read_bytes())
        except (OSError, InvalidDocument):
            return None

    def mark_reported(self) -> None:
        """Notes that the final report is in the bucket: whoever watches this agent may let it end."""
        if self.reported:
            return
        try:
            (self.folder / "reported.new").rename(self.folder / "reported")
            _sync_folder(self.folder)
        except FileNotFoundError:
            _write_durably(self.folder / "reported", b"", os.O_TRUNC)

    @property
    def reported(self) -> bool:
        return (self.folder / "reported").exists()

    @property
    def disk_notice(self) -> DiskNotice | None:
        """That this job holds too much of the disk, if whoever watches it has said so."""
        try:
            return DiskNotice.parse(str((self.folder / disk_limit.NOTICE_NAME).readlink()))
        except (OSError, InvalidDocument):
            return None

    def discard_work(self) -> None:
        """Remove what the command made, and what was prepared for it; a next try would be prepared anew.

        A large tree takes a while, so that another thread removes it; it is out of the way at once.
        """
        aside = self.folder / f"discarded-{secrets.token_hex(4)}"
        (self.folder / "prepared").unlink(missing_ok=True)
        found = []
        for number, folder in enumerate((self.work_dir, self.environment_dir)):
            with contextlib.suppress(OSError):
                target = aside.with_name(f"{aside.name}-{number}")
                folder.rename(target)
                found.append(target)
        remover = threading.Thread(target=_remove_all, args=(found,), name="discard-work", daemon=True)
        remover.start()

    def ask_to_stop(self, reason: str) -> None:
        """Makes the pre-emption file appear, whole."""
        temporary = self.folder / "preempt.new"
        temporary.write_text(reason + "\n", "utf-8")
        temporary.replace(self.preempt_file)


def _remove_all(folders: list[Path]) -> None:
    for folder in folders:
        shutil.rmtree(folder, ignore_errors=True)


def _write_durably(path: Path, data: bytes, flag: int) -> None:
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | flag, 0o600)
    try:
        os.write(descriptor, data)
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
    _sync_folder(path.parent)


def _sync_folder(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
