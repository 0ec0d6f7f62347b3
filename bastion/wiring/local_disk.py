"""Watch the disk of this machine's jobs, and end the job that fills it.

Jobs without a slice and emulated hosts share a disk with the daemon, and in local mode with the bucket. A full disk
would stop all of them: no state, result or request could be written.

    every second     measure free space; fill up the reserve of a folder bucket
    below the floor  tell the job with the most files to end (`bastion.core.disk_limit`), one at a time
    with a limit     also tell every job over the limit

Invariants:

* Nothing here needs disk space: the notice is a symbolic link.
* A job is chosen only if its end frees a relevant part of the floor; otherwise the alarm says that no job is the cause.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from bastion import job_user
from bastion.adapters import bastion_host_users as host_users
from bastion.adapters.bastion_host_remains import of_user
from bastion.core import limits
from bastion.core.disk_limit import NOTICE_NAME, DiskNotice, shown
from bastion.folder_format.reserve import Reserve, reserve_bytes
from bastion.wiring.local_home import LocalHome
from bastion.wiring.roots import Root

_log = logging.getLogger(__name__)

_PERIOD_SECONDS = 1.0
_HURRIED_SECONDS = 0.25
# Walking through all files is expensive; the limit per job is checked less often than the disk.
_LIMIT_PERIOD_SECONDS = 5.0
# How long a job has to end before another one is told.
_PATIENCE_SECONDS = 15.0
# How long an alarm stays after its cause is gone.
_ALARM_SECONDS = 60.0


@dataclass(frozen=True, slots=True, kw_only=True)
class _HostFiles:
    """The folders of one host, and its job."""

    node: Path  # everything of the host
    state: Path  # where its agent looks for a notice
    run: str
    job: str


@dataclass(frozen=True, slots=True, kw_only=True)
class DiskSpace:
    """Bytes of one file system that this user may use."""

    total: int
    free: int

    @classmethod
    def of(cls, folder: Path) -> DiskSpace:
        """Measure a folder's file system; raises OSError if the folder is gone."""
        found = os.statvfs(folder)
        return cls(total=found.f_blocks * found.f_frsize, free=found.f_bavail * found.f_frsize)

    @property
    def floor(self) -> int:
        return min(limits.DISK_FLOOR_BYTES, self.total // 20)


class DiskWatch:
    """Watches one daemon's disk; thread-safe.

    Args:
        home: Where the hosts of jobs are.
        root: Its bucket gets a reserve if it is a folder.
        job_limit_bytes: The maximum for the files of one job; 0: no limit.
        space_of: Measures the file system of a folder.
    """

    def __init__(
        self,
        home: LocalHome,
        root: Root,
        *,
        job_limit_bytes: int = 0,
        space_of: Callable[[Path], DiskSpace] = DiskSpace.of,
    ) -> None:
        self._home = home
        self._root = root
        self._job_limit = job_limit_bytes
        self._space_of = space_of
        self._thread: threading.Thread | None = None
        self._told: dict[str, float] = {}
        self._alarms: dict[str, tuple[float, str]] = {}
        self._measured_at = float("-inf")
        self._low = False
        self._reserve_error = ""

    def watch(self) -> Sequence[str]:
        """Start the watch unless it runs; it lasts as long as the process. Return the alarms."""
        if self._thread is None:
            self._thread = threading.Thread(target=self._watch, name="disk-watch", daemon=True)
            self._thread.start()
        return self.alarms()

    def alarms(self) -> Sequence[str]:
        now = time.monotonic()
        return [text for until, text in list(self._alarms.values()) if now < until]

    def _watch(self) -> None:
        while True:
            try:
                self.look()
            except OSError as error:
                _log.warning("the disk of %s could not be checked: %s", self._home.path, error)
            time.sleep(_HURRIED_SECONDS if self._low else _PERIOD_SECONDS)

    def look(self) -> None:
        """Check once; raises OSError if the disk cannot be checked."""
        self._fill_reserve()
        if not self._home.path.is_dir():
            return  # no job has run here
        disk = self._space_of(self._home.path)
        full = disk.free < disk.floor
        self._low = disk.free < 4 * disk.floor
        now = time.monotonic()
        if not full and not (self._job_limit and now - self._measured_at >= _LIMIT_PERIOD_SECONDS):
            return
        self._measured_at = now
        held = self._held_by_run()
        for run, (size, hosts) in held.items():
            if self._job_limit and size > self._job_limit and run not in self._told:
                notice = DiskNotice(held=size, limit=self._job_limit, free=disk.free, total=disk.total)
                self._tell(run, hosts, notice)
        if full:
            self._make_room(disk, held)
        self._told = {run: at for run, at in self._told.items() if run in held}

    def _make_room(self, disk: DiskSpace, held: dict[str, tuple[int, list[_HostFiles]]]) -> None:
        now = time.monotonic()
        if any(now - at < _PATIENCE_SECONDS for at in self._told.values()):
            return
        run, (size, hosts) = max(held.items(), key=lambda item: item[1][0], default=("", (0, [])))
        if size < disk.floor // 2:
            text = (
                f"no space left on device: {shown(disk.free)} of {shown(disk.total)} are free on the disk of "
                f"{self._home.path}, and no job uses much; jobs cannot start or store anything until you free "
                "some space"
            )
            self._alarm("disk", text)
            return
        self._tell(run, hosts, DiskNotice(held=size, limit=0, free=disk.free, total=disk.total))

    def _tell(self, run: str, hosts: Sequence[_HostFiles], notice: DiskNotice) -> None:
        """Tell a job's hosts to end it, or tell them again."""
        self._told[run] = time.monotonic()
        for host in hosts:
            with contextlib.suppress(FileExistsError, FileNotFoundError):
                (host.state / NOTICE_NAME).symlink_to(notice.to_text())
        self._alarm(run, f"job {hosts[0].job} was told to end ({run}, disk of {self._home.path}): {notice}")
        _log.warning("%s of job %s was told to end: %s", run, hosts[0].job, notice)

    def _alarm(self, what: str, text: str) -> None:
        now = time.monotonic()
        self._alarms = {key: alarm for key, alarm in self._alarms.items() if now < alarm[0]}
        # Figures change constantly; an alarm that stands is not updated for them.
        if what in self._alarms:
            text = self._alarms[what][1]
        self._alarms[what] = (now + _ALARM_SECONDS, text)

    def _fill_reserve(self) -> None:
        if not self._root.local:
            return
        bucket = Path(self._root.bucket)
        try:
            disk, reserve = self._space_of(bucket), Reserve(bucket)
            wanted = reserve_bytes(disk.total, most=limits.DISK_RESERVE_BYTES)
            if reserve.held_bytes != wanted and disk.free - (wanted - reserve.held_bytes) >= disk.floor:
                reserve.fill(wanted)
            problem = ""
        except OSError as error:
            problem = str(error)
        if problem and problem != self._reserve_error:
            _log.warning("the bucket %s has no reserve against a full disk: %s", bucket, problem)
        self._reserve_error = problem

    def _held_by_run(self) -> dict[str, tuple[int, list[_HostFiles]]]:
        found: dict[str, tuple[int, list[_HostFiles]]] = {}
        for host in self._hosts():
            size, hosts = found.get(host.run, (0, []))
            found[host.run] = (size + disk_usage(host.node) + _usage_elsewhere(host), [*hosts, host])
        return found

    def _hosts(self) -> Iterator[_HostFiles]:
        """Every host on this machine that has started a run."""
        alone = self._home.hosts_dir(self._root).glob("[!.]*/state/*")
        emulated = self._home.emulator_dir.glob("vms/*/*/state/*")
        for state in (*alone, *emulated):
            run = state.name.rpartition(".")[0]
            if run and state.is_dir() and not state.is_symlink():
                node = state.parent.parent
                yield _HostFiles(node=node, state=state, run=run, job=_job_of(node))


def _job_of(node: Path) -> str:
    """The job's name, from the node's metadata."""
    with contextlib.suppress(OSError, ValueError, KeyError, TypeError):
        file = node / "arguments.json"
        if file.exists():
            return str(json.loads(file.read_bytes())["job"])
        return str(json.loads(json.loads((node / "host.json").read_bytes())["metadata"]["bastion-agent"])["job"])
    return "of an unknown name"


def disk_usage(folder: Path) -> int:
    """Return the disk usage below a folder in bytes, without following links.

    A daemon that is not root looks into a command's folder as the command's user.
    """
    closed: list[str] = []
    size = _usage(str(folder), closed)
    for path in closed:
        with contextlib.suppress(OSError):
            found = os.lstat(path)
            if found.st_uid != os.geteuid():
                with job_user.by_numbers(found.st_uid, found.st_gid).files():
                    size += _usage(path, [])
    return size


def _usage(folder: str, closed: list[str]) -> int:
    """`closed`: gets the folders that cannot be read."""
    size = 0
    pending = [folder]
    while pending:
        path = pending.pop()
        try:
            with os.scandir(path) as entries:
                for entry in entries:
                    with contextlib.suppress(OSError):
                        size += entry.stat(follow_symlinks=False).st_blocks * 512
                        if entry.is_dir(follow_symlinks=False):
                            pending.append(entry.path)
        except PermissionError:
            closed.append(path)
        except OSError:
            continue
    return size


def _usage_elsewhere(host: _HostFiles) -> int:
    """Disk usage of the command's own user in folders for everybody, which end with it; 0 if it has no such user."""
    try:
        user = (host.state / "job").lstat().st_uid
    except OSError:
        return 0
    if user == os.geteuid():
        return 0
    found = [path for place in host_users.PLACES for path in of_user(place, user)]
    return sum(os.lstat(path).st_blocks * 512 + disk_usage(Path(path)) for path in found if os.path.lexists(path))
