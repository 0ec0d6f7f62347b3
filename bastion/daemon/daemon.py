"""The daemon: one tick after another. Everything it knows lies in the bucket; kill it at any instant.

    renew lease → observe → schedule → reconcile → execute → publish

Layer: reaches the world through ports only. The clock and randomness are injected.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field

from bastion import __version__
from bastion.core import documents, keys, limits
from bastion.core.errors import BastionError, NotFound, PreconditionFailed, StoreError
from bastion.core.job_record import JobRecord
from bastion.core.reconcile import reconcile
from bastion.core.scheduling_view import snapshot
from bastion.core.status import build
from bastion.core.world import Settings, World
from bastion.daemon.daemon_log import DaemonLog
from bastion.daemon.execute import Executor, Outcome
from bastion.daemon.history import HistoryWriter
from bastion.daemon.lease import Lease
from bastion.daemon.observe import Observer, Provisioners
from bastion.daemon.policy_source import OptionsSource, PolicySource
from bastion.daemon.sweep import Sweeper
from bastion.daemon.waiting import WaitingSince
from bastion.ports import Clock, ObjectStore
from scheduler import Plan, Verdict, schedule

_WORKERS = 32


@dataclass(frozen=True, slots=True, kw_only=True)
class DaemonSettings:
    """How this daemon behaves.

    Attributes:
        world: What the reconciler needs to know.
        owner: Random name of this process, for the lease.
        process: This process's id and start time, as `ProcessId` writes them.
        tick_seconds: Between two idle ticks; after a tick that did something the next one follows sooner.
        busy_tick_seconds: Between two ticks while things are moving.
        lease_ttl_seconds: After so long without renewal another daemon takes over.
        idle_exit_seconds: End when there was no job for so long; 0 means never.
        quota_root: ROOT under which the quota file lies; published, so that nobody uploads one where it is not read.
    """

    world: Settings
    owner: str
    process: str
    tick_seconds: float = 10.0
    busy_tick_seconds: float = 2.0
    lease_ttl_seconds: float = 60.0
    idle_exit_seconds: float = 0.0
    quota_root: str = ""


@dataclass(slots=True)
class TickReport:
    """What one tick did, for the loop and for tests."""

    acted: bool
    jobs: int = 0
    outcome: Outcome = field(default_factory=Outcome)
    problems: list[str] = field(default_factory=list)


class Daemon:
    """Owns the tick. `run` repeats it until told to stop; `tick` is one of them."""

    def __init__(
        self,
        *,
        store: ObjectStore,
        quota_store: ObjectStore,
        provisioners: Provisioners,
        clock: Clock,
        settings: DaemonSettings,
        entropy: Callable[[], bytes],
        narrate: Callable[[str], None] = lambda _: None,
    ) -> None:
        self._store = store
        self._clock = clock
        self._settings = settings
        self._entropy = entropy
        self._narrate = narrate
        self._pool = ThreadPoolExecutor(_WORKERS, thread_name_prefix="store")
        self._lease = Lease(
            store,
            clock,
            owner=settings.owner,
            host_identity=settings.world.host_identity,
            process=settings.process,
            ttl_seconds=settings.lease_ttl_seconds,
        )
        self._policy = PolicySource(quota_store)
        self._options = OptionsSource(store)
        self._observer = Observer(store, provisioners, clock, settings.world, self._pool)
        self._executor = Executor(
            store, provisioners, self._observer, HistoryWriter(store, self._pool), self._pool, self._lease.may_act
        )
        self._sweeper = Sweeper(self._observer)
        self._log = DaemonLog(store, clock, settings.world.bastion)
        self._waiting = WaitingSince()
        self._published: bytes | None = None
        self._published_generation = 0
        self._epoch_said = 0
        self._standing_by = ""
        self._started_at = clock.now()

    # -- the loop -----------------------------------------------------------------------------------------------

    def run(self, should_stop: Callable[[], bool]) -> None:
        """Ticks until `should_stop`, or until there was nothing to do for long enough."""
        busy_at = self._clock.monotonic()
        while not should_stop():
            report = self.tick()
            now = self._clock.monotonic()
            if report.jobs or not report.acted:
                busy_at = now
            idle = self._settings.idle_exit_seconds
            if idle and now - busy_at >= idle:
                self._narrate(f"no job for {idle:.0f} s: ending")
                break
            moving = report.acted and report.outcome.done > 0
            self._clock.sleep(self._settings.busy_tick_seconds if moving else self._settings.tick_seconds)
        self.close()

    def close(self) -> None:
        """Gives the lease back and ends the threads; nothing else needs to be put away."""
        try:
            self._lease.release()
        except StoreError as error:
            self._narrate(f"the lease was not given back ({error}); a successor waits for its TTL")
        self._pool.shutdown(wait=True)

    # -- one tick -----------------------------------------------------------------------------------------------

    def tick(self) -> TickReport:
        """One pass. A store that does not answer costs this pass, never the daemon."""
        problems: list[str] = []
        try:
            if not self._lease.hold():
                self._stand_by()
                return TickReport(acted=False)
            self._standing_by = ""
        except StoreError as error:
            problems.append(f"the lease could not be renewed: {error}")
            self._observer.beats.start_anew()  # nor may hosts be able to beat
            if not self._lease.may_act():
                self._narrate(problems[0])
                return TickReport(acted=False, problems=problems)
        try:
            return self._act(problems)
        except BastionError as error:
            problems.append(f"this tick saw too little to act: {error}")
            self._narrate(problems[-1])
            return TickReport(acted=False, problems=problems)

    def _stand_by(self) -> None:
        """Says once for whom this daemon stands by."""
        if self._standing_by != self._lease.held_by:
            self._standing_by = self._lease.held_by
            self._narrate(f"another daemon acts for this ROOT: {self._lease.held_by}; standing by until it ends")

    def _act(self, problems: list[str]) -> TickReport:
        if self._epoch_said != self._lease.epoch:
            self._epoch_said = self._lease.epoch
            self._log.say(
                f"daemon {self._settings.owner} of version {__version__} acts from now on, epoch {self._epoch_said}"
            )
        policy = self._policy.refresh()
        options = self._options.refresh()
        world = self._observer.observe(entropy=self._entropy(), dry_run=options.scheduler.dry_run)
        now = self._clock.now()
        waiting = self._waiting
        if self._published is None:
            self._recover_published()
        plan = schedule(
            snapshot(world.jobs, policy.policy, waiting_since=waiting.since, promised=waiting.promised), now
        )
        self._waiting.update(plan, now)
        turns = reconcile(world, plan, now)
        if not world.dry_run:
            turns |= self._sweeper.sweep(world)
        outcome = Outcome()
        if self._lease.may_act():
            known = policy.policy.projects if policy.policy else ()
            outcome = self._executor.execute(turns, known_projects=known)
        problems += [p for p in (policy.problem, self._options.problem) if p]
        problems += [*self._observer.problems, *outcome.problems]
        self._say(outcome, plan, problems)
        records = self._records(world, outcome)
        if self._lease.may_act():  # else what we know may be older than what our successor published
            self._publish(world, plan, records, problems)
        try:
            self._log.flush()
        except StoreError as error:
            self._narrate(f"the daemon log could not be written: {error}")
        return TickReport(acted=True, jobs=len(records), outcome=outcome, problems=problems)

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
        for decision in plan.decisions:
            if decision.verdict is Verdict.EVICT:
                self._log.say(f"{decision.name} is evicted for {decision.evicted_for}")
        self._log.say_problems(problems)

    # -- publishing ---------------------------------------------------------------------------------------------

    def _publish(self, world: World, plan: Plan, records: Mapping[str, JobRecord], problems: list[str]) -> None:
        """Writes `status/current.json` if it would differ from what lies there."""
        status = self._policy.status
        document = build(
            bastion=self._settings.world.bastion,
            root=self._settings.world.root,
            daemon={
                "owner": self._settings.owner,
                "process": self._settings.process,
                "version": __version__,
                "epoch": self._lease.epoch,
            },
            quota={
                "in_force": status.policy is not None,
                "generation": status.generation,
                "problem": status.problem,
                "root": self._settings.quota_root or self._settings.world.root,
            },
            alarms=problems,
            records=records,
            views=world.jobs,
            plan=plan,
            waiting_since=self._waiting.since,
        )
        data = documents.dumps(document)
        try:
            self._learn_published()
            if data == self._published:
                return
            meta = self._store.put(keys.STATUS, data, generation=self._published_generation)
            self._published, self._published_generation = data, meta.generation
        except PreconditionFailed:
            self._published = None  # somebody else wrote it; look again next tick
        except BastionError as error:
            self._narrate(f"the status could not be published: {error}")

    def _learn_published(self) -> None:
        """Looks whether what lies there is still what we know; a status that somebody changed is written again."""
        found = {meta.key: meta for meta in self._store.list(keys.STATUS)}.get(keys.STATUS)
        generation = found.generation if found else 0
        if self._published is not None and generation == self._published_generation:
            return
        self._published, self._published_generation = b"", generation
        if found is not None and found.size <= limits.STATUS_MAX_BYTES:
            with contextlib.suppress(NotFound):
                stored = self._store.get(keys.STATUS)
                self._published, self._published_generation = stored.data, stored.meta.generation

    def _recover_published(self) -> None:
        """What an earlier daemon published says since when jobs wait, and for whom room was made."""
        try:
            self._learn_published()
            self._waiting.recover(documents.loads(self._published or b"null", max_bytes=limits.STATUS_MAX_BYTES))
        except documents.DocumentError:
            return  # somebody else's; it is written anew at the end of this tick
        except BastionError as error:
            self._narrate(f"the earlier status could not be read: {error}")
