"""Everything about one job that `bastion show` has: its spec, its attempts, its last lines, its outputs."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from dataclasses import dataclass

from bastion.client.jobs.client import Client
from bastion.client.jobs.job_info import JobInfo, Stage
from bastion.client.jobs.last_lines import LastLines, last_lines
from bastion.client.jobs.results import PastAttempt, PastTry
from bastion.client.jobs.stored_outputs import StoredOutputs, stored_outputs
from bastion.core import limits
from bastion.core.bucket import keys
from bastion.core.errors import NotFound, ObjectTooLarge, Refused
from bastion.core.model import job_spec
from bastion.core.model.gangs import GangRef
from bastion.core.model.job_spec import JobSpec


@dataclass(frozen=True, slots=True, kw_only=True)
class AttemptRow:
    """One attempt. Instants are seconds since the epoch; None if unknown, or if it has not come yet.

    Attributes:
        tier: Known of the present attempt only.
        zone: Empty on the bastion itself, or if it was not recorded.
        cause: Empty while it runs.
        tries: The failed tries before its last one.
    """

    number: int
    tier: int | None = None
    zone: str = ""
    started_at: float | None = None
    running_since: float | None = None
    ended_at: float | None = None
    cause: str = ""
    message: str = ""
    exit_code: int | None = None
    failed_worker: int | None = None
    tries: Sequence[PastTry] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Details:
    """One job.

    Attributes:
        spec: None if it cannot be read: it is refused, or of another implementation.
        nodes: Of the present attempt, on slices.
        host: The bastion's host that runs the present attempt; empty for a slice.
        last, outputs: None if there are none.
    """

    info: JobInfo
    spec: JobSpec | None = None
    attempts: Sequence[AttemptRow] = ()
    nodes: Sequence[str] = ()
    host: str = ""
    last: LastLines | None = None
    outputs: StoredOutputs | None = None


def details(client: Client, info: JobInfo, *, lines: int) -> Details:
    """Read the rest of what the bucket has about the job; `lines`: how many of its output.

    Raises:
        StoreError: the bucket does not answer.
    """
    spec = _spec(client, info)
    attempts = _attempts(info)
    nodes, host = _hosts(info)
    return Details(
        info=info,
        spec=spec,
        attempts=attempts,
        nodes=nodes,
        host=host,
        last=last_lines(client, info, lines) if attempts else None,
        outputs=stored_outputs(client, info, spec.runner.output_dir) if attempts and spec and spec.runner else None,
    )


def _spec(client: Client, info: JobInfo) -> JobSpec | None:
    if info.record is not None:
        return info.record.job
    with contextlib.suppress(NotFound, ObjectTooLarge, Refused):
        if info.result is not None:
            return job_spec.from_document(info.result.document, name=info.name)
        if info.stage is Stage.SUBMITTED:
            data = client.store.get(client.spec_key(info.name), max_bytes=limits.SPEC_MAX_BYTES).data
            return job_spec.parse(data, name=info.name, bastion=client.bastion)
    return None


def _attempts(info: JobInfo) -> Sequence[AttemptRow]:
    if info.record is None:
        return [_past(attempt) for attempt in info.result.attempts] if info.result is not None else []
    rows = [_past(PastAttempt.of(attempt)) for attempt in info.record.attempts]
    present = info.record.attempt
    if present is not None:
        rows.append(
            AttemptRow(
                number=present.number,
                tier=present.tier,
                zone=present.place.zone if present.place is not None else "",
                started_at=present.started_at,
                running_since=present.running_since,
                tries=[PastTry.model_validate(each.model_dump(mode="json")) for each in present.tries],
            )
        )
    return rows


def _past(attempt: PastAttempt) -> AttemptRow:
    return AttemptRow(
        number=attempt.number,
        zone=attempt.zone,
        started_at=attempt.started_at,
        running_since=attempt.running_since,
        ended_at=attempt.ended_at,
        cause=attempt.cause,
        message=attempt.message,
        exit_code=attempt.exit_code,
        failed_worker=attempt.failed_worker,
        tries=attempt.tries,
    )


def _hosts(info: JobInfo) -> tuple[Sequence[str], str]:
    record = info.record
    if record is None or record.attempt is None:
        return (), ""
    runner = record.started_job.runner
    if runner is None:
        return (), record.attempt.host_identity
    gang = GangRef(name=keys.gang(str(record.run(record.attempt))), num_slices=runner.num_replicas)
    return [gang.node(number) for number in range(gang.num_slices)], ""
