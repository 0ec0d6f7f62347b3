"""What a host remembers on its own disk: whether the command was ever started here, and how it ended.

Layer: worker. One folder per run and host, `<state dir>/<run>.<i>/`, so that emulated hosts may share a state dir.

Invariants:

* `started` is on disk (fsync) before the command is spawned, and is never removed: the command runs here at most once.
* `outcome` is on disk before the final report is uploaded, so that an agent that dies in between does not call a
  finished command a restarted host.
* One agent at a time holds the folder's lock; the kernel frees it with the agent's death.
"""

from __future__ import annotations

import fcntl
import os
from pathlib import Path

from bastion.core import protocol
from bastion.core.errors import InvalidDocument
from bastion.core.protocol import Report


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
        self.folder.mkdir(parents=True, exist_ok=True)
        # Not inherited by children (PEP 446): only this agent holds it.
        descriptor = os.open(self.folder / "lock", os.O_RDWR | os.O_CREAT, 0o600)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(descriptor)
            return False
        self._lock = descriptor
        return True

    def close(self) -> None:
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None

    @property
    def work_dir(self) -> Path:
        """The command's working folder."""
        return self.folder / "work"

    @property
    def spool_dir(self) -> Path:
        """For output that the bucket does not have yet."""
        return self.folder / "spool"

    @property
    def preempt_file(self) -> Path:
        return self.folder / "preempt"

    @property
    def checkpoint_file(self) -> Path:
        """The command's to create: the folder is a new one for each run."""
        return self.folder / "checkpoint"

    @property
    def started(self) -> bool:
        """Whether the command may have run here before."""
        return (self.folder / "started").exists()

    def mark_started(self, boot_id: str) -> None:
        """Notes that the command runs from now on.

        Raises:
            FileExistsError: it did before.
            OSError: the disk refuses; then nothing may be started.
        """
        _write_durably(self.folder / "started", boot_id.encode(), os.O_EXCL)

    def save_outcome(self, report: Report) -> None:
        """Keeps the final report until it is in the bucket.

        Raises:
            OSError: the disk refuses.
        """
        temporary = self.folder / "outcome.new"
        _write_durably(temporary, report.to_bytes(), os.O_TRUNC)
        temporary.replace(self.folder / "outcome")
        _sync_folder(self.folder)

    def outcome(self) -> Report | None:
        """The final report of an earlier agent; None if there is none to read."""
        try:
            return protocol.read(Report, (self.folder / "outcome").read_bytes())
        except (OSError, InvalidDocument):
            return None

    def mark_reported(self) -> None:
        """Notes that the final report is in the bucket: whoever watches this agent may let it end."""
        _write_durably(self.folder / "reported", b"", os.O_TRUNC)

    @property
    def reported(self) -> bool:
        return (self.folder / "reported").exists()

    def ask_to_stop(self, reason: str) -> None:
        """Makes the pre-emption file appear, whole."""
        temporary = self.folder / "preempt.new"
        temporary.write_text(reason + "\n", "utf-8")
        temporary.replace(self.preempt_file)


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
