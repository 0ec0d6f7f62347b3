"""The scheduler's vocabulary: what a pass is given, and what it answers.

Layer: pure values, above `quota` only. Nothing here knows a bucket, a node or a clock: instants are seconds since
the epoch, amounts are units of quota per resource type, and all of it comes from the caller.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import Enum
from functools import cached_property
from types import MappingProxyType

from quota import Policy

# What a project held of late: (until when so much counts, units), the units falling; `math.inf` for what it holds now.
RecentUnits = tuple[tuple[float, int], ...]

# Shared by all that have none.
NOTHING: Mapping[str, int] = MappingProxyType({})


class JobStatus(str, Enum):
    """What a job does, as far as capacity is concerned."""

    PENDING = "pending"  # wants to run and holds nothing
    RUNNING = "running"  # holds `charged`, from the intent to create its first node on
    STOPPING = "stopping"  # evicted or ending; still holds `charged` until its last node is confirmed gone


@dataclass(frozen=True, slots=True, kw_only=True)
class Scaling:
    """Replicas that an elastic job can use beyond its minimum.

    Attributes:
        per_replica: Units of each of them.
        most: How many of them it can use, at least 0.
        extra: Of a RUNNING job: how many it has, without those that it is giving back.
    """

    per_replica: Mapping[str, int]
    most: int
    extra: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """One job of the snapshot.

    Attributes:
        name: Unique in a snapshot.
        priority: 1 is the highest, 5 the lowest.
        queued_at: When its spec was accepted.
        demand: Units it needs to run, all types at once; may be empty. Amounts of 0 ask for nothing. Of an elastic job
            its minimum.
        tier: The tier that a RUNNING or STOPPING job runs on; one that the policy no longer has counts as its last.
        charged: What a RUNNING or STOPPING job holds now; usually equal to `demand`. Of an elastic job with its extra
            replicas, those included that it is giving back.
        started_at: When the present attempt of a RUNNING job started.
        not_before: Not started before this instant (backoff).
        stockout: The backoff is there because the cloud had no capacity.
        evicted_for: Of a STOPPING job: the name of the job that it makes room for.
        on_bastion: Runs on the bastion's own host and takes one of its slots.
        waiting_since: Since when it waits; `queued_at` where None.
        checkpointed_at: Of a RUNNING job: up to when its work is saved; None: nothing is known of that.
        evictions: How often it was evicted.
        futile_evictions: How many of its last attempts in a row were evicted without having saved anything.
        evicted_at: When it was last evicted.
        evicted_seconds: How long its evicted attempts ran, together.
        promised: Of a PENDING job: others were evicted for it in an earlier pass (its reason was WaitingForPreempted)
            and it has not started since. `evicted_for` of a STOPPING job says the same; this flag bridges the pass
            in which the last of them is gone. Forgetting it is safe: the room may then go to another job.
        hold: Of a PENDING job: why it must not start whatever is free, in words for its owner; empty: it may.
        scaling: Of an elastic job: what it can use beyond its demand.
        shrinking_for: Of a RUNNING job that is giving replicas back: the name of the job that it makes room for.
    """

    name: str
    project_id: str
    user_id: str
    priority: int = 5
    queued_at: float
    demand: Mapping[str, int] = field(default_factory=lambda: NOTHING)
    status: JobStatus = JobStatus.PENDING
    tier: int | None = None
    charged: Mapping[str, int] = field(default_factory=lambda: NOTHING)
    started_at: float | None = None
    not_before: float | None = None
    stockout: bool = False
    evicted_for: str | None = None
    on_bastion: bool = False
    waiting_since: float | None = None
    promised: bool = False
    checkpointed_at: float | None = None
    evictions: int = 0
    futile_evictions: int = 0
    evicted_at: float | None = None
    evicted_seconds: float = 0.0
    hold: str = ""
    scaling: tuple[Scaling, ...] = ()
    shrinking_for: str | None = None

    @property
    def owned(self) -> Mapping[str, int]:
        """What it holds of its project's share: everything but extra replicas."""
        return self.demand if self.scaling else self.charged


