"""The user's command as processes of this host: started once, found again by its marker, ended as a whole.

Layer: worker.

Invariants:

* Whatever the command starts belongs to it: its process group, every process that inherited its marker, also after
  `setsid` and double forks, and, where this process is a subreaper, what dropped the marker as well. The agent's own
  attendants do not.
* The process id of the shell is not freed before the group is ended, so a signal to the group cannot hit a stranger.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path

from bastion import processes
from bastion.agent.child_processes import ChildProcesses
from bastion.agent.environment import COMMAND_MARKER
from bastion.processes import ProcessId

# What still lives this long after SIGKILL hangs in the kernel; nobody can end it.
_KILL_SECONDS = 5.0
_LOOK_SECONDS = 0.05
# For the thread that takes down the exit code of a shell that is dead already.
_LAST_WORD_SECONDS = 5.0


def end_leftovers(marker: str, *, grace_seconds: float) -> bool:
    """Ends what an earlier agent's command left on this host; returns whether all of it is gone."""
    return processes.end_marked(COMMAND_MARKER, marker, grace_seconds=grace_seconds)


class Command:
    """One running command."""

    def __init__(
        self,
        process: subprocess.Popen[bytes],
        marker: str,
        on_exit: Callable[[], None],
        child_processes: ChildProcesses | None = None,
    ) -> None:
        assert process.stdout is not None
        assert process.stderr is not None
        self._process = process
        self._marker = marker
        self._on_exit = on_exit
        self._child_processes = child_processes or ChildProcesses()
        self._asked = False
        self._adopts = processes.is_subreaper()
        # The pump owns and closes copies; Popen's own files close here, unread.
        self.pipes = {"stdout": os.dup(process.stdout.fileno()), "stderr": os.dup(process.stderr.fileno())}
        process.stdout.close()
        process.stderr.close()
        self.exit_code: int | None = None
        self._waiter = threading.Thread(target=self._wait, name="command-waiter", daemon=True)
        self._waiter.start()

    @staticmethod
    def start(
        line: str,
        *,
        variables: Mapping[str, str],
        folder: Path,
        marker: str,
        on_exit: Callable[[], None],
        child_processes: ChildProcesses | None = None,
    ) -> Command:
        """Starts `bash -c line` in a session of its own.

        Args:
            on_exit: Called from another thread once `exit_code` is set.
            attendants: What else this process starts, and is none of the command.

        Raises:
            OSError, ValueError: it could not be started: no bash, too long, a NUL in a variable.
        """
        # Found on the agent's own path: the command's may be anything.
        bash = shutil.which("bash")
        if bash is None:
            raise FileNotFoundError("there is no bash on this host")
        process = subprocess.Popen(
            [bash, "-c", line],
            cwd=folder,
            env=dict(variables),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            start_new_session=True,
        )
        return Command(process, marker, on_exit, child_processes)

    def members(self) -> list[ProcessId]:
        """Everything of the command that is alive."""
        marked = processes.marked(COMMAND_MARKER, self._marker)
        group = processes.in_group(self._process.pid)
        roots = {self._process.pid, *(member.pid for member in marked), *(member.pid for member in group)}
        if self._adopts:
            # Nothing but commands and attendants is started here, so what else has come to us without a parent was the
            # command's.
            roots.add(os.getpid())
        found = {*marked, *group, *processes.descendants(roots)}
        apart = self._child_processes.pids()
        return sorted((member for member in found if member.pid not in apart), key=lambda member: member.pid)

    def ask_to_end(self) -> bool:
        """SIGTERM, once, for all who live when it is first called; returns whether any is alive.

        What they start in answer to it (a last save, a last upload) has the grace period like them.
        """
        alive = self.members()
        if not self._asked:
            for member in alive:
                member.signal(signal.SIGTERM)
            self._asked = True
        return bool(alive)

    def end(self, *, grace_seconds: float) -> bool:
        """Ends all members: SIGTERM, the grace period, SIGKILL; waits for it. Returns whether all are gone."""
        deadline = time.monotonic() + grace_seconds
        while time.monotonic() < deadline:
            if not self.ask_to_end():
                return True
            time.sleep(_LOOK_SECONDS)
        deadline = time.monotonic() + _KILL_SECONDS
        while alive := self.members():
            if time.monotonic() >= deadline:
                return False
            for member in alive:
                member.signal(signal.SIGKILL)
            time.sleep(_LOOK_SECONDS / 5)
        return True

    def reap(self) -> None:
        """Frees the shell's process id, if the shell has ended; call it after `end`."""
        # Once the id is free nobody can ask for the exit code. A shell that cannot be ended keeps its waiter.
        self._waiter.join(_LAST_WORD_SECONDS)
        self._process.poll()

    def _wait(self) -> None:
        pid = self._process.pid
        if hasattr(os, "waitid"):
            result = os.waitid(os.P_ALL if self._adopts else os.P_PID, pid, os.WEXITED | os.WNOWAIT)
            while result is not None and result.si_pid != pid:
                # Adopted, and dead before the command: nobody else waits for it.
                self._child_processes.reap_other(result.si_pid)
                result = os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOWAIT)
            assert result is not None
            self.exit_code = result.si_status if result.si_code == os.CLD_EXITED else 128 + result.si_status
        else:
            code = self._process.wait()
            self.exit_code = code if code >= 0 else 128 - code
        self._on_exit()
