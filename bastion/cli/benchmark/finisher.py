"""`bastion benchmark begin RUN` and `bastion benchmark finish RUN`: what the finisher's job runs on the bastion."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, Protocol, TypeVar

from bastion.cli.command import Command, Invocation
from bastion.cli.connect import open_client
from bastion.cli.output import plain, say
from bastion.core import benchmark_steps
from bastion.core.errors import (
    AccessDenied,
    BastionError,
    InvalidDocument,
    NotFound,
    PreconditionFailed,
    Refused,
    StoreUnavailable,
)

if TYPE_CHECKING:
    from bastion.benchmark.bash import Bash
    from bastion.benchmark.file import Benchmark
    from bastion.benchmark.layout import Matrix
    from bastion.client import Client


T = TypeVar("T")


class _Steps(Protocol):
    said: list[str]

    def step(self) -> int | None: ...


def _begin(call: Invocation) -> int:
    from bastion.benchmark.bash import own_bash
    from bastion.benchmark.begin import Begin

    bash = own_bash()
    _check_finisher(call.operands[0])
    client, _ = open_client(call)
    found = _ask(client, lambda: _read(client, call.operands[0]))
    _check_owner(found.matrix)
    return _drive(client, Begin(client, found.matrix, found.lines("up"), bash))


def _finish(call: Invocation) -> int:
    from bastion.benchmark.bash import own_bash
    from bastion.benchmark.finish import Finish
    from bastion.benchmark.report.writing import write_report
    from bastion.benchmark.results import read_values

    bash = own_bash()
    _check_finisher(call.operands[0])
    client, _ = open_client(call)
    number = os.environ.get("BASTION_CLEANUP_TRY", "1")
    try_number = int(number) if number.isdigit() else 1
    try:
        found = _ask(client, lambda: _read(client, call.operands[0]))
    except (Refused, NotFound, InvalidDocument) as error:
        return _only_tear_down(client, call.operands[0], bash, try_number, problem=error)
    matrix = found.matrix
    _check_owner(matrix)
    steps = Finish(
        client,
        matrix,
        found.lines("down"),
        bash,
        try_number=try_number,
        only_of=_user_of_job(),
        read_values=lambda job, hosts, public_keys: read_values(client.store, job, hosts, public_keys),
        report=lambda: write_report(client.store, matrix.name, matrix.run),
    )
    return _drive(client, steps)


def _user_of_job() -> str | None:
    """Whose job this is; None if a user calls the command, whose own rights are enough."""
    return os.environ.get("BASTION_USER_ID") if os.environ.get("BASTION_JOB") else None


def _check_finisher(operand: str) -> None:
    """Refuse to work for another run than the job's own: a job may have more rights than its user."""
    name, _, run = operand.partition("/")
    job = os.environ.get("BASTION_JOB")
    if job and job != benchmark_steps.finisher(name, run):
        raise Refused(f"the job {job} is not the finisher of {plain(operand)}, so it must not begin or finish that run")


def _check_owner(matrix: Matrix) -> None:
    user = _user_of_job()
    if user is not None and matrix.user != user:
        raise Refused(f"the run {matrix.name}/{matrix.run} belongs to {plain(matrix.user)}, not to {plain(user)}")


def _only_tear_down(client: Client, operand: str, bash: Bash, try_number: int, *, problem: BastionError) -> int:
    """End a run whose documents someone has deleted or changed. Raises the problem if this is not its finisher."""
    from bastion.benchmark.members import group_of, lines_in
    from bastion.benchmark.tear_down import TearDown, live_in_group

    down = lines_in(os.environ, "down")
    name, _, run = operand.partition("/")
    if down is None or not run:
        raise problem
    user, finisher = os.environ.get("BASTION_USER_ID", ""), os.environ.get("BASTION_JOB", "")
    said = [f"no results are collected: {problem}"]
    steps = TearDown(
        client,
        name,
        run,
        down,
        bash,
        said,
        live=lambda: live_in_group(client, group_of(name, run), user, finisher),
        try_number=try_number,
        only_of=_user_of_job(),
    )
    return _drive(client, steps)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Run:
    """The documents of a run."""

    matrix: Matrix
    benchmark: Benchmark

    def lines(self, what: Literal["up", "down"]) -> list[str]:
        """Of the finisher's own spec; of the file if a user calls the command."""
        from bastion.benchmark.members import lines_in

        own = lines_in(os.environ, what)
        return own if own is not None else getattr(self.benchmark.environment, what)


def _read(client: Client, operand: str) -> _Run:
    from bastion.benchmark import documents, file_problems, layout, measurements
    from bastion.core import limits

    name, run = measurements.find_run(client.store, operand)
    matrix = documents.read_matrix(client.store, name, run)
    data = client.store.get(layout.bench_file(name, run), max_bytes=limits.BENCHMARK_FILE_MAX_BYTES).data
    return _Run(matrix=matrix, benchmark=file_problems.read(data))


def _drive(client: Client, steps: _Steps) -> int:
    """Take one step after the other."""

    def step() -> int | None:
        try:
            return steps.step()
        finally:
            for line in steps.said:
                say(f"bastion: {plain(line)}")
            steps.said.clear()

    while (code := _ask(client, step)) is None:
        client.clock.sleep(client.pace.slot_seconds)
    return code


def _ask(client: Client, call: Callable[[], T]) -> T:
    """Return what the call returns; a store that does not answer, or that someone else writes to, is asked again.

    A finisher asks again for ten minutes after a refusal, too: credentials that expired may be renewed, and three
    refused tries of the tear-down would keep the environment for good.
    """
    from bastion.benchmark.members import lines_in
    from bastion.core import limits

    patience = 0.0 if lines_in(os.environ, "down") is None else limits.REFUSED_MAX_SECONDS
    refused_since: float | None = None
    told = ""
    while True:
        try:
            return call()
        except (StoreUnavailable, PreconditionFailed, AccessDenied) as error:
            if isinstance(error, AccessDenied):
                now = client.clock.monotonic()
                refused_since = now if refused_since is None else refused_since
                if now - refused_since >= patience:
                    raise
            # Hours of it must not fill the log.
            if told != str(error):
                told = str(error)
                say(f"bastion: {plain(told)}; trying again")
        client.clock.sleep(client.pace.slot_seconds)


BEGIN = Command(
    summary="Waits until all jobs of a run are submitted, then runs [environment] up. A run's last job calls it first.",
    usage="RUN",
    details="""Users do not call it: it is the command of the job NAME-...-finish, on the bastion. Every other job of
        the run waits until it succeeds. BASTION_BENCHMARK_TIME tells `up` which time it is.""",
    examples=("bastion benchmark begin matmul/20260102T030405Z-0123abcd",),
    operands=(1, 1),
    run=_begin,
)

FINISH = Command(
    summary="Ends a run: cancels what is left of it, runs [environment] down, collects the results, writes the report.",
    usage="RUN",
    details="""It is the cleanup command of the job NAME-...-finish, on the bastion. It may be called again: `down` then
        runs once more and is told by BASTION_BENCHMARK_TIME which time it is, and the results are collected anew.

        Exits with the code of a line of `down` that failed, and with 75 if jobs do not end.""",
    examples=("bastion benchmark finish matmul/20260102T030405Z-0123abcd",),
    operands=(1, 1),
    run=_finish,
)
