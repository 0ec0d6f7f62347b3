"""How the processes of a job's hosts with GPUs find each other: what launchers and frameworks read.

Each host is one node: its number is the host's in the job, and host 0 has the coordinator. Nothing here numbers
processes, because commands start one or several for each GPU, except where a host has one GPU.

* torchrun: `PET_*` are the defaults of its options (torch/distributed/argparse_util.py).
* JAX: `JAX_*`, with the hook in `jax_hook`.
* TensorFlow: `TF_CONFIG`, for MultiWorkerMirroredStrategy.
* mpirun and horovodrun: `BASTION_HOSTFILE`.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Sequence
from pathlib import Path

from bastion.agent import coordinator as coordinators
from bastion.agent.identity import HostIdentity

JAX_HOOK = Path(__file__).parent / "jax_hook"
HOSTFILE = "BASTION_HOSTFILE"
# What a launcher counts its processes with.
_OF_PROCESSES = ("LOCAL_RANK", "LOCAL_WORLD_SIZE", "RANK", "WORLD_SIZE")
# TensorFlow's own examples use it.
_TENSORFLOW_PORT = 2222


def variables(
    identity: HostIdentity, coordinator: str, *, hosts: Sequence[str], hostfile: str, emulated: bool
) -> dict[str, str]:
    """The command's variables on a host with GPUs.

    Args:
        coordinator: `host:port` of host 0, from the claim.
        hosts: Addresses of all hosts by their numbers; empty if unknown.
        hostfile: Path of the file that `hostfile_text` is for.
    """
    gpus = identity.gpus
    address = coordinators.host_of(coordinator)
    port = str(coordinators.torch_port(coordinator, emulated=emulated))
    nodes, node = str(identity.num_hosts), str(identity.host)
    found = {
        "PET_NNODES": nodes,
        "PET_NPROC_PER_NODE": str(gpus),
        "PET_NODE_RANK": node,
        "PET_MASTER_ADDR": address,
        "PET_MASTER_PORT": port,
        "MASTER_ADDR": address,
        "MASTER_PORT": port,
        "NODE_RANK": node,
        "JAX_COORDINATOR_ADDRESS": coordinator,
        "JAX_NUM_PROCESSES": nodes,
        "JAX_PROCESS_ID": node,
        HOSTFILE: hostfile,
    }
    if gpus == 1 and identity.num_hosts > 1:
        # One process a host is one a GPU: `init_process_group()` needs no launcher.
        found |= {"WORLD_SIZE": nodes, "RANK": node, "LOCAL_WORLD_SIZE": "1", "LOCAL_RANK": "0"}
    if len(hosts) > 1:
        workers = [f"{_bracketed(host)}:{_TENSORFLOW_PORT}" for host in hosts]
        task = {"type": "worker", "index": identity.host}
        found["TF_CONFIG"] = json.dumps({"cluster": {"worker": workers}, "task": task}, separators=(",", ":"))
    return found


def note(identity: HostIdentity, given: Collection[str]) -> str:
    """Return a remark for the job's log about variables that the job sets; empty if there is none.

    On hosts with several GPUs one value cannot be right for all processes, so nothing here sets these names.
    """
    names = [name for name in _OF_PROCESSES if name in given]
    if not names or (identity.gpus or 0) < 2:
        return ""
    return (
        f"the job sets {', '.join(names)}, which every process of every host gets; launchers such as torchrun set them "
        "anew for each process, and other programs wait for each other: leave them out"
    )


def hostfile_text(identity: HostIdentity, hosts: Sequence[str]) -> str:
    """Lines as Open MPI and Horovod read them."""
    return "".join(f"{host} slots={identity.gpus}\n" for host in hosts or (identity.address,))


def _bracketed(host: str) -> str:
    return f"[{host}]" if ":" in host else host
