"""When the waiting jobs start under the current quota file and under another one, with the same random numbers."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from quota import Policy
from scheduler.model import Decision, Job, JobStatus, Plan, ReasonCode, Snapshot, Verdict
from scheduler.scheduling import schedule
from scheduler.simulation.durations import Durations
from scheduler.simulation.forecast import Eta, forecast

# Jobs further back in either queue get no estimate.
PLACES_MAX = 300


@dataclass(frozen=True, slots=True, kw_only=True)
class Queued:
    job: Job
    before: Eta
    after: Eta


def outlook(
    snapshot: Snapshot,
    after: Policy,
    now: float,
    durations: Durations,
    *,
    draws: int,
    draw: Callable[[], Callable[[], float]],
    horizon_seconds: float,
    decisions_max: int,
) -> tuple[tuple[Queued, ...], int]:
    """When the snapshot's waiting jobs start under its own policy and under `after`; other arguments as in `forecast`.

    `draw` returns a source of the same sequence of uniform numbers each time.

    Returns:
        The jobs in current queue order, those that await others last, then those not waiting for capacity; and how many
        are too far back.
    """
    snapshots = (snapshot, replace(snapshot, policy=after))
    places = [_places(schedule(one, now)) for one in snapshots]
    waiting = [job for job in snapshot.jobs if job.status is JobStatus.PENDING]
    asked = [job for job in waiting if all(order.get(job.name, 0) < PLACES_MAX for order in places)]
    names = {job.name for job in asked}
    etas = [
        forecast(
            one,
            now,
            durations,
            names,
            draws=draws,
            draw=draw(),
            horizon_seconds=horizon_seconds,
            decisions_max=decisions_max,
        )
        for one in snapshots
    ]
    asked.sort(key=lambda job: (places[0].get(job.name, len(waiting)), job.queued_at, job.name))
    queued = (Queued(job=job, before=etas[0][job.name], after=etas[1][job.name]) for job in asked)
    return tuple(queued), len(waiting) - len(asked)


def _places(plan: Plan) -> dict[str, int]:
    """Queue positions from 0 of jobs that start now, wait for capacity, or await other jobs."""
    queue = (
        decision.name
        for decision in plan.decisions
        if decision.verdict is Verdict.START
        or (decision.verdict is Verdict.WAIT and (decision.position is not None or _awaits_others(decision)))
    )
    return {name: place for place, name in enumerate(queue)}


def _awaits_others(decision: Decision) -> bool:
    return decision.reason is not None and decision.reason.code is ReasonCode.WAITING_FOR_DEPENDENCY
