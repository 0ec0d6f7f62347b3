"""The emulators of the local bastion: Cloud TPU, Cloud Storage and Kubernetes, each a detached process."""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path

from bastion.emulators.gcs.address import locate as locate_storage
from bastion.emulators.kubernetes.address import locate as locate_kubernetes
from bastion.emulators.markers import HOME_MARKER
from bastion.emulators.tpu.address import EmulatorAddress, locate
from bastion.processes import ProcessId
from bastion.wiring import local_kubernetes
from bastion.wiring.buckets import storage_emulator
from bastion.wiring.detached import detach
from bastion.wiring.local_home import LocalBastionError, LocalHome
from bastion.wiring.roots import open_root

_START_SECONDS = 20.0
_STOP_SECONDS = 30.0


def start_emulator(state_dir: Path, log: Path) -> EmulatorAddress | None:
    """Start the Cloud TPU emulator, detached; None if it is not ready in time (its output says why)."""
    state_dir.mkdir(parents=True, exist_ok=True)
    state_dir.chmod(0o700)
    log.parent.mkdir(parents=True, exist_ok=True)
    process = detach([sys.executable, "-m", "bastion.emulators.tpu", f"--state-dir={state_dir}"], log, dict(os.environ))
    deadline = time.monotonic() + _START_SECONDS
    while time.monotonic() < deadline:
        address = locate(state_dir)
        if address is not None:
            return address
        if process is None or not process.alive:
            return locate(state_dir)  # another one holds the folder's lock
        time.sleep(0.02)
    return None


def stop_emulator(state_dir: Path) -> None:
    """End the emulator of a state folder with all its VMs."""
    address = locate(state_dir)
    if address is not None:
        address.process.signal(signal.SIGTERM)
        await_end(address.process)


def begin_storage(home: LocalHome) -> ProcessId | None:
    """Start the storage endpoint unless it runs, or the user has chosen another; do not wait for it."""
    if storage_emulator() or locate_storage(home.buckets_dir) is not None:
        return None
    environment = {**os.environ, HOME_MARKER: home.marker}
    command = [sys.executable, "-m", "bastion.emulators.gcs", f"--dir={home.buckets_dir}"]
    return detach(command, home.run_dir / "storage.log", environment)


def await_storage(home: LocalHome, starting: ProcessId | None, say: Callable[[str], None]) -> dict[str, str]:
    """Wait for the endpoint; return its environment variables for jobs. Jobs also run without it."""
    if storage_emulator():
        return {}
    deadline = time.monotonic() + _START_SECONDS
    while time.monotonic() < deadline:
        address = locate_storage(home.buckets_dir)
        if address is not None:
            return address.environment
        if starting is None or not starting.alive:
            break
        time.sleep(0.02)
    say(f"gs:// is not available to jobs: the storage endpoint did not start, see {home.run_dir / 'storage.log'}")
    return {}


def stop_storage(buckets_dir: Path) -> None:
    address = locate_storage(buckets_dir)
    if address is not None:
        address.process.signal(signal.SIGTERM)
        await_end(address.process)


def begin_kubernetes(home: LocalHome, storage: ProcessId | None, say: Callable[[str], None], *, wanted: bool) -> None:
    """Start the cluster unless it runs, and send jobs there. Its pods need the storage endpoint's address.

    `wanted`: the user asks for the cluster now, so its queues are written even if it runs: a job that is launched must
    not undo what the user did to them.
    """
    runs = locate_kubernetes(home.kubernetes_dir) is not None
    if not runs:
        say("starting the emulated Kubernetes cluster")
    environment = {**os.environ, **await_storage(home, storage, say), HOME_MARKER: home.marker}
    address = local_kubernetes.ensure_running(home.kubernetes_dir, home.run_dir / "kubernetes.log", environment)
    store = open_root(home.root.url)
    local_kubernetes.write_settings(store, home.kubernetes_dir, address, say)
    if local_kubernetes.has_kueue(home.kubernetes_dir) and (wanted or not runs):
        # Imported here: it loads the export and the client of the emulated cluster.
        from bastion.client.quota.kueue_export import name_of
        from bastion.wiring.daemon import node_label
        from bastion.wiring.local_kueue import write_queues

        root = home.root
        cluster, label = local_kubernetes.CLUSTER, node_label(root)
        write_queues(store, address, cluster=cluster, label=label, name=name_of(root.bastion), say=say)


def stop_kubernetes(state_dir: Path) -> None:
    """End the emulated cluster of a state folder with all its pods."""
    local_kubernetes.stop(state_dir, await_end)


def await_end(process: ProcessId) -> None:
    deadline = time.monotonic() + _STOP_SECONDS
    while process.alive:
        if time.monotonic() > deadline:
            process.signal(signal.SIGKILL)
        if time.monotonic() > deadline + 5:
            raise LocalBastionError(f"process {process.pid} did not end; kill it manually")
        time.sleep(0.02)
