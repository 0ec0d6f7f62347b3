"""What a quota file would do to the present queue, and would have done in the last days.

Reads what `QuotaClient.forecast` reads, lists all results, and reads those of these days, at most the newest
`RESULTS_MAX`.

Invariant: `Past.why` names everything that was asked for and is not covered.
"""

from __future__ import annotations

import random
from collections.abc import Mapping
from dataclasses import dataclass, replace

from bastion.client.jobs import eta
from bastion.client.jobs.durations import declared_durations, past_durations, past_jobs
from bastion.client.jobs.results import Result
from bastion.client.quota.upload import Forecast, QuotaClient
from bastion.core import limits
from bastion.core.errors import StoreError
from bastion.core.status.jobs import without_delegated
from quota import Policy
from scheduler import Job
from scheduler.simulation.durations import Durations
from scheduler.simulation.queue_outlook import Queued, outlook
from scheduler.simulation.whatif import Comparison, PastJob, compare

DAY_SECONDS = 86_400.0
# Reading them takes about ten seconds from Cloud Storage.
RESULTS_MAX = 4000
# Jobs times decisions of one replay: about four seconds; there are at most six replays.
WORK_MAX = 200_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Past:
    """The last days, replayed.

    Attributes:
        days: Number of days asked for.
        comparison: None if nothing could be replayed.
        why: Why the replay covers less; empty if it covers all days.
        ended: Number of results in the replay.
        unknown: Number of waiting jobs left out because their duration is unknown.
    """

    days: int
    comparison: Comparison | None
    why: str
    ended: int = 0
    unknown: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class WhatIf:
    """Everything that the file would do.

    Attributes:
        forecast: The immediate effect.
        queue: When waiting jobs start.
        untold: Number of waiting jobs too far back for an estimate.
        delegated: Resource types whose jobs are left out of `queue` and `past`, because Kueue decides on them.
    """

    forecast: Forecast
    queue: tuple[Queued, ...]
    untold: int
    past: Past
    delegated: tuple[str, ...] = ()


def ask(quota_client: QuotaClient, before: Policy, after: Policy, *, days: int) -> WhatIf:
    """Predict what `after` would do in place of `before`; look `days` days back."""
    now = quota_client.now()
    forecast = quota_client.forecast(before, after)
    declared = declared_durations(quota_client.client) if forecast.entries else {}
    results, number, problem = _read(quota_client, now - days * DAY_SECONDS)
    durations = Durations(past_durations(results), declared)
    queue: tuple[Queued, ...] = ()
    untold = 0
    live: tuple[Job, ...] = ()
    if forecast.snapshot is not None:
        snapshot = without_delegated(forecast.snapshot)
        live = snapshot.jobs
        seed = eta.seed(live)
        queue, untold = outlook(
            snapshot,
            after,
            now,
            durations,
            draws=eta.DRAWS,
            draw=lambda: random.Random(seed).random,
            horizon_seconds=eta.HORIZON_SECONDS,
            decisions_max=eta.decisions_max(live),
        )
    past = Past(days=days, comparison=None, why=problem or f"no job has ended in the last {days} days")
    status = quota_client.client.status(again=False) if results or forecast.snapshot is not None else None
    delegated = status.delegated if status is not None else ()
    jobs = [job for job in past_jobs(results, live, durations, now) if job.job.demand.keys().isdisjoint(delegated)]
    names = {job.name for job in live}
    ended = [job for job in jobs if job.job.name not in names]
    if ended:
        begin, why = _covered(jobs, ended, number > len(results), now, days)
        costs = status.idle.restart_seconds if status is not None else {}
        past = _replayed(jobs, before, after, begin=begin, why=why, now=now, days=days, restart_seconds=costs)
        past = replace(past, ended=len(ended), unknown=len(names) + len(ended) - len(jobs))
    return WhatIf(forecast=forecast, queue=queue, untold=untold, past=past, delegated=delegated)


def _read(quota_client: QuotaClient, since: float) -> tuple[list[Result], int, str]:
    """The newest results since that instant, how many there are, and why they cannot be read."""
    try:
        results, number = quota_client.client.completed(limit=RESULTS_MAX, since=since)
    except StoreError as error:
        return [], 0, f"cannot read the results of completed jobs: {error}"
    return results, number, ""


def _covered(jobs: list[PastJob], ended: list[PastJob], cut: bool, now: float, days: int) -> tuple[float, str]:
    """Since when all jobs are known, and why not for all days."""
    begin, why = now - days * DAY_SECONDS, ""
    if cut:
        # The newest results were read: all jobs that ended since the oldest of them are known.
        oldest = min(job.began_at + job.seconds for job in ended if job.began_at is not None)
        begin, why = max(begin, oldest), f"more than {RESULTS_MAX} jobs have ended since then"
    first = min(job.job.queued_at for job in jobs)
    if first > begin:
        begin, why = first, "no earlier job is known"
    return begin, why


def _replayed(
    jobs: list[PastJob],
    before: Policy,
    after: Policy,
    *,
    begin: float,
    why: str,
    now: float,
    days: int,
    restart_seconds: Mapping[str, float],
) -> Past:
    found = compare(
        jobs,
        before,
        after,
        begin=begin,
        end=now,
        work_max=WORK_MAX,
        bastion_slots=limits.BASTION_HOST_JOBS_MAX,
        restart_seconds=restart_seconds,
    )
    if found is None:
        why = f"there are too many jobs to replay even a short part of these {days} days"
    elif found.begin > begin:
        why = "a longer replay would take too long"
    return Past(days=days, comparison=found, why=why)
