"""The jobs of a run: the finisher and the members. Pure: the same file, run and code make the same specs.

* A member's name is a digest of what it runs, so a second `run` recognizes its jobs.
* Every member waits until the finisher's command has succeeded: the environment is up, and all jobs are submitted.
* The finisher is on the bastion; its cleanup command waits for its group (ADR 57) and tears the run down.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from hashlib import sha256
from typing import Literal

from bastion.benchmark import layout
from bastion.benchmark.file import Benchmark
from bastion.benchmark.matrix import Cell, Member, cells, filled, members
from bastion.core import benchmark_steps, documents, limits
from bastion.core.bucket import keys
from bastion.core.errors import InvalidSpec, Refused, UnknownInstanceType
from bastion.core.instants import to_rfc3339
from bastion.core.model import job_spec
from bastion.core.model.job_spec import JobOptions, JobSpec
from bastion.core.plain_text import plain

# Of the finisher's cleanup command beyond stopping the jobs and `down`: collecting and the report.
_COLLECT_SECONDS = 1800.0
_DIGEST_CHARS = 10
# Variables of the finisher with the lines of the environment.
_LINES: Mapping[Literal["up", "down"], str] = {"up": benchmark_steps.UP, "down": benchmark_steps.DOWN}


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """Whose jobs they are, and where."""

    root_url: str
    bastion: str
    project: str
    user: str


def run_name(file_sha256: str, at: float) -> str:
    return f"{layout.stamp(at)}-{file_sha256[:8]}"


def group_of(name: str, run: str) -> str:
    return f"{name}-{run}".lower()


def matrix_of(
    benchmark: Benchmark, place: Place, *, run: str, at: float, bundle: str | None, commit: str = ""
) -> layout.Matrix:
    """Make `matrix.json`. `bundle`: digest of the code; `commit`: of its repository."""
    found = [
        layout.Cell(
            cell=cell.slug,
            variables=dict(cell.variables),
            repeats=[
                layout.Repeat(repeat=repeat, job=_job_name(benchmark, run, cell, repeat, bundle))
                for repeat in range(1, benchmark.repeats + 1)
            ],
        )
        for cell in cells(benchmark)
    ]
    return layout.Matrix(
        name=benchmark.name,
        run=run,
        project=place.project,
        user=place.user,
        seed=_seed(run),
        created_at=to_rfc3339(at),
        deadline_at=to_rfc3339(at + benchmark.run.deadline),
        file_sha256=benchmark.sha256,
        bundle=bundle,
        commit=commit or None,
        metrics={
            name: layout.Metric(unit=metric.unit, better=metric.better, gate=metric.gate)
            for name, metric in benchmark.metrics.items()
        },
        warmup=benchmark.warmup,
        cells=found,
        finisher=benchmark_steps.finisher(benchmark.name, run),
    )


def ordered(benchmark: Benchmark, matrix: layout.Matrix) -> list[Member]:
    """The members in the order of their submission: each after the one that it waits for."""
    return members(cells(benchmark), repeats=benchmark.repeats, parallel=benchmark.parallel, seed=matrix.seed)


def job_of(matrix: layout.Matrix) -> Mapping[tuple[str, int], str]:
    """The jobs' names by cell and repeat."""
    return {(cell.cell, each.repeat): each.job for cell in matrix.cells for each in cell.repeats}


def member_spec(
    benchmark: Benchmark,
    place: Place,
    member: Member,
    *,
    run: str,
    name: str,
    bundle: str | None,
    after: Sequence[Mapping[str, str]],
    now: float,
) -> JobSpec:
    """Make a member's spec; `after`: what it waits for.

    Raises Refused, which names the cell, if the cell's values make no valid spec.
    """
    variables = member.cell.variables
    try:
        return job_spec.new(
            name=name,
            bastion=place.bastion,
            command=filled(benchmark.run.command, variables, quoted=True),
            user_id=place.user,
            project_id=place.project,
            now=now,
            options=JobOptions(
                instance_type=filled(benchmark.run.instance_type, variables, quoted=False),
                num_replicas=_replicas(benchmark, member.cell),
                env_vars=_variables(benchmark, run, member),
                setup=None if benchmark.run.setup is None else filled(benchmark.run.setup, variables, quoted=True),
                code_asset_path=_code(place, bundle),
                max_run_seconds=benchmark.run.max_run,
                secrets=dict(benchmark.run.secrets) or None,
                after=list(after) or None,
                group=group_of(benchmark.name, run),
            ),
        )
    except (InvalidSpec, UnknownInstanceType) as error:
        raise Refused(f"cell {member.cell.slug}: {error}") from error


