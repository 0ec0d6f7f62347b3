"""Estimate when a waiting job starts: run the scheduler forward on the published status.

Reads the quota file, and unless the owners of all relevant jobs declared durations, lists at most `LISTED_MAX` results
and reads the newest `RESULTS_MAX` of them.

Invariant: the same status, quota file, results and instant give the same estimate; the jobs determine the random seed.
"""

from __future__ import annotations

import hashlib
import random
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

import quota
from bastion.client.jobs.client import Client
from bastion.client.jobs.durations import declared_durations, past_durations
from bastion.client.jobs.job_info import JobInfo
from bastion.core import limits
from bastion.core.errors import InvalidDocument, NotFound, StoreError
from bastion.core.reconcile.scheduling_view import past_evictions
from bastion.core.status.document import JobEntry, Phase
from bastion.core.status.jobs import awaits_kueue, published_snapshot, without_delegated
from scheduler import Job, JobStatus, ReasonCode, Snapshot
from scheduler.decide.capacity import amounts_of
from scheduler.simulation.durations import Durations, JobProfile
from scheduler.simulation.forecast import Eta, forecast

# Completed jobs to read: enough for the nearest level of many users, within a few seconds.
RESULTS_MAX = 200
# Results to list in order to find the newest ones.
LISTED_MAX = 5 * limits.LIST_PAGE_OBJECTS
HORIZON_SECONDS = 30 * 86_400.0
DRAWS = 40
KUEUE_DECIDES = "order and ETA are Kueue's"
# A decision costs in proportion to the jobs: jobs times decisions for about three seconds.
_WORK_MAX = 200_000
_DECISIONS_MAX = 4000


@dataclass(frozen=True, slots=True, kw_only=True)
class Estimate:
    """When a job starts.

    Attributes:
        results: Number of completed jobs whose durations it uses.
        declared: Number of live jobs whose declared durations it uses.
    """

    eta: Eta
    results: int = 0
    declared: int = 0


def estimate(client: Client, info: JobInfo) -> Estimate:
    """Estimate when a waiting job starts; `Eta.why` says what prevents that."""
    reason = info.entry.reason if info.entry is not None else None
    if reason is not None and reason.code == ReasonCode.HELD.value:
        return _unknown(f"not waiting for capacity ({reason.code})")  # the snapshot lacks holds by the settings
    try:
        status = client.status(again=False)
        if status is None:
            return _unknown("no daemon has published what is running")
        if info.entry is not None and awaits_kueue(status, info.entry):
            return _unknown(KUEUE_DECIDES)
        snapshot = _snapshot(without_delegated(published_snapshot(status, client.policy())), info)
    except InvalidDocument as error:
        return _unknown(str(error))
    except NotFound:
        return _unknown("cannot read the quota file from here")
    except quota.QuotaFileError:
        return _unknown("the quota file is not valid, and the one in force is not known here")
    except StoreError as error:
        return _unknown(f"the bucket did not answer: {error}")
    try:
        answers, results, declared = _forecast(client, snapshot, (info.name,))
    except StoreError as error:
        return _unknown(f"cannot read the results of completed jobs: {error}")
    eta = answers.get(info.name, Eta(why="the published status does not list it as waiting"))
    return Estimate(eta=eta, results=results, declared=declared)


def estimates(client: Client, entries: Iterable[JobEntry]) -> Mapping[str, Estimate]:
    """Estimate when these waiting jobs start, by name; without those that wait for something else than capacity.

    It knows less than `estimate`: not the pauses after a lack of capacity, which only a job's state tells.
    """
    status = client.status(again=False)
    names = tuple(
        entry.name
        for entry in entries
        if entry.phase == Phase.QUEUED and (entry.reason is None or entry.reason.code != ReasonCode.HELD.value)
    )
    if status is None or not names:
        return {}
    try:
        snapshot = without_delegated(published_snapshot(status, client.policy()))
        answers, results, declared = _forecast(client, snapshot, names)
    except (InvalidDocument, NotFound, quota.QuotaFileError, StoreError) as error:
        return dict.fromkeys(names, _unknown(str(error)))
    return {name: Estimate(eta=eta, results=results, declared=declared) for name, eta in answers.items()}


def _forecast(client: Client, snapshot: Snapshot, names: Sequence[str]) -> tuple[Mapping[str, Eta], int, int]:
    """The estimates by name, and how many results and declared durations they rest on."""
    declared = declared_durations(client)
    history: list[tuple[JobProfile, float]] = []
    if any(job.name not in names and job.name not in declared for job in snapshot.jobs) or len(names) > 1:
        results, _ = client.completed(limit=RESULTS_MAX, among=LISTED_MAX)
        history = list(past_durations(results))
    answers = forecast(
        snapshot,
        client.clock.now(),
        Durations(history, declared),
        tuple(names),
        draws=DRAWS,
        draw=random.Random(seed(snapshot.jobs)).random,
        horizon_seconds=HORIZON_SECONDS,
        decisions_max=decisions_max(snapshot.jobs),
    )
    return answers, len(history), len(declared)


def _unknown(why: str) -> Estimate:
    return Estimate(eta=Eta(why=why))


def _snapshot(published: Snapshot, info: JobInfo) -> Snapshot:
    """The snapshot with what the record says of the job asked about: its pauses and past evictions."""
    record = info.record
    if record is None:
        return published
    jobs = tuple(
        replace(job, not_before=record.not_before, stockout=record.stockout, **past_evictions(record))
        if job.name == info.name and job.status is not JobStatus.STOPPING
        else job
        for job in published.jobs
    )
    return replace(published, jobs=jobs)


def decisions_max(jobs: Collection[Job]) -> int:
    """Maximum number of decisions of a forecast with these jobs, so that it takes seconds."""
    return min(_DECISIONS_MAX, _WORK_MAX // max(1, len(jobs)))


def seed(jobs: Iterable[Job]) -> bytes:
    """A random seed that the jobs determine."""
    facts = sorted(
        (job.name, job.status.value, job.queued_at, job.started_at or 0.0, amounts_of(job.demand)) for job in jobs
    )
    return hashlib.sha256(repr(facts).encode("utf-8", "replace")).digest()
