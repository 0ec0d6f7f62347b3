"""This host's identity: the agent's arguments and the host's place in the slice."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property

from bastion.core.bucket.protocol import AgentArguments
from bastion.core.errors import InvalidDocument
from bastion.core.run_keys import RunKey


@dataclass(frozen=True, kw_only=True)
class HostIdentity:
    """One host of one attempt.

    Attributes:
        arguments: What the node was created with; the same on all hosts of the slice.
        worker: This host's number in its slice, from 0.
        peers: Addresses of the slice's hosts by worker number; empty on the bastion's own host.
        slices_address: `host:port` where the slices meet, if the platform says so.
        own_address: This host's address, if the platform says so by itself; otherwise it is one of the peers.
        boot_id: What changes with each boot, if it is not the kernel's: a pod's own id.
        tpu_variables: `TPU_*` and `MEGASCALE_*` as the platform set them for this host; they win over the agent's.
    """

    arguments: AgentArguments
    worker: int
    peers: tuple[str, ...] = ()
    slices_address: str = ""
    own_address: str = ""
    boot_id: str = ""
    tpu_variables: Mapping[str, str] = field(default_factory=dict, hash=False)

    def __post_init__(self) -> None:
        if not 0 <= self.worker < self.arguments.hosts_per_slice:
            raise InvalidDocument(
                f"this host is worker {self.worker}, but its slice has {self.arguments.hosts_per_slice} hosts; "
                "the node does not have the requested type"
            )
        if self.slice_index >= self.arguments.num_slices:
            raise InvalidDocument(f"this is slice {self.slice_index}, but the job has {self.arguments.num_slices}")

    @cached_property
    def run_key(self) -> RunKey:
        """The secret of this host's run. Raises InvalidDocument, which does not show it."""
        try:
            return RunKey.from_text(self.arguments.run_key)
        except ValueError:
            raise InvalidDocument("run_key is not a key in hexadecimal") from None

    @property
    def address(self) -> str:
        """This host's address; empty if unknown."""
        return self.own_address or (self.peers[self.worker] if self.peers else "")

    @property
    def host(self) -> int:
        """The host's number in the whole job."""
        return self.slice_index * self.arguments.hosts_per_slice + self.worker

    @property
    def slice_index(self) -> int:
        """The slice's number in the job, from 0."""
        return self.arguments.slice_index or 0

    @property
    def num_hosts(self) -> int:
        return self.arguments.num_slices * self.arguments.hosts_per_slice

    @property
    def gpus(self) -> int:
        """GPUs of this host."""
        return self.arguments.gpus_per_host or 0

    @property
    def on_bastion(self) -> bool:
        """Whether the job has no slice."""
        return not self.arguments.accelerator_type


def parse_slice_index(tpu_env: str) -> int:
    """A node's slice index from its `tpu-env` (lines of `NAME: 'value'`). Raises InvalidDocument if there is none.

    The platform sets it for slices that it made together; otherwise the node's name ends in it.
    """
    values = _parse_tpu_env(tpu_env)
    number = values.get("MEGASCALE_SLICE_ID") or values.get("NODE_ID", "").rpartition("-")[2]
    if not number.isdecimal():
        raise InvalidDocument("tpu-env has neither MEGASCALE_SLICE_ID nor a NODE_ID that ends in the slice's number")
    return int(number)


def parse_slices_address(tpu_env: str) -> str:
    """Where slices that the platform made together meet; empty if unknown."""
    return _parse_tpu_env(tpu_env).get("MEGASCALE_COORDINATOR_ADDRESS", "")


def _parse_tpu_env(tpu_env: str) -> dict[str, str]:
    return dict(re.findall(r"^(\w+): '?([^'\n]*)'?$", tpu_env, re.MULTILINE))


def parse_peers(endpoints: str) -> tuple[str, ...]:
    """The hosts' addresses by worker number, from `worker-network-endpoints`. Raises InvalidDocument.

    Entries are separated by commas and are addresses or triples `name:number:address`.
    """
    peers = []
    for endpoint in filter(None, (part.strip() for part in endpoints.split(","))):
        parts = endpoint.split(":")
        if len(parts) not in (1, 3):
            raise InvalidDocument(f"worker-network-endpoints: {endpoint!r} is not an address or name:number:address")
        peers.append(parts[-1])
    return tuple(peers)
