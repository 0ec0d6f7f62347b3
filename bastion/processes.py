"""Processes of this machine: which are alive, and how to end everything of a host or a command.

Process ids are reused, so they are always paired with the kernel's start time. Processes are found by a *marker*, an
environment variable that children inherit: unlike a process group it survives `setsid`, double forks and the death of
every parent. A process without the environment (`env -i setsid ...`) is found as a descendant, because whoever runs
commands is a *subreaper*, which adopts processes that lose their parent. Linux only; reads /proc.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import time
from collections.abc import Callable, Collection
from dataclasses import dataclass
from pathlib import Path

_PROC = Path("/proc")
# If the kernel has no boot id.
UNKNOWN_BOOT = "unknown-boot"
# Of a process id or a start time.
_DIGITS_MAX = 20
_PR_SET_PDEATHSIG = 1
_PR_SET_CHILD_SUBREAPER = 36
_PR_GET_CHILD_SUBREAPER = 37


def _pids() -> list[int]:
    """All processes; none if they cannot be listed."""
    try:
        return [int(entry.name) for entry in _PROC.iterdir() if entry.name.isdigit()]
    except OSError:
        return []


def _stat_fields(pid: int) -> list[str] | None:
    """Fields of /proc/<pid>/stat after the command name, which may hold spaces and brackets."""
    try:
        text = (_PROC / str(pid) / "stat").read_text("utf-8", "replace")
    except OSError:
        return None
    return text.rpartition(")")[2].split()


def _has_ended(fields: list[str]) -> bool:
    """Whether these are the fields of a process without a live thread.

    One whose main thread has ended shows as a zombie, too, and runs on with the others.
    """
    return fields[0] == "X" or (fields[0] == "Z" and int(fields[17]) <= 1)


def start_time(pid: int) -> int | None:
    """Kernel start time of a live process in clock ticks since boot; None if gone or a zombie."""
    fields = _stat_fields(pid)
    if fields is None or _has_ended(fields):
        return None
    return int(fields[19])


@dataclass(frozen=True, slots=True)
class ProcessId:
    """The unique identity of a process: its id and start time."""

    pid: int
    started: int

    @staticmethod
    def of(pid: int) -> ProcessId | None:
        """The identity of a live process; None if there is none."""
        started = start_time(pid)
        return None if started is None else ProcessId(pid, started)

    @staticmethod
    def parse(text: str) -> ProcessId | None:
        """Parse the format of `str()`; None if invalid."""
        pid, _, started = text.strip().partition(":")
        # Others may have written it: Python has digits that `int` refuses, and refuses thousands of them.
        if not all(part.isascii() and part.isdigit() and len(part) <= _DIGITS_MAX for part in (pid, started)):
            return None
        return ProcessId(int(pid), int(started))

    def __str__(self) -> str:
        return f"{self.pid}:{self.started}"

    @property
    def alive(self) -> bool:
        return start_time(self.pid) == self.started

    def signal(self, number: int) -> None:
        """Send a signal, unless the id was reused."""
        if self.alive:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(self.pid, number)


def boot_id() -> str:
    """The kernel's id of this boot."""
    try:
        return (_PROC / "sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        return UNKNOWN_BOOT


def host_identity() -> str:
    """Identifies machine, boot and process namespace: if equal, process ids mean the same processes."""
    try:
        namespace = str((_PROC / "self/ns/pid").readlink())
    except OSError:
        namespace = "pid"
    return f"{boot_id()}/{namespace}"


def marked(name: str, value: str) -> list[ProcessId]:
    """All other live processes that started with `name=value` in their environment."""
    wanted = f"{name}={value}".encode()
    found = []
    me = os.getpid()
    for pid in _pids():
        if pid == me:
            continue
        identity = ProcessId.of(pid)
        if identity is None:
            continue
        if wanted in _environment(pid).split(b"\0"):
            found.append(identity)
    return found


def _environment(pid: int) -> bytes:
    """The variables that a process started with; empty if they cannot be read."""
    folder = _PROC / str(pid)
    try:
        return (folder / "environ").read_bytes()
    except ProcessLookupError:
        pass  # its main thread has ended: another one tells
    except OSError:
        return b""
    with contextlib.suppress(OSError):
        for thread in (folder / "task").iterdir():
            with contextlib.suppress(OSError):
                return (thread / "environ").read_bytes()
    return b""


def of_user(uid: int) -> list[ProcessId]:
    """All other live processes that run as that user, by any of the ids that the kernel keeps for it.

    From `status`, which everybody may read: /proc/<pid> itself belongs to root if the process is not dumpable.
    """
    found = []
    me = os.getpid()
    for pid in _pids():
        if pid == me or uid not in _user_ids(pid):
            continue
        identity = ProcessId.of(pid)
        if identity is not None:
            found.append(identity)
    return found


def _user_ids(pid: int) -> set[int]:
    """The real, effective and saved user id of a process; not that of its file access, which an agent changes."""
    try:
        text = (_PROC / str(pid) / "status").read_text("utf-8", "replace")
    except OSError:
        return set()
    line = next((line for line in text.splitlines() if line.startswith("Uid:")), "Uid:")
    return set(map(int, line.split()[1:4]))


def in_group(pgid: int) -> list[ProcessId]:
    """All other live processes of that process group."""
    found = []
    me = os.getpid()
    for pid in _pids():
        fields = _stat_fields(pid)
        if pid != me and fields is not None and not _has_ended(fields) and int(fields[2]) == pgid:
            found.append(ProcessId(pid, int(fields[19])))
    return found


def descendants(pids: Collection[int]) -> list[ProcessId]:
    """All other live processes that `pids` started, directly or through live ones."""
    children: dict[int, list[int]] = {}
    for pid in _pids():
        fields = _stat_fields(pid)
        if fields is not None:
            children.setdefault(int(fields[1]), []).append(pid)
    found: set[int] = set()
    pending = list(pids)
    while pending:
        for child in children.get(pending.pop(), ()):
            if child not in found:
                found.add(child)
                pending.append(child)
    identities = [ProcessId.of(pid) for pid in sorted(found - {os.getpid()})]
    return [identity for identity in identities if identity is not None]


def reset_signals() -> None:
    """Reset inherited signal settings (`nohup`, a shell's `trap ''`), which children would inherit too.

    An ignored SIGCHLD would even hide how children end. `subprocess` resets SIGPIPE and SIGXFSZ, which Python itself
    ignores.
    """
    for number in signal.valid_signals() - {signal.SIGPIPE, signal.SIGXFSZ}:
        if signal.getsignal(number) is signal.SIG_IGN:
            signal.signal(number, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_SETMASK, [])


def become_subreaper() -> None:
    """Adopt descendants that lose their parent, to find, end and reap them (Linux)."""
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def is_subreaper() -> bool:
    answer = ctypes.c_int(0)
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).prctl(_PR_GET_CHILD_SUBREAPER, ctypes.byref(answer), 0, 0, 0)
    return bool(answer.value)


