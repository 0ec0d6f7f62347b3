"""The status document: everything that `list`, `why` and metrics show, as the daemon publishes it.

It has instants, never ages: an unchanged world gives the same document, which the daemon does not write again. In
memory an instant is seconds since the epoch, in the file RFC 3339. A field that an older daemon did not write has its
default, and fields of a newer daemon are ignored. `packing` turns it into bytes and back.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum
from functools import cached_property
from typing import Any

from pydantic import BaseModel, ConfigDict, Field, SerializerFunctionWrapHandler, model_serializer

from bastion.core.model.job_record import Instant
from bastion.core.model.lifecycle import Status
from bastion.core.model.mode import Mode


class Phase(str, Enum):
    """What a job is doing. `JobEntry.phase` is text, so that a newer daemon's phases are shown as they are."""

    QUEUED = "queued"
    PROVISIONING = "provisioning"
    RUNNING = "running"
    STOPPING = "stopping"
    CLEANING = "cleaning"
    COMPLETED = "completed"


class _Part(BaseModel):
    model_config = ConfigDict(frozen=True, extra="ignore", allow_inf_nan=False, defer_build=True)


class WaitReason(_Part):
    """Why a job waits.

    Attributes:
        code: A `ReasonCode`, or one of a newer daemon.
        since: When this code became the job's reason.
        holders: Jobs that hold what it waits for.
        unblock: What would let it start; None if nothing is known to.
        also: Codes that would hold it back next.
    """

    code: str
    message: str
    since: Instant
    holders: tuple[str, ...] = ()
    unblock: str | None = None
    also: tuple[str, ...] = ()


class CapacityWait(_Part):
    """The wait of a gang for the platform's capacity, or for Kueue to admit it.

    Attributes:
        state: The platform's name for it.
        since: The start, across states.
        queue: The LocalQueue while Kueue has not admitted it.
        message: The platform's explanation, if it gives one.
        partial_since: Since when only some of the hosts have machines; None if all wait.
    """

    state: str
    zone: str = ""
    since: Instant
    queue: str | None = None
    message: str | None = None
    partial_since: Instant | None = None

    @model_serializer(mode="wrap")
    def _without_unset(self, handler: SerializerFunctionWrapHandler) -> dict[str, Any]:
        return {name: value for name, value in handler(self).items() if value is not None}


class QueueCondition(_Part):
    """A condition of a Workload in Kueue's words, such as QuotaReserved or Admitted."""

    type: str
    status: bool
    reason: str = ""
    message: str = ""
    since: Instant


class QueueCheck(_Part):
    """An admission check of a Workload; `state` is Pending, Ready, Retry or Rejected."""

    name: str
    state: str = ""
    message: str = ""


class QueueEntry(_Part):
    """The place of an attempt in Kueue, which decides its order and its start.

    Attributes:
        name: The LocalQueue.
        workload: Empty until Kueue has made one.
        evictions: How often Kueue evicted the job, in earlier attempts too.
    """

    name: str
    workload: str = ""
    admitted: bool = False
    conditions: tuple[QueueCondition, ...] = ()
    checks: tuple[QueueCheck, ...] = ()
    evictions: int = 0


