"""The meaning of MLPerf's log lines, `:::MLLOG {"key", "value", "event_type", "time_ms", "namespace", "metadata"}`.

The format is that of mlperf_logging (mllog/mllog.py, mllog/constants.py; github.com/mlcommons/logging). What becomes a
value:

* an event whose value is a number: the metric is its key, such as `eval_accuracy`;
* numbers in a value that is an object: `tracked_stats.throughput`;
* an interval: `run_start` to `run_stop` is `run_seconds`, by their times, unless the run says that it was aborted.

The step is `step_num`, `samples_count` or `epoch_num` of the metadata. Everything else, such as the name of the
benchmark, is no measurement and no problem.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from pydantic import TypeAdapter, ValidationError

from bastion.benchmark.layout import MetricName
from bastion.core import documents

TOKEN = ":::MLLOG "
_METRIC = TypeAdapter(MetricName)
_STEPS = ("step_num", "step", "samples_count", "epoch_num", "first_epoch_num")
_ABORTED = "aborted"


@dataclass(frozen=True, slots=True, kw_only=True)
class Event:
    """One value, or what is wrong with a line. `line` counts from 1."""

    line: int
    metric: str = ""
    value: float = 0.0
    step: int | None = None
    unit: str | None = None
    problem: str = ""


def is_metric(name: str) -> bool:
    """Whether a metric of a benchmark may have that name."""
    try:
        _METRIC.validate_python(name, strict=True)
    except ValidationError:
        return False
    return True


def events(lines: Sequence[str]) -> Iterator[Event]:
    begun: dict[tuple[str, str], tuple[float, int | None]] = {}
    for number, line in enumerate(lines, start=1):
        try:
            found = documents.loads(line.strip().removeprefix(TOKEN).encode())
        except documents.DocumentError as error:
            yield Event(line=number, problem=str(error))
            continue
        if not isinstance(found, dict) or not isinstance(found.get("key"), str):
            yield Event(line=number, problem='it has no "key"')
            continue
        yield from _values(number, found)
        yield from _interval(number, found, begun)


def _values(number: int, found: dict[str, Any]) -> Iterator[Event]:
    value, step = found.get("value"), _step(found)
    named = value.items() if isinstance(value, dict) else [("", value)]
    for name, each in named:
        metric = f"{found['key']}.{name}" if name else found["key"]
        measured = _number(each)
        if measured is not None and is_metric(metric):
            yield Event(line=number, metric=metric, value=measured, step=step)


def _interval(
    number: int, found: dict[str, Any], begun: dict[tuple[str, str], tuple[float, int | None]]
) -> Iterator[Event]:
    """The time from `NAME_start` to `NAME_stop` or `NAME_end`, by the events' own times."""
    stem, _, end = found["key"].rpartition("_")
    at = _number(found.get("time_ms"))
    if not stem or at is None or end not in ("start", "stop", "end"):
        return
    which = (str(found.get("namespace")), stem)
    if end == "start":
        begun[which] = (at, _step(found))
        return
    start = begun.pop(which, None)
    metadata = found.get("metadata")
    if isinstance(metadata, dict) and metadata.get("status") == _ABORTED:
        yield Event(line=number, problem=f"{found['key']} says that it was aborted; {stem}_seconds does not count")
    elif start is not None and not math.isfinite(at - start[0]):
        yield Event(line=number, problem=f"the time from {stem}_start to {found['key']} is no number")
    elif start is not None and at >= start[0] and is_metric(f"{stem}_seconds"):
        step = start[1] if start[1] is not None else _step(found)
        yield Event(line=number, metric=f"{stem}_seconds", value=(at - start[0]) / 1000, step=step, unit="s")
    elif start is not None:
        yield Event(line=number, problem=f"{found['key']} is earlier than {stem}_start")


def _step(found: dict[str, Any]) -> int | None:
    metadata = found.get("metadata")
    if not isinstance(metadata, dict):
        return None
    for name in _STEPS:
        step = metadata.get(name)
        if isinstance(step, int) and not isinstance(step, bool) and step >= 0:
            return step
    return None


def _number(value: object) -> float | None:
    return float(value) if isinstance(value, (int, float)) and not isinstance(value, bool) else None
