"""The input and output of a pass. Instants are seconds since the epoch; amounts are quota units per resource type."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import Enum
from functools import cached_property
from types import MappingProxyType

from quota import Policy

# What a project held recently: (counts until, units), units descending; `math.inf` for what it holds now.
RecentUnits = tuple[tuple[float, int], ...]

# The shared empty mapping.
NOTHING: Mapping[str, int] = MappingProxyType({})


class JobStatus(str, Enum):
    PENDING = "pending"  # wants to run and holds nothing
    RUNNING = "running"  # holds `charged`, from the intent to create its first node on
    STOPPING = "stopping"  # evicted or ending; still holds `charged` until its last node is confirmed gone


@dataclass(frozen=True, slots=True, kw_only=True)
class Scaling:
    """Replicas that an elastic job can use beyond its minimum.

    Attributes:
        per_replica: Units of one replica.
        extra: RUNNING: the current number, without those being given back.
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
        demand: Units it needs to run, all types at once; may be empty. An elastic job's minimum.
        tier: RUNNING, STOPPING: the tier it runs on. A tier that the policy no longer has counts as the last one.
        charged: RUNNING, STOPPING: what it holds now, with extra replicas, also those being given back.
        started_at: RUNNING: when the current attempt started.
        not_before: Must not start before this instant (backoff).
        stockout: The backoff is due to a lack of cloud capacity.
        evicted_for: STOPPING: the name of the job it was evicted for.
        on_bastion: Runs on the bastion's own host and takes one of its slots.
        instance_type: Its name, for the rules of its project; empty on the bastion's own host.
        root: Its command runs as root.
        cleanup: It has a cleanup command, which runs on the bastion's own host.
        waiting_since: Start of the current wait; None: `queued_at`.
        checkpointed_at: RUNNING: its work is saved up to this instant; None: unknown.
        futile_evictions: Number of consecutive latest evictions that saved no work.
        evicted_seconds: Total running time of its evicted attempts.
        promised: PENDING: an earlier pass evicted others for it and it has not started since. Bridges the pass in which
            no `evicted_for` names it any more. Safe to lose: another job may take the capacity.
        evictions: How often it was evicted; `evicted_at` is the last time.
        max_run_seconds: It holds its capacity at most so long from its start; None: no limit of its own. For estimates.
        hold: PENDING: why it must not start, for its owner; empty: it may.
        released_by: PENDING, with `hold`: who ends that, and how; empty: an operator, by the settings.
        after: PENDING: names of the jobs whose end it still awaits; empty: it competes. Names of other snapshots' jobs
            are allowed.
        delegated: Another scheduler decides when it runs: it starts at once, holds and asks for nothing here, and is
            never evicted.
        scaling: Elastic job: what it can use beyond `demand`.
        shrinking_for: RUNNING job that gives replicas back: the name of the job that gets the capacity.
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
    instance_type: str = ""
    root: bool = False
    cleanup: bool = False
    waiting_since: float | None = None
    promised: bool = False
    checkpointed_at: float | None = None
    evictions: int = 0
    futile_evictions: int = 0
    evicted_at: float | None = None
    evicted_seconds: float = 0.0
    max_run_seconds: float | None = None
    hold: str = ""
    released_by: str = ""
    after: tuple[str, ...] = ()
    delegated: bool = False
    scaling: tuple[Scaling, ...] = ()
    shrinking_for: str | None = None

    @property
    def owned(self) -> Mapping[str, int]:
        """What counts against its project's share: everything but extra replicas."""
        return self.demand if self.scaling else self.charged


@dataclass(frozen=True, slots=True, kw_only=True)
class Snapshot:
    """The input of a pass.

    Attributes:
        policy: The quota file in force; None if no valid one was ever read. Then nothing starts or is evicted.
        jobs: Every known job that has not ended, in any order.
        bastion_slots: How many jobs the bastion's own host runs at once; None: unlimited. A user gets another slot only
            while more slots are free than the user holds in all projects.
        check_membership: Whether a job's user must belong to its project.
        held: An operator holds the pool: nothing starts or is evicted.
        held_recently: Per project and type, what it held recently (`RecentHoldings`). Safe to lose: capacity is then
            lent some minutes earlier.
        restart_seconds: Per type, the measured cost of a restart. Sets how long units are kept where the rules do not.
        submitted_most: How many delegated jobs may run at once, for this scheduler: most of them wait for the other. A
            tenth is kept for projects that have few.
        user_usage: Per project and user, unit-seconds decayed to now (`UsageHistory`); an absent user has used nothing.
    """

    policy: Policy | None
    jobs: tuple[Job, ...]
    bastion_slots: int | None = None
    check_membership: bool = True
    held: bool = False
    submitted_most: int = 1000
    held_recently: Mapping[str, Mapping[str, RecentUnits]] = field(default_factory=lambda: MappingProxyType({}))
    restart_seconds: Mapping[str, float] = field(default_factory=lambda: MappingProxyType({}))
    user_usage: Mapping[str, Mapping[str, float]] = field(default_factory=lambda: MappingProxyType({}))


