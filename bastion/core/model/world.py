"""What the daemon observed in one tick, as plain data: the input of the reconciler.

Everything here is what a read *said*; nothing is inferred. Absence is recorded only where a lookup of that very name
confirmed it (`spec_gone`, `gang_gone`): a listing that lacks a thing proves nothing.
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
    """A user's `jobs/user_states/<job>`. `uid` is empty if the client named none."""

    generation: int
    written_at: float
    cancel: bool
    uid: str = ""
    by: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunView:
    """What is known of one run (an attempt, or the cleanup command).

    Attributes:
        order, order_generation: What the hosts were told; None and 0 if there is no order yet.
        claim: None if nobody has decided the gate yet.
        reports: By host index; only those with the run's own token.
        reported_at: When the daemon first saw each of them, by host index.
        gang: This run's gang, as the provisioner lists it or told when asked; None if it did neither.
        gang_gone: A lookup says that nothing of the gang exists.
        failure: Why its creation failed, at once or after it was accepted: (cause, message).
        silent_seconds: For how long each host's beat has not moved, by host index, on our own clock.
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
    """A gang that no current run owns: left over by a crash, or created late by a request thought lost."""

    status: GangStatus
    on_bastion: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class JobView:
    """One name's objects as they were read.

    Attributes:
        spec_meta: The spec object in the listing; None if it is not listed.
        spec: The valid spec in that object, if its generation is not the accepted one.
        spec_problem: Why that object is refused; empty if it is not.
        spec_gone: A lookup says that the object does not exist.
        record, record_generation: Our state; None and 0 if there is none.
        frozen: Our state cannot be read (its problem): nothing is done with this job until someone mends it.
        invalid_generation: Generation of the spec that `jobs/invalid/` already explains; 0 if none.
        invalid_object_generation: Generation of that explanation itself; 0 if there is none.
        history_done: Number of the last history line known to be appended everywhere it belongs.
        history_own: The same for the job's own history; later ones than `history_done` are not in their project's yet,
            because the quota file in force does not have it.
        orphan_gangs: Gangs of this uid that belong to no current run; without a readable state, all that may be its.
        attempts_seen: Highest number of an attempt of which a gang, a claim or an order lies there, of a spec without
            a state: somebody removed the state of a job that had started.
        gangs_unknown: The provisioner did not answer, for the zone of a past attempt at least.
        unread: The present content of the state could not be downloaded; `record` is what was read before, if anything.
        doubt: A start of ours whose write got no answer: it may land at any time, until the state is written again.
        late: The attempt was started by a daemon of an earlier epoch, and its write landed too late to count.
        current: `record` is the present content of the state.
        ghost: The job has its result already; the state's creation landed after the job's end.
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
    """What the reconciler needs to know of this installation.

    Attributes:
        root, bastion: Where the bucket is, for the agents.
        host_identity: This bastion VM's, boot's and process namespace's name.
        poll_seconds, beat_seconds: How often agents read orders, and beat.
        interpreter: Python for the commands of nodes that share our file system; empty where nodes bring their own.
        budgets: The operator's, or the defaults.
    """

    root: str
    bastion: str
    host_identity: str
    poll_seconds: float = 5.0
    beat_seconds: float = limits.BEAT_PERIOD_SECONDS
    interpreter: str = ""
    budgets: Budgets = field(default_factory=Budgets)


@dataclass(frozen=True, slots=True, kw_only=True)
class Listed:
    """Objects and gangs of this tick by name, whether or not a job owns them: what the sweep looks at.

    Attributes:
        claims: By run.
        run_objects: Orders and reports, by `<run>/order` and `<run>/reports/<i>`.
        heartbeat_runs: Runs of which a host has sent a heartbeat.
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
        entropy: Fresh random bytes; run tokens are drawn from it, so a tick replays.
        policy: The quota file in force; None if there never was one.
        provisioning: Where slices may be created; None if that was never known: none are.
        silent_zones: Zones of it that did not answer in this tick: no gang is created there.
        epoch: Of the daemon that observes; each attempt that it finds becomes one of this epoch.
        no_room: Why no job may be started or evicted now; empty if that is allowed.
        agent: Digest of the agent that new attempts on slices begin with; empty: their nodes fetch none; None: it is
            not in the bucket yet, and such attempts wait for it.
        listed: What the sweep looks at.
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


def next_place(world: World, kind: InstanceType, tier: int | None, turn: int) -> Place | None:
    """Where the next gang of that type and tier is created: the place whose turn it is, or the next that answers.

    Args:
        turn: `JobRecord.zone_turn`.

    Returns:
        None if there is no place, or none whose zone answers.
    """
    places = world.provisioning.places(kind, tier) if world.provisioning is not None else ()
    begin = turn % len(places) if places else 0
    return next((p for p in (*places[begin:], *places[:begin]) if p.zone not in world.silent_zones), None)
