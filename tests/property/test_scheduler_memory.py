"""A scheduler that remembers decides as one that was made this instant, through whatever happens between passes."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace

import pytest

from quota import Policy, ProjectRules
from scheduler import Job, JobStatus, Plan, ReasonCode, Scaling, Scheduler, Snapshot, Verdict, schedule

PASSES = 15


class History:
    """Jobs that come, change and go at random, and a quota that changes now and then."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.now = 1e6
        self._jobs: dict[str, Job] = {}
        self._number = 0
        draw = self.random
        kinds = draw.choice((("v4",), ("v4", "v5e")))
        self._kinds = kinds
        self._projects = "abcd"[: draw.randint(1, 4)]
        self._policy = Policy(
            tiers=tuple(dict.fromkeys(kinds, draw.choice((8, 16, 32, 64))) for _ in range(draw.randint(1, 2))),
            weights={p: {kind: float(draw.randint(0, 4)) for kind in kinds} for p in self._projects},
            members=dict.fromkeys(self._projects, ("u.",)),
            project_rules={p: self._rules() for p in self._projects if draw.random() < 0.3},
        )

    def _rules(self) -> ProjectRules:
        draw = self.random
        limits = [{"v4": draw.choice((0, 8, 16))} if draw.random() < 0.4 else {} for _ in range(2)]
        return ProjectRules(
            fifo=draw.random() < 0.3,
            hold=draw.random() < 0.1,
            highest_priority=draw.choice((1, 1, 3)),
            borrowing_limit=limits[0],
            lending_limit=limits[1],
            minimum_runtime_seconds=draw.choice((0.0, 0.0, 20.0, 6000.0)),
        )

    def _scaling(self) -> tuple[Scaling, ...]:
        draw = self.random
        return tuple(
            Scaling(per_replica={draw.choice(self._kinds): draw.choice((1, 2, 8))}, most=draw.choice((0, 1, 4)))
            for _ in range(draw.choice((1, 1, 2)))
        )

    def snapshot(self) -> Snapshot:
        draw = self.random
        jobs = [*self._jobs.values()]
        draw.shuffle(jobs)
        usage = {p: {user: draw.choice((0.0, 5.0, 7.0)) for user in ("u1", "u2")} for p in self._projects}
        return Snapshot(
            policy=self._policy,
            jobs=tuple(jobs),
            bastion_slots=draw.choice((None, 1, 2)),
            held=draw.random() < 0.03,
            submitted_most=draw.choice((1, 3, 3)),
            held_recently={p: {"v4": ((self.now + 1, 8),)} for p in self._projects if draw.random() < 0.2},
            user_usage=usage if draw.random() < 0.5 else {},
        )

    def go_on(self, plan: Plan) -> None:
        """Carries out the plan, and lets things happen."""
        draw = self.random
        self._carry_out(plan)
        self.now += draw.choice((1.0, 10.0, 5000.0, 40_000.0))
        for job in list(self._jobs.values()):
            self._happen(job)
        for _ in range(draw.choice((0, 0, 3, 6))):
            self._number += 1
            demand = {draw.choice(self._kinds): draw.choice((0, 1, 2, 4, 8, 16, 32, 128))}
            job = Job(
                name=f"job-{self._number:03}",
                project_id=draw.choice(self._projects),
                user_id=draw.choice(("u1", "u2", "u3", "stranger")),
                priority=draw.choice((1, 3, 5, 5)),
                queued_at=self.now - draw.choice((0.0, 10.0, 90_000.0)),
                demand=demand if draw.random() < 0.9 else dict.fromkeys(self._kinds, 4),
                on_bastion=draw.random() < 0.1,
                scaling=self._scaling() if draw.random() < 0.3 else (),
            )
            if draw.random() < 0.15:
                job = replace(job, demand={}, on_bastion=False, scaling=(), delegated=True)
            self._jobs[job.name] = job
        if draw.random() < 0.1:
            tiers = tuple({kind: max(1, units // 2) for kind, units in t.items()} for t in self._policy.tiers)
            self._policy = replace(self._policy, tiers=tiers)

    def _carry_out(self, plan: Plan) -> None:
        for decision in plan.acting:
            job = self._jobs[decision.name]
            if decision.verdict is Verdict.START:
                started = replace(
                    job, status=JobStatus.RUNNING, tier=decision.tier, started_at=self.now, promised=False
                )
                self._jobs[job.name] = resized(started, decision.extra)
            elif decision.verdict is Verdict.RESIZE and decision.evicted_for is None:
                self._jobs[job.name] = resized(job, decision.extra)
            elif decision.verdict is Verdict.RESIZE:
                left = replace(resized(job, decision.extra), charged=job.charged, shrinking_for=decision.evicted_for)
                self._jobs[job.name] = left
            elif decision.verdict is Verdict.EVICT:
                self._jobs[job.name] = replace(job, status=JobStatus.STOPPING, evicted_for=decision.evicted_for)
        for job in list(self._jobs.values()):
            promised = job.name in plan.promised
            if job.status is JobStatus.PENDING and job.promised is not promised:
                self._jobs[job.name] = replace(job, promised=promised)

    def _happen(self, job: Job) -> None:
        chance = self.random.random()
        if chance < 0.06 or (job.status is JobStatus.STOPPING and job.evicted_for is None and chance < 0.5):
            del self._jobs[job.name]
        elif job.status is JobStatus.STOPPING and chance < 0.5:
            self._jobs[job.name] = replace(
                job,
                status=JobStatus.PENDING,
                tier=None,
                charged={},
                started_at=None,
                evicted_for=None,
                shrinking_for=None,
                scaling=tuple(replace(scaling, extra=0) for scaling in job.scaling),
                evictions=job.evictions + 1,
                futile_evictions=job.futile_evictions + (job.checkpointed_at is None),
                evicted_at=self.now,
            )
        elif job.status is JobStatus.PENDING and chance < 0.12:
            later = self.now + self.random.choice((-5.0, 5.0, 30.0))
            self._jobs[job.name] = replace(job, not_before=later, stockout=chance < 0.09)
        elif job.status is JobStatus.PENDING and chance < 0.15 and not job.delegated:
            self._jobs[job.name] = replace(job, priority=1, demand={"v4": 8})
        elif job.shrinking_for is not None and chance < 0.5:
            gone = resized(job, [scaling.extra for scaling in job.scaling])
            self._jobs[job.name] = replace(gone, shrinking_for=None)
        elif job.status is JobStatus.RUNNING and chance < 0.12:
            self._jobs[job.name] = replace(job, checkpointed_at=self.now)


def resized(job: Job, extra: Sequence[int]) -> Job:
    """The job with so many extra replicas, and nothing besides."""
    charged = Counter(job.demand)
    for scaling, count in zip(job.scaling, extra, strict=True):
        charged.update({kind: count * units for kind, units in scaling.per_replica.items()})
    scalings = tuple(replace(scaling, extra=count) for scaling, count in zip(job.scaling, extra, strict=True))
    return replace(job, charged=dict(charged), scaling=scalings)


@pytest.mark.parametrize("seed", range(40))
def test_what_is_remembered_never_shows(seed: int) -> None:
    history, remembering = History(seed), Scheduler()
    for _ in range(PASSES):
        snapshot = history.snapshot()
        plan = remembering.schedule(snapshot, history.now)
        assert plan.to_json() == schedule(snapshot, history.now).to_json()
        history.go_on(plan)


@pytest.mark.parametrize("seed", range(5))
def test_a_plan_tells_the_same_after_later_passes(seed: int) -> None:
    history, remembering = History(seed), Scheduler()
    kept: list[tuple[Snapshot, float, Plan]] = []
    for _ in range(PASSES):
        snapshot = history.snapshot()
        kept.append((snapshot, history.now, remembering.schedule(snapshot, history.now)))
        history.go_on(kept[-1][2])
    for snapshot, now, plan in kept:
        assert plan.to_json() == schedule(snapshot, now).to_json()


@pytest.mark.parametrize("seed", range(40, 80))
def test_with_elastic_jobs_nothing_is_over_committed_and_replicas_go_before_jobs(seed: int) -> None:
    history, scheduler = History(seed), Scheduler()
    for _ in range(PASSES):
        snapshot = history.snapshot()
        plan = scheduler.schedule(snapshot, history.now)
        before = {kind: sum(job.charged.get(kind, 0) for job in snapshot.jobs) for kind in plan.pool}
        for kind, pool in plan.pool.items():
            assert pool.used <= max(pool.total, before[kind])
            assert pool.used == sum(usage.usage.get(kind, 0) for usage in plan.projects.values())
        jobs = {job.name: job for job in snapshot.jobs}
        for decision in plan.acting:
            scalings = jobs[decision.name].scaling
            assert all(0 <= count <= one.most for count, one in zip(decision.extra, scalings, strict=False))
        claimants = {one.evicted_for for one in plan.acting if one.verdict is Verdict.EVICT} - {None}
        if len(plan.promised) == 1 and claimants == plan.promised:
            (name,) = claimants
            # Where a job takes the place of others of its own project, the pool lacks nothing.
            others = {jobs[one.name].project_id for one in plan.acting if one.verdict is Verdict.EVICT}
            if jobs[str(name)].project_id not in others:
                assert lacks_more_than_replicas(snapshot, plan, jobs[str(name)])
        history.go_on(plan)


def lacks_more_than_replicas(snapshot: Snapshot, plan: Plan, claimant: Job) -> bool:
    """Whether all extra replicas together would not have made the room for which jobs are stopped."""
    for kind, units in claimant.demand.items():
        replicas = sum(
            scaling.extra * scaling.per_replica.get(kind, 0)
            for job in snapshot.jobs
            if job.status is JobStatus.RUNNING and job.shrinking_for is None
            for scaling in job.scaling
        )
        if units > replicas + plan.pool[kind].total - plan.pool[kind].used:
            return True
    return False


def test_where_nothing_happens_the_plan_stays() -> None:
    job = Job(
        name="r", project_id="a", user_id="u1", queued_at=0.0, demand={"v4": 8}, started_at=0.0, charged={"v4": 8}
    )
    jobs = (replace(job, status=JobStatus.RUNNING), replace(job, name="x", charged={}, started_at=None))
    quota = Policy(tiers=({"v4": 8},), weights={"a": {"v4": 1.0}}, members={"a": ("u1",)})
    remembering = Scheduler()
    plan = remembering.schedule(Snapshot(policy=quota, jobs=jobs), 100.0)
    assert remembering.schedule(Snapshot(policy=quota, jobs=jobs), 200.0) is plan
    assert remembering.schedule(Snapshot(policy=quota, jobs=jobs[:1]), 300.0) is not plan


QUOTA = Policy(tiers=({"v4": 8},), weights={"a": {"v4": 1.0}}, members={"a": ("u1",)})
FULL = Job(
    name="r",
    project_id="a",
    user_id="u1",
    queued_at=0.0,
    demand={"v4": 8},
    status=JobStatus.RUNNING,
    charged={"v4": 8},
    started_at=0.0,
)
WAITING = Job(name="x", project_id="a", user_id="u1", queued_at=0.0, demand={"v4": 8})


def same_plans(*snapshots: tuple[float, Snapshot]) -> list[Plan]:
    """The plans of one that remembers, after a look that they are those of one that does not."""
    remembering, plans = Scheduler(), []
    for now, snapshot in snapshots:
        plans.append(remembering.schedule(snapshot, now))
        assert plans[-1].to_json() == schedule(snapshot, now).to_json()
    return plans


def test_when_the_clock_goes_back_a_backoff_that_was_over_lasts_again() -> None:
    snapshot = Snapshot(policy=QUOTA, jobs=(FULL, replace(WAITING, not_before=150.0)))
    plans = same_plans((100.0, snapshot), (200.0, snapshot), (120.0, snapshot), (160.0, snapshot))
    told = [plan.waiting[0].reason for plan in plans]
    assert [ReasonCode.BACKOFF in reason.also for reason in told if reason] == [True, False, True, False]


def test_when_users_turn_back_to_an_earlier_order_so_does_the_queue() -> None:
    quota = replace(QUOTA, members={"a": ("u.",)})
    jobs = (FULL, WAITING, replace(WAITING, name="y", user_id="u2", queued_at=1.0))
    before = Snapshot(policy=quota, jobs=jobs)
    after = replace(before, user_usage={"a": {"u1": 5.0}})
    plans = same_plans((100.0, before), (200.0, after), (300.0, before), (400.0, after))
    assert [[decision.name for decision in plan.waiting] for plan in plans] == [["x", "y"], ["y", "x"]] * 2


def test_a_claim_that_nobody_noted_ends_with_its_victims() -> None:
    victim = replace(FULL, status=JobStatus.STOPPING, evicted_for="x")
    urgent = replace(WAITING, name="y", priority=1)
    first, second = same_plans(
        (100.0, Snapshot(policy=QUOTA, jobs=(victim, WAITING))), (200.0, Snapshot(policy=QUOTA, jobs=(WAITING, urgent)))
    )
    assert first.promised == {"x"}
    assert [decision.name for decision in second.acting] == ["y"]


@pytest.mark.parametrize(
    "job", [replace(WAITING, user_id="stranger"), replace(WAITING, demand={"v4": 9})], ids=["refused", "too large"]
)
@pytest.mark.parametrize("rules", [{}, {"a": ProjectRules(borrowing_limit={"v4": 0})}], ids=["no rules", "limit"])
def test_a_job_that_could_not_start_anyway_is_told_when_its_backoff_is_over(
    job: Job, rules: dict[str, ProjectRules]
) -> None:
    quota = replace(QUOTA, tiers=({"v4": 16},), weights={p: {"v4": 1.0} for p in "ab"}, project_rules=rules)
    snapshot = Snapshot(policy=quota, jobs=(replace(job, not_before=150.0), FULL))
    same_plans((100.0, snapshot), (140.0, snapshot), (200.0, snapshot), (300.0, snapshot))


def test_a_snapshot_that_is_refused_does_not_spoil_what_is_remembered() -> None:
    history, remembering = History(3), Scheduler()
    for _ in range(5):
        snapshot = history.snapshot()
        plan = remembering.schedule(snapshot, history.now)
        history.go_on(plan)
        if snapshot.jobs:
            with pytest.raises(ValueError, match="same name"):
                remembering.schedule(replace(snapshot, jobs=(*snapshot.jobs, snapshot.jobs[0])), history.now)
    snapshot = history.snapshot()
    plan = remembering.schedule(snapshot, history.now)
    assert plan.to_json() == schedule(snapshot, history.now).to_json()
