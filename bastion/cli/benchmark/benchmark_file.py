"""What `check` and `run` share: the file, whose jobs they are, and what speaks against starting them."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from absl import flags

from bastion.cli.command import Invocation
from bastion.cli.jobs.secret_warning import warn_of_secrets
from bastion.cli.output import plain, say
from bastion.core import limits
from bastion.core.errors import Refused
from bastion.user_config.user import choose_project, default_user

if TYPE_CHECKING:
    from bastion.benchmark.budget import WorstCase
    from bastion.benchmark.file import Benchmark
    from bastion.benchmark.matrix import Cell
    from bastion.benchmark.members import Place
    from bastion.client import Client
    from bastion.core.model.job_spec import JobSpec

_NAMED_MAX = 3
_FLAG = re.compile("--(instance_type|num_replicas)")


def define(values: flags.FlagValues) -> None:
    flags.DEFINE_string("project_id", None, "Project to charge, instead of the file's.", flag_values=values)
    flags.DEFINE_string("user_id", None, "Your user id. Default: your login name.", flag_values=values)


def read_file(path: str) -> Benchmark:
    """Read the file, or print its problems and raise Refused."""
    from bastion.benchmark import file_problems

    try:
        with Path(path).open("rb") as file:
            data = file.read(limits.BENCHMARK_FILE_MAX_BYTES + 1)
    except OSError as error:
        raise Refused(f"cannot read {plain(path)}: {error.strerror}; name the benchmark's file, like bench.toml") from (
            error
        )
    try:
        return file_problems.read(data)
    except file_problems.BenchmarkFileError as error:
        for problem in error.problems:
            say(f"bastion: {plain(path)}: {plain(problem)}")
        count = len(error.problems)
        raise Refused(f"{plain(path)} has {count} problem{'' if count == 1 else 's'}; nothing was started") from error


def code_folder(benchmark: Benchmark, path: str) -> Path | None:
    """The folder that the file names, relative to its own. Raises Refused if there is none."""
    named = benchmark.run.bundle
    if named is None:
        return None
    folder = Path(path).parent / named
    if not folder.is_dir():
        raise Refused(
            f"run.bundle is {plain(named)}: {plain(str(folder))} is not a folder; name one, relative to "
            f"{plain(path)}, or leave bundle out to run without code"
        )
    return folder


def place_of(call: Invocation, client: Client, benchmark: Benchmark) -> Place:
    from bastion.benchmark.members import Place

    user = call.flags.user_id or default_user()
    project = call.flags.project_id or benchmark.project or choose_project(client, user)
    return Place(root_url=client.root.url, bastion=client.bastion, project=project, user=user)


@dataclass(frozen=True, slots=True, kw_only=True)
class Checked:
    """What a file means on a bastion.

    Attributes:
        obstacles: By cell: why its jobs can never start; empty if they can, None if that is not known.
        over_budget: Empty if it is not.
        no_finisher: Why the bastion does not run a benchmark's last job; empty if it does.
    """

    cells: Sequence[tuple[Cell, JobSpec]]
    cost: WorstCase
    obstacles: Sequence[str | None]
    over_budget: str
    no_finisher: str = ""

    def refuse(self) -> None:
        """Raise Refused if it must not start."""
        if self.over_budget or self.no_finisher:
            raise Refused(self.no_finisher or self.over_budget)
        misfits = [(cell.slug, why) for (cell, _), why in zip(self.cells, self.obstacles, strict=True) if why]
        if misfits:
            named = ", ".join(slug for slug, _ in misfits[:_NAMED_MAX])
            more = f" and {len(misfits) - _NAMED_MAX} more" if len(misfits) > _NAMED_MAX else ""
            raise Refused(
                f"{len(misfits)} of {len(self.cells)} cells can never start ({named}{more}): {misfits[0][1]}; or leave "
                "them out with [matrix] exclude"
            )


def _of_the_file(obstacle: str | None) -> str | None:
    """Name the keys of the file instead of the flags of `bastion launch` that a benchmark has not."""
    return obstacle and _FLAG.sub(r"run.\1", obstacle)


def check(client: Client, benchmark: Benchmark, place: Place) -> Checked:
    """Look at every cell; raises Refused if one has no valid spec. Warns of variables that look like secrets."""
    from bastion.benchmark import budget
    from bastion.benchmark.members import finisher_spec, matrix_of, run_name, trial_specs
    from bastion.client.jobs.startable import host_obstacle, no_place, obstacle

    warn_of_secrets(benchmark.run.env, instead="write it as run.secrets.{name}", where="run.env")
    now = client.clock.now()
    found = list(trial_specs(benchmark, place, now=now))
    cost = budget.worst_case(benchmark, (spec for _, spec in found))
    over = ""
    try:
        budget.check(benchmark, cost)
    except Refused as error:
        over = str(error)
    # Of one user and project, only the resources differ.
    known: dict[tuple[tuple[str, int], ...], str | None] = {}
    for _, spec in found:
        needs = tuple(sorted(spec.resources.items()))
        if needs not in known:
            known[needs] = _of_the_file(no_place(client, spec) or obstacle(client, spec))
    obstacles = [known[tuple(sorted(spec.resources.items()))] for _, spec in found]
    matrix = matrix_of(benchmark, place, run=run_name(benchmark.sha256, now), at=now, bundle=None)
    refused = host_obstacle(client, finisher_spec(benchmark, place, matrix, now=now))
    no_finisher = f"the last job of a benchmark has no slice: {refused}" if refused else ""
    return Checked(cells=found, cost=cost, obstacles=obstacles, over_budget=over, no_finisher=no_finisher)
