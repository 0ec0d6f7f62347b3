"""A host's state on its own disk: which tries began here, and how the last one ended.

One folder per run and host, `<state dir>/<run>.<i>/`, so that emulated hosts can share a state dir. It is the agent's;
`job/` in it belongs to the user that the command runs as.

Invariants:
* `started-<try>` is fsynced before anything of that try is spawned, and is never removed: each try runs at most once.
* `outcome` is on disk before the final report is uploaded or the next try is awaited. A restarted agent then does not
  report a finished command as lost.
* One agent at a time holds the folder's lock; the kernel frees it when the agent dies.
* Whose `job/` is, it stays. What is in it is accessed inside `files` only: the command may have put anything there.
"""

from __future__ import annotations

import contextlib
import fcntl
import logging
import os
import secrets
import threading
from pathlib import Path

from bastion import job_user
from bastion.core import disk_limit
from bastion.core.bucket import protocol
from bastion.core.bucket.protocol import Report
from bastion.core.disk_limit import DiskNotice
from bastion.core.errors import InvalidDocument
from bastion.job_user import JobUser

_log = logging.getLogger(__name__)

_STARTED = "started-"


class HostState:
    """The state of one host of a run. `is_shared`: whether commands may run as another user than the agent."""

    def __init__(self, state_dir: Path, *, run: str, host: int, is_shared: bool = False) -> None:
        self.folder = state_dir / f"{run}.{host}"
        self._is_shared = is_shared
        self._lock: int | None = None

    def open(self) -> bool:
        """Create the folder and take its lock; return False if another agent of this host is alive."""
        # Nobody else on this machine may read the command's environment and outputs.
        mode = 0o711 if self._is_shared else 0o700
        self.folder.mkdir(mode=mode, parents=True, exist_ok=True)
        self.folder.chmod(mode)
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
    def job_dir(self) -> Path:
        """What the command may change; only its user may look into it."""
        return self.folder / "job"

    def make_job_dir(self, user: JobUser | None) -> None:
        """Make the job's folder unless it exists. Raises OSError if it belongs to somebody else, or is out of reach."""
        owner, group = (os.geteuid(), os.getegid()) if user is None else (user.uid, user.gid)
        if not self.job_dir.exists():
            new = self.folder / "job.new"
            new.mkdir(mode=0o700, exist_ok=True)
            if user is not None:
                os.chown(new, owner, group)
            new.rename(self.job_dir)
        found = self.job_dir.stat().st_uid
        if found != owner:
            raise PermissionError(f"{self.job_dir} belongs to user {found}, and the command runs as user {owner}")
        if user is None:
            return
        try:
            with user.files():
                for folder in (self.home_dir, self.temporary_dir):
                    folder.mkdir(mode=0o700, exist_ok=True)
        except PermissionError as error:
            raise PermissionError(
                f"user {user.name} cannot reach {self.job_dir}; let everybody pass the folders above (chmod o+x)"
            ) from error

    @property
    def user(self) -> JobUser | None:
        """Whom the job's folder belongs to; None: the agent, or there is none."""
        try:
            found = self.job_dir.lstat()
        except FileNotFoundError:
            return None
        return None if found.st_uid == os.geteuid() else job_user.by_numbers(found.st_uid, found.st_gid)

    def files(self) -> contextlib.AbstractContextManager[None]:
        """Access files with the rights of whom the job's folder belongs to, in this thread."""
        return job_user.files_of(self.user if self._is_shared else None)

    @property
    def work_dir(self) -> Path:
        """The command's working folder, with the job's code; all tries share it."""
        return self.job_dir / "work"

    @property
    def inputs_dir(self) -> Path:
        """Inputs on their way into the working folder."""
        return self.job_dir / "inputs"

    @property
    def environment_dir(self) -> Path:
        """The job's own Python environment, if it has one."""
        return self.job_dir / "env"

    @property
    def home_dir(self) -> Path:
        """HOME of a command that runs as another user."""
        return self.job_dir / "home"

    @property
    def temporary_dir(self) -> Path:
        """Its TMPDIR."""
        return self.job_dir / "tmp"

    @property
    def spool_dir(self) -> Path:
        """Output that is not in the bucket yet."""
        return self.folder / "spool"

    @property
    def proxy_spool_dir(self) -> Path:
        return self.folder / "proxy-spool"

    @property
    def preempt_file(self) -> Path:
        return self.job_dir / "preempt"

    @property
    def checkpoint_file(self) -> Path:
        return self.job_dir / "checkpoint"

    @property
    def step_file(self) -> Path:
        return self.job_dir / "step"

    @property
    def results_file(self) -> Path:
        """What the command measured, by itself."""
        return self.job_dir / "results"

    @property
    def mllog_file(self) -> Path:
        """The MLLOG lines of its output."""
        return self.folder / "mllog"

    @property
    def hostfile(self) -> Path:
        """The job's hosts, for MPI."""
        return self.job_dir / "hostfile"

    @property
    def started(self) -> int:
        """The last try that may have run here; 0 if none."""
        numbers = [path.name.removeprefix(_STARTED) for path in self.folder.glob(f"{_STARTED}*")]
        return max((int(number) for number in numbers if number.isdecimal()), default=0)

    def mark_started(self, boot_id: str, try_number: int) -> None:
        """Record that a try starts, and remove the files that the command of an earlier one wrote for the agent.

        Raises FileExistsError if the try already started, another OSError on a disk error: nothing may be started.
        """
        _write_durably(self.folder / f"{_STARTED}{try_number}", boot_id.encode(), os.O_EXCL)
        self.mllog_file.unlink(missing_ok=True)
        with self.files():
            for path in (self.preempt_file, self.checkpoint_file, self.step_file, self.results_file):
                self._clear(path, try_number)

    def _clear(self, path: Path, try_number: int) -> None:
        """Remove what a command wrote at a path for the agent; it may have put anything there."""
        if path.is_dir() and not path.is_symlink():
            path.rename(path.with_name(f"{path.name}-{try_number}-{secrets.token_hex(4)}"))
        path.unlink(missing_ok=True)

    @property
    def has_results(self) -> bool:
        """Whether there is anything at the paths of what the command measured."""
        with self.files():
            return os.path.lexists(self.results_file) or os.path.lexists(self.mllog_file)

    def remove_results(self) -> None:
        """Remove what the command measured: it is stored, or nobody will store it. Does nothing on a disk error."""
        with contextlib.suppress(OSError):
            self.mllog_file.unlink()
        with contextlib.suppress(OSError), self.files():
            self.results_file.unlink()

    @property
    def prepared(self) -> bool:
        """Whether code, packages and outputs are ready for the command."""
        return (self.folder / "prepared").exists()

    def mark_prepared(self) -> None:
        _write_durably(self.folder / "prepared", b"", os.O_TRUNC)

    def passed_gate(self, boot_id: str, now: float) -> float:
        """Record that this host passed the gate now, by the monotonic clock of this boot; return when it first did."""
        path = self.folder / "passed-gate"
        with contextlib.suppress(OSError, ValueError):
            boot, _, at = path.read_text("utf-8").partition(" ")
            if boot == boot_id:
                return min(now, float(at))
        try:
            _write_durably(path, f"{boot_id} {now!r}".encode(), os.O_TRUNC)
        except OSError as error:
            _log.warning("the time at the gate could not be saved in %s: %s", self.folder, error)
        return now

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
        (self.folder / "prepared").unlink(missing_ok=True)
        self.remove_results()
        user = self.user
        aside = self.folder / f"discarded-{secrets.token_hex(4)}"
        try:
            self.job_dir.rename(aside)
        except FileNotFoundError:
            return
        threading.Thread(target=job_user.remove, args=(aside, user), name="discard-work", daemon=True).start()

    def ask_to_stop(self, reason: str) -> None:
        """Create the preempt file atomically."""
        with self.files():
            temporary = self.preempt_file.with_name(f"preempt-{secrets.token_hex(4)}.new")
            with temporary.open("x", encoding="utf-8") as file:
                file.write(reason + "\n")
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
