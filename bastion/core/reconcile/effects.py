"""What the reconciler wants done. Each effect is guarded by a generation or is idempotent; one job's are done in order,
and the first that fails ends that job's turn: the next tick looks again."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, TypeAlias

from bastion.core.bucket.protocol import Order
from bastion.core.model.gangs import GangRef, GangRequest
from bastion.core.model.job_record import JobRecord

# In place of a generation: the one that this turn's own `PutRecord` was given.
JUST_WRITTEN: Final = -1


@dataclass(frozen=True, slots=True, kw_only=True)
class PutRecord:
    """Writes the state by compare-and-swap; generation 0 creates it."""

    record: JobRecord
    generation: int


@dataclass(frozen=True, slots=True, kw_only=True)
class DropRecord:
    """Deletes the state: the last step of a job's end."""

    name: str
    generation: int


@dataclass(frozen=True, slots=True, kw_only=True)
class AppendHistory:
    """Appends the record's lines that are not in the history yet."""

    record: JobRecord


@dataclass(frozen=True, slots=True, kw_only=True)
class TellLogGap:
    """Ends the log of a host that did not live to end it with a gap line; carried out before the record is written,
    which forgets of whom it must be told."""

    job: str
    run: str
    host: int
    at: float
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class PutOrder:
    """Tells the hosts of a run what to do; generation 0 creates the order."""

    order: Order
    generation: int


@dataclass(frozen=True, slots=True, kw_only=True)
class CloseGate:
    """Creates the run's claim as closed. If a host was first, nothing happens and the next tick sees its claim."""

    run: str
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class CreateGang:
    """Asks for a run's gang; `on_bastion` picks the provisioner of the bastion's own host."""

    request: GangRequest
    on_bastion: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class DeleteGang:
    """Deletes a gang; one that is gone already is fine."""

    ref: GangRef
    on_bastion: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class PutComplete:
    """Writes `jobs/complete/<job>`, after moving one of another uid aside."""

    record: JobRecord
    document: bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class DropSpec:
    """Deletes the spec if it is still the accepted object; a newer one stays: it is the next job."""

    name: str
    generation: int


@dataclass(frozen=True, slots=True, kw_only=True)
class DropUserRequest:
    name: str
    generation: int


@dataclass(frozen=True, slots=True, kw_only=True)
class DropRuns:
    """Deletes reports and beats of all runs of a uid.

    Claims and orders stay for an hour (`DropRun`): without them, an order that lands late and a gang that returns would
    run the command again.
    """

    uid: str


@dataclass(frozen=True, slots=True, kw_only=True)
class DropRun:
    """Deletes the claim, order, reports and beats of one run that has long been over."""

    run: str


@dataclass(frozen=True, slots=True, kw_only=True)
class PutInvalid:
    """Writes why a spec is refused, for its owner to read."""

    name: str
    spec_generation: int
    problem: str
    generation: int


@dataclass(frozen=True, slots=True, kw_only=True)
class DropInvalid:
    name: str
    generation: int


Effect: TypeAlias = (
    PutRecord
    | DropRecord
    | AppendHistory
    | TellLogGap
    | PutOrder
    | CloseGate
    | CreateGang
    | DeleteGang
    | PutComplete
    | DropSpec
    | DropUserRequest
    | DropRuns
    | DropRun
    | PutInvalid
    | DropInvalid
)
