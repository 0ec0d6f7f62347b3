"""Keys and documents below `benchmarks/<name>/<run>/` (contract: `docs/reference/bucket-format.md`).

Documents are typed and have a format number; unknown fields are ignored, so that neighboring versions understand each
other. NaN and infinities are no numbers here.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from datetime import datetime, timezone
from enum import Enum
from typing import Annotated, Literal, TypeAlias, TypeVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from bastion.core import documents, limits
from bastion.core.bucket.results import Environment
from bastion.core.errors import InvalidDocument

BENCHMARKS = "benchmarks/"

# `20260102T030405Z-0123abcd`: when the run began, and the first eight digits of its file's digest. Key order is time
# order.
RUN = re.compile(r"[0-9]{8}T[0-9]{6}Z-[0-9a-f]{8}")
NAME = re.compile(r"[a-z0-9](?:[a-z0-9._-]*[a-z0-9])?")
_SLUG = r"^[A-Za-z0-9_][A-Za-z0-9_.,=+-]*$"
_METRIC = r"^[A-Za-z_][A-Za-z0-9_.-]*$"

Slug: TypeAlias = Annotated[str, Field(pattern=_SLUG, max_length=200)]
MetricName: TypeAlias = Annotated[str, Field(pattern=_METRIC, max_length=64)]
Finite: TypeAlias = Annotated[float, Field(allow_inf_nan=False)]
# A variable of the matrix has one value per cell.
Variable: TypeAlias = str | int | float | bool


def stamp(at: float) -> str:
    """Return the time in the name of a run that begins then."""
    return f"{datetime.fromtimestamp(at, timezone.utc):%Y%m%dT%H%M%SZ}"


def runs(name: str) -> str:
    return f"{BENCHMARKS}{name}/"


def folder(name: str, run: str) -> str:
    return f"{runs(name)}{run}/"


def newest(name: str, digest: str) -> str:
    """Return the key that says which run is the newest of that file, code, user and project."""
    return f"{runs(name)}newest/{digest}"


def bench_file(name: str, run: str) -> str:
    return f"{folder(name, run)}bench.toml"


def matrix(name: str, run: str) -> str:
    return f"{folder(name, run)}matrix.json"


def submitted(name: str, run: str) -> str:
    """Return the key that the client writes last."""
    return f"{folder(name, run)}submitted.json"


def cells(name: str, run: str) -> str:
    return f"{folder(name, run)}cells/"


def cell(name: str, run: str, slug: str, repeat: int) -> str:
    return f"{cells(name, run)}{slug}/{repeat}.json"


def times(name: str, run: str, what: Literal["up", "down"], number: int) -> str:
    """Return the key of the create-only marker of one running of `up` or `down`."""
    return f"{folder(name, run)}times/{what}-{number}"


def report(name: str, run: str, file: str) -> str:
    return f"{folder(name, run)}report/{file}"


class _Part(BaseModel):
    model_config = ConfigDict(frozen=True, strict=True, extra="ignore")


class _Document(_Part):
    # Of another number, this version understands nothing.
    format: Literal[1] = 1

    def to_bytes(self) -> bytes:
        return documents.dumps(self.model_dump(mode="json", exclude_none=True))


D = TypeVar("D", bound=_Document)


def read(model: type[D], data: bytes, key: str) -> D:
    """Parse a document of this module; raises InvalidDocument, which names the key, if it is none."""
    try:
        documents.loads(
            data,
            max_bytes=limits.BENCHMARK_DOCUMENT_MAX_BYTES,
            max_values=limits.BENCHMARK_DOCUMENT_MAX_VALUES,
        )
        return model.model_validate_json(data)
    except (documents.DocumentError, ValidationError) as error:
        raise InvalidDocument(f"{key} is not readable: {_short(error)}") from error


def _short(error: Exception) -> str:
    if not isinstance(error, ValidationError):
        return str(error)
    first = error.errors(include_url=False, include_input=False)[0]
    where = ".".join(map(str, first["loc"]))
    return f"{where}: {first['msg']}" if where else first["msg"]


class Better(str, Enum):
    HIGHER = "higher"
    LOWER = "lower"


class Metric(_Part):
    """A metric. `gate`: the ratio minus one that still counts as the same, like 0.05."""

    unit: str
    better: Better
    gate: Annotated[Finite, Field(gt=0, lt=1)] = 0.05


class Repeat(_Part):
    repeat: Annotated[int, Field(ge=1)]
    job: str


class Cell(_Part):
    """One combination of the matrix's variables."""

    cell: Slug
    variables: Mapping[str, Variable]
    repeats: list[Repeat]


class Matrix(_Document):
    """`matrix.json`: what the run is, written once by the client.

    Attributes:
        seed: Of the order of the members, and of the report's intervals.
        warmup: Steps at the beginning of a job that no result counts.
        deadline_at: RFC 3339.
        bundle: Digest of the code.
        commit: Of the code's repository, as it was when the run began; None if it is in none.
    """

    name: Annotated[str, Field(pattern=f"^{NAME.pattern}$")]
    run: Annotated[str, Field(pattern=f"^{RUN.pattern}$")]
    project: str
    user: str
    seed: int
    created_at: str
    deadline_at: str | None = None
    file_sha256: str
    bundle: str | None = None
    commit: str | None = None
    metrics: Annotated[dict[MetricName, Metric], Field(min_length=1)]
    warmup: Annotated[int, Field(ge=0)] = 0
    cells: list[Cell]
    finisher: str


class Newest(_Document):
    """`newest/<digest>`: the run with which a second `bastion benchmark run` goes on, unless it has ended."""

    run: Annotated[str, Field(pattern=f"^{RUN.pattern}$")]


class Submitted(_Document):
    """`submitted.json`: the uids of the jobs by their names."""

    jobs: dict[str, str]


class Outcome(str, Enum):
    SUCCEEDED = "succeeded"
    FAILED = "failed"
    CANCELLED = "cancelled"
    REFUSED = "refused"
    MISSING = "missing"


class Value(_Part):
    value: Finite
    step: int | None = None


class CellResult(_Document):
    """`cells/<cell>/<repeat>.json`: how one job ended, and what it measured.

    Attributes:
        reason: Why there are no values, or what is wrong with them; empty if nothing is.
        units: By metric, as the job told them; without it the file's hold.
        logs: Prefix of the job's logs; `outputs` likewise.
        held_seconds: Time holding slices, over all attempts.
    """

    cell: Slug
    repeat: Annotated[int, Field(ge=1)]
    job: str
    uid: str = ""
    outcome: Outcome
    reason: str = ""
    exit_code: int | None = None
    attempts: int = 0
    values: dict[MetricName, list[Value]] = Field(default_factory=dict)
    units: dict[MetricName, str] | None = None
    environment: Environment = Environment()
    logs: str = ""
    outputs: str = ""
    started_at: str = ""
    ended_at: str = ""
    held_seconds: Finite = 0.0


class MetricSummary(_Part):
    """A metric of a cell: the median over `jobs` jobs, and its interval."""

    median: Finite
    low: Finite
    high: Finite
    jobs: int


class CellSummary(_Part):
    """A cell of a report; `metrics` lacks those without a value."""

    cell: Slug
    variables: Mapping[str, Variable]
    jobs: int
    metrics: dict[MetricName, MetricSummary]


class Summary(_Document):
    """`report/summary.json`: what later runs of the same name show as history."""

    name: str
    run: str
    created_at: str
    metrics: dict[MetricName, Metric]
    cells: list[CellSummary]