@dataclass(frozen=True, slots=True, kw_only=True)
class Snapshot:
    """Everything that a pass may know.

    Attributes:
        policy: The quota file in force; None if no valid one was ever read: nothing starts, nothing is evicted.
        jobs: Every known job that is not over, in any order.
        bastion_slots: How many jobs the bastion's own host runs at once; None means without limit. A user takes another
            slot only while more are free than it holds, in all projects together.
        check_membership: Whether a job's user must belong to its project.
        held: An operator holds the whole pool: nothing starts, nothing is evicted.
        held_recently: Per project and type, what it held within its `keep_idle_seconds` (`RecentHoldings`).
            Forgetting it is safe: room is then lent a few minutes earlier.
        restart_seconds: By type, what a restart costs, as far as it was measured; it says how long units are kept where
            the rules do not.
        user_usage: Per project and user, unit-seconds decayed to now with the project's half-life (`UsageHistory`);
            absent users have used nothing.
    """

    policy: Policy | None
    jobs: tuple[Job, ...]
    bastion_slots: int | None = None
    check_membership: bool = True
    held: bool = False
    held_recently: Mapping[str, Mapping[str, RecentUnits]] = field(default_factory=lambda: MappingProxyType({}))
    restart_seconds: Mapping[str, float] = field(default_factory=lambda: MappingProxyType({}))
    user_usage: Mapping[str, Mapping[str, float]] = field(default_factory=lambda: MappingProxyType({}))


class Verdict(str, Enum):
    """What becomes of a job in this pass."""

    START = "start"  # PENDING: create its nodes now, on `tier`
    KEEP = "keep"  # RUNNING: nothing changes
    RESIZE = "resize"  # RUNNING: it goes on with `extra` replicas beyond its minimum
    EVICT = "evict"  # RUNNING: stop it, for `evicted_for`
    STOPPING = "stopping"  # STOPPING: go on stopping it
    WAIT = "wait"  # PENDING: stays so, for `reason`


class ReasonCode(str, Enum):
    """Why a pending job does not start, in order of precedence: the first that applies is the headline."""

    INVALID_SPEC = "InvalidSpec"
    NOT_MEMBER = "NotMember"
    QUOTA_FILE_INVALID = "QuotaFileInvalid"
    UNKNOWN_TYPE = "UnknownType"
    HELD = "Held"
    WAITING_FOR_DEPENDENCY = "WaitingForDependency"
    EXCEEDS_POOL = "ExceedsPool"
    EXCEEDS_PROJECT_MAX = "ExceedsProjectMax"
    WAITING_FOR_PREEMPTED = "WaitingForPreempted"
    WAITING_FOR_PROJECT_SHARE = "WaitingForProjectShare"
    WAITING_FOR_POOL = "WaitingForPool"
    BEHIND_HIGHER_PRIORITY = "BehindHigherPriority"
    FRAGMENTED = "Fragmented"
    BACKOFF = "Backoff"
    STOCKOUT = "Stockout"
    NOT_YET_EVALUATED = "NotYetEvaluated"


