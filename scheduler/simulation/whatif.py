"""What another quota file would have done: replays of the last days under the current file and under the other.

Both replay the same jobs with their real durations, without lost nodes or lack of cloud capacity. Jobs submitted in the
window are counted. Jobs that ran or waited at its begin take part. After the window no job arrives, and the replay
continues until the last one has started.

A replay takes at most `work_max` jobs times decisions. If it needs more, a shorter window with the same end is tried,
at most `_TRIES` times. The same arguments give the same answer.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from quota import Policy
from scheduler.model import Job, JobStatus, Snapshot
from scheduler.simulation.future import Future
from scheduler.simulation.replay.yardsticks import percentile
from scheduler.usage_history import UsageHistory

# Seconds between decisions; changes in between are late by at most this.
TICK_SECONDS = 60.0
# After the window, for jobs that wait when it ends.
_PATIENCE_SECONDS = 30 * 86_400.0
# The cost of a decision without any job, in jobs.
_DECISION_JOBS = 5
_TRIES = 3
# The next window, as a fraction of the time that the work sufficed for.
_CAUTION = 0.7
_SHORTEST_SECONDS = 3600.0


@dataclass(frozen=True, slots=True, kw_only=True)
class PastJob:
    """A past job, waiting, as submitted; it runs for `seconds`, and its last attempt began at `began_at`, if ever."""

    job: Job
    seconds: float
    began_at: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Tally:
    """Results for a group of jobs in the window.

    Attributes:
        jobs: Number submitted in the window. The last three include jobs submitted before.
        never: Of these, those that had not started 30 days after the window.
        wait_mean, wait_p50, wait_p95: Seconds from submission to the first start, if any job started.
        evictions: Within the window.
        overtime: Jobs that the maximum runtime cut short.
        held: Unit-seconds within the window by resource type.
    """

    jobs: int = 0
    never: int = 0
    wait_mean: float | None = None
    wait_p50: float | None = None
    wait_p95: float | None = None
    evictions: int = 0
    overtime: int = 0
    held: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplaySummary:
    """One file's replay. `never`: jobs that do not start, by submission, and why."""

    projects: Mapping[str, Tally]
    total: Tally
    never: tuple[tuple[Job, str], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """One window under two files; `begin` is later than requested if the whole took too much work."""

    begin: float
    end: float
    before: ReplaySummary
    after: ReplaySummary


def compare(
    past: Sequence[PastJob],
    before: Policy,
    after: Policy,
    *,
    begin: float,
    end: float,
    work_max: int,
    bastion_slots: int | None = None,
    restart_seconds: Mapping[str, float] | None = None,
    tick: float = TICK_SECONDS,
) -> Comparison | None:
    """Replay the window from `begin` to `end` under both policies; None: even a short window takes too much work.

    Args:
        past: All jobs of the window, and earlier ones that still ran.
        work_max: Jobs times decisions that either replay may take.
        bastion_slots, restart_seconds: See `Snapshot`.
        tick: Seconds between two decisions.
    """
    settings = Snapshot(policy=None, jobs=(), bastion_slots=bastion_slots, restart_seconds=dict(restart_seconds or {}))
    tries, shortest = 0, min(_SHORTEST_SECONDS, end - begin)
    while tries < _TRIES and end - begin >= shortest:
        tries += 1
        summaries = []
        for policy in (before, after):
            replay = _Replay(past, policy, begin=begin, end=end, settings=settings)
            if not replay.run(work_max, tick):
                begin = end - _CAUTION * min(replay.came_to - begin, end - begin)
                break
            summaries.append(replay.summary())
        else:
            return Comparison(begin=begin, end=end, before=summaries[0], after=summaries[1])
    return None


class _Replay:
    def __init__(
        self, past: Iterable[PastJob], policy: Policy, *, begin: float, end: float, settings: Snapshot
    ) -> None:
        self._begin, self._end = begin, end
        self._jobs: dict[str, Job] = {}
        self._cut_short: set[str] = set()
        present, arrivals, left = [], [], {}
        taking_part = [one for one in past if one.seconds > _ran(one, begin) and one.job.queued_at < end]
        names = {one.job.name for one in taking_part}
        for one in taking_part:
            job, most, ran = one.job, policy.rules(one.job.project_id).maximum_runtime_seconds, _ran(one, begin)
            if job.after:
                job = replace(job, after=tuple(name for name in job.after if name in names))
            self._jobs[job.name] = job
            if most is not None and one.seconds > most:
                self._cut_short.add(job.name)
            total = one.seconds if most is None else min(one.seconds, most)
            if ran > 0:
                # On the last tier, which takes no better tier from other jobs.
                tier = max(0, len(policy.tiers) - 1)
                job = replace(job, status=JobStatus.RUNNING, tier=tier, charged=job.demand, started_at=one.began_at)
                present.append(job)
            elif job.queued_at < begin:
                present.append(job)
            else:
                arrivals.append(job)
            left[job.name] = max(0.0, total - max(0.0, ran))
        self._counted = {job.name for job in arrivals}
        self._to_start = self._counted | {job.name for job in present if job.status is JobStatus.PENDING}
        self._future = Future(
            replace(settings, policy=policy, jobs=tuple(present)),
            begin,
            left,
            watched=self._to_start,
            arrivals=arrivals,
            usage=UsageHistory(),
        )

    @property
    def came_to(self) -> float:
        return self._future.now

    def run(self, work_max: int, tick: float) -> bool:
        """Continue until every job has started or never will; False: out of work."""
        future, work = self._future, 0
        while True:
            work += len(future.jobs) + _DECISION_JOBS
            if work > work_max:
                return False
            future.decide()
            if future.now >= self._end and self._to_start <= future.started.keys() | future.refused.keys():
                return True
            if not future.advance_to_change(future.now + tick, self._end + _PATIENCE_SECONDS):
                return True

    def summary(self) -> ReplaySummary:
        future = self._future
        whole: dict[str, float] = defaultdict(float)
        held: dict[str, dict[str, float]] = defaultdict(lambda: defaultdict(float))
        for holding in future.held_until(self._end):
            seconds = max(0.0, min(holding.end, self._end) - max(holding.begin, self._begin))
            for resource, amount in holding.job.charged.items():
                held[holding.job.project_id][resource] += seconds * amount
                whole[resource] += seconds * amount
        evicted = Counter(name for name, instant in future.evicted if instant <= self._end)
        never = sorted(self._to_start - future.started.keys(), key=lambda name: (self._jobs[name].queued_at, name))
        names: dict[str, list[str]] = defaultdict(list)
        for name, job in self._jobs.items():
            names[job.project_id].append(name)

        def tally(members: Collection[str], units: Mapping[str, float]) -> Tally:
            counted = [name for name in members if name in self._counted]
            waits = sorted(
                future.started[name] - self._jobs[name].queued_at for name in counted if name in future.started
            )
            return Tally(
                jobs=len(counted),
                never=len(counted) - len(waits),
                wait_mean=sum(waits) / len(waits) if waits else None,
                wait_p50=percentile(waits, 0.5) if waits else None,
                wait_p95=percentile(waits, 0.95) if waits else None,
                evictions=sum(evicted[name] for name in members),
                overtime=sum(name in self._cut_short and name not in never for name in members),
                held=dict(sorted(units.items())),
            )

        return ReplaySummary(
            projects={project: tally(members, held[project]) for project, members in sorted(names.items())},
            total=tally(self._jobs, whole),
            never=tuple(
                (self._jobs[name], future.refused[name].message if name in future.refused else "never gets capacity")
                for name in never
            ),
        )


def _ran(one: PastJob, begin: float) -> float:
    return begin - one.began_at if one.began_at is not None else 0.0
