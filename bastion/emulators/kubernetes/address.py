"""The address of a running emulated cluster: `kubernetes.json` in its state folder, and `kubeconfig` for people.

The CLI and the wiring import this, so it imports little.
"""

from __future__ import annotations

import base64
import json
from dataclasses import dataclass
from pathlib import Path

from bastion.emulators import state_folder
from bastion.processes import ProcessId

ADDRESS_FILE = "kubernetes.json"
KUBECONFIG_FILE = "kubeconfig"
_NAME = "bastion-emulator"


@dataclass(frozen=True, slots=True, kw_only=True)
class KubernetesAddress:
    """A live API server.

    Attributes:
        server: `https://127.0.0.1:PORT`.
        token: Every request needs `Authorization: Bearer <token>`.
        ca_file: The authority that clients must trust.
    """

    server: str
    token: str
    ca_file: str
    process: ProcessId


def locate(state_dir: Path) -> KubernetesAddress | None:
    """The emulator that serves this state folder; None if none is ready."""
    found = state_folder.published(state_dir / ADDRESS_FILE)
    if found is None:
        return None
    document, process = found
    server, token, ca_file = (document.get(name) for name in ("server", "token", "ca_file"))
    if not (isinstance(server, str) and isinstance(token, str) and isinstance(ca_file, str)):
        return None
    return KubernetesAddress(server=server, token=token, ca_file=ca_file, process=process)


def publish(state_dir: Path, address: KubernetesAddress) -> None:
    """Publish the address and the kubeconfig, readable by this user only."""
    state_folder.write_private(state_dir / KUBECONFIG_FILE, kubeconfig(address))
    facts = {"server": address.server, "token": address.token, "ca_file": address.ca_file}
    state_folder.publish(state_dir / ADDRESS_FILE, facts, address.process)


def withdraw(state_dir: Path) -> None:
    """Remove the address, before the emulator ends. The kubeconfig stays valid for a restart at the same port."""
    (state_dir / ADDRESS_FILE).unlink(missing_ok=True)


def kubeconfig(address: KubernetesAddress) -> bytes:
    """A kubeconfig in JSON, which is YAML, with the authority inside."""
    authority = base64.b64encode(Path(address.ca_file).read_bytes()).decode()
    document = {
        "apiVersion": "v1",
        "kind": "Config",
        "current-context": _NAME,
        "contexts": [{"name": _NAME, "context": {"cluster": _NAME, "user": _NAME, "namespace": "default"}}],
        "clusters": [{"name": _NAME, "cluster": {"server": address.server, "certificate-authority-data": authority}}],
        "users": [{"name": _NAME, "user": {"token": address.token}}],
    }
    return json.dumps(document, indent=2).encode()
