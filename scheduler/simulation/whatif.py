"""What another quota file would have done: the last days under the file in force, and under the other.

Layer: `scheduler`, pure. Both files get the same jobs at the same instants, with the durations that they really had,
and the scheduler decides (`Future`); so what differs is the files' doing. The file in force is replayed too, and not
what happened: the replay knows no lost node and no lack of capacity in the cloud.

Counted are the jobs submitted in the window. Those that ran or waited when it begins take part, and make the others
wait as they did. After the window nobody comes any more, and the replay goes on until the last job has started.

Cost: every decision costs in proportion to the jobs that wait or run. A replay takes `work_max` jobs times decisions at
most; a window that takes more gives way to a shorter one with the same end, at most `_TRIES` times.

Invariant: the same arguments give the same answer.
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

# What changes between two decisions is late by so much at most.
TICK_SECONDS = 60.0
# After the window, for jobs that wait when it ends.
_PATIENCE_SECONDS = 30 * 86_400.0
# What a decision costs without any job, in jobs.
_DECISION_JOBS = 5
_TRIES = 3
# How much shorter than what the work sufficed for the next window is.
_CAUTION = 0.7
_SHORTEST_SECONDS = 3600.0


@dataclass(frozen=True, slots=True, kw_only=True)
class PastJob:
    """A job as it came.

    Attributes:
        job: Waiting, with its `queued_at`; names are unique.
        seconds: How long it runs if nobody stops it.
        began_at: When it really started, for good; None: it never has.
    """

    job: Job
    seconds: float
    began_at: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Tally:
    """What became of some jobs in the window.

    Attributes:
        jobs: Submitted in the window.
        never: Of these, those that no capacity could start, or that had not started 30 days after the window.
        wait_mean, wait_p50, wait_p95: Seconds from submission to the first start, of those that started; None: of none.
        evictions: Within the window, of jobs that were submitted before as well.
        overtime: Jobs that the maximum runtime of their project cut short; likewise.
        held: Unit-seconds within the window by resource type; likewise.
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
    """One file's replay. `never`: the jobs that do not start, in order of submission, and why."""

    projects: Mapping[str, Tally]
    total: Tally
    never: tuple[tuple[Job, str], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """The same window under two files. `begin` is later than asked where the whole window took too much work."""

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
    """Replays the window from `begin` to `end` under both policies; None: even a short one takes too much work.

    Args:
        past: All jobs of the window, and those before it that still ran.
        before: One policy.
        after: The other.
        begin: Where the window begins.
        end: Where it ends.
        work_max: How many jobs times decisions either replay may take.
        bastion_slots: `Snapshot.bastion_slots`.
        restart_seconds: `Snapshot.restart_seconds`.
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
    """One window under one policy."""

    def __init__(
        self, past: Iterable[PastJob], policy: Policy, *, begin: float, end: float, settings: Snapshot
    ) -> None:
        """`settings`: a snapshot without a policy and jobs."""
        self._begin, self._end = begin, end
        self._running: list[Job] = []
        self._jobs: dict[str, Job] = {}
        self._cut_short: set[str] = set()
        present, arrivals, left = [], [], {}
        for one in past:
            job, most = one.job, policy.rules(one.job.project_id).maximum_runtime_seconds
            ran = begin - one.began_at if one.began_at is not None else 0.0
            if one.seconds <= ran or job.queued_at >= end:
                continue
            self._jobs[job.name] = job
            if most is not None and one.seconds > most:
                self._cut_short.add(job.name)
            total = one.seconds if most is None else min(one.seconds, most)
            if ran > 0:
                # On the last tier, which takes room from nobody who could have a better one.
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
        """The instant that it has reached."""
        return self._future.now

    def run(self, work_max: int, tick: float) -> bool:
        """Goes on until every job has started, or never will; False: that takes more work."""
        future, work = self._future, 0
        while True:
            work += len(future.jobs) + _DECISION_JOBS
            if work > work_max:
                return False
            future.decide()
            if future.now >= self._end and self._to_start <= future.started.keys() | future.refused.keys():
                return True
            if not future.advance(future.now + tick, self._end + _PATIENCE_SECONDS):
                return True

    def summary(self) -> ReplaySummary:
        """What became of the jobs."""
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
                (self._jobs[name], future.refused[name].message if name in future.refused else "there is never room")
                for name in never
            ),
        )
