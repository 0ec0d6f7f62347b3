"""When the jobs that wait now start under the quota file in force, and under another one.

Layer: `scheduler`, pure: a forecast under either policy, with the same numbers drawn.

Invariant: the same arguments give the same answer.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from quota import Policy
from scheduler.model import Job, JobStatus, Plan, Snapshot, Verdict
from scheduler.scheduling import schedule
from scheduler.simulation.durations import Durations
from scheduler.simulation.forecast import Eta, forecast

# Jobs so far back in either queue get no estimate of their start.
PLACES_MAX = 300


@dataclass(frozen=True, slots=True, kw_only=True)
class Queued:
    """When a waiting job starts under either file."""

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
    """When the waiting jobs of the snapshot start under its own policy, and under `after`.

    Args:
        draw: Gives the same sequence of numbers from 0 to 1 each time.
        decisions_max: Of the scheduler, for either.

    Returns:
        The jobs in the order of the present queue, those that wait for something else than capacity last; and how many
        are too far back to tell.
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
    """The queue: who starts now, and who waits for capacity, by place."""
    queue = (
        decision.name
        for decision in plan.decisions
        if decision.verdict is Verdict.START or (decision.verdict is Verdict.WAIT and decision.position is not None)
    )
    return {name: place for place, name in enumerate(queue)}
