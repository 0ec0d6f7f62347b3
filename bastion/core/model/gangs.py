"""Slices as the scheduler's side sees them: what to create and where, and what a provisioner says of it.

The unit is the gang: all the slices of one run (its replicas), created and deleted as one.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum

from bastion.core.errors import ProvisionerRefused, Stockout


class GangState(str, Enum):
    """What a provisioner says of a gang, or of one of its nodes."""

    WAITING = "waiting"  # accepted, and there is no capacity for it yet
    CREATING = "creating"
    READY = "ready"
    DELETING = "deleting"
    # Gone bad for a reason outside of the job (pre-empted, maintenance, failed repair); must still be deleted.
    LOST = "lost"
    # It was never created as a whole and never will be; what there is of it must still be deleted.
    FAILED = "failed"


class CapacityModel(str, Enum):
    """What a gang's capacity costs, and how sure it is."""

    ON_DEMAND = "on-demand"
    SPOT = "spot"
    RESERVED = "reserved"


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """Where a gang is created, and as what. A run's intent stores it: settings may change while it lives.

    Attributes:
        zone: Empty: the provisioner's own.
        reservation: Name of the reservation of a `RESERVED` gang.
        network, subnetwork: Empty for the project's defaults.
        external_ips: Whether hosts get addresses of their own; without, the subnetwork needs Private Google Access.
        service_account: E-mail address the hosts act as; empty for the project's default.
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
    """Which gang: all that a provisioner must know to look for it or to delete it, also after a restart.

    Attributes:
        name: `b-<run>`; at most 63 characters, with what a provisioner adds for each node.
        zone: Empty: the provisioner's own.
        num_slices: How many slices it has; a gang is gone only when it is certain that none of them exists.
    """

    name: str
    zone: str = ""
    num_slices: int = 1

    def node(self, slice_index: int) -> str:
        """The name of one slice's node: the gang's, and with several slices `<name>-<index>`."""
        return self.name if self.num_slices == 1 else f"{self.name}-{slice_index}"


@dataclass(frozen=True, slots=True, kw_only=True)
class GangRequest:
    """One gang to create.

    Attributes:
        bastion: The bastion's name; becomes a label, and only what has it is ever listed or deleted.
        run: `<uid>-<attempt>`; becomes a label.
        token: The attempt's random run token; proves that a gang found under this name is ours.
        accelerator_type: Of each slice, as the Cloud TPU API spells it, for example `v4-32`; empty for the bastion's
            own host.
        place: Its zone is the ref's, and its runtime version is not empty for a gang of slices.
        valid_until_seconds: For how long the request may wait for capacity; None: for ever.
        agent_arguments: JSON for the worker agents, the same for all hosts, see
            `bastion.core.bucket.protocol.AgentArguments`.
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
    """One gang as the provisioner sees it.

    Attributes:
        waiting: While it waits: the API's own word for it, for example `WAITING_FOR_RESOURCES`.
        failure: If it is `FAILED`: the cause (a value of `bastion.core.model.job_record.Cause`) and the API's words.
        message: For people: state of health, why it was lost.
        nodes: State of each node that exists, by name (`GangRef.node`); empty where a gang is one piece.
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
    """The cause and the words of a creation that failed, for `GangStatus.failure`."""
    match error:
        case Stockout():
            return "capacity", str(error)
        case ProvisionerRefused():
            return "refused", str(error)
        case _:
            return "infrastructure", str(error)
