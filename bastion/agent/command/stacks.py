"""Show what the processes of a stuck command are doing, in the job's log, before they are ended.

py-spy does it where the job or the host has it. Otherwise a process is asked by a signal, if it has a handler for it
(`bastion/agent/stack_hook`): the signal would end any other process.

The log lines are py-spy's or the process's own. Command lines are not shown: they may hold secrets.
"""

from __future__ import annotations

import contextlib
import os
import re
import selectors
import shutil
import signal
import subprocess
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from bastion.agent.child_processes import ChildProcesses
from bastion.core import limits
from bastion.job_user import JobUser, files_of
from bastion.ports import Clock
from bastion.processes import ProcessId

# A real-time signal, because programs use SIGUSR1 and SIGUSR2 for themselves.
SIGNAL = signal.SIGRTMAX - 4
HOOK = Path(__file__).parents[1] / "stack_hook"
_PY_SPY_SECONDS = 8.0
# Of one process.
_LINES_MAX = 400
_BYTES_MAX = 1024 * 1024
# Processes write to one pipe, so they are asked one after the other.
_ANSWER_SECONDS = 3.0
_PAUSE_SECONDS = 0.1
_PYTHON = re.compile(r"(python|pypy)[0-9.]*(d|t)?")


@dataclass(frozen=True, slots=True, kw_only=True)
class StackParts:
    """What `show` needs of the host.

    Attributes:
        variables: The command's environment.
        note: Adds a line to the job's log.
        output_bytes: How much the command has written so far.
        user: Whom the command runs as; None: the agent's user.
        pause: Waits for so many seconds; returns False if there is no more time: the host goes away, or has another
            order.
    """

    variables: Mapping[str, str]
    child_processes: ChildProcesses
    clock: Clock
    note: Callable[[str], None]
    output_bytes: Callable[[], int]
    pause: Callable[[float], bool]
    user: JobUser | None = None


def show(members: Iterable[ProcessId], parts: StackParts) -> None:
    """Show the stacks of a command's processes, for at most `limits.STACKS_SECONDS`."""
    with files_of(parts.user):
        known = {member: _program(member) for member in members if member.alive}
    found = [member for member, program in known.items() if _PYTHON.fullmatch(program) or _has_handler(member)]
    if not found:
        programs = ", ".join(sorted(set(known.values()))) or "none"
        parts.note(f"the command is stuck; no process can show its stacks (processes: {programs})")
        return
    with files_of(parts.user):
        py_spy = shutil.which("py-spy", path=parts.variables.get("PATH"))
    deadline = parts.clock.monotonic() + limits.STACKS_SECONDS
    for number, member in enumerate(found):
        if number == limits.STACKS_PROCESSES_MAX or parts.clock.monotonic() >= deadline or not parts.pause(0.0):
            parts.note(f"the stacks of {len(found) - number} more processes are not shown")
            return
        name = f"process {member.pid} ({known[member]})"
        why = _by_py_spy(py_spy, member, name, parts, deadline) if py_spy else "py-spy is not installed"
        if why and not _by_signal(member, name, parts, deadline):
            parts.note(f"{name} does not show its stacks: it has no handler of Bastion's for them, and {why}")


def _by_py_spy(py_spy: str, member: ProcessId, name: str, parts: StackParts, deadline: float) -> str:
    """Return why it failed, or nothing."""
    try:
        process = parts.child_processes.start(
            [py_spy, "dump", "--pid", str(member.pid)], variables=parts.variables, folder=Path("/"), user=parts.user
        )
    except (OSError, ValueError) as error:
        return f"py-spy could not be started: {error}"
    output = _read(process, parts, deadline=min(deadline, parts.clock.monotonic() + _PY_SPY_SECONDS))
    with contextlib.suppress(OSError):
        os.killpg(process.pid, signal.SIGKILL)  # it may hang, and have children
    code = parts.child_processes.wait(process)
    lines = output.decode("utf-8", "replace").splitlines()
    if code != 0 or not lines:
        return f"py-spy failed with code {code}" + (f" ({lines[-1][:200]})" if lines else "")
    parts.note(f"{name} is here, says py-spy:")
    for line in _without_command_line(lines)[:_LINES_MAX]:
        parts.note(line)
    return ""


def _without_command_line(lines: list[str]) -> list[str]:
    """Return what follows the command line, which may have line ends: from Python's version on."""
    first = next((number for number, line in enumerate(lines) if line.startswith("Python v")), len(lines))
    return [line for line in lines[first:] if line]


def _read(process: subprocess.Popen[bytes], parts: StackParts, *, deadline: float) -> bytes:
    """Return what a process writes until it closes its pipes, or until the deadline."""
    assert process.stdout is not None
    assert process.stderr is not None
    output = bytearray()
    with process.stdout, process.stderr, selectors.DefaultSelector() as selector:
        for pipe in (process.stdout, process.stderr):
            selector.register(pipe, selectors.EVENT_READ)
        while selector.get_map() and len(output) < _BYTES_MAX and parts.clock.monotonic() < deadline:
            if not parts.pause(0.0):
                break
            for key, _ in selector.select(_PAUSE_SECONDS):
                data = os.read(key.fd, 65536)
                output += data
                if not data:
                    selector.unregister(key.fileobj)
    return bytes(output)


def _by_signal(member: ProcessId, name: str, parts: StackParts, deadline: float) -> bool:
    if not _has_handler(member):
        return False
    parts.note(f"{name} is asked for its stacks; it writes them to its stderr:")
    # The note must be in the log before the answer.
    parts.pause(_PAUSE_SECONDS)
    written = before = parts.output_bytes()
    deadline = min(deadline, parts.clock.monotonic() + _ANSWER_SECONDS)
    member.signal(SIGNAL)
    while parts.clock.monotonic() < deadline and parts.pause(_PAUSE_SECONDS):
        now = parts.output_bytes()
        if now == written > before:
            break
        written = now
    return True


def _program(member: ProcessId) -> str:
    try:
        return Path(f"/proc/{member.pid}/exe").readlink().name.removesuffix(" (deleted)")
    except OSError:
        return "?"


def _has_handler(member: ProcessId) -> bool:
    """Whether the process catches `SIGNAL`."""
    try:
        text = Path(f"/proc/{member.pid}/status").read_text("utf-8", "replace")
    except OSError:
        return False
    caught = re.search(r"^SigCgt:\s*([0-9a-f]+)$", text, re.MULTILINE)
    return caught is not None and bool(int(caught[1], 16) >> (SIGNAL - 1) & 1)
