"""The metadata of one emulated host, with its node's startup script and run token."""

from __future__ import annotations

import socket
from pathlib import Path

from bastion.emulators import metadata_server
from bastion.emulators.metadata_server import Tree, account
from bastion.emulators.tpu.host import HostFolder, HostSpec


def worker_network_endpoints(addresses: tuple[str, ...]) -> str:
    """Cloud TPU's format: `unused:<worker>:<address>` for every host, joined by commas."""
    return ",".join(f"unused:{worker}:{address}" for worker, address in enumerate(addresses))


def tree(spec: HostSpec, folder: HostFolder) -> Tree:
    """All metadata of a host; the node's own cannot override the platform's."""
    tpu_env = {
        "ACCELERATOR_TYPE": spec.accelerator_type,
        "CONSUMER_PROJECT_ID": spec.project,
        "NODE_ID": spec.node_id,
        "TOPOLOGY": spec.topology,
        "WORKER_ID": str(spec.worker),
        "ZONE": spec.zone,
    }
    if spec.slices > 1:
        tpu_env["MEGASCALE_COORDINATOR_ADDRESS"] = spec.coordinator
        tpu_env["MEGASCALE_NUM_SLICES"] = str(spec.slices)
        tpu_env["MEGASCALE_SLICE_ID"] = str(spec.slice_index)
    attributes: Tree = {
        **spec.metadata,
        "accelerator-type": spec.accelerator_type,
        "agent-worker-number": str(spec.worker),
        "instance-id": spec.node_id,
        "tpu-env": "".join(f"{name}: '{value}'\n" for name, value in tpu_env.items()),
        "worker-network-endpoints": worker_network_endpoints(spec.addresses),
    }
    service_account = account(spec.service_account)
    numeric_id = str(int.from_bytes(spec.vm_id.encode()[-7:], "big"))
    return {
        "instance": {
            "attributes": attributes,
            "guest-attributes": {},
            "hostname": f"{spec.name}.{spec.zone}.c.{spec.project}.internal",
            "id": numeric_id,
            "maintenance-event": lambda: _text(folder.maintenance) or "NONE",
            "name": spec.name,
            "network-interfaces": {"0": {"ip": spec.address}},
            "preempted": lambda: "TRUE" if folder.preempted.exists() else "FALSE",
            "service-accounts": {"default": service_account, spec.service_account: service_account},
            "zone": f"projects/0/zones/{spec.zone}",
        },
        "project": {"numeric-project-id": "0", "project-id": spec.project, "attributes": {}},
    }


def _text(path: Path) -> str:
    try:
        return path.read_text("utf-8")
    except OSError:
        return ""


class MetadataServer(metadata_server.MetadataServer):
    """Serves one host's metadata on a listening socket."""

    def __init__(self, spec: HostSpec, folder: HostFolder, listener: socket.socket) -> None:
        super().__init__(tree(spec, folder), listener)
