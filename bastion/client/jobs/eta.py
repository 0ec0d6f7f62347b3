"""When a waiting job starts, estimated on the client's side: the scheduler run forward on the published status.

Layer: client. Asked of the bucket: the quota file; and unless the owners of all jobs that matter declared how long they
take, a listing of at most `LISTED_MAX` results and the newest `RESULTS_MAX` of them. Nothing of this is asked for a job
that does not wait.

Invariant: the same status, quota file, results and instant give the same estimate; nothing is drawn by chance that the
jobs do not determine.
"""

from __future__ import annotations

import hashlib
import random
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import quota
from bastion.client.jobs.client import Client, JobInfo
from bastion.client.jobs.durations import declared_durations, live_jobs, past_durations
from bastion.core import limits
from bastion.core.errors import InvalidDocument, NotFound, StoreError
from bastion.core.reconcile.scheduling_view import past_evictions
from bastion.core.status.jobs import published_holdings, published_restart_seconds, published_usage
from scheduler import Job, JobStatus, Snapshot
from scheduler.decide.capacity import amounts_of
from scheduler.simulation.durations import Durations, JobProfile
from scheduler.simulation.forecast import Eta, forecast

# Ended jobs whose durations count: enough for the nearest level of many users, some seconds of reading at most.
RESULTS_MAX = 200
# A listing tells which of them are the newest; its first pages must do.
LISTED_MAX = 5 * limits.LIST_PAGE_OBJECTS
HORIZON_SECONDS = 30 * 86_400.0
DRAWS = 40
# Decisions cost in proportion to the jobs that take part: this many jobs times decisions are some three seconds.
_WORK_MAX = 200_000
_DECISIONS_MAX = 4000


@dataclass(frozen=True, slots=True, kw_only=True)
class Estimate:
    """When a job starts, as far as anybody can tell.

    Attributes:
        results: How many ended jobs' durations it is based on.
        declared: How many live jobs' declared durations.
    """

    eta: Eta
    results: int = 0
    declared: int = 0


def estimate(client: Client, info: JobInfo) -> Estimate:
    """Estimates when a waiting job starts; what stands in the way of that is told in `Eta.why`."""
    try:
        status = client.status(again=False)
        if status is None:
            return _unknown("no daemon has published what runs")
        jobs = _jobs(status, info)
        policy = client.policy()
    except InvalidDocument as error:
        return _unknown(str(error))
    except NotFound:
        return _unknown("the quota file cannot be read from here")
    except quota.QuotaFileError:
        return _unknown("the quota file is broken, and nobody knows here which one is in force")
    except StoreError as error:
        return _unknown(f"the bucket did not answer: {error}")
    declared = declared_durations(client)
    history: list[tuple[JobProfile, float]] = []
    if any(job.name != info.name and job.name not in declared for job in jobs):
        try:
            results, _ = client.completed(limit=RESULTS_MAX, among=LISTED_MAX)
        except StoreError as error:
            return _unknown(f"the results of ended jobs cannot be read: {error}")
        history = list(past_durations(results))
    snapshot = Snapshot(
        policy=policy,
        jobs=jobs,
        bastion_slots=limits.BASTION_HOST_JOBS_MAX,
        held_recently=published_holdings(status),
        restart_seconds=published_restart_seconds(status),
        user_usage=published_usage(status),
    )
    answers = forecast(
        snapshot,
        client.clock.now(),
        Durations(history, declared),
        (info.name,),
        draws=DRAWS,
        draw=random.Random(seed(jobs)).random,
        horizon_seconds=HORIZON_SECONDS,
        decisions_max=decisions_max(jobs),
    )
    eta = answers.get(info.name, Eta(why="the published status does not show it as waiting"))
    return Estimate(eta=eta, results=len(history), declared=len(declared))


def _unknown(why: str) -> Estimate:
    return Estimate(eta=Eta(why=why))


def _jobs(status: Mapping[str, Any], info: JobInfo) -> tuple[Job, ...]:
    """The published jobs, with what is known besides: who comes back after its eviction, and the asked job's pauses.

    Raises:
        InvalidDocument: an entry is not as the daemon writes it.
    """
    record = info.record
    return tuple(
        replace(job, not_before=record.not_before, stockout=record.stockout, **past_evictions(record))
        if record is not None and job.name == info.name and job.status is not JobStatus.STOPPING
        else job
        for job in live_jobs(status)
    )


def decisions_max(jobs: Collection[Job]) -> int:
    """What a forecast with so many jobs may ask of the scheduler, so that it takes seconds."""
    return min(_DECISIONS_MAX, _WORK_MAX // max(1, len(jobs)))


def seed(jobs: Iterable[Job]) -> bytes:
    """Of what is drawn by chance: it follows from the jobs, so that the same ones get the same answer."""
    told = sorted(
        (job.name, job.status.value, job.queued_at, job.started_at or 0.0, amounts_of(job.demand)) for job in jobs
    )
    return hashlib.sha256(repr(told).encode("utf-8", "replace")).digest()
