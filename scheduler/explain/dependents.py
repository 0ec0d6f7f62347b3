"""Why jobs wait that await the end of others: for whom, and what they would lack after that.

A reason must be exact: with the awaited jobs over, and granted what `Lacking` says, the next pass starts the job. It
comes behind all jobs that wait for capacity now, so `Lacking` is an upper bound, and the same for equal requests of one
project.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace

from scheduler.decide.admission import Admission, backoff_reason, backs_off, waiting_since
from scheduler.decide.project_queue import Request
from scheduler.explain.reasons import more_free, more_slots
from scheduler.model import NOTHING, Decision, Job, Reason, ReasonCode, Verdict

_HOLDERS_SHOWN = 10
_NAMES_SHOWN = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class Lacking:
    """What would hold a job back if it awaited nobody.

    Attributes:
        codes: Its reason then, and those after that; empty: it would start.
        missing, over_limit, slots: As in `Reason`.
        first: FIFO: the job that would have to start before it.
        possible: So much is in use, and can become free.
        own_ends: As in `reasons.more_slots`.
    """

    codes: tuple[ReasonCode, ...] = ()
    missing: Mapping[str, int] = field(default_factory=lambda: NOTHING)
    over_limit: Mapping[str, int] = field(default_factory=lambda: NOTHING)
    slots: int = 0
    first: str = ""
    possible: bool = True
    own_ends: int = 0


def waits(
    jobs: Iterable[Job], lacking: Callable[[Job, Request], Lacking], admission: Admission, now: float
) -> Iterator[Decision]:
    """Decisions for the jobs, in their order."""
    known: dict[tuple[str, int, Request, bool], tuple[Lacking, str]] = {}
    for job in jobs:
        request = Request.of(job)
        key = job.project_id, job.priority, request, job.delegated
        if key not in known:
            lacks = lacking(job, request)
            if admission.exceeds_pool(job):
                lacks = replace(lacks, codes=(ReasonCode.EXCEEDS_POOL,))
            elif admission.exceeds_project(job):
                lacks = replace(lacks, codes=(ReasonCode.EXCEEDS_PROJECT_MAX,))
            known[key] = lacks, _then(lacks, request)
        lacks, then = known[key]
        also = lacks.codes
        if backs_off(job, now):
            backoff = backoff_reason(job)
            also, then = (*also, backoff.code), f"{then}, and {backoff.unblock}"
        names, ends = _names(job.after), "ends" if len(job.after) == 1 else "end"
        yield Decision(
            name=job.name,
            verdict=Verdict.WAIT,
            reason=Reason(
                code=ReasonCode.WAITING_FOR_DEPENDENCY,
                message=f"starts after {names}",
                since=waiting_since(job),
                holders=job.after[:_HOLDERS_SHOWN],
                unblock=f"{names} {ends}{then}",
                also=also,
                missing=lacks.missing,
                over_limit=lacks.over_limit,
                slots=lacks.slots,
            ),
        )


def _names(after: tuple[str, ...]) -> str:
    names, more = after[:_NAMES_SHOWN], len(after) - _NAMES_SHOWN
    if more > 0:
        return f"{', '.join(names)} and {more} more"
    *first, last = names
    return f"{', '.join(first)} and {last}" if first else last


def _then(lacks: Lacking, request: Request) -> str:
    parts = []
    if lacks.first:
        parts.append(f"{lacks.first} starts")
    if lacks.slots:
        parts.append(more_slots(lacks.slots, lacks.own_ends, request.user))
    if lacks.over_limit:
        amounts = " and ".join(f"{amount} {resource}" for resource, amount in lacks.over_limit.items())
        parts.append(f"its project releases up to {amounts}, or an admin raises its borrowing_limit by as much")
    if ReasonCode.TOO_MANY_SUBMITTED in lacks.codes:
        parts.append("jobs that were submitted to Kueue end")
    if ReasonCode.EXCEEDS_POOL in lacks.codes:
        needed = " and ".join(f"{amount} {resource}" for resource, amount in request.amounts)
        parts.append(f"an admin raises total_resources, as it needs {needed}")
    elif lacks.missing and lacks.possible:
        parts.append(f"up to {more_free(lacks.missing)}")
    elif lacks.missing:
        parts.append("jobs ahead of it start and end")
    return f", and {'; '.join(parts)}" if parts else ""
