"""Enter a host that is on this machine: an emulated one, or the bastion's own if this is the bastion's VM.

Invariants:

* What is entered is a process whose environment this user may read, so nobody gets rights that he does not have. Root
  becomes the command's user, with a session of its own: nothing of that user can write to root's terminal.
* Anybody may start a process with any variables. Only one whose parent is an agent's user counts: that of this process,
  or of the bastion's folder.
"""

from __future__ import annotations

import contextlib
import os
import subprocess
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from pathlib import Path

from bastion import processes
from bastion.adapters.host_entry.signals import terminal_signals
from bastion.core.bucket.markers import COMMAND_MARKER
from bastion.core.errors import Refused
from bastion.job_user import PopenArguments
from bastion.ports import RunningHost
from bastion.processes import ProcessId

_SHELL = ("bash",)
_NOT_FOUND, _NOT_EXECUTABLE = 127, 126


@dataclass(frozen=True, slots=True, kw_only=True)
class _Found:
    process: ProcessId
    user: int
    group: int
    groups: tuple[int, ...]

    @property
    def folder(self) -> Path:
        return Path("/proc", str(self.process.pid))


class ThisMachine:
    """Enters process groups of this machine. `agents`: users who may run agents, besides this process's own."""

    def __init__(self, *, agents: Collection[int] = ()) -> None:
        self._agents = {os.geteuid(), *agents}

    def has(self, host: RunningHost) -> bool:
        """Whether the attempt's command runs here, as far as this user can see."""
        return self._find(host) is not None

    def enter(self, host: RunningHost, command: Sequence[str], *, begin: Callable[[], object] = lambda: None) -> int:
        found = self._find(host)
        if found is None:
            raise Refused(
                f"{host.shown} does not run its command on this machine now, or runs it as a user whose processes you "
                f"may not see; look what it does (bastion why {host.job}), or try again as the daemon's user or as root"
            )
        try:
            variables = _variables(found)
            # Held open: the process may end, and its number be another's, before the command starts.
            folder = os.open(found.folder / "cwd", os.O_PATH | os.O_DIRECTORY)
        except OSError as error:
            raise Refused(f"the command of {host.shown} has just ended; see 'bastion why {host.job}'") from error
        try:
            if not found.process.alive:
                raise Refused(f"the command of {host.shown} has just ended; see 'bastion why {host.job}'")
            begin()
            return _run([*command] or [*_SHELL], variables, folder, found)
        finally:
            os.close(folder)

    def _find(self, host: RunningHost) -> _Found | None:
        """The first process of the command: its ancestors do not have the marker."""
        marked = {each.pid: each for each in processes.marked(COMMAND_MARKER, host.marker)}
        found = []
        for process in marked.values():
            status = _status(process.pid)
            parent = int(status.get("PPid", "0").strip() or 0)
            if parent in marked or _effective_user(parent) not in self._agents:
                continue
            with contextlib.suppress(KeyError, ValueError, IndexError):
                found.append(
                    _Found(
                        process=process,
                        user=int(status["Uid"].split()[1]),
                        group=int(status["Gid"].split()[1]),
                        groups=tuple(map(int, status["Groups"].split())),
                    )
                )
        # A process of the agent's own user may prepare the command's, and have the marker.
        return min(found, key=lambda each: (each.user in self._agents, each.process.started), default=None)


def _run(command: list[str], variables: dict[str, str], folder: int, found: _Found) -> int:
    other_user = found.user != os.geteuid()
    become = PopenArguments(user=found.user, group=found.group, extra_groups=found.groups)
    with terminal_signals(other_session=other_user) as foreground:
        try:
            process = subprocess.Popen(
                command,
                cwd=f"/proc/self/fd/{folder}",
                env=variables,
                start_new_session=other_user,
                **(become if other_user else PopenArguments()),
            )
        except FileNotFoundError:
            raise _NotStarted(_NOT_FOUND, f"{command[0]}: no such command on that host") from None
        except (PermissionError, ValueError, OSError) as error:
            raise _NotStarted(_NOT_EXECUTABLE, f"{command[0]} cannot be run on that host: {error}") from error
        return foreground.follow(process)


class _NotStarted(Refused):
    """The command could not be started, with the exit code that shells have for it."""

    def __init__(self, code: int, message: str) -> None:
        super().__init__(f"{message}; check its name, and the PATH of the job's command")
        self.exit_code = code


def _variables(found: _Found) -> dict[str, str]:
    content = (found.folder / "environ").read_bytes()
    pairs = (os.fsdecode(each).partition("=") for each in content.split(b"\0") if each)
    variables = {name: value for name, separator, value in pairs if name and separator}
    if "TERM" in os.environ:
        variables.setdefault("TERM", os.environ["TERM"])  # the command has no terminal
    return variables


def _status(pid: int) -> dict[str, str]:
    """The fields of /proc/<pid>/status; empty if the process is gone."""
    try:
        text = Path("/proc", str(pid), "status").read_text("utf-8", "replace")
    except OSError:
        return {}
    return {name: value for name, _, value in (line.partition(":") for line in text.splitlines())}


def _effective_user(pid: int) -> int | None:
    fields = _status(pid).get("Uid", "").split()
    return int(fields[1]) if len(fields) > 1 else None
