"""The user's command as processes: started once, found by a marker, ended as a whole.

Invariants:
* The command's members are: its process group, every process that inherited its marker (also after `setsid` and double
  forks), if this process is a subreaper, adopted processes without the marker, and, if the command has a user of its
  own, all processes of that. The agent's own child processes are not members.
* The shell's process id is not freed before the group is ended, so a signal to the group cannot hit another process.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from bastion import job_user, processes
from bastion.agent.child_processes import ChildProcesses
from bastion.core.bucket.markers import COMMAND_MARKER
from bastion.job_user import JobUser
from bastion.processes import ProcessId

# A process alive this long after SIGKILL hangs in the kernel; nobody can end it.
_KILL_SECONDS = 5.0
_LOOK_SECONDS = 0.05
# For the thread that collects the exit code of a dead shell.
_EXIT_CODE_SECONDS = 5.0


def end_orphans(marker: str, user: JobUser | None, *, grace_seconds: float) -> bool:
    """End the processes of an earlier agent's command; return whether all have ended."""
    if user is None:
        return processes.end_marked(COMMAND_MARKER, marker, grace_seconds=grace_seconds)
    gone = processes.end_marked(COMMAND_MARKER, marker, grace_seconds=grace_seconds, also=user.processes)
    user.kill_all()
    return gone or not user.processes()


class Command:
    def __init__(
        self,
        process: subprocess.Popen[bytes],
        marker: str,
        on_exit: Callable[[], None],
        child_processes: ChildProcesses | None = None,
        user: JobUser | None = None,
    ) -> None:
        assert process.stdout is not None
        assert process.stderr is not None
        self._process = process
        self._marker = marker
        self._on_exit = on_exit
        self._child_processes = child_processes or ChildProcesses()
        self._user = user
        self._asked = False
        self._adopts = processes.is_subreaper()
        # The pump owns and closes copies; Popen's own files are closed here, unread.
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
        user: JobUser | None = None,
        program: Sequence[str] = (),
    ) -> Command:
        """Start `bash -c line` in its own session.

        Args:
            program: Runs as this process's user instead, with its rights; what it starts as `user` is part of the
                command.
            on_exit: Called from another thread once `exit_code` is set.
            child_processes: Children of this process that are not part of the command.
            user: Whom it runs as; None: this process's user.

        Raises:
            OSError, ValueError: No bash, line too long, or a NUL in a variable.
        """
        # Found on the agent's own path; the command's path may be anything.
        bash = shutil.which("bash")
        if bash is None:
            raise FileNotFoundError("bash is not installed on this host")
        runs_as = None if program else user
        # The folder is entered with the user's rights: it may be a link by now.
        with job_user.files_of(runs_as), job_user.rights_for_children() if program else contextlib.nullcontext():
            process = subprocess.Popen(
                [*program] or [bash, "-c", line],
                cwd=folder,
                env=dict(variables),
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                start_new_session=True,
                **job_user.popen_arguments(runs_as),
            )
        return Command(process, marker, on_exit, child_processes, user)

    def members(self) -> list[ProcessId]:
        marked = processes.marked(COMMAND_MARKER, self._marker)
        group = processes.in_group(self._process.pid)
        roots = {self._process.pid, *(member.pid for member in marked), *(member.pid for member in group)}
        if self._adopts:
            # This process starts only commands and registered children, so any other adopted process was the command's.
            roots.add(os.getpid())
        found = {*marked, *group, *processes.descendants(roots)}
        if self._user is not None:
            found.update(self._user.processes())
        apart = self._child_processes.pids()
        return sorted((member for member in found if member.pid not in apart), key=lambda member: member.pid)

    def ask_to_end(self) -> bool:
        """Send SIGTERM once, to all members alive at the first call; return whether any is alive.

        Processes that they start in response (a last save, a last upload) get the same grace period.
        """
        alive = self.members()
        if not self._asked:
            for member in alive:
                member.signal(signal.SIGTERM)
            self._asked = True
        return bool(alive)

    def end(self, *, grace_seconds: float) -> bool:
        """End all members: SIGTERM, grace period, SIGKILL; wait. Return whether all have ended."""
        deadline = time.monotonic() + grace_seconds
        while time.monotonic() < deadline:
            if not self.ask_to_end():
                if self._user is None:
                    return True
                break
            time.sleep(_LOOK_SECONDS)
        if self._user is not None:
            self._user.kill_all()  # also those that fork so fast that no list has them
        deadline = time.monotonic() + _KILL_SECONDS
        while alive := self.members():
            if time.monotonic() >= deadline:
                return False
            for member in alive:
                member.signal(signal.SIGKILL)
            time.sleep(_LOOK_SECONDS / 5)
        return True

    def reap(self) -> None:
        """Free the shell's process id if the shell has ended. Call after `end`."""
        # Once the id is free the exit code is lost. A shell that cannot be ended keeps its waiter.
        self._waiter.join(_EXIT_CODE_SECONDS)
        self._process.poll()

    def _wait(self) -> None:
        pid = self._process.pid
        if hasattr(os, "waitid"):
            result = os.waitid(os.P_ALL if self._adopts else os.P_PID, pid, os.WEXITED | os.WNOWAIT)
            while result is not None and result.si_pid != pid:
                # Adopted, and dead before the command: nobody else reaps it.
                self._child_processes.reap_other(result.si_pid)
                result = os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOWAIT)
            assert result is not None
            self.exit_code = result.si_status if result.si_code == os.CLD_EXITED else 128 + result.si_status
        else:
            code = self._process.wait()
            self.exit_code = code if code >= 0 else 128 - code
        self._on_exit()