class Verdict(str, Enum):
    START = "start"  # PENDING: create its nodes now on `tier`
    KEEP = "keep"  # RUNNING: nothing changes
    RESIZE = "resize"  # RUNNING: run on with `extra` replicas beyond its minimum
    EVICT = "evict"  # RUNNING: stop it, for `evicted_for`
    STOPPING = "stopping"  # STOPPING: continue to stop it
    WAIT = "wait"  # PENDING: keep waiting, for `reason`


class ReasonCode(str, Enum):
    """Why a pending job does not start, in order of precedence: the first that applies is the headline."""

    INVALID_SPEC = "InvalidSpec"
    NOT_MEMBER = "NotMember"
    QUOTA_FILE_INVALID = "QuotaFileInvalid"
    UNKNOWN_TYPE = "UnknownType"
    NOT_ALLOWED = "NotAllowed"
    HELD = "Held"
    WAITING_FOR_DEPENDENCY = "WaitingForDependency"
    EXCEEDS_POOL = "ExceedsPool"
    EXCEEDS_PROJECT_MAX = "ExceedsProjectMax"
    TOO_MANY_SUBMITTED = "TooManySubmitted"
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
        message: The headline `code` with its arithmetic.
        holders: Names of at most ten jobs that hold what it waits for.
        unblock: What would make it start.
        also: Other codes that apply, in order of precedence.
        missing: Units the pool lacks for this job and the jobs ahead of it. With this much more free capacity (and a
            slot, if it needs one) it starts in the next pass. For a job that awaits others: in the pass after their
            end, behind all jobs that wait for capacity now.
        slots: Slots of the bastion's own host that it and the jobs ahead of it lack.
        over_limit: Units that its project's borrowing limit lacks for it and its project's jobs ahead of it. It starts
            only if the limit rises, or the project gives back, by this much as well.
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
    """The decision for one job.

    Attributes:
        tier: START: the worst tier it needs; None for a delegated job. KEEP, EVICT, STOPPING: the tier it runs on.
        reason: Set for WAIT, None otherwise.
        message: START, RESIZE, EVICT: why, with the arithmetic; else empty.
        evicted_for: EVICT, STOPPING, and RESIZE to fewer replicas: the job that gets the capacity, if any.
        position: Queue position from 1 (in the slot queue for a job that needs a slot); None if it does not compete for
            capacity.
        position_in_project: The same among its project's jobs.
        extra: Elastic job that starts or runs: replicas beyond its minimum, by scaling.
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
        usage: Units that its jobs hold, starting and stopping jobs included.
        demand: Units its jobs would hold if all ran: running, starting and waiting jobs, without those that no capacity
            would start, or that await others.
    """

    entitlement: Mapping[str, int]
    usage: Mapping[str, int]
    demand: Mapping[str, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolUsage:
    """One resource type after the plan. After a quota cut `used` may exceed `total`; `free` is then 0."""

    total: int
    used: int
    free: int


@dataclass(frozen=True, kw_only=True, eq=False)
class Plan:
    """The output of a pass.

    Reasons and queue positions are computed on first access, since they cost more than the decisions. They describe the
    instant of the pass.

    Attributes:
        acting: Decisions for all jobs that hold capacity, by start, then for those that start, in the order granted.
        evicted: Names of the evicted jobs, in the order decided.
        promised: Names of the waiting jobs that capacity is promised to (`Job.promised` of the next pass).
        impossible: Names of the waiting jobs that no free capacity could start; they need another quota file or spec.
        explain, measure: Compute `waiting` and `projects`.
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
        """A decision for every waiting job: in queue order, then those that do not compete."""
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
        """The plan as compact JSON with sorted keys: equal plans give equal bytes."""
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
