"""The Kubernetes cluster of a local bastion: its emulator, and the operator settings that send jobs there."""

from __future__ import annotations

import contextlib
import signal
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from bastion.core import documents
from bastion.core.bucket import keys
from bastion.core.errors import BastionError, PreconditionFailed
from bastion.core.model import instance_types
from bastion.core.model.clusters import place_of
from bastion.emulators.kubernetes.address import KUBECONFIG_FILE, KubernetesAddress, locate
from bastion.ports import ObjectStore
from bastion.processes import ProcessId
from bastion.wiring.detached import detach

# One slice per pool: each type is there twice, for jobs of two slices.
DEFAULT_POOLS = ("v4-8=4", "v4-16=2", "v5litepod-16=2")
_CLUSTER = "local"
_POOLS_FILE = "pools"  # exists if this bastion has a cluster
_START_SECONDS = 20.0


class ClusterError(BastionError):
    exit_code = 75


def is_set_up(state_dir: Path) -> bool:
    return (state_dir / _POOLS_FILE).exists()


def set_up(state_dir: Path, pools: Sequence[str]) -> None:
    """Let this bastion have a cluster with these node pools, from its next start on."""
    state_dir.mkdir(mode=0o700, parents=True, exist_ok=True)
    (state_dir / _POOLS_FILE).write_text("".join(f"{pool}\n" for pool in pools or DEFAULT_POOLS), "utf-8")


def ensure_running(state_dir: Path, log: Path, environment: dict[str, str]) -> KubernetesAddress:
    """Start the emulator unless it runs. Raises ClusterError."""
    address = locate(state_dir)
    if address is not None:
        return address
    pools = (state_dir / _POOLS_FILE).read_text("utf-8").split()
    command = [sys.executable, "-m", "bastion.emulators.kubernetes", f"--state-dir={state_dir}"]
    process = detach([*command, *(f"--pool={pool}" for pool in pools)], log, environment)
    deadline = time.monotonic() + _START_SECONDS
    while time.monotonic() < deadline and process is not None and process.alive:
        address = locate(state_dir)
        if address is not None:
            return address
        time.sleep(0.02)
    raise ClusterError(f"the emulated Kubernetes cluster did not start; see {log}")


def stop(state_dir: Path, await_end: Callable[[ProcessId], None]) -> None:
    address = locate(state_dir)
    if address is not None:
        address.process.signal(signal.SIGTERM)
        await_end(address.process)


def write_settings(store: ObjectStore, state_dir: Path, address: KubernetesAddress) -> None:
    """Write the operator settings that place types in the cluster, unless there are some already."""
    with contextlib.suppress(PreconditionFailed):
        store.put(keys.DAEMON_SETTINGS, settings(state_dir, _uid(address)), generation=0)


def settings(state_dir: Path, uid: str) -> bytes:
    pools = (state_dir / _POOLS_FILE).read_text("utf-8").split()
    types = {instance_types.table()[pool.partition("=")[0]].resource_type for pool in pools}
    tables = "".join(f'\n[types.{each}]\nzones = ["{place_of(_CLUSTER)}"]\n' for each in sorted(types))
    return f"""\
# Where this bastion's slices come from: some types from the emulated Kubernetes cluster, the others from the emulated
# Cloud TPU. `bastion daemon check-config FILE` explains it.
project = "local"

[clusters.{_CLUSTER}]
kubeconfig = "{state_dir / KUBECONFIG_FILE}"
uid = "{uid}"

[defaults]
zones = ["local"]
service_account = ""

[defaults.pod]
image = "this-machine"
{tables}
[[tiers]]
model = "on-demand"
""".encode()


def _uid(address: KubernetesAddress) -> str:
    # Only here: every command that knows the local bastion imports this module.
    import ssl
    import urllib.request

    request = urllib.request.Request(
        f"{address.server}/api/v1/namespaces/kube-system", headers={"Authorization": f"Bearer {address.token}"}
    )
    context = ssl.create_default_context(cafile=address.ca_file)
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}), urllib.request.HTTPSHandler(context=context))
    try:
        with opener.open(request, timeout=10) as answer:
            return str(documents.loads(answer.read())["metadata"]["uid"])
    except (OSError, ValueError, LookupError, TypeError) as error:
        raise ClusterError(f"the emulated cluster at {address.server} does not tell its uid: {error}") from error
