"""Processes of this machine: who is alive, and how to end everything that belongs to a host or a command.

A process id alone is not an identity (ids are reused), so it is always paired with the kernel's start time. A group of
processes is found by a *marker*, an environment variable that children inherit: it survives `setsid`, double forks and
the death of every parent, which process groups do not. A process that drops its environment (`env -i setsid ...`) is
found as a descendant instead: whoever runs commands is a *subreaper*, so that what loses its parent becomes its child
and not init's. Linux only: all of it is read from /proc.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import time
from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path

_PROC = Path("/proc")
# In place of a boot's name where the kernel tells none.
UNKNOWN_BOOT = "unknown-boot"
_PR_SET_PDEATHSIG = 1
_PR_SET_CHILD_SUBREAPER = 36
_PR_GET_CHILD_SUBREAPER = 37


def _stat_fields(pid: int) -> list[str] | None:
    """Fields of /proc/<pid>/stat after the command name (which may hold spaces and brackets)."""
    try:
        text = (_PROC / str(pid) / "stat").read_text("utf-8", "replace")
    except OSError:
        return None
    return text.rpartition(")")[2].split()


def start_time(pid: int) -> int | None:
    """Kernel start time of a live process in clock ticks since boot; None if it is gone or a zombie."""
    fields = _stat_fields(pid)
    if fields is None or fields[0] in "ZX":
        return None
    return int(fields[19])


@dataclass(frozen=True, slots=True)
class ProcessId:
    """One process for sure: its id and its start time."""

    pid: int
    started: int

    @staticmethod
    def of(pid: int) -> ProcessId | None:
        """The identity of a live process; None if there is none."""
        started = start_time(pid)
        return None if started is None else ProcessId(pid, started)

    @staticmethod
    def parse(text: str) -> ProcessId | None:
        """Reads what `str()` writes; None for anything else."""
        pid, _, started = text.strip().partition(":")
        return ProcessId(int(pid), int(started)) if pid.isdigit() and started.isdigit() else None

    def __str__(self) -> str:
        return f"{self.pid}:{self.started}"

    @property
    def alive(self) -> bool:
        return start_time(self.pid) == self.started

    def signal(self, number: int) -> None:
        """Sends a signal if it is still this very process."""
        if self.alive:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(self.pid, number)


def boot_id() -> str:
    """This machine's boot, as the kernel names it."""
    try:
        return (_PROC / "sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        return UNKNOWN_BOOT


def host_identity() -> str:
    """Names this machine, boot and process namespace: with the same identity, process ids mean the same processes."""
    try:
        namespace = str((_PROC / "self/ns/pid").readlink())
    except OSError:
        namespace = "pid"
    return f"{boot_id()}/{namespace}"


def marked(name: str, value: str) -> list[ProcessId]:
    """All live processes, but this one, that were started with `name=value` in their environment."""
    wanted = f"{name}={value}".encode()
    found = []
    me = os.getpid()
    try:
        pids = [int(entry.name) for entry in _PROC.iterdir() if entry.name.isdigit()]
    except OSError:
        return []
    for pid in pids:
        if pid == me:
            continue
        identity = ProcessId.of(pid)
        if identity is None:
            continue
        try:
            environment = (_PROC / str(pid) / "environ").read_bytes()
        except OSError:
            continue
        if wanted in environment.split(b"\0"):
            found.append(identity)
    return found


def in_group(pgid: int) -> list[ProcessId]:
    """All live processes, but this one, of that process group."""
    found = []
    me = os.getpid()
    try:
        pids = [int(entry.name) for entry in _PROC.iterdir() if entry.name.isdigit()]
    except OSError:
        return []
    for pid in pids:
        fields = _stat_fields(pid)
        if pid != me and fields is not None and fields[0] not in "ZX" and int(fields[2]) == pgid:
            found.append(ProcessId(pid, int(fields[19])))
    return found


def descendants(pids: Collection[int]) -> list[ProcessId]:
    """All live processes, but this one, that one of `pids` started, directly or through others that still live."""
    children: dict[int, list[int]] = {}
    try:
        running = [int(entry.name) for entry in _PROC.iterdir() if entry.name.isdigit()]
    except OSError:
        return []
    for pid in running:
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
    """Takes back what whoever started us ignores or blocks (`nohup`, a shell's `trap ''`): children inherit it.

    Ignored SIGCHLD would even hide from us how our children end. SIGPIPE and SIGXFSZ are Python's own doing, and
    `subprocess` resets them in children.
    """
    for number in signal.valid_signals() - {signal.SIGPIPE, signal.SIGXFSZ}:
        if signal.getsignal(number) is signal.SIG_IGN:
            signal.signal(number, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_SETMASK, [])


def become_subreaper() -> None:
    """Makes processes that lose their parent below us our children: ours to find, to end and to reap (Linux)."""
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def is_subreaper() -> bool:
    """Whether this process adopts what loses its parent below it."""
    answer = ctypes.c_int(0)
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).prctl(_PR_GET_CHILD_SUBREAPER, ctypes.byref(answer), 0, 0, 0)
    return bool(answer.value)


def end_with_parent(parent: int) -> None:
    """Has the kernel kill this process when the thread that forked it ends, whatever this one is at or waits for.

    Args:
        parent: The process that forked; if it is gone already, this one ends at once.
    """
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != parent:
        os.kill(os.getpid(), signal.SIGKILL)


def end_marked(name: str, value: str, *, grace_seconds: float, poll_seconds: float = 0.05) -> bool:
    """Ends every marked process and what it started: SIGTERM, the grace period, then SIGKILL until none is left.

    SIGTERM goes once to those that live at the beginning: what they start in answer to it (a last save, a last upload)
    has the grace period like them.

    Returns:
        Whether all are gone; False only if some did not die within five seconds of SIGKILL.
    """
    deadline = time.monotonic() + grace_seconds
    asked = False
    family: set[ProcessId] = set()
    while True:
        # Remembered, because an unmarked descendant cannot be found any more once its parent is gone.
        family = {process for process in family if process.alive} | _family(name, value)
        alive = sorted(family, key=lambda process: process.pid)
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


def _family(name: str, value: str) -> set[ProcessId]:
    """The marked processes and all their descendants; this one's own, too, if it is marked."""
    found = set(marked(name, value))
    roots = {process.pid for process in found}
    if os.environ.get(name) == value:
        roots.add(os.getpid())
    return found.union(descendants(roots)) if roots else found
