"""`bench.toml`: what a benchmark runs, and what it measures.

    name = "matmul"
    repeats = 5

    [matrix]
    size = [1024, 4096]
    slice = ["tpu-v4-8", "tpu-v4-16"]
    exclude = [{size = 1024, slice = "tpu-v4-16"}]

    [run]
    command = "python3 matmul.py --size={size}"
    instance_type = "{slice}"
    max_run = "20m"

    [metrics.seconds]
    unit = "s"
    better = "lower"

`bastion.benchmark.file_problems` says what is wrong with a file; `docs/reference/benchmark-file.md` has every key.
"""

from __future__ import annotations

import hashlib
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Annotated, Any

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, StringConstraints, model_validator

from bastion.benchmark.layout import NAME, Better, MetricName, Variable
from bastion.core import durations, limits
from bastion.core.model.secrets import check_name, check_source

# Of a variable; `exclude` in `[matrix]` is the list of what is left out.
VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
EXCLUDE = "exclude"
# Group and job names derive from it: `<name>-<run>` and `<name>-<digest>-finish`.
NAME_MAX_CHARS = limits.NEW_NAME_MAX_CHARS - 26
_DAY = 86400
# Ids as in a job's spec.
_Id = Annotated[str, StringConstraints(min_length=1, max_length=128, pattern=r"^[^\x00-\x1f\x7f]+$")]
_Line = Annotated[str, StringConstraints(min_length=1, pattern=r"^[^\x00]*[^\s\x00][^\x00]*$")]
_EnvName = Annotated[str, StringConstraints(min_length=1, pattern=r"^[^\x00={}]+$")]


def _check_name(text: str) -> str:
    if not NAME.fullmatch(text):
        raise ValueError(
            f"{text[:60]!r} cannot be part of a key; use lowercase letters, digits, '.', '_' and '-', with a letter or "
            "digit at both ends"
        )
    if len(text) > NAME_MAX_CHARS:
        raise ValueError(f"is {len(text)} characters long; the maximum is {NAME_MAX_CHARS}")
    return text


def _seconds(least: int, most: int) -> Any:
    def read(value: object) -> object:
        seconds = durations.seconds_of(value.strip()) if isinstance(value, str) else None
        if seconds is None:
            raise ValueError("must be a duration such as '45m' or '2h' (units: s, m, h, d), and not negative")
        if not least <= math.ceil(seconds) <= most:
            raise ValueError(f"is {value}; use a duration from {least}s to {most // _DAY}d")
        return math.ceil(seconds)

    return BeforeValidator(read)


def _gate(value: object) -> object:
    text = value.strip() if isinstance(value, str) else ""
    number = float(text[:-1]) / 100 if re.fullmatch(r"[0-9]{1,2}(\.[0-9]{1,6})?%", text) else value
    if isinstance(number, bool) or not isinstance(number, (int, float)) or not 0 < number < 1:
        raise ValueError("must be a part between 0 and 1, such as 0.05 or '5%'")
    return float(number)


def _better(value: object) -> object:
    if value not in [each.value for each in Better]:
        raise ValueError("must be 'higher' or 'lower'")
    return Better(value)


def _variable(value: object) -> object:
    if isinstance(value, float) and not math.isfinite(value):
        raise ValueError(f"has the value {value}, which is no number; remove it")
    if not isinstance(value, (str, int, float)):
        raise ValueError("must have texts, numbers or true and false as values")
    if isinstance(value, str) and (not value.isprintable() or len(value) > limits.BENCHMARK_VALUE_MAX_CHARS):
        raise ValueError(f"has a value that is not printable or above {limits.BENCHMARK_VALUE_MAX_CHARS} characters")
    return value


_Value = Annotated[Variable, BeforeValidator(_variable)]


def _check_values(values: list[Variable]) -> list[Variable]:
    shown = [shown_value(value) for value in values]
    twice = next((text for number, text in enumerate(shown) if text in shown[:number]), None)
    if twice is not None:
        raise ValueError(f"has the value {twice} twice; remove one")
    return values


class _Table(BaseModel):
    model_config = ConfigDict(frozen=True, strict=True, extra="forbid")


