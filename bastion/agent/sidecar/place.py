"""The address and folders of a host's storage proxy, and the environment of its clients and of the proxy.

Invariant: no variable of a job leads its clients around the proxy. Such variables are removed, with a note.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from bastion.agent.identity import HostIdentity
from bastion.core.bucket.protocol import Order
from bastion.core.encryption import client_environment as clients
from bastion.core.encryption import sidecar_contract as contract

# Identifies a proxy that an earlier agent left.
PROXY_MARKER = "BASTION_PROXY"
_LOCAL = ("localhost", "127.0.0.1", "::1")
# Hosts of other slices; their addresses are not known here.
_PRIVATE_NETWORKS = ("10.0.0.0/8", "172.16.0.0/12", "192.168.0.0/16")


@dataclass(frozen=True, slots=True, kw_only=True)
class ProxyPlace:
    """One host's proxy.

    Attributes:
        host: The address it listens on, one of the host's own.
        certificates: Folder with public files.
        state: Folder with private files: the authority's key, and uploads in progress.
    """

    host: str
    certificates: Path
    state: Path

    @property
    def listen(self) -> str:
        return f"{self.host}:{contract.PORT}"

    @property
    def url(self) -> str:
        return f"http://{self.listen}"

    @property
    def certificate(self) -> Path:
        """Exists once the proxy serves."""
        return self.certificates / contract.CA_FILE

    @property
    def bundle(self) -> Path:
        """The CA bundle that clients trust."""
        return self.certificates / contract.BUNDLE_FILE


@dataclass(frozen=True, slots=True, kw_only=True)
class ClientVariables:
    """The variables that make a command's storage clients use the proxy.

    Attributes:
        ours: Set whatever the job says.
        others: Derived from the job's values, or left to it.
        gone: Names that are removed.
        notes: For the job's log.
    """

    ours: dict[str, str]
    others: dict[str, str]
    gone: tuple[str, ...]
    notes: tuple[str, ...]


def place_of(identity: HostIdentity, folder: Path, *, emulated: bool) -> ProxyPlace:
    """Where a host's proxy is.

    Args:
        folder: Absolute state folder of this host and run.
        emulated: Whether hosts share a machine, each with its own loopback address.
    """
    own = (identity.address if emulated else "") or contract.LOOPBACK
    return ProxyPlace(host=own, certificates=folder / "proxy-certificates", state=folder / "proxy")


def client_variables(
    place: ProxyPlace, given: Mapping[str, str], identity: HostIdentity, *, emulated: bool, coordinator: str
) -> ClientVariables:
    """The variables of a command beside a proxy.

    Args:
        given: Its variables without a proxy.
        coordinator: `host:port` of host 0 of slice 0, or empty.
    """
    ours = {name: str(place.bundle) for name in clients.BUNDLES}
    ours |= {"https_proxy": place.url, "HTTPS_PROXY": place.url, contract.CERT_PATH: str(place.certificates)}
    hosts = [*clients.METADATA_HOSTS, *_LOCAL, *identity.peers]
    if coordinator:
        hosts.append(coordinator.rpartition(":")[0])
    if identity.slices_address:
        hosts.append(identity.slices_address.rpartition(":")[0] or identity.slices_address)
    if identity.arguments.num_slices > 1:
        hosts += [*_PRIVATE_NETWORKS, *(("127.0.0.0/8",) if emulated else ())]
    if given.get("GCE_METADATA_HOST"):
        hosts.append(given["GCE_METADATA_HOST"].rpartition(":")[0] or given["GCE_METADATA_HOST"])
    asked = [part for name in ("no_proxy", "NO_PROXY") for part in clients.split_exemptions(given.get(name, ""))]
    refused = [part for part in asked if clients.is_storage_exempt(part)]
    without = ",".join(dict.fromkeys([*hosts, *(part for part in asked if part not in refused)]))
    notes = []
    if refused:
        notes.append(f"removed {', '.join(refused)} from no_proxy: storage access must use the proxy")
    gone = tuple(name for name in clients.ELSEWHERE if name in given)
    if gone:
        notes.append(f"removed {', '.join(gone)}: they bypass the storage proxy")
    others = {"no_proxy": without, "NO_PROXY": without, **clients.defaults(given)}
    return ClientVariables(ours=ours, others=others, gone=gone, notes=tuple(notes))


def proxy_variables(
    place: ProxyPlace, base: Mapping[str, str], order: Order, *, marker: str, user: int | None = None
) -> dict[str, str]:
    """The environment of the proxy: the agent's own without its internals, and the job's proxy settings.

    `user`: the id of the command's user, if that is not the agent's; the proxy admits it.
    """
    variables = dict(base)
    # On a machine with its own storage endpoint, the proxy forwards to that.
    endpoint = variables.pop(clients.EMULATOR, "")
    if endpoint:
        variables[contract.UPSTREAM] = endpoint if "://" in endpoint else f"http://{endpoint}"
    variables |= {
        name: value for name, value in order.env.items() if name.startswith(contract.PREFIX) or name == contract.DEBUG
    }
    users = variables.get(contract.USERS, "").strip()
    if user is not None and users != "any":
        variables[contract.USERS] = f"{users},{user}" if users else str(user)
    return variables | {
        contract.MAPPING: order.proxy,
        contract.LISTEN: place.listen,
        contract.CERT_PATH: str(place.certificates),
        contract.STATE_PATH: str(place.state),
        PROXY_MARKER: marker,
        "PYTHONUNBUFFERED": "1",
    }