class JobEntry(_Part):
    """One live job.

    Attributes:
        resources: Units by resource type.
        instance_type, num_replicas: None for a job on the bastion itself.
        attempt: Number of the present attempt; with it `started_at`, `tier` and the hosts are set.
        attempts_before: Number of attempts that have ended.
        running_since: When all hosts ran the command; None before.
        stopping: `<cause>: <message>` once the attempt is to end.
        position, position_in_project: In the queue, from 1.
        reason: Of a waiting job.
        problem: Why a new spec of this job is refused, why its state cannot be read, or why its slices are unknown.
        checkpointed_at: Time of the last checkpoint, a few minutes late.
        waiting: Set while the platform has no capacity for the attempt, or Kueue has not admitted it.
        queue: Set if Kueue decides when the attempt runs.
        first_step, last_step: Of the present try, a few minutes late.
        try_number, max_tries: Set for jobs that may be tried more than once; stuck tries are added to the maximum.
        stuck_tries: How often the job was restarted because it was stuck.
        expected_duration_seconds: As its owner expects, but not longer than the job may run.
        max_run_seconds: How long it may hold its slices, from the attempt's start; None: no limit of its own.
        host_problem: What keeps a host from reporting or preparing, or the gang of an attempt that ends from going.
        unverified: Set if `user_id` is what the spec says, in the inbox of a project.
        labels: The user's own; None without any.
        group: The spec's; None if it is in none.
        group_left: How many other jobs of the group are left, if the job's cleanup waits for them.
        after: Of a waiting job: names of the jobs whose end it still awaits.
        fetched_bytes, input_bytes: Of the host that has most of its inputs to fetch, while it does.
    """

    name: str
    uid: str
    status: Status = Status.PENDING
    phase: str = Phase.QUEUED.value
    project_id: str
    user_id: str
    priority: int
    resources: dict[str, int]
    instance_type: str | None = None
    num_replicas: int | None = None
    queued_at: Instant
    attempt: int | None = None
    attempts_before: int = 0
    started_at: Instant | None = None
    running_since: Instant | None = None
    hosts: int | None = None
    hosts_up: int | None = None
    hosts_running: int | None = None
    tier: int | None = None
    stopping: str | None = None
    position: int | None = None
    position_in_project: int | None = None
    reason: WaitReason | None = None
    problem: str | None = None
    expected_duration_seconds: int | None = None
    max_run_seconds: float | None = None
    checkpointed_at: Instant | None = None
    first_step: int | None = None
    last_step: int | None = None
    zone: str | None = None
    waiting: CapacityWait | None = None
    queue: QueueEntry | None = None
    try_number: int | None = None
    max_tries: int | None = None
    stuck_tries: int | None = None
    host_problem: str | None = None
    unverified: bool | None = None
    labels: dict[str, str] | None = None
    group: str | None = None
    group_left: int | None = None
    after: tuple[str, ...] | None = None
    fetched_bytes: int | None = None
    input_bytes: int | None = None

    @model_serializer(mode="wrap")
    def _without_unset(self, handler: SerializerFunctionWrapHandler) -> dict[str, Any]:
        fields: dict[str, Any] = handler(self)
        for name in OPTIONAL_FIELDS:
            if fields[name] is None:
                del fields[name]
        return fields


# Few jobs have these, and every field of an entry costs.
OPTIONAL_FIELDS = (
    "expected_duration_seconds",
    "max_run_seconds",
    "checkpointed_at",
    "first_step",
    "last_step",
    "zone",
    "waiting",
    "queue",
    "try_number",
    "max_tries",
    "stuck_tries",
    "host_problem",
    "unverified",
    "labels",
    "group",
    "group_left",
    "after",
    "fetched_bytes",
    "input_bytes",
)


class HostJobsEntry(_Part):
    """Commands on the bastion's own host. `mode`: a `HostJobsMode`, or one of a newer daemon; `reason`: why."""

    mode: str
    reason: str = ""


class AuditEntry(_Part):
    """What the audit trail has: generations of the files whose lines it has, and the number of lines it still lacks."""

    settings: int = 0
    identity: int = 0
    waiting: int = 0


class DaemonEntry(_Part):
    """The daemon that wrote the document.

    Attributes:
        zones: The zones in which it looks for gangs.
        bastion_host_jobs: None: an older daemon, which runs commands on its host as itself.
    """

    owner: str = ""
    process: str = ""
    version: str = ""
    epoch: int = 0
    zones: tuple[str, ...] = ()
    failed_ticks: int = 0
    bastion_host_jobs: HostJobsEntry | None = None
    audit: AuditEntry = AuditEntry()


