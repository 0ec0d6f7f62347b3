"""Snapshots of any pool, quota and jobs for the property tests of the scheduler, and what comes of their plans."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st

from quota import Policy, ProjectRules
from scheduler import Decision, Job, JobStatus, Plan, ReasonCode, Snapshot, Verdict

NOW = 10_000.0
# Who was queued so much earlier has waited for more than a day.
OVERDUE = 90_000.0
PROJECTS = ("a", "b", "c")
USER = "u"
OTHER_USER = "w"

settings.register_profile(
    "scheduler", max_examples=80, deadline=None, suppress_health_check=[HealthCheck.filter_too_much]
)
SETTINGS = settings.get_profile("scheduler")


def policy_of(
    tiers: tuple[dict[str, int], ...],
    weights: dict[str, dict[str, float]],
    rules: dict[str, ProjectRules] | None = None,
) -> Policy:
    return Policy(
        tiers=tiers, weights=weights, members=dict.fromkeys(PROJECTS, (USER, OTHER_USER)), project_rules=rules or {}
    )


@st.composite
def project_rules(draw: st.DrawFn, kinds: tuple[str, ...]) -> ProjectRules:
    limits = st.dictionaries(st.sampled_from(kinds), st.sampled_from((0, 4, 8, 24)), max_size=len(kinds))
    return ProjectRules(
        fifo=draw(st.integers(0, 2)) == 0,
        hold=draw(st.integers(0, 7)) == 0,
        highest_priority=draw(st.sampled_from((1, 1, 1, 3))),
        instance_types=draw(st.sampled_from((None, None, None, ("tpu-v4-*",)))),
        allow_bastion_jobs=draw(st.integers(0, 7)) != 0,
        borrowing_limit=draw(st.one_of(st.just({}), limits)),
        lending_limit=draw(st.one_of(st.just({}), limits)),
        user_weights={OTHER_USER: 3.0},
    )


@st.composite
def policies(draw: st.DrawFn, kinds: tuple[str, ...] = ("v4", "v5e")) -> Policy:
    tiers = draw(
        st.lists(
            st.fixed_dictionaries({kind: st.sampled_from((0, 8, 16, 33, 64)) for kind in kinds}), min_size=1, max_size=3
        )
    )
    weights = {project: {kind: draw(st.sampled_from((0.0, 0.2, 1.0, 3.0))) for kind in kinds} for project in PROJECTS}
    rules = {project: draw(project_rules(kinds)) for project in PROJECTS} if draw(st.booleans()) else {}
    return policy_of(tuple(tiers), weights, rules)


def demands(kinds: tuple[str, ...]) -> st.SearchStrategy[dict[str, int]]:
    return st.dictionaries(st.sampled_from(kinds), st.sampled_from((1, 4, 8, 16, 24, 48)), max_size=len(kinds))


@st.composite
def snapshots(
    draw: st.DrawFn,
    *,
    kinds: tuple[str, ...] = ("v4", "v5e"),
    overfull: bool = True,
    claims: bool = True,
    backoff: bool = True,
    slots: bool = True,
    overdue: bool = True,
) -> Snapshot:
    """Snapshots with incumbents that may exceed the pool (`overfull`), and with promises in flight (`claims`).

    Some jobs have waited for more than a day (`overdue`).
    """
    policy = draw(policies(kinds))
    count = draw(st.integers(0, 14))
    room = {kind: policy.total(kind) for kind in kinds}
    jobs = []
    for index in range(count):
        demand = draw(demands(kinds))
        status = draw(st.sampled_from(JobStatus))
        if not overfull and any(room[kind] < amount for kind, amount in demand.items()):
            status = JobStatus.PENDING
        holds = status is not JobStatus.PENDING
        if holds:
            for kind, amount in demand.items():
                room[kind] -= amount
        on_bastion = slots and draw(st.integers(0, 4)) == 0
        jobs.append(
            Job(
                name=f"j{index:02}",
                project_id=draw(st.sampled_from(PROJECTS)),
                user_id=draw(st.sampled_from((USER, USER, OTHER_USER))),
                priority=draw(st.sampled_from((1, 5))),
                queued_at=float(draw(st.integers(0, 20)))
                - (OVERDUE if overdue and draw(st.integers(0, 5)) == 0 else 0.0),
                demand=demand,
                status=status,
                tier=draw(st.integers(0, 2)) if holds else None,
                charged=demand if holds else {},
                started_at=float(draw(st.integers(100, 9_000))) if holds else None,
                not_before=draw(st.sampled_from((None, None, NOW - 1, NOW + 60))) if backoff and not holds else None,
                evicted_for=f"j{draw(st.integers(0, count)):02}"
                if claims and status is JobStatus.STOPPING and draw(st.booleans())
                else None,
                on_bastion=on_bastion,
                instance_type="" if on_bastion else draw(st.sampled_from(("tpu-v4-8", "tpu-v4-16", "gpu-h100-8"))),
                promised=claims and not holds and draw(st.integers(0, 5)) == 0,
            )
        )
    used = st.fixed_dictionaries({user: st.sampled_from((0.0, 10.0, 25.0)) for user in (USER, OTHER_USER)})
    return Snapshot(
        policy=policy,
        jobs=tuple(jobs),
        bastion_slots=draw(st.sampled_from((None, 1, 3))),
        user_usage=draw(st.one_of(st.just({}), st.fixed_dictionaries(dict.fromkeys(PROJECTS, used)))),
    )


def decisions(plan: Plan) -> dict[str, Decision]:
    return {decision.name: decision for decision in plan.decisions}


def is_allowed(policy: Policy, job: Job) -> bool:
    """Whether the rules of its project allow what the job asks for, told in another way than the scheduler does."""
    rules = policy.rules(job.project_id)
    if rules.highest_priority > job.priority:
        return False
    if not job.instance_type:
        return rules.allow_bastion_jobs
    return rules.instance_types is None or job.instance_type.startswith("tpu-v4-")


def code(decision: Decision) -> ReasonCode | None:
    return decision.reason.code if decision.reason else None


def carried_out(snapshot: Snapshot, plan: Plan, passed_at: float = NOW) -> Snapshot:
    """The snapshot of the next pass if nothing else happens and nothing has stopped yet."""
    decided = decisions(plan)

    def next_of(job: Job) -> Job:
        decision = decided[job.name]
        match decision.verdict:
            case Verdict.START:
                return replace(
                    job,
                    status=JobStatus.RUNNING,
                    tier=decision.tier,
                    charged=job.demand,
                    started_at=NOW,
                    promised=False,
                )
            case Verdict.EVICT:
                return replace(job, status=JobStatus.STOPPING, evicted_for=decision.evicted_for)
            case Verdict.WAIT:
                promised = code(decision) is ReasonCode.WAITING_FOR_PREEMPTED
                since = job.waiting_since if promised == job.promised else passed_at
                return replace(job, promised=promised, waiting_since=since)
            case _:
                return job

    return replace(snapshot, jobs=tuple(next_of(job) for job in snapshot.jobs))
