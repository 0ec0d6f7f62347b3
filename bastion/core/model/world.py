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
from bastion.core.model.budgets import Budgets
from bastion.core.model.gangs import GangStatus, Place
from bastion.core.model.instance_types import InstanceType
from bastion.core.model.job_record import JobRecord
from bastion.core.model.job_spec import JobSpec
from bastion.core.model.provisioning import BUILT_IN, Provisioning
from quota import Policy


@dataclass(frozen=True, slots=True, kw_only=True)
class UserRequest:
    """A user's request, from `jobs/user_states/<job>`. `uid` is empty if the client named none."""

    generation: int
    written_at: float
    cancel: bool
    uid: str = ""
    by: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunView:
    """What was observed of one run (an attempt, or the cleanup command).

    Attributes:
        order, order_generation: The hosts' order; None and 0 if there is none.
        claim: None while the gate is undecided.
        reports: By host index; only those with the run's own token.
        reported_at: When the daemon first saw each report, by host index.
        gang: None if no listing or lookup has it.
        gang_gone: A lookup says that no part of the gang exists.
        failure: Why its creation failed: (cause, message).
        silent_seconds: Time since each host's last heartbeat, by host index, on our own clock.
    """

    order: Order | None = None
    order_generation: int = 0
    claim: Claim | None = None
    reports: Mapping[int, Report] = field(default_factory=dict)
    reported_at: Mapping[int, float] = field(default_factory=dict)
    gang: GangStatus | None = None
    gang_gone: bool = False
    failure: tuple[str, str] | None = None
    silent_seconds: Mapping[int, float] = field(default_factory=dict)


NOTHING_SEEN = RunView()


@dataclass(frozen=True, slots=True, kw_only=True)
class OrphanGang:
    """A gang that no current run owns: left by a crash, or created late."""

    status: GangStatus
    on_bastion: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class JobView:
    """The objects of one job name.

    Attributes:
        spec_meta: The listed spec object; None if it is not listed.
        spec: The valid spec in that object, if its generation is not the accepted one.
        spec_problem: Why that object is refused; empty if it is valid.
        spec_gone: A lookup says that the object does not exist.
        record, record_generation: The job's state; None and 0 if there is none.
        frozen: Why the state cannot be read; the job is left alone until someone repairs it.
        invalid_generation: Generation of the spec that `jobs/invalid/` explains; 0 if none.
        invalid_object_generation: Generation of that explanation; 0 if none.
        history_done: Number of the last line that all histories have.
        history_own: The same for the job's own history; higher while the quota file lacks the job's project.
        orphan_gangs: Gangs of this uid without a current run; without a readable state, all that may be its.
        attempts_seen: If there is a spec but no state: the highest attempt number among its gangs, claims and orders.
        gangs_unknown: The provisioner did not answer for the zone of some attempt.
        unread: The newest state could not be downloaded; `record` is the last one read, if any.
        doubt: A start without a reply; it may land until the state is written again.
        late: A daemon of an earlier epoch started the attempt, and its write landed too late to count.
        current: `record` is the newest content of the state.
        ghost: The job already has its result; the state was created after the job's end.
    """

    name: str
    spec_meta: ObjectMeta | None = None
    spec: JobSpec | None = None
    spec_problem: str = ""
    spec_gone: bool = False
    record: JobRecord | None = None
    record_generation: int = 0
    frozen: str = ""
    user_request: UserRequest | None = None
    invalid_generation: int = 0
    invalid_object_generation: int = 0
    history_done: int = 0
    history_own: int = 0
    attempt: RunView = NOTHING_SEEN
    cleanup: RunView = NOTHING_SEEN
    orphan_gangs: tuple[OrphanGang, ...] = ()
    attempts_seen: int = 0
    gangs_unknown: bool = False
    unread: bool = False
    doubt: JobRecord | None = None
    late: bool = False
    ghost: bool = False
    current: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class Installation:
    """Facts about this installation for the reconciler.

    Attributes:
        root, bastion: The bucket's location, for the agents.
        host_identity: Name of this bastion VM, boot and process namespace.
        poll_seconds, beat_seconds: Intervals at which agents read orders and send heartbeats.
        interpreter: Python for commands on nodes that share our file system; empty if nodes bring their own.
    """

    root: str
    bastion: str
    host_identity: str
    poll_seconds: float = 5.0
    beat_seconds: float = limits.HEARTBEAT_PERIOD_SECONDS
    interpreter: str = ""
    budgets: Budgets = field(default_factory=Budgets)


@dataclass(frozen=True, slots=True, kw_only=True)
class Listed:
    """Objects and gangs of this tick by name, with or without a job: the input of the sweep.

    Attributes:
        claims: By run.
        run_objects: Orders and reports, by `<run>/order` and `<run>/reports/<i>`.
        heartbeat_runs: Runs with a heartbeat.
        orphan_gangs: Gangs of no known job.
    """

    user_requests: Mapping[str, ObjectMeta] = field(default_factory=dict)
    claims: Mapping[str, ObjectMeta] = field(default_factory=dict)
    run_objects: Mapping[str, ObjectMeta] = field(default_factory=dict)
    heartbeat_runs: frozenset[str] = frozenset()
    orphan_gangs: tuple[OrphanGang, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class World:
    """One tick's observations.

    Attributes:
        entropy: Fresh random bytes, the source of run tokens, so that a tick can be replayed.
        policy: The quota file in force; None if there never was one.
        provisioning: Where slices may be created; None (never known): nowhere.
        silent_zones: Zones that did not answer in this tick; no gang is created there.
        epoch: Of this daemon; every attempt it finds gets it.
        no_room: Why no job may start or be evicted now; empty if allowed.
        agent: Digest of the agent for new attempts on slices. Empty: nodes fetch none. None: not uploaded yet; such
            attempts wait.
    """

    jobs: Mapping[str, JobView]
    settings: Installation
    entropy: bytes = b""
    dry_run: bool = False
    policy: Policy | None = None
    provisioning: Provisioning | None = BUILT_IN
    silent_zones: frozenset[str] = frozenset()
    epoch: int = 0
    no_room: str = ""
    agent: str | None = ""
    listed: Listed = field(default_factory=Listed)


def next_place(world: World, instance_type: InstanceType, tier: int | None, zone_turn: int) -> Place | None:
    """The next place in rotation whose zone answers, for a gang of that type and tier; None if there is none.

    `zone_turn` is `JobRecord.zone_turn`.
    """
    places = world.provisioning.places(instance_type, tier) if world.provisioning is not None else ()
    begin = zone_turn % len(places) if places else 0
    return next((p for p in (*places[begin:], *places[:begin]) if p.zone not in world.silent_zones), None)
