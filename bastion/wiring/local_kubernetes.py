"""The Kubernetes cluster of a local bastion: its emulator, and the operator settings that send jobs there."""

from __future__ import annotations

import contextlib
import importlib.util
import signal
import sys
import time
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from pathlib import Path

from bastion.core import documents
from bastion.core.bucket import keys
from bastion.core.errors import BastionError, InvalidDocument, NotFound, PreconditionFailed, Refused
from bastion.core.model import instance_types
from bastion.core.model.clusters import place_of
from bastion.emulators.kubernetes.address import KUBECONFIG_FILE, KubernetesAddress, locate
from bastion.ports import ObjectStore
from bastion.processes import ProcessId
from bastion.wiring.detached import detach

# One slice per pool: each type is there twice, for jobs of two slices.
DEFAULT_POOLS = ("v4-8=4", "v4-16=2", "v5litepod-16=2")
CLUSTER = "local"
_POOLS_FILE = "pools"  # exists if this bastion has a cluster
_KUEUE_FILE = "kueue"  # exists if Kueue decides on it
_START_SECONDS = 20.0


class ClusterError(BastionError):
    exit_code = 75


def is_set_up(state_dir: Path) -> bool:
    return (state_dir / _POOLS_FILE).exists()


def resource_types(pools: Sequence[str]) -> list[str]:
    found = [instance_types.find(pool.partition("=")[0]) for pool in pools]
    return sorted({each.resource_type for each in found if each is not None})


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterOptions:
    """What a user asks of the cluster; empty and None: as it is, or the default.

    Attributes:
        pools: Node pools, `TYPE=COUNT`.
        kueue: Whether Kueue decides there.
    """

    pools: Sequence[str] = ()
    kueue: bool | None = None


def set_up(state_dir: Path, options: ClusterOptions) -> None:
    """Let this bastion have a cluster.

    Raises Refused if another one runs, or the client's package is missing.
    """
    if importlib.util.find_spec("kubernetes") is None:
        raise Refused("--kubernetes needs the Python package kubernetes; install bastion[kubernetes]")
    present = pools(state_dir)
    wanted = [*options.pools] or present or [*DEFAULT_POOLS]
    kueue = has_kueue(state_dir) if options.kueue is None else options.kueue
    if wanted == present and kueue == has_kueue(state_dir):
        return
    if locate(state_dir) is not None:
        again = " ".join(f"--pool={pool}" for pool in wanted) + (" --kueue" if kueue else " --nokueue")
        without = "" if has_kueue(state_dir) else "out"
        raise Refused(
            f"the cluster runs with the node pools {' '.join(present)}, with{without} Kueue; to change that: bastion "
            f"local down, then bastion local up --kubernetes {again}"
        )
    state_dir.mkdir(mode=0o700, parents=True, exist_ok=True)
    if kueue:
        (state_dir / _KUEUE_FILE).touch()
    else:
        (state_dir / _KUEUE_FILE).unlink(missing_ok=True)
    written = state_dir / f"{_POOLS_FILE}.new"
    written.write_text("".join(f"{pool}\n" for pool in wanted), "utf-8")
    written.replace(state_dir / _POOLS_FILE)


def pools(state_dir: Path) -> list[str]:
    """Return this bastion's node pools; empty without a cluster."""
    return (state_dir / _POOLS_FILE).read_text("utf-8").split() if is_set_up(state_dir) else []


def has_kueue(state_dir: Path) -> bool:
    """Whether Kueue decides on this bastion's cluster."""
    return (state_dir / _KUEUE_FILE).exists()


def ensure_running(state_dir: Path, log: Path, environment: dict[str, str]) -> KubernetesAddress:
    """Start the emulator unless it runs. Raises ClusterError."""
    address = locate(state_dir)
    if address is not None:
        return address
    command = [sys.executable, "-m", "bastion.emulators.kubernetes", f"--state-dir={state_dir}"]
    if has_kueue(state_dir):
        command.append("--kueue")
    process = detach([*command, *(f"--pool={pool}" for pool in pools(state_dir))], log, environment)
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


def write_settings(store: ObjectStore, state_dir: Path, address: KubernetesAddress, say: Callable[[str], None]) -> None:
    """Write the operator settings that place types in the cluster; keep those that a user wrote or changed."""
    types = {*resource_types(pools(state_dir))}
    try:
        present = store.get(keys.DAEMON_SETTINGS)
    except NotFound:
        with contextlib.suppress(PreconditionFailed):
            wanted = settings(state_dir, _uid(address), types, kueue=has_kueue(state_dir))
            store.put(keys.DAEMON_SETTINGS, wanted, generation=0)
        return
    uid, before = _uid(address), _types_in(present.data)
    wanted = settings(state_dir, uid, types, kueue=has_kueue(state_dir))
    if any(present.data == settings(state_dir, uid, before, kueue=kueue) for kueue in (False, True)):
        if present.data != wanted:
            with contextlib.suppress(PreconditionFailed):
                store.put(keys.DAEMON_SETTINGS, wanted, generation=present.meta.generation)
        return
    lacking = sorted(types - before)
    if not lacking:
        return
    suggested = state_dir / "daemon.toml"
    suggested.write_bytes(wanted)
    say(
        f"{keys.DAEMON_SETTINGS} is yours, so it stays as it is: it sends no jobs of {', '.join(lacking)} to the "
        f"cluster; {suggested} shows the lines to add"
    )


def _types_in(data: bytes) -> set[str]:
    """Return the resource types that operator settings send to the cluster."""
    from bastion.core.model import daemon_settings

    try:
        found = daemon_settings.load(data).resource_types
    except InvalidDocument:
        return set()
    return {name for name, nodes in found.items() if place_of(CLUSTER) in nodes.zones}


def settings(state_dir: Path, uid: str, types: Collection[str], *, kueue: bool) -> bytes:
    queue = 'queue = "bastion-{project}"\n' if kueue else ""
    tables = "".join(f'\n[types.{each}]\nzones = ["{place_of(CLUSTER)}"]\n' for each in sorted(types))
    return f"""\
# Where this bastion's slices come from: some types from the emulated Kubernetes cluster, the others from the emulated
# Cloud TPU. `bastion daemon check-config FILE` explains it.
project = "local"

[clusters.{CLUSTER}]
provider = "gke"
kubeconfig = "{state_dir / KUBECONFIG_FILE}"
uid = "{uid}"
{queue}
[defaults]
zones = ["local"]
service_account = ""

[defaults.pod]
image = "this-machine"
gpu_network = false
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
