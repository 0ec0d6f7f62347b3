"""`bastion benchmark check FILE`: what a benchmark would run, what it may cost, and whether the quota fits it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from bastion.cli.benchmark import benchmark_file
from bastion.cli.command import Command, Invocation
from bastion.cli.connect import open_client
from bastion.cli.output import emit_json, plain, table
from bastion.core.plurals import count

if TYPE_CHECKING:
    from bastion.benchmark.file import Benchmark
    from bastion.cli.benchmark.benchmark_file import Checked


def _run(call: Invocation) -> int:
    benchmark = benchmark_file.read_file(call.operands[0])
    benchmark_file.code_folder(benchmark, call.operands[0])
    client, _ = open_client(call)
    place = benchmark_file.place_of(call, client, benchmark)
    found = benchmark_file.check(client, benchmark, place)
    if call.json:
        emit_json(_document(benchmark, found))
    else:
        _print(benchmark, found, place.project)
    found.refuse()
    return 0


def _document(benchmark: Benchmark, found: Checked) -> dict[str, object]:
    return {
        "name": benchmark.name,
        "cells": [
            {"cell": cell.slug, "variables": dict(cell.variables), "resources": dict(spec.resources), "obstacle": why}
            for (cell, spec), why in zip(found.cells, found.obstacles, strict=True)
        ],
        "repeats": benchmark.repeats,
        "jobs": len(found.cells) * benchmark.repeats,
        "parallel": benchmark.parallel,
        "worst_case_unit_hours": dict(found.cost.unit_hours),
        "budget_unit_hours": benchmark.budget_unit_hours,
        "over_budget": bool(found.over_budget),
    }


def _print(benchmark: Benchmark, found: Checked, project: str) -> None:
    cells = len(found.cells)
    at_once = f", {benchmark.parallel} at a time" if benchmark.parallel else ""
    each = ", ".join(f"{hours:.1f} {resource}" for resource, hours in found.cost.unit_hours.items())
    budget = "" if benchmark.budget_unit_hours is None else f"; the budget is {benchmark.budget_unit_hours:g}"
    print(f"benchmark   {plain(benchmark.name)}, project {plain(project)}")
    print(f"cells       {cells}")
    repeats = count(benchmark.repeats, "repeat")
    print(f"jobs        {cells * benchmark.repeats} ({repeats} of each cell{at_once})")
    print(f"worst case  {found.cost.total:.1f} unit-hours ({each}){budget}")
    print(f"metrics     {', '.join(f'{name} ({metric.unit})' for name, metric in benchmark.metrics.items())}")
    rows = [
        (
            cell.slug,
            " ".join(f"{amount} {resource}" for resource, amount in sorted(spec.resources.items())),
            "unknown: no daemon has published a quota" if why is None else f"does not fit: {why}" if why else "fits",
        )
        for (cell, spec), why in zip(found.cells, found.obstacles, strict=True)
    ]
    print(table(("CELL", "UNITS", "QUOTA"), rows), end="")


CHECK = Command(
    summary="Shows what a benchmark would run: its cells, its jobs, their worst-case cost, and whether the quota fits.",
    usage="FILE",
    details="""The worst case is every job holding its units for the whole of run.max_run. A benchmark that may use more
        than [budget] unit_hours is refused, and so is one with a cell that can never start under the present quota.
        Nothing is written.

        docs/how-to/benchmark.md has an example; docs/reference/benchmark-file.md has every key of the file.""",
    examples=("bastion benchmark check bench.toml", "bastion benchmark check bench.toml --output=json"),
    operands=(1, 1),
    takes_output=True,
    define=benchmark_file.define,
    run=_run,
)