class Run(_Table):
    """`[run]`. Each text may name variables as `{variable}`; in `command` and `setup` their values are quoted."""

    command: _Line
    instance_type: _Line
    max_run: Annotated[int, _seconds(1, 30 * _DAY)]
    deadline: Annotated[int, _seconds(60, 30 * _DAY)] = _DAY
    bundle: _Line | None = None
    setup: Annotated[str, StringConstraints(pattern=r"^[^\x00]*$")] | None = None
    num_replicas: Annotated[int, Field(ge=1, le=limits.NUM_REPLICAS_MAX)] | _Line = 1
    env: Annotated[
        dict[_EnvName, Annotated[str, StringConstraints(pattern=r"^[^\x00]*$")]],
        Field(max_length=limits.SPEC_MAX_ENV_VARS - 8),
    ] = Field(default_factory=dict)
    secrets: Annotated[
        dict[Annotated[str, AfterValidator(check_name)], Annotated[str, AfterValidator(check_source)]],
        Field(max_length=limits.SECRETS_MAX),
    ] = Field(default_factory=dict)


class Environment(_Table):
    """`[environment]`: command lines on the bastion, before the first job and after the last."""

    up: list[_Line] = Field(default_factory=list, max_length=limits.BENCHMARK_LINES_MAX)
    down: list[_Line] = Field(default_factory=list, max_length=limits.BENCHMARK_LINES_MAX)


class Budget(_Table):
    unit_hours: Annotated[float, Field(gt=0, allow_inf_nan=False)]


class Metric(_Table):
    unit: Annotated[str, StringConstraints(min_length=1, max_length=32, pattern=r"^[^\x00-\x1f\x7f<>&]+$")]
    better: Annotated[Better, BeforeValidator(_better)]
    gate: Annotated[float, BeforeValidator(_gate)] = 0.05


class _Matrix(BaseModel):
    model_config = ConfigDict(frozen=True, strict=True, extra="allow")

    exclude: list[dict[str, _Value]] = Field(default_factory=list, max_length=limits.BENCHMARK_CELLS_MAX)
    __pydantic_extra__: dict[
        str,
        Annotated[
            list[_Value],
            Field(min_length=1, max_length=limits.BENCHMARK_CELLS_MAX),
            AfterValidator(_check_values),
        ],
    ]

    @model_validator(mode="after")
    def _check_variables(self) -> _Matrix:
        wrong = next((name for name in self.__pydantic_extra__ if not VARIABLE.fullmatch(name)), None)
        if wrong is not None:
            raise ValueError(
                f"has the variable {wrong[:40]!r}, which cannot be written in braces; use letters, digits and '_'"
            )
        return self


class File(_Table):
    """The whole file, valid by itself; what its parts mean together is checked in `bastion.benchmark.matrix`."""

    name: Annotated[str, AfterValidator(_check_name)]
    project: _Id | None = None
    repeats: Annotated[int, Field(ge=1, le=limits.BENCHMARK_REPEATS_MAX)] = 5
    parallel: Annotated[int, Field(ge=1, le=limits.BENCHMARK_JOBS_MAX)] | None = None
    warmup: Annotated[int, Field(ge=0, le=1_000_000)] = 0
    matrix: _Matrix = Field(default_factory=lambda: _Matrix.model_validate({}))
    run: Run
    environment: Environment = Environment()
    budget: Budget | None = None
    metrics: Annotated[dict[MetricName, Metric], Field(min_length=1, max_length=limits.BENCHMARK_METRICS_MAX)]


@dataclass(frozen=True, slots=True, kw_only=True)
class Benchmark:
    """A valid file.

    Attributes:
        data: Its bytes.
        project: None: the user's only project.
        parallel: Number of jobs at a time; None: as many as the quota gives.
        matrix: The values of each variable, without what `exclude` leaves out.
    """

    data: bytes
    name: str
    project: str | None
    repeats: int
    parallel: int | None
    warmup: int
    matrix: Mapping[str, Sequence[Variable]]
    exclude: Sequence[Mapping[str, Variable]]
    run: Run
    environment: Environment
    budget_unit_hours: float | None
    metrics: Mapping[str, Metric]

    @property
    def sha256(self) -> str:
        return hashlib.sha256(self.data).hexdigest()


def made(data: bytes, file: File) -> Benchmark:
    return Benchmark(
        data=data,
        name=file.name,
        project=file.project,
        repeats=file.repeats,
        parallel=file.parallel,
        warmup=file.warmup,
        matrix=MappingProxyType(dict(file.matrix.__pydantic_extra__ or {})),
        exclude=tuple(file.matrix.exclude),
        run=file.run,
        environment=file.environment,
        budget_unit_hours=file.budget.unit_hours if file.budget else None,
        metrics=MappingProxyType(dict(file.metrics)),
    )


def shown_value(value: Variable) -> str:
    """Return the value as it stands in a command line: `true`, `4096`, `0.5`, `jax`."""
    return str(value).lower() if isinstance(value, bool) else str(value)
