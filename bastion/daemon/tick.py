"""One tick of the daemon, in seven steps:

1. Hold the lease.
2. List: the folders that are due, and read what changed.
3. Take over, once an epoch: what the predecessor had in force, published and remembered.
4. Apply what people write: the quota file, the runtime options, the operator's settings.
5. Observe: one `TickInput` with everything that the decision depends on.
6. Decide: one `TickOutput`. A tick that saw only a part of the bucket and finds something to do goes back to step 2,
   and lists everything.
7. Act on it, and publish.

The steps reach the world through ports only. The clock and randomness are injected.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from bastion import __version__
from bastion.core.errors import BastionError, StoreError
from bastion.core.model import bastion_host_jobs
from bastion.core.model.bastion_host_jobs import AS_DAEMON, BastionHostJobs
from bastion.core.model.job_record import JobRecord
from bastion.core.model.provisioning import BUILT_IN, Provisioning, tiers_without_settings
from bastion.core.model.world import Installation, World
from bastion.core.plain_text import plain_line
from bastion.core.reconcile import runs
from bastion.core.reconcile.cleaning import waiting_cleanups
from bastion.core.reconcile.restart_costs import RestartCosts
from bastion.core.reconcile.scheduling_view import SchedulingView
from bastion.core.run_keys import RunKeys
from bastion.core.status.build import idle_entry
from bastion.core.status.document import DaemonEntry, HostJobsEntry, QuotaEntry, StatusDocument, UsageEntry
from bastion.core.tick import TickInput, TickOutput, decide
from bastion.daemon.act.agents import Agents
from bastion.daemon.act.audit_trail import AuditTrail
from bastion.daemon.act.audited_files import AuditedFiles
from bastion.daemon.act.executor import Executor, Outcome
from bastion.daemon.act.history import HistoryWriter
from bastion.daemon.failed_ticks import FailedTicks
from bastion.daemon.fence import Fence
from bastion.daemon.lease import Lease
from bastion.daemon.observe.folders import Folders
from bastion.daemon.observe.gangs import Provisioners
from bastion.daemon.observe.identity_source import IdentitySource
from bastion.daemon.observe.listings import Listings
from bastion.daemon.observe.observer import Observer
from bastion.daemon.observe.policy_source import OptionsSource, PolicySource, PolicyStatus
from bastion.daemon.observe.settings_source import SettingsSource
from bastion.daemon.publish.daemon_log import DaemonLog
from bastion.daemon.publish.publisher import Circumstances, Publisher
from bastion.daemon.publish.waiting_since import WaitingSince
from bastion.daemon.thread_pool import ThreadPool
from bastion.ports import Clock, InboxProof, ObjectStore
from scheduler import JobStatus, RecentHoldings, Scheduler, Snapshot, UsageHistory, Verdict

_STORE_THREADS = 32
# At most; on S3 a look-up tells the time of what was written.
_REQUESTS_OF_A_WRITE = 2
# A hiccup of the bucket is not worth telling everybody.
_UNREAD_TICKS_TOLD = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class DaemonOptions:
    """How a daemon behaves.

    Attributes:
        installation: Where this bastion is, for the reconciler and the agents.
        owner: Random name of this process, for the lease.
        process: This process's id and start time, as `ProcessId` writes them.
        tick_seconds: Between two idle ticks.
        busy_tick_seconds: Between two ticks while jobs start or stop, or hosts are about to end.
        lease_ttl_seconds: After so long without renewal another daemon takes over.
        idle_exit_seconds: End after so long without a job; 0 means never.
        without_file: Settings in force until the operator writes some; None: no slices are created.
        quota_root: ROOT of the quota file; published, so that nobody uploads one elsewhere.
        store_threads: Requests to the bucket under way at a time.
    """

    installation: Installation
    owner: str
    process: str
    tick_seconds: float = 10.0
    busy_tick_seconds: float = 2.0
    lease_ttl_seconds: float = 60.0
    idle_exit_seconds: float = 0.0
    without_file: Provisioning | None = BUILT_IN
    quota_root: str = ""
    store_threads: int = _STORE_THREADS


@dataclass(slots=True)
class TickReport:
    """What one tick did, for the loop and for tests.

    Attributes:
        acted: Whether it decided. False: another daemon holds the lease, or too little could be read.
        pressing: Hosts are about to end an attempt or a try: the next tick should follow soon.
    """

    acted: bool
    jobs: int = 0
    pressing: bool = False
    outcome: Outcome = field(default_factory=Outcome)
    problems: list[str] = field(default_factory=list)


@dataclass(frozen=True, slots=True, kw_only=True)
class _InForce:
    """What people wrote and this tick uses: the quota file, the operator settings, the runtime options."""

    policy: PolicyStatus
    provisioning: Provisioning | None
    dry_run: bool
    host_jobs: BastionHostJobs


class Tick:
    """A daemon's parts, and what they remember from tick to tick. `tick` runs one.

    Attributes:
        time: Steady time, the clock of everything that outlives a tick.
    """

    def __init__(
        self,
        *,
        store: ObjectStore,
        quota_store: ObjectStore,
        provisioners: Provisioners,
        clock: Clock,
        options: DaemonOptions,
        entropy: Callable[[], bytes],
        proof: InboxProof,
        run_keys: Callable[[], RunKeys],
        notify: Callable[[str], None] = lambda _: None,
        apply_settings: Callable[[Provisioning], str] = lambda _: "",
        agents: Agents | None = None,
        machine_alarms: Callable[[], Sequence[str]] = tuple,
        record: Callable[[TickInput, TickOutput, PolicyStatus], str] = lambda *_: "",
        disconnect: Callable[[], None] = lambda: None,
        keep_clusters: Callable[[Mapping[str, str]], None] = lambda _: None,
        host_jobs: Callable[[Provisioning | None], BastionHostJobs] = lambda _: AS_DAEMON,
    ) -> None:
        """Make the parts.

        Args:
            proof: Says which objects in inboxes are their users'.
            run_keys: Reads the keys of the runs; called in every tick until it raises no BastionError.
            notify: Called with what the operator should know now.
            apply_settings: Called with the operator settings in every tick, before any request to the provisioners;
                returns which of them cannot be applied.
            agents: Uploads the agent that nodes fetch; None: they bring their agent along.
            machine_alarms: Returns the problems of this machine; called in every tick.
            record: Called with every decision and the quota in force; returns a problem, or an empty text.
            disconnect: Ends what the provisioners run; called at the daemon's end.
            keep_clusters: Called with the identities of the clusters that live attempts are in, by place, before any
                request to them.
            host_jobs: Called with the operator settings in every tick; returns whether commands may start on this host.
        """
        self._store = store
        self._clock = clock
        self._options = options
        self._entropy = entropy
        self._notify = notify
        self._agents = agents
        self._machine_alarms = machine_alarms
        self._apply_settings = apply_settings
        self._decide_host_jobs = host_jobs
        self._record = record
        self._read_run_keys = run_keys
        self._has_keys = False
        self._disconnect = disconnect
        self._settings_problem = ""
        self._record_problem = ""
        self._threads = ThreadPool(options.store_threads)
        self._lease = Lease(
            store,
            clock,
            owner=options.owner,
            host_identity=options.installation.host_identity,
            process=options.process,
            ttl_seconds=options.lease_ttl_seconds,
        )
        folders = Folders(
            store, clock, bastion=options.installation.bastion, quota_here=quota_store is store, proof=proof
        )
        self._folders = folders
        self._listings = Listings(store, self._threads, folders.listed())
        self._policy = PolicySource(quota_store, folders.quota)
        self._runtime_options = OptionsSource(store, folders.options)
        self._operator_settings = SettingsSource(store, folders.settings, without_file=options.without_file)
        self._identity = IdentitySource(store, folders.identity, folders.identity_copy)
        self.time = self._lease.steady
        self._fence = Fence(self._lease, clock)
        self._observer = Observer(
            store, folders, provisioners, self.time, options.installation, self._threads, keep_clusters
        )
        self._audit = AuditTrail(store, self.time.now, clock.monotonic)
        self._audited = AuditedFiles(self._audit)
        self._executor = Executor(
            store,
            provisioners,
            folders,
            self._observer.views,
            HistoryWriter(store, self._threads),
            self._audit,
            self._threads,
            self._lease.may_act,
        )
        self._log = DaemonLog(store, clock, options.installation.bastion)
        self._waiting = WaitingSince()
        self._view = SchedulingView()
        self._scheduler = Scheduler()
        self._recent = RecentHoldings()
        self._restart_costs = RestartCosts()
        self._usage = UsageHistory()
        self._ownerless_since: dict[str, int] = {}
        self._publisher = Publisher(store, folders.status, notify)
        self._failed = FailedTicks(clock)
        self._ticks = 0
        self._list_whole = True  # what an earlier tick saw does not suffice for the next one
        self._epoch_logged = 0
        self._recovered_epoch = -1
        self._standing_by = ""
        self._unread_ticks = 0  # in a row

    def tick(self) -> TickReport:
        """Run one tick. A store that does not answer ends the tick, never the daemon."""
        problems: list[str] = []
        self._ticks += 1
        if not self._hold_lease(problems):
            return TickReport(acted=False, problems=problems)
        try:
            if not self._has_keys:
                self._observer.use_keys(self._read_run_keys())
                self._has_keys = True
            in_force, given, output = self._list_and_decide()
            self._unread_ticks, self._lease.problem = 0, ""
            return self._act(in_force, given, output, problems)
        except BastionError as error:
            self._list_whole = True
            self._unread_ticks += 1
            if self._unread_ticks >= _UNREAD_TICKS_TOLD:
                self._lease.problem = str(error)
            problems.append(f"this tick could not read enough to act: {error}")
            self._notify(problems[-1])
            return TickReport(acted=False, problems=problems)

    # -- 1. the lease -------------------------------------------------------------------------------------------

    def _hold_lease(self, problems: list[str]) -> bool:
        """Renew or take the lease; return whether this daemon may act."""
        writes = self._lease.writes
        try:
            if not self._lease.hold():
                self._list_whole = True
                self._stand_by()
                return False
            self._standing_by = ""
        except StoreError as error:
            problems.append(f"the lease could not be renewed: {error}")
            self._folders.heartbeats.start_anew()  # hosts may not reach the bucket either
            if not self._lease.may_act():
                self._list_whole = True
                self._notify(problems[0])
                return False
        if self._epoch_logged != self._lease.epoch:
            self._begin_epoch()
        self._listings.begin(spent=_REQUESTS_OF_A_WRITE * (self._lease.writes - writes))
        return True

    def _stand_by(self) -> None:
        """Notify once that another daemon acts."""
        if self._standing_by != self._lease.held_by:
            self._standing_by = self._lease.held_by
            self._notify(f"another daemon acts for this ROOT: {self._lease.held_by}; standing by until it ends")

    def _begin_epoch(self) -> None:
        """Forget what another daemon may have changed since this one last acted."""
        self._epoch_logged = self._lease.epoch
        text = f"daemon {self._options.owner} of version {__version__} begins epoch {self._lease.epoch}"
        self._log.say(text)
        self._audit.begin_epoch(self._lease.epoch, text)
        self._list_whole = True
        self._observer.start_anew()
        self._ownerless_since = {}

    # -- 2. to 6.: from the listing to a decision ---------------------------------------------------------------

    def _list_and_decide(self) -> tuple[_InForce, TickInput, TickOutput]:
        whole = self._list_whole
        self._folders.copies.begin()
        while True:
            self._listings.look(whole=whole)
            self._folders.heartbeats.bucket_answers()
            if self._recovered_epoch != self._lease.epoch:
                self._take_over()
            if self._folders.use(self._identity.refresh()):
                self._listings.use_inbox(self._identity.identity.inbox)
                self._listings.look(whole=True)
            in_force = self._read_what_people_write()
            given = self._observe(in_force)
            output = decide(given, self._scheduler)
            if not output.effects or self._listings.whole:
                self._waiting.update(output.plan, given.now)
                self._ownerless_since = dict(output.ownerless_since)
                self._record_problem = self._record(given, output, in_force.policy)
                return in_force, given, output
            whole = True

    # -- 3. what the predecessor left ---------------------------------------------------------------------------

    def _take_over(self) -> None:
        """Forget what was in force when this daemon last acted, and take over what its predecessor published."""
        published = self._publisher.recover() or StatusDocument()
        self._audited.take_over(published)
        self._policy.take_over(published.quota.generation if published.quota.in_force else 0)
        self._runtime_options.take_over()
        self._operator_settings.take_over()
        self._identity.take_over()
        self._waiting.recover(published)
        self._recent = RecentHoldings(published.idle.kept)
        self._usage.restore(published.usage.model_dump())
        self._observer.zones.recover(published.daemon.zones, self._clock.monotonic())

    # -- 4. what people write -----------------------------------------------------------------------------------

    def _read_what_people_write(self) -> _InForce:
        policy = self._policy.refresh()
        runtime_options = self._runtime_options.refresh()
        provisioning = self._operator_settings.refresh().provisioning
        if provisioning is not None:
            self._settings_problem = self._apply_settings(provisioning)
        return _InForce(
            policy=policy,
            provisioning=provisioning,
            dry_run=runtime_options.scheduler.dry_run,
            host_jobs=self._decide_host_jobs(provisioning),
        )

    # -- 5. everything that the decision depends on -------------------------------------------------------------

    def _observe(self, in_force: _InForce) -> TickInput:
        world = self._observer.observe(
            entropy=self._entropy(),
            dry_run=in_force.dry_run,
            whole=self._listings.whole,
            policy=in_force.policy.policy,
            provisioning=in_force.provisioning,
            epoch=self._lease.epoch,
            agent=self._agents.known if self._agents is not None else "",
            fence=self._fence,
            host_jobs=in_force.host_jobs,
        )
        self._recovered_epoch = self._lease.epoch  # the takeover ends with the first world
        self.time.idle = not world.jobs
        now = self.time.now()
        return TickInput(
            number=self._ticks,
            now=now,
            server_time=self._lease.server_time,
            world=world,
            snapshot=self._snapshot(world, now),
            ownerless_since=self._ownerless_since,
        )

    def _snapshot(self, world: World, now: float) -> Snapshot:
        """The jobs as the scheduler sees them, with what this daemon remembers of earlier ticks."""
        jobs = self._view.snapshot(
            world.jobs,
            world.policy,
            waiting_since=self._waiting.since,
            promised=self._waiting.promised,
            provisioning=world.provisioning,
            awaiting=world.awaiting,
            host_jobs=world.settings.host_jobs,
        )
        if world.policy is None:
            return jobs
        running = (world.jobs[job.name].record for job in jobs.jobs if job.status is JobStatus.RUNNING)
        costs = self._restart_costs.note(record for record in running if record is not None)
        recently = self._recent.note(jobs.jobs, now, world.policy, costs)
        usage = self._usage.note(jobs.jobs, now, world.policy)
        return replace(jobs, held_recently=recently, restart_seconds=costs, user_usage=usage)

    # -- 7. acting and publishing -------------------------------------------------------------------------------

    def _act(self, in_force: _InForce, given: TickInput, output: TickOutput, problems: list[str]) -> TickReport:
        world = given.world
        outcome = Outcome()
        if self._still_acts():
            known = in_force.policy.policy.projects if in_force.policy.policy else ()
            self._audited.note(
                in_force.policy, self._operator_settings.loaded, self._identity.loaded, self._identity.identity
            )
            outcome = self._executor.execute(output.effects, known_projects=known)
        # Effects have consequences: list everything in the next tick.
        self._list_whole = bool(output.effects)
        self._ask_for_agent(output)
        problems += self._problems(in_force, world, outcome)
        self._write_log(world, output, outcome, problems)
        records = self._records(world, outcome)
        if self._lease.may_act():  # else a successor may have published something newer
            about = self._circumstances(in_force, given.snapshot, problems)
            self._publisher.publish(world, output.plan, records, about, listed=self._listings.sees_status)
        try:
            self._log.flush()
        except StoreError as error:
            self._notify(f"the daemon log could not be written: {error}")
        now = self.time.now()
        pressing = any(r.attempt is not None and runs.pressing(r.attempt, now) for r in records.values())
        return TickReport(acted=True, jobs=len(records), pressing=pressing, outcome=outcome, problems=problems)

    def _still_acts(self) -> bool:
        """Whether the decision may be carried out.

        The decision may have taken longer than the lease lasts. If the lease can be renewed, no other daemon has acted.
        """
        if self._lease.may_act():
            return True
        epoch = self._lease.epoch
        with contextlib.suppress(StoreError):
            return self._lease.hold() and self._lease.epoch == epoch
        return False

    def _ask_for_agent(self, output: TickOutput) -> None:
        """Pack and upload the agent once jobs start on slices, and check that it is stored while they do."""
        if self._agents is not None and any(decision.verdict is Verdict.START for decision in output.plan.acting):
            before = self._agents.known
            self._list_whole |= self._agents.current() != before

    def _problems(self, in_force: _InForce, world: World, outcome: Outcome) -> list[str]:
        """Return this tick's alarms."""
        found = [
            in_force.policy.problem,
            self._runtime_options.problem,
            self._operator_settings.status.problem,
            self._settings_problem,
            self._policy.copy_problem,
            self._runtime_options.copy_problem,
            self._operator_settings.copy_problem,
            self._identity.problem,
            self._identity.copy_problem,
            self._folders.inbox.unprepared,
        ]
        if world.policy is not None and world.provisioning is not None:
            found.append(tiers_without_settings(world.provisioning, world.policy))
        found.append(bastion_host_jobs.alarm(world.settings.host_jobs, waiting_cleanups(world)))
        found += [self.time.problem, *self._observer.problems, *outcome.problems, *self._machine_alarms()]
        found += [self._failed.alarm, self._fence.alarm, self._record_problem, self._audit.alarm]
        if self._agents is not None and world.agent is None:
            found.append(self._agents.problem)
        return [problem for problem in found if problem]

    def _write_log(self, world: World, output: TickOutput, outcome: Outcome, problems: list[str]) -> None:
        """Write the daemon's log."""
        for name in outcome.dropped:
            if name in world.jobs and world.jobs[name].ghost:
                self._log.say(f"{name}: dropped a state that was created after the end of its job")
        for name, record in sorted(outcome.records.items()):
            for line in record.history:
                self._log.say(f"{name} {line.status.value} {line.text}")
        for decision in output.plan.acting:
            if decision.verdict is Verdict.EVICT:
                self._log.say(f"{decision.name} is evicted for {decision.evicted_for}")
        self._log.say_problems(problems)

    def _records(self, world: World, outcome: Outcome) -> dict[str, JobRecord]:
        records = {name: view.record for name, view in world.jobs.items() if view.record is not None}
        records.update(outcome.records)
        for name in outcome.dropped:
            records.pop(name, None)
        return records

    def _circumstances(self, in_force: _InForce, snapshot: Snapshot, problems: list[str]) -> Circumstances:
        policy = in_force.policy
        return Circumstances(
            daemon=DaemonEntry(
                owner=self._options.owner,
                process=self._options.process,
                version=__version__,
                epoch=self._lease.epoch,
                zones=tuple(self._observer.zones.known),
                failed_ticks=self._failed.count,
                bastion_host_jobs=HostJobsEntry(
                    mode=in_force.host_jobs.mode.value, reason=plain_line(in_force.host_jobs.reason)
                ),
                audit=self._audited.entry(),
            ),
            quota=QuotaEntry(
                in_force=policy.policy is not None,
                generation=policy.generation,
                problem=plain_line(policy.problem),
                root=self._options.quota_root or self._options.installation.root,
            ),
            alarms=problems,
            waiting_since=self._waiting.since,
            idle=idle_entry(snapshot),
            backlog=self._observer.backlog.published(),
            usage=lambda: UsageEntry.model_validate(self._usage.to_document()),
        )
