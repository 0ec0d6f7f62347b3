"""What one host of a job measured: the lines of its last try that counts, and the facts that a comparison needs.

One document per host, `keys.results(job, uid, host)`. `replaces` says which try's counts (ADR 58), and
`bastion.core.bucket.result_proofs` who wrote it. The lines are as the command wrote them; only
`bastion.benchmark.results` reads their meaning.
"""

from __future__ import annotations

from typing import Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from bastion.core import documents, limits
from bastion.core.errors import InvalidDocument

# Every key, value and container of the largest document.
MAX_VALUES = 2 * limits.RESULTS_MAX_LINES


class Environment(BaseModel):
    """Where and with what a host measured; empty where it is not known.

    Attributes:
        processor: Its name and how many of them the command may use.
        accelerators: JAX devices, or GPUs, of the whole job.
        driver: Of the accelerator.
        python: Of the command's interpreter, and `libraries` are its packages.
        place: `zone/machine`; a machine that was made for this job alone is not named.
        instance_type: Empty without a slice.
        commit: As the job's own variable BASTION_COMMIT says.
        bundle: Digest of the code.
        variables: Environment variables that change results.
    """

    model_config = ConfigDict(frozen=True, strict=True, extra="ignore", defer_build=True)

    processor: str = ""
    accelerator: str = ""
    accelerators: int = 0
    driver: str = ""
    python: str = ""
    libraries: dict[str, str] = Field(default_factory=dict)
    place: str = ""
    hosts: int = 1
    instance_type: str = ""
    commit: str = ""
    bundle: str = ""
    variables: dict[str, str] = Field(default_factory=dict)


class HostResults(BaseModel):
    """One host's results of one try.

    Attributes:
        exit_code: The command's, if it ended by itself; None: it was stopped, or its end is not known.
        lines: Of the results file, valid or not.
        mllog: The `:::MLLOG {...}` lines of the output.
        truncated: Whether something was dropped; `problems` say what and why.
    """

    model_config = ConfigDict(frozen=True, strict=True, extra="ignore", defer_build=True)

    # Of another number, this version understands nothing.
    format: Literal[1] = 1
    attempt: int = Field(ge=1)
    try_number: int = Field(ge=1)
    exit_code: int | None = None
    lines: list[str] = Field(default_factory=list)
    mllog: list[str] = Field(default_factory=list)
    truncated: bool = False
    problems: list[str] = Field(default_factory=list)
    environment: Environment = Environment()

    @property
    def order(self) -> tuple[int, int]:
        """Its place among the tries of the job."""
        return self.attempt, self.try_number

    @property
    def ended_well(self) -> bool:
        return self.exit_code == 0

    def to_bytes(self) -> bytes:
        return documents.dumps(self.model_dump(mode="json", exclude_none=True))


def replaces(new: HostResults, stored: HostResults) -> bool:
    """Whether new results take the place of stored ones: the last try that ended well counts, else the last."""
    if new.order < stored.order:
        return False  # by a host of an earlier attempt that is late
    return new.ended_well or not stored.ended_well


def read(data: bytes) -> HostResults:
    """Parse a host's results; raises InvalidDocument if it is no such document."""
    try:
        documents.loads(data, max_bytes=limits.RESULTS_DOCUMENT_MAX_BYTES, max_values=MAX_VALUES)
        return HostResults.model_validate_json(data)
    except documents.DocumentError as error:
        raise InvalidDocument(f"not a host's results: {error}") from error
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        where = ".".join(map(str, first["loc"])) or "the document"
        raise InvalidDocument(f"not a host's results: {where}: {first['msg']}") from error
