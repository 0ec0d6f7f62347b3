"""The daemon: one tick after another. Everything it knows lies in the bucket; kill it at any instant.

    renew lease → observe → schedule → reconcile → execute → publish

Layer: reaches the world through ports only. The clock and randomness are injected.
"""

from __future__ import annotations

import contextlib
import threading
import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from bastion import __version__
from bastion.core.errors import BastionError, StoreError
from bastion.core.model.job_record import JobRecord
from bastion.core.model.provisioning import BUILT_IN, Provisioning, tiers_without_settings
from bastion.core.model.world import Installation, World
from bastion.core.plain_text import plain_line
from bastion.core.reconcile import runs
from bastion.core.reconcile.effects import Effect
from bastion.core.reconcile.reconciler import reconcile
from bastion.core.reconcile.restart_costs import RestartCosts
from bastion.core.reconcile.scheduling_view import SchedulingView
from bastion.core.status.build import idle_document
from bastion.core.status.jobs import published_holdings
from bastion.daemon.act.agents import Agents
from bastion.daemon.act.executor import Executor, Outcome
from bastion.daemon.act.history import HistoryWriter
from bastion.daemon.failed_ticks import FailedTicks
from bastion.daemon.fence import Fence
from bastion.daemon.lease import Lease
from bastion.daemon.observe.folders import Folders
from bastion.daemon.observe.gangs import Provisioners
from bastion.daemon.observe.listings import Listings
from bastion.daemon.observe.observer import Observer
from bastion.daemon.observe.policy_source import OptionsSource, PolicySource, PolicyStatus
from bastion.daemon.observe.settings_source import SettingsSource
from bastion.daemon.publish.daemon_log import DaemonLog
from bastion.daemon.publish.publisher import Circumstances, Publisher
from bastion.daemon.publish.waiting_since import WaitingSince
from bastion.daemon.sweep import Sweeper
from bastion.daemon.thread_pool import ThreadPool
from bastion.ports import Clock, ObjectStore
from scheduler import JobStatus, Plan, RecentHoldings, Scheduler, Snapshot, UsageHistory, Verdict

_STORE_THREADS = 32
# Between two looks whether to stop.
_DOZE_SECONDS = 0.5
# An end that waits longer for a bucket that does not answer is worth less than the TTL that it spares a successor.
_GIVE_BACK_SECONDS = 5.0


