"""Where a host's encrypting storage proxy is, and what its clients and it itself are told by their environments.

Layer: worker, pure.

Invariant: nothing of what a job sets leads its clients around the proxy. What would is taken out, and said.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from bastion.agent.identity import HostIdentity
from bastion.core.bucket.protocol import Order
from bastion.core.encryption import client_environment as clients
from bastion.core.encryption import sidecar_contract as contract

# By which an agent finds the proxy that another one left.
PROXY_MARKER = "BASTION_PROXY"
_LOCAL = ("localhost", "127.0.0.1", "::1")
# Hosts of other slices than this one's: nobody here knows them one by one.
_PRIVATE_NETWORKS = ("10.0.0.0/8", "172.16.0.0/12", "192.168.0.0/16")


@dataclass(frozen=True, slots=True, kw_only=True)
class ProxyPlace:
    """One host's proxy.

    Attributes:
        host: Address it listens on, one of the host's own.
        certificates: Folder of what is public.
        state: Folder of what is not: the authority's private key, and uploads under way.
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
        """What clients trust."""
        return self.certificates / contract.BUNDLE_FILE


@dataclass(frozen=True, slots=True, kw_only=True)
class ClientVariables:
    """What a command gets so that its storage clients use the proxy.

    Attributes:
        ours: Set whatever the job says.
        others: Set as well: made of what the job says, or left to it.
        gone: Names that it does not get.
        notes: For the job's log.
    """

    ours: dict[str, str]
    others: dict[str, str]
    gone: tuple[str, ...]
    notes: tuple[str, ...]


def place_of(identity: HostIdentity, folder: Path, *, emulated: bool) -> ProxyPlace:
    """Where a host's proxy is.

    Args:
        folder: Of this host of this run; absolute.
        emulated: Whether hosts share a machine, so that each has a loopback address of its own.
    """
    own = identity.peers[identity.worker] if emulated and identity.peers else contract.LOOPBACK
    return ProxyPlace(host=own, certificates=folder / "proxy-certificates", state=folder / "proxy")


def client_variables(
    place: ProxyPlace, given: Mapping[str, str], identity: HostIdentity, *, emulated: bool, coordinator: str
) -> ClientVariables:
    """The variables of a command beside a proxy.

    Args:
        given: What it would have without one.
        coordinator: `host:port` of host 0 of slice 0, or empty.
    """
    ours = {name: str(place.bundle) for name in clients.BUNDLES}
    ours |= {"https_proxy": place.url, "HTTPS_PROXY": place.url, contract.CERT_PATH: str(place.certificates)}
    hosts = [*clients.METADATA_HOSTS, *_LOCAL, *identity.peers]
    if coordinator:
        hosts.append(coordinator.rpartition(":")[0])
    if identity.arguments.num_slices > 1:
        hosts += [*_PRIVATE_NETWORKS, *(("127.0.0.0/8",) if emulated else ())]
    if given.get("GCE_METADATA_HOST"):
        hosts.append(given["GCE_METADATA_HOST"].rpartition(":")[0] or given["GCE_METADATA_HOST"])
    asked = [part for name in ("no_proxy", "NO_PROXY") for part in clients.split_exemptions(given.get(name, ""))]
    refused = [part for part in asked if clients.is_storage_exempt(part)]
    without = ",".join(dict.fromkeys([*hosts, *(part for part in asked if part not in refused)]))
    notes = []
    if refused:
        notes.append(f"no_proxy without {', '.join(refused)}: storage is reached through the proxy only")
    gone = tuple(name for name in clients.ELSEWHERE if name in given)
    if gone:
        notes.append(f"{', '.join(gone)} would lead around the storage proxy; the command does not have it")
    others = {"no_proxy": without, "NO_PROXY": without, **clients.defaults(given)}
    return ClientVariables(ours=ours, others=others, gone=gone, notes=tuple(notes))


def proxy_variables(place: ProxyPlace, base: Mapping[str, str], order: Order, *, marker: str) -> dict[str, str]:
    """The environment of the proxy itself: the agent's own, and what the job says of the proxy.

    Args:
        base: The agent's environment, without what is the agent's alone.
    """
    variables = dict(base)
    # On a machine with a storage endpoint of its own in place of the cloud, that is what lies behind the proxy.
    endpoint = variables.pop(clients.EMULATOR, "")
    if endpoint:
        variables[contract.UPSTREAM] = endpoint if "://" in endpoint else f"http://{endpoint}"
    variables |= {
        name: value for name, value in order.env.items() if name.startswith(contract.PREFIX) or name == contract.DEBUG
    }
    return variables | {
        contract.MAPPING: order.proxy,
        contract.LISTEN: place.listen,
        contract.CERT_PATH: str(place.certificates),
        contract.STATE_PATH: str(place.state),
        PROXY_MARKER: marker,
        "PYTHONUNBUFFERED": "1",
    }
