"""Command lines as processes of this machine."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
from collections.abc import Mapping
from pathlib import Path

from bastion import job_user
from bastion.core import benchmark_steps
from bastion.core.benchmark_steps import Lines
from bastion.job_user import JobUser

_GRACE_SECONDS = 10.0


class _Process:
    def __init__(self, process: subprocess.Popen[bytes]) -> None:
        self._process = process

    def poll(self) -> int | None:
        code = self._process.poll()
        return code if code is None or code >= 0 else 128 - code

    def end(self) -> None:
        """End its process group: SIGTERM, and after some seconds SIGKILL."""
        for number in (signal.SIGTERM, signal.SIGKILL):
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self._process.pid, number)
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(_GRACE_SECONDS)


class Bash:
    """Starts command lines here, each as a process group. `user`: None: as this process."""

    def __init__(
        self, user: JobUser | None = None, folder: str | None = None, variables: Mapping[str, str] | None = None
    ) -> None:
        self._user = user
        self._folder = folder
        self._variables = os.environ if variables is None else variables

    def start(self, line: str, variables: Mapping[str, str]) -> _Process:
        with job_user.files_of(self._user):
            process = subprocess.Popen(
                [shutil.which("bash") or "bash", "-c", line],
                cwd=self._folder,
                env={**self._variables, **variables},
                stdin=subprocess.DEVNULL,
                start_new_session=True,
                **job_user.popen_arguments(self._user),
            )
        return _Process(process)


def own_bash() -> Bash:
    """Return what starts lines as the agent of this step asks, or as this process. Call before any thread is started.

    Raises OSError, InvalidDocument or Refused if the agent's file is not as it should be: no line may run then.
    """
    file = os.environ.get(benchmark_steps.LINES_FILE)
    if file is None:
        return Bash()
    lines = Lines.read(Path(file).read_bytes())
    user = job_user.resolve(lines.user)
    job_user.require_rights(user)
    job_user.give_nothing_to_children()
    return Bash(user, lines.folder, lines.variables)