@dataclass(frozen=True, slots=True, kw_only=True)
class Reason:
    """Why a job waits.

    Attributes:
        code: The headline.
        message: The same with its arithmetic, for people.
        since: The instant since when it waits, never an age.
        holders: Names of jobs that hold what it waits for, at most ten.
        unblock: What would make it start.
        also: Other codes that apply as well, in order of precedence.
        missing: Units that the pool lacks for this job, those for the jobs ahead of it included: with so much more
            free capacity it starts in the next pass; a job on the bastion's own host, once it has a slot there, too.
        slots: Of a job on the bastion's own host that may not take a slot there: with so many more slots it may, those
            for the jobs ahead of it included.
        over_limit: Units by which its project's borrowing limit is too low for this job, those for its project's jobs
            ahead of it included; it starts only if the limit is raised by so many besides, or as many are given back.
    """

    code: ReasonCode
    message: str
    since: float
    holders: tuple[str, ...] = ()
    unblock: str = ""
    also: tuple[ReasonCode, ...] = ()
    missing: Mapping[str, int] = field(default_factory=lambda: NOTHING)
    over_limit: Mapping[str, int] = field(default_factory=lambda: NOTHING)
    slots: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Decision:
    """What becomes of one job.

    Attributes:
        tier: START: the worst tier it needs. KEEP, EVICT, STOPPING: the tier it runs on.
        reason: Of a WAIT, always; of every other verdict, never.
        message: Of START, RESIZE and EVICT: why, with the arithmetic, for people; else empty.
        evicted_for: EVICT and STOPPING, and RESIZE to fewer replicas: whom it makes room for, if anybody.
        position: Place in the pool's queue, from 1 (for a slot of the bastion's host: in the queue for those); None
            where the job does not compete for capacity.
        position_in_project: The same among its project's jobs.
        extra: Of an elastic job that starts or runs: the replicas that it is to have beyond its minimum, by scaling.
    """

    name: str
    verdict: Verdict
    tier: int | None = None
    reason: Reason | None = None
    message: str = ""
    evicted_for: str | None = None
    position: int | None = None
    position_in_project: int | None = None
    extra: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class ProjectUsage:
    """One project after the plan, per resource type.

    Attributes:
        entitlement: Its guaranteed units.
        usage: What its jobs hold, those included that start now or are still stopping.
        demand: What its jobs would hold if all of them ran: running, starting and waiting ones.
    """

    entitlement: Mapping[str, int]
    usage: Mapping[str, int]
    demand: Mapping[str, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolUsage:
    """One resource type after the plan. After a cut of the quota `used` may exceed `total`; `free` is then 0."""

    total: int
    used: int
    free: int


@dataclass(frozen=True, kw_only=True, eq=False)
class Plan:
    """The answer of a pass.

    Who waits is explained when somebody asks: reasons and places in the queue take longer to tell than what to do.
    What they say is about the instant of the pass all the same.

    Attributes:
        acting: A decision for every job that holds capacity, by start; then for those that start, in the order granted.
        evicted: Names of those that are evicted, in the order in which that was decided.
        promised: Names of the waiting jobs that room was ordered for (`Job.promised` of the next pass).
        impossible: Names of the waiting jobs that no free capacity could start: only another quota file, or another
            spec.
        pool: Every resource type of the policy.
        explain: Gives `waiting`.
        measure: Gives `projects`.
    """

    acting: tuple[Decision, ...] = ()
    evicted: tuple[str, ...] = ()
    promised: frozenset[str] = frozenset()
    impossible: frozenset[str] = frozenset()
    pool: Mapping[str, PoolUsage] = field(default_factory=dict)
    explain: Callable[[], tuple[Decision, ...]] = tuple
    measure: Callable[[], Mapping[str, ProjectUsage]] = dict

    @cached_property
    def waiting(self) -> tuple[Decision, ...]:
        """A decision for every job that waits: in the order of the queue, then those that do not compete at all."""
        return self.explain()

    @cached_property
    def decisions(self) -> tuple[Decision, ...]:
        """Exactly one decision for every job of the snapshot, in scheduling order."""
        return (*self.acting, *self.waiting)

    @cached_property
    def projects(self) -> Mapping[str, ProjectUsage]:
        """Every project of the policy, and any other that holds or asks for something."""
        return self.measure()

    def to_json(self) -> bytes:
        """The plan as JSON with sorted keys and no spaces: equal plans are equal bytes."""
        document = {
            "decisions": [_decision_document(decision) for decision in self.decisions],
            "projects": {
                project: {
                    "entitlement": dict(usage.entitlement),
                    "usage": dict(usage.usage),
                    "demand": dict(usage.demand),
                }
                for project, usage in self.projects.items()
            },
            "pool": {
                resource: {"total": usage.total, "used": usage.used, "free": usage.free}
                for resource, usage in self.pool.items()
            },
        }
        return json.dumps(document, sort_keys=True, separators=(",", ":"), ensure_ascii=False).encode("utf-8")


def _decision_document(decision: Decision) -> dict[str, object]:
    document: dict[str, object] = {"name": decision.name, "verdict": decision.verdict.value}
    for name in ("tier", "evicted_for", "position", "position_in_project"):
        value = getattr(decision, name)
        if value is not None:
            document[name] = value
    if decision.extra:
        document["extra"] = list(decision.extra)
    if decision.message:
        document["message"] = decision.message
    if decision.reason is not None:
        reason = decision.reason
        document["reason"] = {
            "code": reason.code.value,
            "message": reason.message,
            "since": reason.since,
            "holders": list(reason.holders),
            "unblock": reason.unblock,
            "also": [code.value for code in reason.also],
            "missing": dict(reason.missing),
            "over_limit": dict(reason.over_limit),
            **({"slots": reason.slots} if reason.slots else {}),
        }
    return document
