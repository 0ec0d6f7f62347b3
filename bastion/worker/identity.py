"""Who this host is: the agent's arguments, and its place in the slice.

Layer: worker, pure.
"""

from __future__ import annotations

from dataclasses import dataclass

from bastion.core.errors import InvalidDocument
from bastion.core.protocol import AgentArguments


@dataclass(frozen=True, slots=True, kw_only=True)
class HostIdentity:
    """One host of one attempt.

    Attributes:
        arguments: What the node was created with; the same on all its hosts.
        worker: This host's number in its slice, from 0.
        peers: Addresses of the slice's hosts, in order of worker number; empty on the bastion's own host.
    """

    arguments: AgentArguments
    worker: int
    peers: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if not 0 <= self.worker < self.arguments.hosts_per_slice:
            raise InvalidDocument(
                f"this host is worker {self.worker}, but its slice has {self.arguments.hosts_per_slice} hosts; "
                "the node is not of the type that was asked for"
            )

    @property
    def host(self) -> int:
        """The host's number in the whole job."""
        return self.arguments.slice_index * self.arguments.hosts_per_slice + self.worker

    @property
    def num_hosts(self) -> int:
        return self.arguments.num_slices * self.arguments.hosts_per_slice

    @property
    def on_bastion(self) -> bool:
        """Whether this is the bastion's own host, for a job without a slice."""
        return not self.arguments.accelerator_type


def parse_peers(endpoints: str) -> tuple[str, ...]:
    """The hosts' addresses in the node's `worker-network-endpoints`, in order of worker number.

    Two formats exist: plain addresses, and triples `name:number:address`, each separated by commas.

    Raises:
        InvalidDocument: neither of them.
    """
    peers = []
    for endpoint in filter(None, (part.strip() for part in endpoints.split(","))):
        parts = endpoint.split(":")
        if len(parts) not in (1, 3):
            raise InvalidDocument(
                f"worker-network-endpoints has {endpoint!r}, which is neither an address nor name:number:address"
            )
        peers.append(parts[-1])
    return tuple(peers)
