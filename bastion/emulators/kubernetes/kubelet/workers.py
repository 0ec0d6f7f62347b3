"""The supervisors of pods: starting, adopting and ending them; their folders and logs."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
from dataclasses import dataclass, field
from pathlib import Path

import bastion
from bastion import processes
from bastion.emulators.kubernetes.kubelet.pod_folder import PodFolder, PodPlan, PodState
from bastion.emulators.markers import MARKER, inherited
from bastion.processes import ProcessId

_LOGS_KEPT = 256
# How much longer than the grace period a supervisor may take to end its pod.
_SLACK_SECONDS = 10.0


@dataclass(slots=True)
class Worker:
    """A pod with a supervisor, which may have ended."""

    uid: str
    plan: PodPlan
    folder: PodFolder
    supervisor: ProcessId | None
    # Whether the supervisor has said that it is about to exit.
    reported_end: bool = field(default=False, init=False)
    _ordered: float | None = field(default=None, init=False)
    _kill_at: float = field(default=0.0, init=False)

    @property
    def ended(self) -> bool:
        """Whether no process of the pod is left."""
        return self.supervisor is None

    @property
    def stopping(self) -> bool:
        """Whether its end was ordered."""
        return self._ordered is not None

    def state(self) -> PodState:
        return self.folder.read_state()

    def adopt(self) -> None:
        """Continue after another emulator, which may have ordered the end."""
        order = self.folder.read_stop()
        if order is not None:
            self._ordered = order[1]
            self._kill_at = time.monotonic() + order[1] + _SLACK_SECONDS
        self.look()

    def order_stop(self, grace_seconds: float) -> None:
        """Order the end once, or again with a shorter grace period."""
        if self.supervisor is None or (self._ordered is not None and grace_seconds >= self._ordered):
            return
        self._ordered = grace_seconds
        self._kill_at = time.monotonic() + grace_seconds + _SLACK_SECONDS
        self.folder.order_stop(grace_seconds)
        self._signal(signal.SIGTERM)

    def wake(self) -> None:
        """Make the supervisor look for faults now."""
        self._signal(signal.SIGHUP)

    def _signal(self, number: int) -> None:
        # Before its first report the supervisor has no handlers; after it, it looks for orders and faults by itself.
        if self.supervisor is not None and self.state().containers:
            self.supervisor.signal(number)

    def look(self) -> None:
        """Notice the end of the supervisor, and end what it left."""
        if self.supervisor is None:
            return
        self.reported_end = self.state().ended
        if self._ordered is not None and time.monotonic() > self._kill_at:
            self.supervisor.signal(signal.SIGKILL)
        if not self.supervisor.alive:
            self.kill()

    def kill(self) -> None:
        """End all processes at once, like a power cut."""
        if self.supervisor is not None:
            self.supervisor.signal(signal.SIGKILL)
        processes.end_marked(MARKER, self.uid, grace_seconds=0, poll_seconds=0.01)
        self.supervisor = None


class Workers:
    """All pods with a folder in the emulator's state. Not thread-safe."""

    def __init__(self, state_dir: Path) -> None:
        self._state_dir = state_dir
        self._pods = state_dir / "pods"
        self.logs = state_dir / "logs"
        self._children: list[subprocess.Popen[bytes]] = []
        self._lock = threading.Lock()

    def prepare(self) -> None:
        for folder in (self._pods, self.logs):
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)

    def folder(self, uid: str) -> PodFolder:
        return PodFolder(self._pods / uid)

    def log(self, namespace: str, pod: str, uid: str, container: str) -> Path:
        """The file of a container's output, which outlives the pod (as below /var/log/pods)."""
        return self.logs / f"{namespace}_{pod}_{uid}" / f"{container}.log"

    def start(self, plan: PodPlan, listener: socket.socket) -> Worker:
        """Start a supervisor, which owns the socket from now on. Raises OSError."""
        folder = self.folder(plan.uid)
        folder.write_plan(plan)
        for container in plan.containers:
            Path(container.log).parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        # The package may not be installed in the interpreter (a checkout).
        environment = {
            MARKER: plan.uid,
            "PATH": os.defpath,
            "PYTHONPATH": str(Path(bastion.__file__).resolve().parent.parent),
            "LANG": "C.UTF-8",
            **inherited(os.environ),
        }
        arguments = [f"--folder={folder.path}", f"--listen-fd={listener.fileno()}"]
        with listener, folder.supervisor_log.open("ab") as log:
            child = subprocess.Popen(
                [sys.executable, "-m", "bastion.emulators.kubernetes.kubelet.pod", *arguments],
                cwd=folder.path,
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                pass_fds=[listener.fileno()],
                start_new_session=True,
            )
        with self._lock:
            self._children.append(child)
        # A child that ended at once is a zombie until reaped; this identity is never alive.
        supervisor = ProcessId.of(child.pid) or ProcessId(child.pid, 0)
        folder.write_supervisor(supervisor)
        return Worker(uid=plan.uid, plan=plan, folder=folder, supervisor=supervisor)

    def adopt(self) -> dict[str, Worker]:
        """All pods of an earlier emulator, by uid."""
        found: dict[str, Worker] = {}
        for path in sorted(self._pods.iterdir()):
            folder = PodFolder(path)
            try:
                plan = folder.read_plan()
            except (OSError, ValueError):
                processes.end_marked(MARKER, path.name, grace_seconds=0)
                self.remove(path.name)
                continue
            # Without a noted supervisor the emulator died while it started it.
            supervisor = folder.read_supervisor() or ProcessId(0, 0)
            worker = Worker(uid=plan.uid, plan=plan, folder=folder, supervisor=supervisor)
            worker.adopt()
            found[plan.uid] = worker
        return found

    def reap(self) -> None:
        with self._lock:
            self._children = [child for child in self._children if child.poll() is None]

    def remove(self, uid: str) -> None:
        """Remove a pod's folder; its logs stay for a while."""
        shutil.rmtree(self._pods / uid, ignore_errors=True)
        with contextlib.suppress(OSError):
            kept = sorted(self.logs.iterdir(), key=lambda path: path.stat().st_mtime)
            for path in kept[:-_LOGS_KEPT]:
                shutil.rmtree(path, ignore_errors=True)