def end_with_parent(parent: int) -> None:
    """Make the kernel kill this process when the thread that forked it ends; end at once if `parent` is gone."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != parent:
        os.kill(os.getpid(), signal.SIGKILL)


def end_marked(
    name: str,
    value: str,
    *,
    grace_seconds: float,
    poll_seconds: float = 0.05,
    also: Callable[[], Collection[ProcessId]] = list,
) -> bool:
    """End every marked process and its descendants: SIGTERM, grace period, SIGKILL until none is left.

    `also`: finds more processes to end, such as those of a user.

    SIGTERM goes once to the processes alive at the beginning; what they start in response (a last save, a last upload)
    has the same grace period. Returns False if some survive SIGKILL for five seconds.
    """
    deadline = time.monotonic() + grace_seconds
    asked = False
    found: set[ProcessId] = set()
    while True:
        # Kept, because an unmarked descendant cannot be found once its parent is gone.
        found = {process for process in found if process.alive} | _with_descendants(name, value) | set(also())
        alive = sorted(found, key=lambda process: process.pid)
        if not alive:
            return True
        now = time.monotonic()
        if now >= deadline + 5:
            return False
        if now >= deadline or not asked:
            for process in alive:
                process.signal(signal.SIGKILL if now >= deadline else signal.SIGTERM)
            asked = True
        time.sleep(poll_seconds)


def _with_descendants(name: str, value: str) -> set[ProcessId]:
    """The marked processes and all their descendants, including this one if marked."""
    found = set(marked(name, value))
    roots = {process.pid for process in found}
    if os.environ.get(name) == value:
        roots.add(os.getpid())
    return found.union(descendants(roots)) if roots else found