def finisher_spec(benchmark: Benchmark, place: Place, matrix: layout.Matrix, *, now: float) -> JobSpec:
    """Make the finisher's spec. It has the code only if there are command lines that may need it. Raises Refused."""
    environment = benchmark.environment
    try:
        return job_spec.new(
            name=matrix.finisher,
            bastion=place.bastion,
            command=_own_command("begin", place, matrix),
            user_id=place.user,
            project_id=place.project,
            now=now,
            options=JobOptions(
                cleanup_command=_own_command("finish", place, matrix),
                # Not read from the run's documents, which others may write.
                env_vars={
                    _LINES["up"]: json.dumps(environment.up),
                    _LINES["down"]: json.dumps(environment.down),
                },
                code_asset_path=_code(place, matrix.bundle) if environment.up or environment.down else None,
                group=group_of(matrix.name, matrix.run),
                cleanup_after_group_seconds=benchmark.run.deadline,
                cleanup_max_seconds=int(
                    limits.BENCHMARK_STOP_SECONDS + limits.BENCHMARK_ENVIRONMENT_SECONDS + _COLLECT_SECONDS
                ),
                cleanup_tries=limits.BENCHMARK_FINISH_TRIES,
            ),
        )
    except InvalidSpec as error:
        raise Refused(f"[environment] up and down: {error}; put their lines into a script of the code") from error


def lines_in(variables: Mapping[str, str], what: Literal["up", "down"]) -> list[str] | None:
    """Return the lines in the finisher's environment; None in that of another process."""
    text = variables.get(_LINES[what])
    return None if text is None else [str(line) for line in json.loads(text)]


def trial_specs(benchmark: Benchmark, place: Place, *, now: float) -> Iterator[tuple[Cell, JobSpec]]:
    """Yield a spec of each cell that is not meant to be submitted; raises Refused, of the finisher's spec as well."""
    run = run_name(benchmark.sha256, now)
    finisher_spec(benchmark, place, matrix_of(benchmark, place, run=run, at=now, bundle=None), now=now)
    for cell in cells(benchmark):
        member = Member(cell=cell, repeat=1, after=None)
        name = _job_name(benchmark, run, cell, 1, None)
        yield cell, member_spec(benchmark, place, member, run=run, name=name, bundle=None, after=(), now=now)


def _own_command(what: benchmark_steps.What, place: Place, matrix: layout.Matrix) -> str:
    return benchmark_steps.Step(what=what, name=matrix.name, run=matrix.run).command(place.root_url)


def _job_name(benchmark: Benchmark, run: str, cell: Cell, repeat: int, bundle: str | None) -> str:
    settings = benchmark.run
    what = documents.dumps(
        {
            "run": run,
            "cell": cell.slug,
            "command": filled(settings.command, cell.variables, quoted=True),
            "setup": settings.setup,
            "instance_type": settings.instance_type,
            "num_replicas": settings.num_replicas,
            "env": settings.env,
            "variables": {name: repr(value) for name, value in cell.variables.items()},
            "bundle": bundle,
            "max_run": settings.max_run,
        }
    )
    return f"{benchmark.name}-{sha256(what).hexdigest()[:_DIGEST_CHARS]}-{repeat}"


def _seed(run: str) -> int:
    return int(benchmark_steps.digest(run)[:8], 16)


def _code(place: Place, bundle: str | None) -> str | None:
    return None if bundle is None else f"{place.root_url}/{keys.bundle(bundle)}"


def _replicas(benchmark: Benchmark, cell: Cell) -> int:
    given = benchmark.run.num_replicas
    if isinstance(given, int):
        return given
    text = filled(given, cell.variables, quoted=False)
    if not text.isascii() or not text.isdigit() or not 1 <= int(text[:9]) <= limits.NUM_REPLICAS_MAX:
        raise InvalidSpec(
            f"run.num_replicas is {plain(text[:40])!r} there; it must be a number from 1 to {limits.NUM_REPLICAS_MAX}"
        )
    return int(text)


def _variables(benchmark: Benchmark, run: str, member: Member) -> dict[str, str]:
    given = {name: filled(text, member.cell.variables, quoted=False) for name, text in benchmark.run.env.items()}
    return given | {
        "BASTION_BENCHMARK": f"{benchmark.name}/{run}",
        "BASTION_BENCHMARK_CELL": member.cell.slug,
        "BASTION_BENCHMARK_REPEAT": str(member.repeat),
    }
