"""Processes that the agent itself starts beside the command, and that are none of it.

Layer: worker. An agent adopts what loses its parent below it, so that every child of its own counts as the command's
and is reaped for it, except those that are known here.

Invariant: a process is known from before it can end until whoever started it has taken its exit code.
"""

from __future__ import annotations

import contextlib
import os
import subprocess
import threading
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from bastion import processes

_REAP_SECONDS = 0.005


class ChildProcesses:
    """Those of one agent."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._pids: set[int] = set()

    def start(self, arguments: Sequence[str], *, variables: Mapping[str, str], folder: Path) -> subprocess.Popen[bytes]:
        """Starts one in a session of its own, with pipes for its output.

        Raises:
            OSError, ValueError: it could not be started.
        """
        with self._lock:
            process = subprocess.Popen(
                list(arguments),
                cwd=folder,
                env=dict(variables),
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                start_new_session=True,
            )
            self._pids.add(process.pid)
        return process

    def wait(self, process: subprocess.Popen[bytes]) -> int:
        """Waits for its end; returns its exit code, as a shell gives it."""
        code = process.wait()
        with self._lock:
            self._pids.discard(process.pid)
        return code if code >= 0 else 128 - code

    def pids(self) -> frozenset[int]:
        """All that live, with everything that they started."""
        with self._lock:
            pids = frozenset(self._pids)
        return pids.union(child.pid for child in processes.descendants(pids)) if pids else pids

    def reap_other(self, pid: int) -> None:
        """Takes the exit code of a dead child that is none of these; leaves one of these to who waits for it."""
        with self._lock:
            if pid not in self._pids:
                # It was one of these when it was seen, and who waits for it was faster.
                with contextlib.suppress(ChildProcessError):
                    os.waitpid(pid, 0)
                return
        time.sleep(_REAP_SECONDS)
