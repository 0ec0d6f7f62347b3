"""The world: what the daemon observed in one tick, as plain data for the reconciler.

It holds what reads returned. Absence is recorded only after a lookup of that name (`spec_gone`, `gang_gone`), because a
listing without an object proves nothing.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from bastion.core import limits
from bastion.core.bucket.objects import ObjectMeta
from bastion.core.bucket.protocol import Claim, Order, Report
from bastion.core.model.audit import Proof
from bastion.core.model.awaiting import Awaiting
from bastion.core.model.bastion_host_jobs import AS_DAEMON, BastionHostJobs
from bastion.core.model.budgets import Budgets
from bastion.core.model.gangs import GangFailure, GangStatus, Place
from bastion.core.model.job_record import JobRecord
from bastion.core.model.job_request import RequestKind
from bastion.core.model.job_spec import JobSpec, Runner
from bastion.core.model.provisioning import BUILT_IN, Provisioning, places_of
from bastion.core.run_keys import RunKeys
from quota import Policy


@dataclass(frozen=True, slots=True, kw_only=True)
class UserRequest:
    """A user's request, from `jobs/user_states/<job>`. `uid` is empty if the client named none.

    `owner`: in whose inbox it is; empty in mode `open`. `problem`: why it may not be his.
    """

    generation: int
    written_at: float
    cancel: bool
    uid: str = ""
    by: str = ""
    owner: str = ""
    problem: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class AskedOfJob:
    """A request about a job, from `requests/<job>/<id>`.

    Attributes:
        kind: None if it could not be read, or its author may not ask.
        owner: In whose inbox it is; empty in mode `open`.
        problem: Why it is refused.
        denied: It is refused because of who asks.
    """

    key: str
    request_id: str
    generation: int
    written_at: float
    kind: RequestKind | None = None
    uid: str = ""
    by: str = ""
    owner: str = ""
    reason: str = ""
    worker: int = 0
    problem: str = ""
    denied: bool = False

    @property
    def mark(self) -> str:
        """What the job's state remembers it by."""
        return f"{self.owner}/{self.request_id}"


@dataclass(frozen=True, slots=True, kw_only=True)
class RunView:
    """What was observed of one run (an attempt, or the cleanup command)."""

    # The hosts' order; None and 0 if there is none.
    order: Order | None = None
    order_generation: int = 0
    claim: Claim | None = None  # None while the gate is undecided
    reports: Mapping[int, Report] = field(default_factory=dict)  # by host index; only those that its hosts signed
    # When the daemon first saw each report, by host index.
    reported_at: Mapping[int, float] = field(default_factory=dict)
    gang: GangStatus | None = None  # None if no listing or lookup has it
    gang_gone: bool = False  # a lookup says that no part of the gang exists
    failure: GangFailure | None = None  # why its creation failed, or what the platform says of its loss
    # Time since each host's last heartbeat, by host index, on our own clock.
    silent_seconds: Mapping[int, float] = field(default_factory=dict)
    # Whether this daemon knows the run's key: not of an older version's attempt, nor after the secret was replaced.
    proven: bool = True


NOTHING_SEEN = RunView()


@dataclass(frozen=True, slots=True, kw_only=True)
class OrphanGang:
    """A gang that no current run owns: left by a crash, or created late."""

    status: GangStatus
    on_bastion: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Explained:
    """An explanation in `jobs/invalid/`: its own generation, and that of the object that it is about."""

    name: str
    generation: int
    about: int
    owner: str = ""
    request: bool = False
    problem: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class JobView:
    """The objects of one job name."""

    name: str
    spec_meta: ObjectMeta | None = None  # the listed spec object; None if it is not listed
    spec: JobSpec | None = None  # the valid spec in that object, if its generation is not the accepted one
    spec_problem: str = ""  # why that object is refused; empty if it is valid
    spec_gone: bool = False  # a lookup says that the object does not exist
    # The job's state; None and 0 if there is none.
    record: JobRecord | None = None
    record_generation: int = 0
    frozen: str = ""  # why the state cannot be read; the job is left alone until someone repairs it
    user_request: UserRequest | None = None
    requests: tuple[AskedOfJob, ...] = ()  # the oldest ones, in order
    invalid_generation: int = 0  # generation of the spec that `jobs/invalid/` explains; 0 if none
    invalid_object_generation: int = 0  # generation of that explanation; 0 if none
    history_done: int = 0  # number of the last line that all histories have
    audit_waits_from: int = 0  # number of the first history line that the audit trail may lack; 0 if none
    history_own: int = 0  # the same for the job's own history; higher while the quota file lacks the job's project
    attempt: RunView = NOTHING_SEEN
    cleanup: RunView = NOTHING_SEEN
    # Gangs of this uid without a current run; without a readable state, all that may be its.
    orphan_gangs: tuple[OrphanGang, ...] = ()
    # If there is a spec but no state: the highest attempt number among its gangs, claims and orders.
    attempts_seen: int = 0
    gangs_unknown: bool = False  # the provisioner did not answer for the zone of some attempt
    unread: bool = False  # the newest state could not be downloaded; `record` is the last one read, if any
    doubt: JobRecord | None = None  # a start without a reply; it may land until the state is written again
    late: bool = False  # a daemon of an earlier epoch started the attempt, and its write landed too late to count
    ghost: bool = False  # the job already has its result; the state was created after the job's end
    current: bool = True  # `record` is the newest content of the state
    # In mode `inbox`: whose object `spec_meta` is, the digest of its bytes as read, and other users' requests for this
    # job, which they may not make.
    owner: str = ""
    spec_sha256: str = ""
    refused_requests: tuple[UserRequest, ...] = ()
    explained_to: Mapping[str, Explained] = field(default_factory=dict)  # what those users were told, by user