class QuotaEntry(_Part):
    """The quota file. `generation`: of the file in force; `problem`: of the newest one; `root`: where it is read."""

    in_force: bool = False
    generation: int = 0
    problem: str = ""
    root: str = ""


class BacklogEntry(_Part):
    """Jobs that a queue limit keeps out.

    Attributes:
        jobs: Number of specs that are not accepted yet.
        queued: Number of jobs that count towards `limit`.
        rule: The quota file's key; None with `project_id` and `user_id` for all users who are in no project.
    """

    project_id: str | None = None
    user_id: str | None = None
    jobs: int
    queued: int
    limit: int
    rule: str | None = None


class InvalidEntry(_Part):
    """A refused spec. `user`: in whose inbox it is; None in mode `open`."""

    name: str
    problem: str = ""
    user: str | None = None

    @model_serializer(mode="wrap")
    def _without_unset(self, handler: SerializerFunctionWrapHandler) -> dict[str, Any]:
        return {name: value for name, value in handler(self).items() if value is not None}


class ProjectEntry(_Part):
    """Units of one project by resource type."""

    entitlement: dict[str, int] = Field(default_factory=dict)
    usage: dict[str, int] = Field(default_factory=dict)
    demand: dict[str, int] = Field(default_factory=dict)


class PoolEntry(_Part):
    """Units of one resource type."""

    total: int
    used: int
    free: int


class IdleEntry(_Part):
    """What a forecast needs beside the jobs: the `Snapshot` fields of the same meaning.

    Attributes:
        kept: `held_recently`: by project and type, pairs of an instant and the units held until then.
        restart_seconds: By type.
    """

    kept: dict[str, dict[str, tuple[tuple[Instant, int], ...]]] = Field(default_factory=dict)
    restart_seconds: dict[str, float] = Field(default_factory=dict)


class UsageEntry(_Part):
    """`UsageHistory.to_document`. `at`: seconds since the epoch; `projects`: unit-seconds by project and user."""

    at: float | None = None
    projects: dict[str, dict[str, float]] = Field(default_factory=dict)


class StatusDocument(_Part):
    """The whole document.

    Attributes:
        mode: Where specs come from (`model.identity.Mode`).
        delegated: Resource types of which Kueue decides which jobs run.
        usage: Changes all the time: it is published with other changes only.
        left_out, other_users: Names of the jobs that the reader did not want, and their users.
    """

    bastion: str = ""
    root: str = ""
    daemon: DaemonEntry = DaemonEntry()
    quota: QuotaEntry = QuotaEntry()
    alarms: tuple[str, ...] = ()
    jobs: tuple[JobEntry, ...] = ()
    backlog: tuple[BacklogEntry, ...] = ()
    invalid: tuple[InvalidEntry, ...] = ()
    projects: dict[str, ProjectEntry] = Field(default_factory=dict)
    pool: dict[str, PoolEntry] = Field(default_factory=dict)
    delegated: tuple[str, ...] = ()
    idle: IdleEntry = IdleEntry()
    usage: UsageEntry = UsageEntry()
    mode: str = Mode.OPEN.value
    left_out: frozenset[str] = Field(default=frozenset(), exclude=True)
    other_users: frozenset[str] = Field(default=frozenset(), exclude=True)

    @cached_property
    def several_users(self) -> bool:
        """Whether the live jobs are of more than one."""
        return len({*self.other_users, *(entry.user_id for entry in self.jobs)}) > 1

    @property
    def names(self) -> set[str]:
        """The names of all live jobs and refused specs."""
        return {*self.left_out, *self.entries, *(spec.name for spec in self.invalid)}

    def is_unverified(self, entry: JobEntry) -> bool:
        """Whether nothing but the spec says whose job it is, where that matters."""
        return bool(entry.unverified) or (self.mode == Mode.OPEN and self.several_users)

    @cached_property
    def entries(self) -> Mapping[str, JobEntry]:
        """The jobs by name."""
        return {entry.name: entry for entry in self.jobs}