@dataclass(frozen=True, slots=True, kw_only=True)
class DaemonOptions:
    """How this daemon behaves.

    Attributes:
        world: What the reconciler needs to know.
        owner: Random name of this process, for the lease.
        process: This process's id and start time, as `ProcessId` writes them.
        tick_seconds: Between two idle ticks; after a tick that did something the next one follows sooner.
        busy_tick_seconds: Between two ticks while things are moving, or hosts are about to end.
        lease_ttl_seconds: After so long without renewal another daemon takes over.
        idle_exit_seconds: End when there was no job for so long; 0 means never.
        without_file: What holds as long as the operator has written no settings; None: no slices are created.
        quota_root: ROOT under which the quota file lies; published, so that nobody uploads one where it is not read.
        store_threads: Requests to the bucket under way at a time.
    """

    world: Installation
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
        pressing: Hosts are on their way to the end of an attempt or of a try: the next look should not wait for long.
    """

    acted: bool
    jobs: int = 0
    pressing: bool = False
    outcome: Outcome = field(default_factory=Outcome)
    problems: list[str] = field(default_factory=list)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Decided:
    """What a tick saw, and what it is going to do about it."""

    world: World
    policy: PolicyStatus
    jobs: Snapshot
    plan: Plan
    work: dict[str, list[Effect]]


class Daemon:
    """Owns the tick. `run` repeats it until told to stop; `tick` is one of them.

    Attributes:
        time: By which everything is timed that outlives a tick.
    """

    def __init__(
        self,
        *,
        store: ObjectStore,
        quota_store: ObjectStore,
        provisioners: Provisioners,
        clock: Clock,
        settings: DaemonOptions,
        entropy: Callable[[], bytes],
        notify: Callable[[str], None] = lambda _: None,
        apply_settings: Callable[[Provisioning], str] = lambda _: "",
        agents: Agents | None = None,
        machine_alarms: Callable[[], Sequence[str]] = tuple,
    ) -> None:
        """What the ports are for.

        Args:
            machine_alarms: Asked in every tick what is wrong with this machine.
            agents: What nodes fetch from the bucket; None: they bring their agent along.
            heed: Told the operator's settings in every tick, before anything is asked of the provisioners; returns
                what of them cannot be heeded.
        """
        self._store = store
        self._clock = clock
        self._settings = settings
        self._entropy = entropy
        self._notify = notify
        self._agents = agents
        self._machine_alarms = machine_alarms
        self._apply_settings = apply_settings
        self._settings_problem = ""
        self._threads = ThreadPool(settings.store_threads)
        self._lease = Lease(
            store,
            clock,
            owner=settings.owner,
            host_identity=settings.world.host_identity,
            process=settings.process,
            ttl_seconds=settings.lease_ttl_seconds,
        )
        folders = Folders(store, clock, bastion=settings.world.bastion, quota_here=quota_store is store)
        self._folders = folders
        self._listings = Listings(store, self._threads, folders.shelves())
        self._policy = PolicySource(quota_store, folders.quota)
        self._options = OptionsSource(store, folders.options)
        self._operator = SettingsSource(store, folders.settings, without_file=settings.without_file)
        self.time = self._lease.steady
        self._fence = Fence(self._lease, clock)
        self._observer = Observer(store, folders, provisioners, self.time, settings.world, self._threads)
        history = HistoryWriter(store, self._threads)
        self._executor = Executor(
            store, provisioners, folders, self._observer.views, history, self._threads, self._lease.may_act
        )
        self._sweeper = Sweeper(self._observer)
        self._log = DaemonLog(store, clock, settings.world.bastion)
        self._waiting = WaitingSince()
        self._view = SchedulingView()
        self._scheduler = Scheduler()
        self._recent = RecentHoldings()
        self._restart_costs = RestartCosts()
        self._usage = UsageHistory()
        self._publisher = Publisher(store, folders.status, notify)
        self._failed = FailedTicks(clock)
        self._ticks = 0
        self._look_whole = True  # what an earlier tick saw does not suffice for the next one
        self._epoch_said = 0
        self._recovered_epoch = -1
        self._standing_by = ""

    # -- the loop -----------------------------------------------------------------------------------------------

    def run(self, should_stop: Callable[[], bool]) -> None:
        """Ticks until `should_stop`, or until there was nothing to do for long enough."""
        busy_at = self._clock.monotonic()
        while not should_stop():
            report = self._guarded_tick()
            now = self._clock.monotonic()
            if report.jobs or not report.acted:
                busy_at = now
            idle = self._settings.idle_exit_seconds
            if idle and now - busy_at >= idle:
                self._notify(f"no job for {idle:.0f} s: ending")
                break
            moving = report.acted and (report.outcome.done > 0 or report.pressing)
            self._rest(self._settings.busy_tick_seconds if moving else self._settings.tick_seconds, should_stop)
        self.close()

    def _guarded_tick(self) -> TickReport:
        """One tick. An error that nobody foresaw is told, and the next tick begins anew from the bucket."""
        try:
            return self.tick()
        except Exception as error:  # noqa: BLE001 - the last guard: nothing that others write may end the daemon
            what, story = self._failed.note(error), traceback.format_exc()
        self._look_whole = True
        self._notify(f"a tick failed, the next one goes on: {what}\n{story}")
        self._log.say(f"a tick failed: {what}")
        with contextlib.suppress(StoreError):
            self._log.flush()
        return TickReport(acted=False, problems=[what])

    def _rest(self, seconds: float, should_stop: Callable[[], bool]) -> None:
        ends = self._clock.monotonic() + seconds
        while (left := ends - self._clock.monotonic()) > 0 and not should_stop():
            self._clock.sleep(min(left, _DOZE_SECONDS))

    def close(self) -> None:
        """Gives the lease back, if the bucket answers, and ends the threads; nothing else needs to be put away."""
        giving_back = threading.Thread(target=self._give_back, name="give-back", daemon=True)
        giving_back.start()
        giving_back.join(_GIVE_BACK_SECONDS)
        if giving_back.is_alive():
            self._notify("the lease was not given back: the bucket does not answer; a successor waits for its TTL")
        self._threads.dismiss()

    def _give_back(self) -> None:
        try:
            self._lease.release()
        except StoreError as error:
            self._notify(f"the lease was not given back ({error}); a successor waits for its TTL")

    # -- one tick -----------------------------------------------------------------------------------------------

    def tick(self) -> TickReport:
        """One pass. A store that does not answer costs this pass, never the daemon."""
        problems: list[str] = []
        self._ticks += 1
        writes = self._lease.writes
        try:
            if not self._lease.hold():
                self._look_whole = True
                self._stand_by()
                return TickReport(acted=False)
            self._standing_by = ""
        except StoreError as error:
            problems.append(f"the lease could not be renewed: {error}")
            self._folders.beats.start_anew()  # nor may hosts be able to beat
            if not self._lease.may_act():
                self._look_whole = True
                self._notify(problems[0])
                return TickReport(acted=False, problems=problems)
        self._listings.begin(spent=self._lease.writes - writes)
        try:
            return self._act(problems)
        except BastionError as error:
            self._look_whole = True
            problems.append(f"this tick saw too little to act: {error}")
            self._notify(problems[-1])
            return TickReport(acted=False, problems=problems)

    def _stand_by(self) -> None:
        """Says once for whom this daemon stands by."""
        if self._standing_by != self._lease.held_by:
            self._standing_by = self._lease.held_by
            self._notify(f"another daemon acts for this ROOT: {self._lease.held_by}; standing by until it ends")

    def _act(self, problems: list[str]) -> TickReport:
        if self._epoch_said != self._lease.epoch:
            self._epoch_said = self._lease.epoch
            self._log.say(
                f"daemon {self._settings.owner} of version {__version__} acts from now on, epoch {self._epoch_said}"
            )
            self._look_whole = True
            self._observer.views.start_anew()
            self._sweeper.start_anew()
        decided = self._decide()
        world, plan, work = decided.world, decided.plan, decided.work
        outcome = Outcome()
        if self._still_acts():
            known = decided.policy.policy.projects if decided.policy.policy else ()
            outcome = self._executor.execute(work, known_projects=known)
        self._look_whole = bool(work)  # what was done has consequences, and they should not wait for a second look
        settings_problems = (self._operator.status.problem, self._settings_problem)
        problems += [p for p in (decided.policy.problem, self._options.problem, *settings_problems) if p]
        problems += filter(None, [self._policy.copy_problem, self._options.copy_problem, self._operator.copy_problem])
        if world.policy is not None and world.provisioning is not None:
            problems += filter(None, [tiers_without_settings(world.provisioning, world.policy)])
        problems += filter(None, [self.time.problem])
        problems += [*self._observer.problems, *outcome.problems]
        problems += [*self._machine_alarms(), *filter(None, [self._failed.alarm, self._fence.alarm])]
        if self._agents is not None and world.agent is None and self._agents.problem:
            problems.append(self._agents.problem)
        for name in outcome.dropped:
            if name in world.jobs and world.jobs[name].ghost:
                self._log.say(f"{name}: dropped a state that was created after the end of its job")
        self._say(outcome, plan, problems)
        records = self._records(world, outcome)
        if self._lease.may_act():  # else what we know may be older than what our successor published
            about = self._circumstances(decided, problems)
            self._publisher.publish(world, plan, records, about, listed=self._listings.sees_status)
        try:
            self._log.flush()
        except StoreError as error:
            self._notify(f"the daemon log could not be written: {error}")
        now = self.time.now()
        pressing = any(r.attempt is not None and runs.pressing(r.attempt, now) for r in records.values())
        return TickReport(acted=True, jobs=len(records), pressing=pressing, outcome=outcome, problems=problems)

    def _still_acts(self) -> bool:
        """Whether what was decided may be done. A decision about many jobs may take longer than the lease lasts: if it
        can be renewed, nobody else has acted meanwhile."""
        if self._lease.may_act():
            return True
        epoch = self._lease.epoch
        with contextlib.suppress(StoreError):
            return self._lease.hold() and self._lease.epoch == epoch
        return False

    def _decide(self) -> _Decided:
        """Looks at what is due and decides what to do. Before anything is done, everything is looked at."""
        whole = self._look_whole
        while True:
            self._listings.look(whole=whole)
            self._folders.beats.bucket_answers()
            taking_over = self._recovered_epoch != self._lease.epoch
            if taking_over:
                published = self._take_over()
            policy = self._policy.refresh()
            options = self._options.refresh()
            provisioning = self._operator.refresh().provisioning
            if provisioning is not None:
                self._settings_problem = self._apply_settings(provisioning)
            world = self._observer.observe(
                entropy=self._entropy(),
                dry_run=options.scheduler.dry_run,
                whole=self._listings.whole,
                policy=policy.policy,
                provisioning=provisioning,
                epoch=self._lease.epoch,
                fence=self._fence,
            )
            self.time.idle = not world.jobs
            now = self.time.now()
            if taking_over:
                self._recovered_epoch = self._lease.epoch
                self._waiting.recover(published)
                self._recent = RecentHoldings(published_holdings(published))
                self._usage.restore(published.get("usage") if isinstance(published, dict) else None)
                self._observer.zones.recover(published, self._clock.monotonic())
            waiting = self._waiting
            jobs = self._view.snapshot(
                world.jobs,
                policy.policy,
                waiting_since=waiting.since,
                promised=waiting.promised,
                provisioning=provisioning,
            )
            if policy.policy is not None:
                running = (world.jobs[job.name].record for job in jobs.jobs if job.status is JobStatus.RUNNING)
                costs = self._restart_costs.note(record for record in running if record is not None)
                recently = self._recent.note(jobs.jobs, now, policy.policy, costs)
                usage = self._usage.note(jobs.jobs, now, policy.policy)
                jobs = replace(jobs, held_recently=recently, restart_seconds=costs, user_usage=usage)
            plan = self._scheduler.schedule(jobs, now)
            if self._agents is not None and any(decision.verdict is Verdict.START for decision in plan.acting):
                world = replace(world, agent=self._agents.current())
            work = reconcile(world, plan, now)
            if not world.dry_run:
                work = self._sweeper.sweep(world, self._ticks, now, server_time=self._lease.server_time) | work
            if not work or self._listings.whole:
                self._waiting.update(plan, now)
                return _Decided(world=world, policy=policy, jobs=jobs, plan=plan, work=work)
            whole = True

    def _take_over(self) -> Any:
        """Forgets what was in force when this daemon last acted; returns what its predecessor published."""
        published = self._publisher.recover()
        quota = published.get("quota") if isinstance(published, dict) else None
        generation = quota.get("generation") if isinstance(quota, dict) and quota.get("in_force") is True else None
        self._policy.take_over(generation if type(generation) is int else 0)
        self._options.take_over()
        self._operator.take_over()
        return published

    def _records(self, world: World, outcome: Outcome) -> dict[str, JobRecord]:
        records = {name: view.record for name, view in world.jobs.items() if view.record is not None}
        records.update(outcome.records)
        for name in outcome.dropped:
            records.pop(name, None)
        return records

    def _say(self, outcome: Outcome, plan: Plan, problems: list[str]) -> None:
        for name, record in sorted(outcome.records.items()):
            for line in record.history:
                self._log.say(f"{name} {line.status.value} {line.text}")
        for decision in plan.acting:
            if decision.verdict is Verdict.EVICT:
                self._log.say(f"{decision.name} is evicted for {decision.evicted_for}")
        self._log.say_problems(problems)

    def _circumstances(self, decided: _Decided, problems: list[str]) -> Circumstances:
        policy = decided.policy
        return Circumstances(
            daemon={
                "owner": self._settings.owner,
                "process": self._settings.process,
                "version": __version__,
                "epoch": self._lease.epoch,
                "zones": self._observer.zones.known,
                "failed_ticks": self._failed.count,
            },
            quota={
                "in_force": policy.policy is not None,
                "generation": policy.generation,
                "problem": plain_line(policy.problem),
                "root": self._settings.quota_root or self._settings.world.root,
            },
            alarms=problems,
            waiting_since=self._waiting.since,
            idle=idle_document(decided.jobs),
            backlog=self._observer.backlog.published(),
            usage=self._usage.to_document,
        )
