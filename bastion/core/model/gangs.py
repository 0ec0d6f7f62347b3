"""Gangs: all slices (replicas) of one run, created and deleted together."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum

from bastion.core.errors import ProvisionerRefused, Stockout


class GangState(str, Enum):
    WAITING = "waiting"  # accepted; no capacity yet
    CREATING = "creating"
    READY = "ready"
    DELETING = "deleting"
    # Lost for a reason outside the job (preemption, maintenance, failed repair); must still be deleted.
    LOST = "lost"
    # Never fully created and never will be; existing nodes must still be deleted.
    FAILED = "failed"


class CapacityModel(str, Enum):
    """The price and reliability class of a gang's capacity."""

    ON_DEMAND = "on-demand"
    SPOT = "spot"
    RESERVED = "reserved"


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """The place of a gang. A run's intent stores it, because settings may change later.

    Attributes:
        zone: Empty: the provisioner's own.
        reservation: Name of the reservation of a `RESERVED` gang.
        network, subnetwork: Empty for the project's defaults.
        external_ips: Whether hosts get external addresses; without them the subnetwork needs Private Google Access.
        service_account: E-mail address of the hosts' identity; empty for the project's default.
        runtime_version: Software version of the nodes; empty for the instance type's own.
    """

    zone: str = ""
    model: CapacityModel = CapacityModel.ON_DEMAND
    reservation: str = ""
    network: str = ""
    subnetwork: str = ""
    external_ips: bool = True
    service_account: str = ""
    runtime_version: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class GangRef:
    """The identity of a gang, also after a restart.

    Attributes:
        name: `b-<run>`; at most 63 characters, including a node's suffix.
        zone: Empty: the provisioner's own.
        num_slices: A gang is gone only when none of its slices exists.
    """

    name: str
    zone: str = ""
    num_slices: int = 1

    def node(self, slice_index: int) -> str:
        """Return the node name of a slice: the gang's name, with `-<index>` if there are several slices."""
        return self.name if self.num_slices == 1 else f"{self.name}-{slice_index}"


@dataclass(frozen=True, slots=True, kw_only=True)
class GangRequest:
    """One gang to create.

    Attributes:
        bastion: The bastion's name, a label; only gangs with it are listed or deleted.
        run: `<uid>-<attempt>`, a label.
        token: The run's random token; proves that a gang of this name is ours.
        accelerator_type: Of each slice, `v4-32`; empty for the bastion's own host.
        place: Its zone is the ref's; its runtime version is not empty for slices.
        valid_until_seconds: How long the request may wait for capacity; None: no limit.
        agent_arguments: JSON for the agents of all hosts (`bastion.core.bucket.protocol.AgentArguments`).
    """

    ref: GangRef
    bastion: str
    run: str
    token: str
    accelerator_type: str
    place: Place = field(default_factory=Place)
    valid_until_seconds: float | None = None
    agent_arguments: str


@dataclass(frozen=True, slots=True, kw_only=True)
class GangStatus:
    """One gang as the provisioner reports it.

    Attributes:
        waiting: If it waits: the API's state name, such as `WAITING_FOR_RESOURCES`.
        failure: If it is `FAILED`: the cause (a `bastion.core.model.job_record.Cause` value) and the API's message.
        message: For people: health, or why it was lost.
        nodes: State of each existing node by name (`GangRef.node`); empty if the gang is one piece.
    """

    ref: GangRef
    run: str
    token: str
    state: GangState
    waiting: str = ""
    failure: tuple[str, str] | None = None
    message: str = ""
    nodes: Mapping[str, GangState] = field(default_factory=dict)
    labels: Mapping[str, str] = field(default_factory=dict)


def failure_of(error: Exception) -> tuple[str, str]:
    match error:
        case Stockout():
            return "capacity", str(error)
        case ProvisionerRefused():
            return "refused", str(error)
        case _:
            return "infrastructure", str(error)
