"""When waiting jobs start: the scheduler run forward many times with durations drawn at random.

Assumes that nothing is submitted, cancelled or changed, and that no node is lost. A job of unknown duration runs
forever; what it blocks is "unknown". The same arguments and draws give the same answer.

A job that awaits others starts after their end, if they take part.

Cost: about 210 decisions per draw over 30 days, logarithmic in the time (`_affordable_at`). A draw with more changes
merges them, each late by at most a twentieth of the time until then. All draws take at most `decisions_max`; if the
first shows that they need more, each decision counts up to `_COARSEST`-fold. At most `JOBS_AHEAD_MAX` jobs ahead of the
asked ones and `JOBS_BEHIND_MAX` behind them take part, since smaller ones pass.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace

from scheduler.model import JobStatus, Plan, ReasonCode, Snapshot, Verdict
from scheduler.scheduling import schedule
from scheduler.simulation.durations import Durations, Remaining
from scheduler.simulation.future import Future
from scheduler.simulation.simulator import NEVER

# Waiting jobs ahead of the asked ones that take part; behind more there is no estimate.
JOBS_AHEAD_MAX = 1000
# Fewer draws do not show the tails.
DRAWS_MIN = 20
# Waiting jobs behind the asked ones that take part.
JOBS_BEHIND_MAX = 200
# The first decisions are free, the next come one every `_STEP_SECONDS`, the others each `_STEP_PART` of the time later.
_FREE_STEPS = 20
_EVEN_STEPS = 20
_STEP_SECONDS = 30.0
_STEP_PART = 0.05
_COARSEST = 5.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Eta:
    """Percentiles of a job's start in seconds since the epoch, or None for the reason `why`.

    `unknown`: jobs of unknown duration that may have to end first.
    """

    p10: float | None = None
    p50: float | None = None
    p90: float | None = None
    why: str = ""
    draws: int = 0
    unknown: int = 0


def forecast(
    snapshot: Snapshot,
    now: float,
    durations: Durations,
    asked: Collection[str],
    *,
    draws: int,
    draw: Callable[[], float],
    horizon_seconds: float,
    decisions_max: int,
) -> Mapping[str, Eta]:
    """When the asked jobs first start from now on.

    Args:
        asked: Job names; those not waiting in the snapshot get no answer.
        draws: Number of draws, limited by `decisions_max`; below `DRAWS_MIN` there is no estimate.
        draw: Uniform numbers in [0, 1), seeded from the snapshot.
        horizon_seconds: Later counts as never.
        decisions_max: Decisions of the scheduler over all draws.
    """
    waiting = {job.name: job for job in snapshot.jobs if job.status is JobStatus.PENDING and job.name in asked}
    if not waiting:
        return {}
    standing = _Standing(snapshot, schedule(snapshot, now))
    awaited: set[str] = set()
    answers: dict[str, Eta] = {}
    for name in waiting:
        before = standing.awaited(name)
        why = standing.why_never(name, before)
        if why:
            answers[name] = Eta(why=why)
        else:
            awaited |= before
    left = [name for name in waiting if name not in answers]
    if not left:
        return answers
    ahead = max(standing.place.get(name, 0) for name in (*left, *awaited))
    if ahead > JOBS_AHEAD_MAX:
        why = f"{ahead} jobs are ahead of it; the maximum is {JOBS_AHEAD_MAX}"
        return answers | dict.fromkeys(left, Eta(why=why))
    names = {*standing.queue[: ahead + 1 + JOBS_BEHIND_MAX], *left, *awaited}
    names |= standing.following(names)
    jobs = [job for job in snapshot.jobs if job.status is not JobStatus.PENDING or job.name in names]
    starts, tried, unknown = _draw_all(
        replace(snapshot, jobs=tuple(sorted(jobs, key=lambda job: job.name))),
        now,
        durations,
        left,
        draws=draws,
        draw=draw,
        horizon_seconds=horizon_seconds,
        decisions_max=decisions_max,
    )
    return answers | {
        name: _eta(starts[name], tried, unknown, horizon_seconds, decisions_max=decisions_max) for name in left
    }


class _Standing:
    """Where the jobs of a snapshot stand.

    Attributes:
        queue: Names of those that start now or compete for capacity, in order.
        place: By name, the number of those ahead in the queue.
        stuck: By name, the reason of those that wait for something else than capacity and other jobs.
    """

    def __init__(self, snapshot: Snapshot, plan: Plan) -> None:
        self._jobs = {job.name: job for job in snapshot.jobs}
        self.queue: list[str] = []
        self.stuck: dict[str, ReasonCode] = {}
        self._dependents: list[str] = []
        for decision in plan.decisions:
            if decision.verdict is Verdict.START:
                self.queue.append(decision.name)
            elif decision.verdict is Verdict.WAIT and decision.reason is not None:
                code = decision.reason.code
                if code is ReasonCode.WAITING_FOR_DEPENDENCY:
                    self._dependents.append(decision.name)
                elif code is ReasonCode.BACKOFF or (decision.position is not None and code is not ReasonCode.STOCKOUT):
                    self.queue.append(decision.name)
                else:
                    self.stuck[decision.name] = code
        self.place = {name: place for place, name in enumerate(self.queue)}

    def awaited(self, name: str) -> set[str]:
        """Names of all jobs that must end before the job starts; a few more than `JOBS_AHEAD_MAX` at most."""
        found: set[str] = set()
        left = [name]
        while left and len(found) <= JOBS_AHEAD_MAX:
            job = self._jobs.get(left.pop())
            if job is not None and job.status is JobStatus.PENDING:
                new = [other for other in job.after if other not in found]
                found.update(new)
                left += new
        return found

    def why_never(self, name: str, awaited: Collection[str]) -> str:
        """Why there is no estimate for a job that awaits these; empty if there is one."""
        if name in self.stuck:
            return f"not waiting for capacity ({self.stuck[name].value})"
        if len(awaited) > JOBS_AHEAD_MAX:
            return f"more than {JOBS_AHEAD_MAX} jobs must end before it"
        for other in sorted(awaited):
            if other not in self._jobs:
                return f"the end of {other} cannot be estimated"
            if other in self.stuck:
                return f"{other}, which must end before it, is not waiting for capacity ({self.stuck[other].value})"
        return ""

    def following(self, names: Collection[str]) -> set[str]:
        """At most `JOBS_BEHIND_MAX` jobs that await only these, or one another."""
        found: set[str] = set()
        for name in self._dependents:
            if len(found) >= JOBS_BEHIND_MAX:
                break
            after = self._jobs[name].after
            if all(each in names or each in found or self._runs(each) for each in after):
                found.add(name)
        return found

    def _runs(self, name: str) -> bool:
        job = self._jobs.get(name)
        return job is not None and job.status is not JobStatus.PENDING


def _draw_all(
    snapshot: Snapshot,
    now: float,
    durations: Durations,
    asked: Sequence[str],
    *,
    draws: int,
    draw: Callable[[], float],
    horizon_seconds: float,
    decisions_max: int,
) -> tuple[dict[str, list[float]], int, int]:
    """First starts of the asked jobs by draw, the number of complete draws, and of jobs of unknown duration."""
    remaining = {}
    for job in snapshot.jobs:
        if job.status is not JobStatus.STOPPING or job.evicted_for is not None:
            running = job.status is JobStatus.RUNNING and job.started_at is not None
            age = max(0.0, now - (job.started_at or 0.0)) if running else 0.0
            most = snapshot.policy.rules(job.project_id).maximum_runtime_seconds if snapshot.policy else None
            left = durations.remaining(job, age)
            if most is not None:  # then it is stopped for good
                totals = (most,) if left is None else tuple(min(total, most) for total in left.totals)
                left = Remaining(totals=totals, age=min(age, most))
            remaining[job.name] = left
    unknown = sum(left is None and name not in asked for name, left in remaining.items())
    drawing = _Drawing(remaining)
    starts: dict[str, list[float]] = {name: [] for name in asked}
    until, coarseness = now + horizon_seconds, 1.0
    pilot = Future(snapshot, now, drawing.once(draw), watched=asked)
    if not _run(pilot, until, decisions_max, coarseness):
        return starts, 0, unknown
    decisions, tried = decisions_max - pilot.decisions, 0
    if pilot.decisions * draws > decisions:
        coarseness = min(_COARSEST, pilot.decisions * draws / max(1, decisions))
    while tried < draws:
        future = Future(snapshot, now, drawing.once(draw), watched=asked)
        if not _run(future, until, decisions, coarseness):
            break
        decisions -= future.decisions
        tried += 1
        for name in asked:
            starts[name].append(future.started.get(name, NEVER))
    return starts, tried, unknown


class _Drawing:
    """Draws how much longer each job runs, from a resampled history, since jobs that share one share its error."""

    def __init__(self, remaining: Mapping[str, Remaining | None]) -> None:
        alike: dict[tuple[float, ...], list[tuple[str, float]]] = {}
        self._unknown = [name for name, left in remaining.items() if left is None]
        for name, left in remaining.items():
            if left is not None:
                alike.setdefault(left.totals, []).append((name, left.age))
        self._alike = list(alike.items())

    def once(self, draw: Callable[[], float]) -> dict[str, float]:
        """Seconds left by name; infinite if unknown."""
        left = dict.fromkeys(self._unknown, NEVER)
        for totals, jobs in self._alike:
            count = len(totals)
            history = [totals[int(draw() * count)] for _ in range(count)] if count > 1 < len(jobs) else totals
            for name, age in jobs:
                left[name] = history[int(draw() * count)] - age
        return left


def _run(future: Future, until: float, decisions_max: int, coarseness: float) -> bool:
    began = future.now
    while future.decisions < decisions_max:
        future.decide()
        if future.all_started or not future.advance_to_change(
            began + _affordable_at(future.decisions * coarseness), until
        ):
            return True
    return False


def _affordable_at(decisions: float) -> float:
    """Seconds from now before which no further decision is due after this many."""
    paid = decisions - _FREE_STEPS
    if paid <= _EVEN_STEPS:
        return max(0, paid) * _STEP_SECONDS
    return _EVEN_STEPS * _STEP_SECONDS * math.exp(_STEP_PART * (paid - _EVEN_STEPS))


def _eta(starts: Sequence[float], tried: int, unknown: int, horizon_seconds: float, *, decisions_max: int) -> Eta:
    if tried < DRAWS_MIN:
        return Eta(why=f"the forecast needs more than {decisions_max} steps", draws=tried, unknown=unknown)
    ordered = sorted(starts)
    # One more start drawn would be at or before the k-th of n with probability k / (n + 1).
    p10 = ordered[math.floor(0.1 * (tried + 1)) - 1]
    p50 = ordered[math.ceil(0.5 * (tried + 1)) - 1]
    p90 = ordered[math.ceil(0.9 * (tried + 1)) - 1]
    why = ""
    if p90 == NEVER:
        late = f"it may not start within {horizon_seconds / 86_400.0:.0f} days"
        jobs = "a job ahead" if unknown == 1 else f"{unknown} jobs ahead"
        why = f"no duration estimate for {jobs}" if unknown else late
    return Eta(
        p10=None if p10 == NEVER else p10,
        p50=None if p50 == NEVER else p50,
        p90=None if p90 == NEVER else p90,
        why=why,
        draws=tried,
        unknown=unknown,
    )
