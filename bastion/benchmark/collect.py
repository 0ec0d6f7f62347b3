"""How each job of a run ended and what it measured, written as `cells/<cell>/<repeat>.json`.

It may run again: the same results make the same bytes.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TypeAlias

from bastion.benchmark import documents, layout
from bastion.benchmark.last_line import last_line
from bastion.benchmark.layout import CellResult, Outcome, Value
from bastion.client.concurrently import concurrently
from bastion.client.jobs.client import Client
from bastion.client.jobs.job_info import Stage
from bastion.client.jobs.results import PastAttempt, Result
from bastion.core import limits
from bastion.core.bucket import keys
from bastion.core.bucket.results import Environment
from bastion.core.errors import InvalidDocument, InvalidSpec, StoreError, UnknownInstanceType
from bastion.core.instants import to_rfc3339
from bastion.core.model import job_spec
from bastion.core.model.run_public_keys import RunPublicKeys
from bastion.core.plain_text import plain

_OUTCOMES = {each.value: each for each in Outcome}


@dataclass(frozen=True, slots=True, kw_only=True)
class JobValues:
    """What a job's hosts measured, by metric, and what could not be understood."""

    values: dict[str, list[Value]] = field(default_factory=dict)
    units: dict[str, str] = field(default_factory=dict)
    environment: Environment = field(default_factory=Environment)
    problems: tuple[str, ...] = ()


ReadValues: TypeAlias = Callable[[str, int, RunPublicKeys], JobValues]
"""`(job, number of hosts, public keys of its runs) -> values`; may raise StoreError."""


def collect(client: Client, matrix: layout.Matrix, read_values: ReadValues) -> Counter[Outcome]:
    """Write every cell's documents; return how many jobs ended how. Raises StoreError."""
    submitted = documents.read_submitted(client.store, matrix.name, matrix.run)
    uids = submitted.jobs if submitted is not None else {}
    wanted = [(cell.cell, each.repeat, each.job) for cell in matrix.cells for each in cell.repeats]

    def write(cell: str, repeat: int, job: str) -> Outcome:
        uid = uids.get(job, "")
        try:
            found = cell_result(client, matrix, cell, repeat, job, uid, read_values)
        except InvalidDocument as error:  # a foreign object in its place
            reason = plain(error)[: limits.MESSAGE_MAX_CHARS]
            found = CellResult(cell=cell, repeat=repeat, job=job, uid=uid, outcome=Outcome.MISSING, reason=reason)
        documents.replace(client.store, layout.cell(matrix.name, matrix.run, cell, repeat), found.to_bytes())
        return found.outcome

    answers = concurrently([partial(write, *each) for each in wanted], connections=client.pace.connections)
    for answer in answers:
        if isinstance(answer, StoreError):
            raise answer
    return Counter(answer for answer in answers if isinstance(answer, Outcome))


def cell_result(
    client: Client, matrix: layout.Matrix, cell: str, repeat: int, job: str, uid: str, read_values: ReadValues
) -> CellResult:
    """Find out about one job. `uid`: empty if the client was stopped before it told the uids."""
    # The name alone tells the job, too: it is a digest. A client that saw no daemon may have told another uid.
    result = client.result(job, uid) or client.result(job)
    if result is None:
        outcome, reason = _without_result(client, job)
        return CellResult(cell=cell, repeat=repeat, job=job, uid=uid, outcome=outcome, reason=reason)
    uid = result.uid or uid
    hosts, instance_type = _shape(result)
    found = read_values(job, hosts, replace(result.public_keys, uid=uid)) if result.attempts else JobValues()
    values = {name: each for name, each in found.values.items() if name in matrix.metrics and each}
    outcome = _OUTCOMES.get(result.outcome, Outcome.FAILED)
    last = result.attempts[-1] if result.attempts else None
    return CellResult(
        cell=cell,
        repeat=repeat,
        job=job,
        uid=uid,
        outcome=outcome,
        reason=plain(_reason(client, matrix, result, outcome, values, found.problems))[: limits.MESSAGE_MAX_CHARS],
        exit_code=result.exit_code if last is not None else None,
        attempts=last.number if last is not None else 0,
        values=values,
        units={name: unit for name, unit in found.units.items() if name in values} or None,
        environment=_environment(found.environment, matrix, last, hosts, instance_type),
        logs=keys.worker_logs(job),
        outputs=keys.outputs_of(job, uid),
        started_at=_instant(each.running_since for each in result.attempts),
        ended_at=_instant(each.ended_at for each in reversed(result.attempts)),
        held_seconds=round(sum(map(_held, result.attempts)), 3),
    )


def _without_result(client: Client, job: str) -> tuple[Outcome, str]:
    info = client.look(job)
    if info is None:
        return Outcome.MISSING, "it was never submitted, or its result is deleted; run the benchmark again"
    if info.stage is Stage.INVALID:
        return Outcome.REFUSED, plain(info.problem)[: limits.MESSAGE_MAX_CHARS]
    return Outcome.MISSING, "it had not ended when the results were collected; see bastion why"


def _shape(result: Result) -> tuple[int, str]:
    """Return the number of hosts, and the instance type."""
    try:
        spec = job_spec.from_document(
            {name: part for name, part in result.document.items() if name != "result"}, name=result.name
        )
    except (InvalidSpec, InvalidDocument, UnknownInstanceType):
        return 1, ""
    return spec.hosts, spec.runner.instance_type.name if spec.runner else ""


def _reason(
    client: Client,
    matrix: layout.Matrix,
    result: Result,
    outcome: Outcome,
    values: dict[str, list[Value]],
    problems: tuple[str, ...],
) -> str:
    if outcome is not Outcome.SUCCEEDED:
        said = last_line(client, result)
        return (result.message or f"the job ended as {result.outcome}") + (f"; its last line: {said}" if said else "")
    lacking = [name for name in matrix.metrics if name not in values]
    if not lacking:
        return "; ".join(problems)
    none = f"no value of {', '.join(lacking)}"
    if problems:  # they say why
        return "; ".join((*problems, none))
    return f"{none}; the command must write them to $BASTION_RESULTS_FILE, or print them as :::MLLOG lines"


def _environment(
    found: Environment, matrix: layout.Matrix, last: PastAttempt | None, hosts: int, instance_type: str
) -> Environment:
    """Complete what the hosts told with what the spec and the result say."""
    return found.model_copy(
        update={
            "place": found.place or (last.zone if last is not None else ""),
            "hosts": hosts,
            "instance_type": found.instance_type or instance_type,
            "bundle": found.bundle or matrix.bundle or "",
            "commit": found.commit or matrix.commit or "",
        }
    )


def _held(attempt: PastAttempt) -> float:
    began = attempt.held_at if attempt.held_at is not None else attempt.started_at
    return max(0.0, attempt.ended_at - began) if began is not None and attempt.ended_at is not None else 0.0


def _instant(instants: Iterable[float | None]) -> str:
    first = next((each for each in instants if each is not None), None)
    return "" if first is None else to_rfc3339(first)
