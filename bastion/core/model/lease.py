"""The object `lease`: which daemon acts for a bastion."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator

from bastion.core import documents, limits
from bastion.core.errors import InvalidDocument
from bastion.core.model.job_record import Instant

EPOCH_MAX = 2**60


class _Part(BaseModel):
    model_config = ConfigDict(frozen=True, extra="ignore", defer_build=True)


class SteadyPoint(_Part):
    """One instant on three clocks."""

    steady: Instant
    server: Instant
    boot_id: str = Field(default="", max_length=128)  # of the machine of the boot clock; empty if unknown
    boot_seconds: float = Field(default=0.0, ge=0, le=1e12, allow_inf_nan=False)  # by that machine's boot clock

    @field_validator("steady", "server")
    @classmethod
    def _as_written(cls, seconds: float) -> float:
        """In microseconds, as the document has it; another's number may be finer."""
        return round(seconds, 6)


class LeaseDocument(_Part):
    """The whole object."""

    format: int = 1
    owner: str  # random name of the daemon's process
    epoch: int = Field(ge=0, le=EPOCH_MAX)  # rises by one with every new owner; bounded so that it can always rise
    # Where the owner runs, so that a neighbor can see its death.
    host_identity: str = ""
    process: str = ""
    renewal: int = Field(default=0, ge=0, le=EPOCH_MAX)  # a counter, so that each renewal has new content
    released: bool = False  # the owner gave it back; the epoch stays
    # The last epoch that handed out capacity, after adopting every attempt; attempts of older epochs are late.
    fenced_epoch: int = Field(default=0, ge=0, le=EPOCH_MAX)
    # Jobs whose attempts count although they could not be adopted before the fence was set.
    exempt: tuple[str, ...] = Field(default=(), max_length=limits.FENCE_EXEMPT_MAX)
    # Why the owner cannot act, if that lasts: it cannot publish a status then.
    problem: str = Field(default="", max_length=limits.PROBLEM_MAX_CHARS)
    steady: SteadyPoint | None = None  # the owner's steady time at an earlier write, from which a successor goes on

    def to_bytes(self) -> bytes:
        return documents.dumps(self.model_dump(mode="json"))


def read(data: bytes) -> LeaseDocument:
    """Raise `InvalidDocument` if no daemon wrote it."""
    try:
        return LeaseDocument.model_validate(documents.loads(data, max_bytes=limits.LEASE_MAX_BYTES))
    except (documents.DocumentError, ValidationError) as error:
        raise InvalidDocument(f"the lease is not valid: {error}") from error
