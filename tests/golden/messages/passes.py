"""Passes that together give every reason, start, resize and eviction message of the scheduler."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

from quota import Policy, ProjectRules
from scheduler import Job, JobStatus, Plan, Scaling, Snapshot, Verdict, schedule

NOW = 1_000_000.0
HOUR = 3600.0
DAY = 24 * HOUR


def policy(rules: ProjectRules | None = None, total: int = 64, **own: ProjectRules) -> Policy:
    """Projects a and b with half of the pool each, and c without a share."""
    return Policy(
        tiers=({"v4": total},),
        weights={"a": {"v4": 1.0}, "b": {"v4": 1.0}},
        members=dict.fromkeys(("a", "b", "c"), ("u",)),
        default_rules=rules or ProjectRules(),
        project_rules=own,
    )


def pending(name: str, project: str, units: int, **fields: Any) -> Job:
    values = {"user_id": "u", "queued_at": NOW - 60.0, "demand": {"v4": units} if units else {}, **fields}
    return Job(name=name, project_id=project, **values)


def running(name: str, project: str, units: int, **fields: Any) -> Job:
    values = {"tier": 0, "charged": {"v4": units}, "started_at": NOW - HOUR, "status": JobStatus.RUNNING, **fields}
    return pending(name, project, units, **values)


def stopping(name: str, project: str, units: int, **fields: Any) -> Job:
    return running(name, project, units, status=JobStatus.STOPPING, **fields)


def elastic(name: str, project: str, units: int, extra: int, **fields: Any) -> Job:
    scaling = (Scaling(per_replica={"v4": 8}, most=8, extra=extra),)
    return running(name, project, units, scaling=scaling, **{"charged": {"v4": units + 8 * extra}, **fields})


def passes() -> Iterator[tuple[str, Snapshot]]:
    """Titles and snapshots; the pass is at `NOW`."""

    def one(title: str, quota: Policy | None, *jobs: Job, **fields: Any) -> tuple[str, Snapshot]:
        return title, Snapshot(policy=quota, jobs=jobs, **fields)

    late = {"queued_at": NOW - 2 * DAY}
    host = {"on_bastion": True}
    limited = ProjectRules(borrowing_limit={"v4": 8})
    yield one("no quota file", None, pending("j", "a", 8))
    yield one("the pool is held", policy(), pending("j", "a", 8), held=True)
    yield one("a held project", policy(ProjectRules(hold=True)), pending("j", "a", 8))
    strict = ProjectRules(highest_priority=2, instance_types=("tpu-v5p-*",), allow_bastion_jobs=False)
    yield one(
        "jobs that are not allowed",
        policy(a=strict),
        pending("root", "b", 8, instance_type="tpu-v4-8", root=True),
        pending("host", "a", 0, on_bastion=True),
        pending("cleanup", "a", 8, instance_type="tpu-v5p-8", cleanup=True),
        pending("type", "a", 8, instance_type="tpu-v4-8"),
        pending("first", "a", 8, instance_type="tpu-v5p-8", priority=1),
    )
    yield one("a held job", policy(), pending("j", "a", 8, hold="nothing serves v4 here"))
    after = {"after": ("train",)}
    yield one("after a job that runs", policy(), running("train", "a", 8), pending("j", "a", 8, **after))
    yield one(
        "after several", policy(), pending("j", "a", 8, after=tuple("abcde")), pending("k", "a", 0, after=("x", "y"))
    )
    yield one("after a job, in a full pool", policy(), running("r", "b", 64), pending("j", "c", 8, **after))
    yield one(
        "after a job, behind more than is in use",
        policy(),
        running("r", "b", 8),
        pending("w", "c", 64),
        pending("j", "c", 64, **after),
    )
    yield one("after a job, too large", policy(), pending("j", "c", 128, **after))
    yield one("after a job, above the limit", policy(limited), pending("j", "c", 16, **after))
    yield one("after a job, at the limit", policy(limited), running("r", "c", 8), pending("j", "c", 8, **after))
    yield one(
        "after a job, in order",
        policy(c=ProjectRules(fifo=True)),
        running("r", "b", 64),
        pending("w", "c", 8, priority=1),
        pending("j", "c", 8, priority=5, **after),
    )
    yield one(
        "after a job, without a slot",
        policy(),
        running("r", "a", 0, **host),
        pending("j", "a", 0, **host, **after),
        bastion_slots=1,
    )
    yield one("after a job, in a backoff", policy(), pending("j", "a", 8, not_before=NOW + 60, **after))
    yield one(
        "after a job, and Kueue has enough", policy(), pending("j", "a", 0, delegated=True, **after), submitted_most=0
    )
    yield one("not a member", policy(), pending("j", "a", 8, user_id="x"), pending("k", "gone", 8))
    yield one("an unknown type", policy(), pending("j", "a", 0, demand={"v9": 8}))
    yield one("no types", Policy(tiers=(), weights={}, members={"a": ("u",)}), pending("j", "a", 8))
    yield one("larger than the pool", policy(), pending("j", "a", 128))
    yield one("larger than a borrowing limit", policy(limited), pending("j", "a", 48))
    yield one("larger than what others lend", policy(b=ProjectRules(lending_limit={"v4": 8})), pending("j", "a", 48))
    yield one("a lost attempt", policy(), pending("j", "a", 8, not_before=NOW + 60))
    yield one("no capacity in the cloud", policy(), pending("j", "a", 8, not_before=NOW + 60, stockout=True))
    yield one("a backoff without an end", policy(), pending("j", "a", 8, not_before=math.inf))
    yield one("a backoff in a full pool", policy(), running("r", "b", 64), pending("j", "c", 8, not_before=NOW + 60))
    futile = {"evictions": 2, "futile_evictions": 2, "evicted_at": NOW - 60, "evicted_seconds": HOUR}
    yield one("a cooldown", policy(), pending("j", "c", 8, **futile))
    yield one("within the share, and borrowed", policy(), pending("j", "a", 8), pending("k", "c", 8))
    kueue = {"demand": {}, "delegated": True}
    yield one(
        "jobs that Kueue decides on",
        policy(),
        running("r", "a", 0, charged={}, **kueue),
        *(pending(name, "a", 0, queued_at=NOW - age, **kueue) for name, age in (("j", 60), ("k", 50), ("l", 40))),
        pending("m", "a", 0, queued_at=NOW - 30, **kueue),
        pending("n", "a", 0, not_before=NOW + 60, **kueue),
        submitted_most=2,
    )
    yield one(
        "a project with many jobs that Kueue decides on",
        policy(),
        *(running(f"r{n}", "a", 0, charged={}, **kueue) for n in range(9)),
        pending("j", "a", 0, **kueue),
        submitted_most=10,
    )
    yield one("an owner comes back", policy(), running("r", "a", 64), pending("j", "b", 8), pending("k", "b", 32))
    yield one("a claim is free", policy(), running("r", "a", 32), pending("j", "b", 32, promised=True))
    yield one("behind a job of its project", policy(), *awaiting(), pending("k", "a", 16, queued_at=NOW - 60))
    yield one(
        "behind a claim of its project",
        policy(),
        *(stopping("v", "b", 8, evicted_for="j"), running("r", "b", 32)),
        *(pending("j", "a", 32, promised=True, priority=1), pending("k", "a", 8, priority=5)),
    )
    yield one(
        "a long queue", policy(total=32), running("r", "a", 32), *(pending(name, "a", 32) for name in ("j", "k", "l"))
    )
    yield one(
        "a user's slot and units",
        policy(total=72),
        *(running("s", "a", 0, charged={}, **host), running("r", "a", 30), running("q", "b", 30)),
        *(pending("j", "a", 6, queued_at=100.0), pending("k", "a", 8, queued_at=200.0, **host)),
        bastion_slots=1,
    )
    yield one("behind a claim", policy(), *claim(), pending("k", "b", 16, priority=5))
    yield one("victims of several", policy(), running("r", "a", 64), pending("j", "b", 32), pending("k", "a", 8))
    yield one("what ends is enough", policy(), stopping("s", "a", 40), running("r", "a", 24), pending("j", "b", 32))
    yield one(
        "a project whose job awaits what ends",
        policy(),
        *(stopping("s", "a", 16), running("r", "a", 32), pending("x", "b", 32), pending("y", "b", 0, demand={"v4": 8})),
    )
    yield one("own share in use", policy(), running("r", "a", 32), running("s", "b", 32), pending("j", "a", 8))
    yield one(
        "a queue",
        policy(),
        *(running("r", "a", 32), running("s", "b", 32)),
        *(pending(name, "c", 8, queued_at=NOW - age) for name, age in (("j", 60), ("k", 50), ("l", 40))),
    )
    recent = {"b": {"v4": ((NOW + 60, 32), (math.inf, 0))}}
    yield one("reserved", policy(), running("r", "a", 32), pending("j", "c", 16), held_recently=recent)
    yield one("reserved in part", policy(), running("r", "a", 40), pending("j", "c", 40), held_recently=recent)
    lent = policy(b=ProjectRules(lending_limit={"v4": 8}))
    yield one("not lent", lent, running("r", "a", 32), pending("j", "c", 16))
    yield one("all slots in use", policy(), pending("j", "a", 0, **host), bastion_slots=0)
    yield one(
        "a user's slots",
        policy(),
        *(running(f"r{n}", "a", 0, charged={}, **host) for n in range(2)),
        *(pending("j", "a", 0, **host), pending("k", "a", 0, **host)),
        bastion_slots=3,
    )
    yield one(
        "a user's one slot",
        policy(),
        running("r", "a", 0, charged={}, **host),
        pending("j", "a", 0, **host),
        bastion_slots=2,
    )
    yield one("a slot and units", policy(), running("r", "b", 64), pending("j", "c", 8, **host), bastion_slots=0)
    fifo = policy(ProjectRules(fifo=True))
    yield one("in order", fifo, running("r", "b", 40), pending("j", "c", 32, queued_at=NOW - 90), pending("k", "c", 8))
    yield one(
        "behind an overdue job",
        policy(),
        *(running("r", "a", 24), running("s", "b", 32)),
        *(pending("j", "a", 32, priority=1, **late), pending("k", "a", 16, priority=5)),
    )
    yield one(
        "the limit of a project", policy(limited), running("r", "a", 40), pending("j", "a", 8), pending("k", "a", 8)
    )
    yield one("an overdue job starts", policy(), running("r", "a", 24), pending("j", "c", 16, **late))
    loans = (running(f"r{number}", "a", 16) for number in range(4))
    yield one("a recall", policy(), *loans, pending("j", "c", 16, **late))
    short = policy(ProjectRules(minimum_runtime_seconds=60))
    lower = running("r", "a", 32, priority=5)
    yield one("a higher priority", short, lower, running("s", "b", 32), pending("j", "a", 32, priority=1))
    yield one("a higher priority, and free units", short, lower, pending("j", "a", 32, priority=1, demand={"v4": 32}))
    bound = policy(ProjectRules(minimum_runtime_seconds=60, borrowing_limit={"v4": 0}))
    yield one("a higher priority at the limit", bound, lower, pending("j", "a", 8, priority=1))
    yield one("extra replicas", policy(), elastic("e", "a", 8, 0), pending("j", "c", 8))
    yield one("extra replicas go back", policy(), elastic("e", "a", 8, 7), pending("j", "b", 16))
    yield one("replicas and jobs go", policy(), elastic("e", "a", 8, 2), running("r", "a", 40), pending("j", "b", 32))
    shrinking = elastic("e", "a", 8, 2, charged={"v4": 40}, shrinking_for="gone")
    yield one("replicas on their way", policy(), shrinking, running("r", "b", 16), pending("j", "b", 16))


def awaiting() -> tuple[Job, ...]:
    return stopping("s", "a", 24), running("r", "b", 24), pending("j", "a", 24, queued_at=NOW - 90)


def claim() -> tuple[Job, ...]:
    victim = stopping("v", "a", 32, evicted_for="j")
    return running("r", "a", 32), victim, pending("j", "b", 32, promised=True, priority=1)


def lines(title: str, plan: Plan) -> Iterator[str]:
    yield f"\n# {title}"
    for decision in plan.decisions:
        if decision.reason is not None:
            reason = decision.reason
            yield f"{decision.name} waits: {reason.code.value}: {reason.message}"
            yield f"    until {reason.unblock}"
        elif decision.message:
            verb = {Verdict.START: "starts", Verdict.EVICT: "is evicted", Verdict.RESIZE: "is resized"}
            yield f"{decision.name} {verb[decision.verdict]}: {decision.message}"


def text() -> str:
    """The golden text."""
    return "\n".join(line for title, snapshot in passes() for line in lines(title, schedule(snapshot, NOW))) + "\n"
