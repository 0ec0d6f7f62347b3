"""Hosts as processes of this machine: starting supervisors, ending all processes of a host."""

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
from collections.abc import Sequence
from pathlib import Path

import bastion
from bastion import processes
from bastion.core.model import instance_types
from bastion.emulators.agents import AGENT_DIR
from bastion.emulators.markers import MARKER, inherited
from bastion.emulators.tpu.host import HostFolder, HostSpec
from bastion.emulators.tpu.records import HostRecord, NodeRecord
from bastion.emulators.tpu.requests import LOCATION
from bastion.emulators.tpu.settings import FleetSettings
from bastion.processes import ProcessId

_SERIAL_LOGS_KEPT = 64


class Hosts:
    """Starts and ends hosts; reaps those that it started."""

    def __init__(self, state_dir: Path) -> None:
        self._vms = state_dir / "vms"
        self._serial = state_dir / "serial"
        self._children: list[subprocess.Popen[bytes]] = []
        self._lock = threading.Lock()

    def node_folder(self, key: str) -> Path:
        return self._vms / key

    def folder(self, key: str, worker: int) -> HostFolder:
        return HostFolder(self._vms / key / str(worker))

    def start(self, key: str, spec: HostSpec, listener: socket.socket) -> ProcessId:
        """Boot one host, which owns the socket from now on. Raises OSError."""
        folder = self.folder(key, spec.worker)
        folder.prepare(spec)
        # The package may not be installed in the interpreter (a checkout), and the supervisor's environment is as bare
        # as its host's.
        environment = {
            MARKER: spec.vm_id,
            "PATH": os.defpath,
            "PYTHONPATH": str(Path(bastion.__file__).resolve().parent.parent),
            "LANG": "C.UTF-8",
            **({AGENT_DIR: os.environ[AGENT_DIR]} if AGENT_DIR in os.environ else {}),
            **inherited(os.environ),
        }
        with listener, folder.supervisor_log.open("ab") as log:
            child = subprocess.Popen(
                [
                    sys.executable,
                    "-m",
                    "bastion.emulators.tpu.vm",
                    f"--folder={folder.path}",
                    f"--listen-fd={listener.fileno()}",
                ],
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
        return ProcessId.of(child.pid) or ProcessId(child.pid, 0)

    def reap(self) -> None:
        with self._lock:
            self._children = [child for child in self._children if child.poll() is None]

    def end(self, hosts: Sequence[HostRecord], *, grace_seconds: float) -> bool:
        """Ask the supervisors to end their hosts, wait, then kill by marker; return whether all have ended."""
        for host in hosts:
            if (supervisor := host.supervisor) is not None:
                supervisor.signal(signal.SIGTERM)
        # The supervisor kills after the grace period, and needs time to see that all have ended.
        deadline = time.monotonic() + grace_seconds + 1.0
        while any(host.alive for host in hosts) and time.monotonic() < deadline:
            time.sleep(0.02)
            self.reap()
        gone = [processes.end_marked(MARKER, host.vm_id, grace_seconds=0) for host in hosts]
        self.reap()
        return all(gone)

    def kill(self, host: HostRecord) -> None:
        """End a host like a power cut: kill everything at once."""
        if (supervisor := host.supervisor) is not None:
            supervisor.signal(signal.SIGKILL)
        processes.end_marked(MARKER, host.vm_id, grace_seconds=0)
        self.reap()

    def remove(self, key: str) -> None:
        """Remove a node's folders; its serial logs stay for a while, to diagnose nodes that never came up."""
        with contextlib.suppress(OSError):  # A log must not prevent the removal.
            self._serial.mkdir(mode=0o700, exist_ok=True)
            for path in self.node_folder(key).glob("*/serial.log"):
                path.replace(self._serial / f"{key}-{path.parent.name}.log")
            kept = sorted(self._serial.iterdir(), key=lambda path: path.stat().st_mtime)
            for path in kept[:-_SERIAL_LOGS_KEPT]:
                path.unlink(missing_ok=True)
        shutil.rmtree(self.node_folder(key), ignore_errors=True)

    def sweep(self, known: set[str]) -> None:
        """End and remove everything under `vms/` that belongs to no known node."""
        if not self._vms.is_dir():
            return
        for node in list(self._vms.iterdir()):
            if node.name in known:
                continue
            for path in node.iterdir() if node.is_dir() else ():
                with contextlib.suppress(OSError, ValueError):
                    if vm_id := HostFolder(path).read().vm_id:
                        processes.end_marked(MARKER, vm_id, grace_seconds=0)
            self.remove(node.name)


def host_spec(
    node: NodeRecord, host: HostRecord, hosts: tuple[HostRecord, ...], coordinator: str, settings: FleetSettings
) -> HostSpec:
    """The description of one host of a node."""
    location = LOCATION.fullmatch(node.location)
    assert location is not None, node.location
    return HostSpec(
        vm_id=host.vm_id,
        node_id=node.node_id,
        project=location["project"],
        zone=location["zone"],
        worker=host.worker,
        addresses=tuple(other.ip for other in hosts),
        port=host.port,
        accelerator_type=node.accelerator_type,
        topology=instance_types.table()[node.accelerator_type].topology,
        service_account=node.service_account or f"default@{location['project']}.iam.gserviceaccount.com",
        metadata=node.metadata,
        state_dir=str(settings.state_dir),
        orphan_seconds=settings.orphan_seconds,
        grace_seconds=settings.grace_seconds,
        slices=node.slices,
        slice_index=node.slice_index,
        coordinator=coordinator,
    )
