"""Gangs: all slices (replicas) of one run, created and deleted together."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum

from bastion.core.errors import ProvisionerRefused, Stockout
from bastion.core.model.kueue import KueueStatus
from bastion.core.model.pods import PodSettings
from bastion.core.model.secrets import PodSecret


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
    FLEX_START = "flex-start"  # queued for a limited time; Kubernetes only


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """The place of a gang. A run's intent stores it, because settings may change later."""

    zone: str = ""  # empty: the provisioner's own
    model: CapacityModel = CapacityModel.ON_DEMAND
    reservation: str = ""  # name of the reservation of a `RESERVED` gang
    # Empty for the project's defaults.
    network: str = ""
    subnetwork: str = ""
    # Whether hosts get external addresses; without them the subnetwork needs Private Google Access.
    external_ips: bool = True
    service_account: str = ""  # e-mail address of the hosts' identity; empty for the project's default
    pod_service_account: str = ""  # of the project's pods; empty: the cluster's setting
    runtime_version: str = ""  # software version of the nodes; empty for the instance type's own
    pod: PodSettings | None = None  # of its pods, if it is in a Kubernetes cluster
    identity: str = ""  # of that cluster (`ClusterSettings.identity`): its name may mean another one later
    # Folder on each host that outlives jobs, for their inputs, and how much it may hold; empty: none.
    input_cache: str = ""
    input_cache_bytes: int = 0
    queue: str = ""  # LocalQueue of a gang that Kueue admits, orders and evicts; empty: the scheduler does


@dataclass(frozen=True, slots=True, kw_only=True)
class GangRef:
    """The identity of a gang, also after a restart."""

    name: str  # `b-<run>`; at most 63 characters, including a node's suffix
    zone: str = ""  # empty: the provisioner's own
    num_slices: int = 1  # a gang is gone only when none of its slices exists

    def node(self, slice_index: int) -> str:
        """Return the node name of a slice: the gang's name, with `-<index>` if there are several slices."""
        return self.name if self.num_slices == 1 else f"{self.name}-{slice_index}"


@dataclass(frozen=True, slots=True, kw_only=True)
class GangRequest:
    """One gang to create."""

    ref: GangRef
    bastion: str  # the bastion's name, a label; only gangs with it are listed or deleted
    run: str  # `<uid>-<attempt>`, a label
    token: str  # the run's random token; proves that a gang of this name is ours
    accelerator_type: str  # of each slice, `v4-32`; empty for the bastion's own host
    place: Place = field(default_factory=Place)  # its zone is the ref's; its runtime version is not empty for slices
    valid_until_seconds: float | None = None  # how long the request may wait for capacity; None: no limit
    image: str = ""  # of its containers, on Kubernetes
    secrets: tuple[PodSecret, ...] = ()  # keys that its pods mount, on Kubernetes
    priority_class: str = ""  # WorkloadPriorityClass, if its place has a queue
    user_labels: Mapping[str, str] = field(default_factory=dict)  # the job's own labels, put on what is created
    agent_arguments: str  # JSON for the agents of all hosts (`bastion.core.bucket.protocol.AgentArguments`)


@dataclass(frozen=True, slots=True, kw_only=True)
class GangFailure:
    """Why a gang never became whole, or was lost, in the platform's words.

    `cause` is the value of a `bastion.core.model.job_record.Cause`: capacity, refused or infrastructure. Of a lost gang
    also `evicted` (the platform needs its machines), or `failed` (the job's own doing): then `host` and `exit_code`
    say which host of the job ended how.
    """

    cause: str
    message: str
    host: int | None = None
    exit_code: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class GangStatus:
    """One gang as the provisioner reports it."""

    ref: GangRef
    run: str
    token: str
    state: GangState
    waiting: str = ""  # if it waits: the API's state name, such as `WAITING_FOR_RESOURCES`
    waiting_message: str = ""  # if it waits: the platform's explanation, for people; may change at any time
    partial: bool = False  # if it waits: some of its hosts already have their machines, and hold them
    # If it is `FAILED`, why; if it is `LOST`, why if the platform says so.
    failure: GangFailure | None = None
    message: str = ""  # for people: health, or why it was lost
    # State of each existing node by name (`GangRef.node`); empty if the gang is one piece.
    nodes: Mapping[str, GangState] = field(default_factory=dict)
    labels: Mapping[str, str] = field(default_factory=dict)
    kueue: KueueStatus | None = None  # of a gang in a queue of Kueue


def failure_of(error: Exception) -> GangFailure:
    match error:
        case Stockout():
            cause = "capacity"
        case ProvisionerRefused():
            cause = "refused"
        case _:
            cause = "infrastructure"
    return GangFailure(cause=cause, message=str(error))
