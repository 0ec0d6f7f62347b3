"""Effects, each guarded by a generation or idempotent. A job's effects run in order; a failure skips the rest."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final, TypeAlias

from bastion.core.bucket.protocol import Claim, Order
from bastion.core.model.audit import Audited
from bastion.core.model.gangs import GangRef, GangRequest
from bastion.core.model.job_record import JobRecord, Pin

# Stands for the generation that this tick's own `PutRecord` returned.
JUST_WRITTEN: Final = -1


@dataclass(frozen=True, slots=True, kw_only=True)
class PutRecord:
    """Write the state by compare-and-swap; generation 0 creates it."""

    record: JobRecord
    generation: int


@dataclass(frozen=True, slots=True, kw_only=True)
class DropRecord:
    """Delete the state: the last step of a job's end."""

    name: str
    generation: int


@dataclass(frozen=True, slots=True, kw_only=True)
class AppendHistory:
    """Append the record's lines that the history lacks."""

    record: JobRecord


@dataclass(frozen=True, slots=True, kw_only=True)
class TellLogGap:
    """Write a gap line for a host that died before its log was complete, before the record that drops it."""

    job: str
    run: str
    host: int
    at: float
    reason: str
    run_key: str = field(repr=False)  # the secret of the run: the line must prove that it is no other's


@dataclass(frozen=True, slots=True, kw_only=True)
class PutOrder:
    """Write the order of a run; generation 0 creates it."""

    order: Order
    generation: int


@dataclass(frozen=True, slots=True, kw_only=True)
class CloseGate:
    """Create the run's claim as closed. If a host was first, nothing happens; the next tick sees its claim."""

    key: str
    claim: Claim


@dataclass(frozen=True, slots=True, kw_only=True)
class CreateGang:
    """Request a run's gang; `on_bastion` selects the provisioner of the bastion's own host."""

    request: GangRequest
    on_bastion: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class DeleteGang:
    """Delete a gang; a missing one counts as success."""

    ref: GangRef
    on_bastion: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class PutComplete:
    """Write `jobs/complete/<job>`; an older result of another uid moves aside first."""

    record: JobRecord
    document: bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class PutCopy:
    """Copy the spec that is being accepted from its inbox to `jobs/active/`, byte by byte.

    Before the record that pins it: a spec that changed since it was read is not accepted.
    """

    name: str
    pin: Pin


@dataclass(frozen=True, slots=True, kw_only=True)
class DropSpec:
    """Delete the spec if it is still the accepted object; a newer one is the next job. `owner`: in whose inbox."""

    name: str
    generation: int
    owner: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class DropCopy:
    """Delete what `PutCopy` wrote, unless somebody has replaced it."""

    name: str
    sha256: str


@dataclass(frozen=True, slots=True, kw_only=True)
class DropUserRequest:
    """Delete a request; `owner`: in whose inbox. `asked`: for the audit trail, if it was refused or ignored."""

    name: str
    generation: int
    owner: str = ""
    asked: Audited | None = field(default=None, compare=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class DropJobRequest:
    """Delete a request about a job. `asked`: for the audit trail, if it was refused or ignored."""

    key: str
    name: str
    generation: int
    asked: Audited | None = field(default=None, compare=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class DropRuns:
    """Delete reports and heartbeats of all runs of a uid.

    Claims and orders stay for an hour (`DropRun`): without them a late order and a returning gang would run the command
    again.
    """

    uid: str


@dataclass(frozen=True, slots=True, kw_only=True)
class DropRun:
    """Delete the claim, order, reports and heartbeats of one run that ended long ago."""

    run: str


@dataclass(frozen=True, slots=True, kw_only=True)
class PutInvalid:
    """Write why a spec is refused, or with `request` why that user's request is. `asked`: for the audit trail."""

    name: str
    spec_generation: int
    problem: str
    generation: int
    owner: str = ""
    request: bool = False
    asked: Audited | None = field(default=None, compare=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class DropInvalid:
    name: str
    generation: int
    owner: str = ""


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
    | PutCopy
    | DropSpec
    | DropCopy
    | DropUserRequest
    | DropJobRequest
    | DropRuns
    | DropRun
    | PutInvalid
    | DropInvalid
)