@dataclass(frozen=True, slots=True, kw_only=True)
class Installation:
    """Facts about this installation for the reconciler."""

    # The bucket's location, for the agents.
    root: str
    bastion: str
    host_identity: str  # name of this bastion VM, boot and process namespace
    # Intervals at which agents read orders and send heartbeats.
    poll_seconds: float = 5.0
    beat_seconds: float = limits.HEARTBEAT_PERIOD_SECONDS
    interpreter: str = ""  # Python for commands on nodes that share our file system; empty if nodes bring their own
    budgets: Budgets = field(default_factory=Budgets)
    host_jobs: BastionHostJobs = AS_DAEMON  # of this tick
    run_keys: RunKeys | None = None  # None until the daemon has read their secret; nothing starts before
    host_job_user: str = ""  # whom commands run as on the hosts of slices; empty: as the agent


@dataclass(frozen=True, slots=True, kw_only=True)
class OutsideObject:
    """An object that no job comes from: a refused one in an inbox, or one beside the inboxes that we did not write.

    Attributes:
        owner: In whose inbox it is; empty: below `jobs/`.
        problem: Why it is refused; empty: it was refused before, or waits.
        request: It is a request, not a spec.
    """

    name: str
    generation: int
    owner: str = ""
    problem: str = ""
    request: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Outside:
    """In mode `inbox`: what was seen besides the jobs' own objects."""

    explained: tuple[Explained, ...] = ()  # all but those about the jobs' own objects
    objects: tuple[OutsideObject, ...] = ()
    # Names of jobs whose copy in `jobs/active/` is missing or not ours.
    damaged_copies: tuple[str, ...] = ()
    copies_listed: bool = False  # whether this tick listed what is beside the inboxes


@dataclass(frozen=True, slots=True, kw_only=True)
class Listed:
    """Objects and gangs of this tick by name, with or without a job: the input of the sweep."""

    user_requests: Mapping[str, ObjectMeta] = field(default_factory=dict)  # in mode `inbox` by `<job>~<user>`
    job_requests: tuple[ObjectMeta, ...] = ()  # those about no job that is known, and those that no bastion reads
    claims: Mapping[str, ObjectMeta] = field(default_factory=dict)  # by `<run>.<tag>`
    # Orders and reports, by `<run>/order` and `<run>/reports/<i>`.
    run_objects: Mapping[str, ObjectMeta] = field(default_factory=dict)
    heartbeat_runs: frozenset[str] = frozenset()  # runs with a heartbeat
    orphan_gangs: tuple[OrphanGang, ...] = ()  # gangs of no known job


@dataclass(frozen=True, slots=True, kw_only=True)
class World:
    """One tick's observations."""

    jobs: Mapping[str, JobView]
    settings: Installation
    entropy: bytes = b""  # fresh random bytes, the source of run tokens, so that a tick can be replayed
    dry_run: bool = False
    policy: Policy | None = None  # the quota file in force; None if there never was one
    provisioning: Provisioning | None = BUILT_IN  # where slices may be created; None (never known): nowhere
    silent_zones: frozenset[str] = frozenset()  # zones that did not answer in this tick; no gang is created there
    epoch: int = 0  # of this daemon; every attempt it finds gets it
    no_room: str = ""  # why no job may start or be evicted now; empty if allowed
    # Digest of the agent for new attempts on slices. Empty: nodes fetch none. None: not uploaded yet; such attempts
    # wait.
    agent: str | None = ""
    listed: Listed = field(default_factory=Listed)
    # Jobs in groups that are not accepted yet because the queue is full, by user and group.
    backlog_groups: Mapping[str, Mapping[str, int]] = field(default_factory=dict)
    awaiting: Mapping[str, Awaiting] = field(default_factory=dict)  # by name, of waiting jobs that await others
    outside: Outside | None = None  # None in mode `open`
    proof: Proof | None = None  # what the place of an object in an inbox proves; None in mode `open`


def places_for(world: World, runner: Runner, tier: int | None) -> tuple[Place, ...]:
    if world.provisioning is None:
        return ()
    return places_of(world.provisioning, runner, tier)


def next_place(world: World, runner: Runner, tier: int | None, zone_turn: int) -> Place | None:
    """The next place in rotation whose zone answers, for a gang of that tier; None if there is none.

    `zone_turn` is `JobRecord.zone_turn`.
    """
    places = places_for(world, runner, tier)
    begin = zone_turn % len(places) if places else 0
    return next((p for p in (*places[begin:], *places[:begin]) if p.zone not in world.silent_zones), None)
