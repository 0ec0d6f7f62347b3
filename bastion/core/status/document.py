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
    """The wait of a gang for the platform's capacity.

    Attributes:
        state: The platform's name for it.
        since: The start, across states.
        message: The platform's explanation, if it gives one.
        partial_since: Since when only some of the hosts have machines; None if all wait.
    """

    state: str
    zone: str = ""
    since: Instant
    message: str | None = None
    partial_since: Instant | None = None

    @model_serializer(mode="wrap")
    def _without_unset(self, handler: SerializerFunctionWrapHandler) -> dict[str, Any]:
        return {name: value for name, value in handler(self).items() if value is not None}


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
        problem: Why a new spec of this job is refused, or why its state cannot be read.
        checkpointed_at: Time of the last checkpoint, a few minutes late.
        waiting: Set while the platform has no capacity for the attempt.
        try_number, max_tries: Set for jobs that may be tried more than once.
        host_problem: What keeps a host from reporting.
        labels: The user's own; None without any.
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
    checkpointed_at: Instant | None = None
    zone: str | None = None
    waiting: CapacityWait | None = None
    try_number: int | None = None
    max_tries: int | None = None
    host_problem: str | None = None
    labels: dict[str, str] | None = None

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
    "checkpointed_at",
    "zone",
    "waiting",
    "try_number",
    "max_tries",
    "host_problem",
    "labels",
)


class DaemonEntry(_Part):
    """The daemon that wrote the document. `zones`: the zones in which it looks for gangs."""

    owner: str = ""
    process: str = ""
    version: str = ""
    epoch: int = 0
    zones: tuple[str, ...] = ()
    failed_ticks: int = 0


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
    """A refused spec."""

    name: str
    problem: str = ""


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
    """The whole document. `usage` changes all the time: it is published with other changes only."""

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
    idle: IdleEntry = IdleEntry()
    usage: UsageEntry = UsageEntry()

    @cached_property
    def entries(self) -> Mapping[str, JobEntry]:
        """The jobs by name."""
        return {entry.name: entry for entry in self.jobs}
