"""What a benchmark costs at worst: each job holds its units for the whole of `max_run`. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from bastion.benchmark.file import Benchmark
from bastion.core.errors import Refused
from bastion.core.model.job_spec import JobSpec


@dataclass(frozen=True, slots=True, kw_only=True)
class WorstCase:
    """Unit-hours by resource type, over all jobs."""

    unit_hours: Mapping[str, float]

    @property
    def total(self) -> float:
        return sum(self.unit_hours.values())


def worst_case(benchmark: Benchmark, specs: Iterable[JobSpec]) -> WorstCase:
    """Add up one spec of each cell, times its repeats."""
    found: dict[str, float] = {}
    hours = benchmark.run.max_run / 3600
    for spec in specs:
        for resource_type, amount in spec.resources.items():
            found[resource_type] = found.get(resource_type, 0.0) + amount * hours * benchmark.repeats
    return WorstCase(unit_hours=dict(sorted(found.items())))


def check(benchmark: Benchmark, cost: WorstCase) -> None:
    """Raise Refused if it may cost more than the file's budget."""
    most = benchmark.budget_unit_hours
    if most is not None and cost.total > most:
        raise Refused(
            f"the benchmark may use {cost.total:.1f} unit-hours, but [budget] unit_hours is {most:g}; use a shorter "
            "run.max_run, fewer repeats or cells, or raise the budget"
        )
