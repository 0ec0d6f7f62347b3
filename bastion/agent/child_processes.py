"""Child processes of the agent that are not part of the command.

The agent is a subreaper: it adopts processes that lose their parent, and reaps every child as part of the command. A
child that is registered here is exempt, from its start until its exit code is collected.
"""

from __future__ import annotations

import contextlib
import os
import subprocess
import threading
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from bastion import job_user, processes
from bastion.job_user import JobUser

_REAP_SECONDS = 0.005


class ChildProcesses:
    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._pids: set[int] = set()

    def start(
        self, arguments: Sequence[str], *, variables: Mapping[str, str], folder: Path, user: JobUser | None = None
    ) -> subprocess.Popen[bytes]:
        """Start a process in its own session, with pipes for its output. Raises OSError or ValueError."""
        with self._lock, job_user.files_of(user):
            process = subprocess.Popen(
                list(arguments),
                cwd=folder,
                env=dict(variables),
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                start_new_session=True,
                **job_user.popen_arguments(user),
            )
            self._pids.add(process.pid)
        return process

    def wait(self, process: subprocess.Popen[bytes]) -> int:
        """Wait for the process to end; return its exit code as a shell gives it."""
        code = process.wait()
        with self._lock:
            self._pids.discard(process.pid)
        return code if code >= 0 else 128 - code

    def pids(self) -> frozenset[int]:
        """All live child processes and their descendants."""
        with self._lock:
            pids = frozenset(self._pids)
        return pids.union(child.pid for child in processes.descendants(pids)) if pids else pids

    def reap_other(self, pid: int) -> None:
        """Collect the exit code of a dead child, unless it is registered here."""
        with self._lock:
            if pid not in self._pids:
                # It was registered when it was seen; its waiter was faster.
                with contextlib.suppress(ChildProcessError):
                    os.waitpid(pid, 0)
                return
        time.sleep(_REAP_SECONDS)
