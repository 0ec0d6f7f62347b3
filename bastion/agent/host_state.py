"""A host's state on its own disk: which tries began here, and how the last one ended.

One folder per run and host, `<state dir>/<run>.<i>/`, so that emulated hosts can share a state dir.

Invariants:
* `started-<try>` is fsynced before anything of that try is spawned, and is never removed: each try runs at most once.
* `outcome` is on disk before the final report is uploaded or the next try is awaited. A restarted agent then does not
  report a finished command as lost.
* One agent at a time holds the folder's lock; the kernel frees it when the agent dies.
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
    def __init__(self, state_dir: Path, *, run: str, host: int) -> None:
        self.folder = state_dir / f"{run}.{host}"
        self._lock: int | None = None

    def open(self) -> bool:
        """Create the folder and take its lock; return False if another agent of this host is alive."""
        # Nobody else on this machine may read the command's environment and outputs.
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
            # Created now, so that a full disk later does not keep the agent from ending.
            (self.folder / "reported.new").touch(mode=0o600)
        return True

    def close(self) -> None:
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None

    @property
    def work_dir(self) -> Path:
        """The command's working folder, with the job's code; all tries share it."""
        return self.folder / "work"

    @property
    def environment_dir(self) -> Path:
        """The job's own Python environment, if it has one."""
        return self.folder / "env"

    @property
    def spool_dir(self) -> Path:
        """Output that is not in the bucket yet."""
        return self.folder / "spool"

    @property
    def proxy_spool_dir(self) -> Path:
        return self.folder / "proxy-spool"

    @property
    def preempt_file(self) -> Path:
        return self.folder / "preempt"

    @property
    def checkpoint_file(self) -> Path:
        return self.folder / "checkpoint"

    @property
    def started(self) -> int:
        """The last try that may have run here; 0 if none."""
        numbers = [path.name.removeprefix(_STARTED) for path in self.folder.glob(f"{_STARTED}*")]
        return max((int(number) for number in numbers if number.isdecimal()), default=0)

    def mark_started(self, boot_id: str, try_number: int) -> None:
        """Record that a try starts, and remove the preempt and checkpoint files of an earlier one.

        Raises FileExistsError if the try already started, another OSError on a disk error: nothing may be started.
        """
        _write_durably(self.folder / f"{_STARTED}{try_number}", boot_id.encode(), os.O_EXCL)
        self.preempt_file.unlink(missing_ok=True)
        if self.checkpoint_file.is_dir() and not self.checkpoint_file.is_symlink():
            # Not a checkpoint; a command may put anything at this path.
            self.checkpoint_file.rename(self.folder / f"checkpoint-{try_number}")
        self.checkpoint_file.unlink(missing_ok=True)

    @property
    def prepared(self) -> bool:
        """Whether code, packages and outputs are ready for the command."""
        return (self.folder / "prepared").exists()

    def mark_prepared(self) -> None:
        _write_durably(self.folder / "prepared", b"", os.O_TRUNC)

    def keep_outcome(self, report: Report) -> None:
        """Keep a try's final or WAITING report. A disk error is harmless unless the agent dies before the upload."""
        temporary = self.folder / "outcome.new"
        try:
            _write_durably(temporary, report.to_bytes(), os.O_TRUNC)
            temporary.replace(self.folder / "outcome")
            _sync_folder(self.folder)
        except OSError as error:
            _log.warning("the outcome could not be saved in %s: %s", self.folder, error)

    def outcome(self) -> Report | None:
        """The report that an earlier agent kept; None if there is no readable one."""
        try:
            return protocol.read(Report, (self.folder / "outcome").read_bytes())
        except (OSError, InvalidDocument):
            return None

    def mark_reported(self) -> None:
        """Record that the final report is in the bucket: the agent's watcher may then end it."""
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
        try:
            return DiskNotice.parse(str((self.folder / disk_limit.NOTICE_NAME).readlink()))
        except (OSError, InvalidDocument):
            return None

    def discard_work(self) -> None:
        """Remove the command's files and everything prepared for it; a next try starts from scratch.

        The paths are free at once. A thread deletes the files.
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
        """Create the preempt file atomically."""
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
