"""One container of an emulated pod: its first process, its output, its end.

As in a container, the other processes die with the first one. Exit codes and reasons are those of containerd
(internal/cri/server: `Completed`, `Error`, `OOMKilled`, `StartError` with 128), the termination message is read as in
pkg/kubelet/kuberuntime/kuberuntime_container.go.
"""

from __future__ import annotations

import errno
import hashlib
import os
import shutil
import signal
import subprocess
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from bastion.emulators.kubernetes.kubelet.images import no_file, start_error
from bastion.emulators.kubernetes.kubelet.pod_folder import ContainerPlan, ContainerState
from bastion.emulators.serial_log import SerialLog

_LOG_MAX_BYTES = 10 * 1024 * 1024  # kubelet's containerLogMaxSize
_MESSAGE_MAX_BYTES = 4096
_LOG_TAIL_BYTES = 2048
_LOG_TAIL_LINES = 80
_CANNOT_START = 128
# How long the last output may take after the end of the processes.
_PUMP_SECONDS = 1.0


class Container:
    """Runs one container. `state` is what the supervisor reports."""

    def __init__(self, plan: ContainerPlan, pod_uid: str) -> None:
        self.plan = plan
        self.state = ContainerState(name=plan.name)
        identity = f"{pod_uid}/{plan.name}"
        self._id = f"containerd://{hashlib.sha256(identity.encode()).hexdigest()}"
        self._process: subprocess.Popen[bytes] | None = None
        self._pump: threading.Thread | None = None

    @property
    def runs(self) -> bool:
        return self.state.phase == "running"

    @property
    def pid(self) -> int:
        """Of the first process; 0 if none was started."""
        return 0 if self._process is None else self._process.pid

    def start(self) -> None:
        """Start, or note why it cannot."""
        plan = self.plan
        Path(plan.termination_log).touch(mode=0o600)
        problem = plan.start_error
        program = shutil.which(plan.argv[0], path=plan.environment.get("PATH", ""))
        if not problem and program is None:
            problem = _cannot_execute(plan.argv[0])
        if not problem:
            try:
                self._spawn(str(program))
            except OSError as error:
                problem = start_error(plan.argv[0], os.strerror(error.errno or errno.ENOEXEC).lower())
            except ValueError:  # a NUL in an argument or a variable
                problem = start_error(plan.argv[0], os.strerror(errno.EINVAL).lower())
        if problem:
            self.state = replace(
                self.state,
                phase="terminated",
                container_id=self._id,
                finished_at=time.time(),
                exit_code=_CANNOT_START,
                reason="StartError",
                message=problem,
            )
        else:
            self.state = replace(self.state, phase="running", container_id=self._id, started_at=time.time())

    def _spawn(self, program: str) -> None:
        plan = self.plan
        Path(plan.folder).mkdir(mode=0o700, parents=True, exist_ok=True)
        log = SerialLog(Path(plan.log), max_bytes=_LOG_MAX_BYTES)
        self._process = subprocess.Popen(
            plan.argv,
            executable=program,
            cwd=plan.folder,
            env=plan.environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        assert self._process.stdout is not None
        self._pump = threading.Thread(target=_copy, args=(self._process.stdout.fileno(), log), daemon=True)
        self._pump.start()

    def terminate(self) -> None:
        """Send SIGTERM to the first process, and only to it; in vain if it has no handler, as in a container.

        There it is process 1, to which the kernel delivers only signals with a handler (pid_namespaces(7)).
        """
        if self.runs and self._process is not None and _handles(self._process.pid, signal.SIGTERM):
            self._process.send_signal(signal.SIGTERM)

    def ended(self, code: int, *, end_others: Callable[[], object], out_of_memory: bool = False) -> None:
        """Note the end of the first process, with its code (negative: the signal), after ending all others."""
        assert self._process is not None
        self._process.returncode = code
        end_others()
        if self._pump is not None:
            self._pump.join(_PUMP_SECONDS)
        exit_code = 128 - code if code < 0 else code
        reason = "OOMKilled" if out_of_memory else "Error" if exit_code else "Completed"
        self.state = replace(
            self.state,
            phase="terminated",
            finished_at=time.time(),
            exit_code=exit_code,
            reason=reason,
            message=self._message(failed=exit_code != 0 or out_of_memory),
        )

    def _message(self, *, failed: bool) -> str:
        message = _tail(Path(self.plan.termination_log), _MESSAGE_MAX_BYTES)
        if not message and failed and self.plan.message_from_log:
            lines = _tail(Path(self.plan.log), _LOG_TAIL_BYTES).splitlines(keepends=True)
            message = "".join(lines[-_LOG_TAIL_LINES:])
        return message


def _cannot_execute(program: str) -> str:
    if "/" not in program:
        return start_error(program, "executable file not found in $PATH")
    if not Path(program).exists():
        return start_error(program, no_file(program))
    return start_error(program, "permission denied")


def _handles(pid: int, number: int) -> bool:
    """Whether a process has a handler for a signal (proc_pid_status(5), `SigCgt`)."""
    try:
        lines = Path(f"/proc/{pid}/status").read_text("utf-8", "replace").splitlines()
    except OSError:
        return False
    caught = next((line.split()[1] for line in lines if line.startswith("SigCgt:")), "0")
    return bool(int(caught, 16) >> (number - 1) & 1)


def _copy(descriptor: int, log: SerialLog) -> None:
    # Ends with the last process that has the pipe.
    while data := os.read(descriptor, 65536):
        log.write(data)


def _tail(path: Path, max_bytes: int) -> str:
    """The end of a file; empty if it cannot be read."""
    try:
        with path.open("rb") as stream:
            size = stream.seek(0, os.SEEK_END)
            stream.seek(max(0, size - max_bytes))
            return stream.read().decode("utf-8", "replace")
    except OSError:
        return ""
