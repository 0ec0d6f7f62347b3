"""The observer: downloads changed objects, then lists gangs, and builds a `World`.

Gangs are listed after the bucket, so that a gang's state is never older than its record. When a gang looks lost, its
reports are read once more, because a host may report and vanish in between.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace

from bastion.core import limits
from bastion.core.bucket import keys
from bastion.core.bucket.keys import Run
from bastion.core.model.awaiting import Awaiting
from bastion.core.model.bastion_host_jobs import AS_DAEMON, BastionHostJobs
from bastion.core.model.job_record import JobRecord
from bastion.core.model.provisioning import BUILT_IN, Provisioning
from bastion.core.model.world import Installation, JobView, Listed, Outside, World
from bastion.core.reconcile.dependencies import resolve
from bastion.core.reconcile.runs import plan_attempt
from bastion.core.run_keys import RunKeys
from bastion.daemon.fence import Fence
from bastion.daemon.observe.backlog import Backlog
from bastion.daemon.observe.ended_jobs import EndedJobs
from bastion.daemon.observe.folders import Folders
from bastion.daemon.observe.gangs import Gangs, Provisioners, list_gangs
from bastion.daemon.observe.job_views import JobViews
from bastion.daemon.observe.zones import ZonesInUse
from bastion.daemon.thread_pool import ThreadPool
from bastion.ports import Clock, ObjectMeta, ObjectStore
from quota import Policy

__all__ = ["Observer", "Provisioners"]


class Observer:
    """Keeps what it read, and reads only changes.

    Attributes:
        folders: One cache per folder; filled by listings and by the executor's writes.
        views: Builds the views; keeps what only this daemon knows of jobs.
        zones: Zones that may have slices, also outside the settings.
        problems: Failures of this tick, for people.
    """

    def __init__(
        self,
        store: ObjectStore,
        folders: Folders,
        provisioners: Provisioners,
        clock: Clock,
        settings: Installation,
        threads: ThreadPool,
        keep_clusters: Callable[[Mapping[str, str]], None] = lambda _: None,
    ) -> None:
        self._store = store
        self._keep_clusters = keep_clusters
        self._provisioners = provisioners
        self._settings = settings
        self._threads = threads
        self._clock = clock
        self.folders = folders
        self.zones = ZonesInUse()
        self.backlog = Backlog(folders.specs, folders.states, folders.user_requests)
        self.views = JobViews(store, folders, provisioners, clock, settings, self.backlog)
        self._ended = EndedJobs(store, root=settings.root, inbox=folders.inbox)
        self.problems: list[str] = []

    def use_keys(self, run_keys: RunKeys) -> None:
        """Set the keys of the runs, before the first `observe`."""
        self._settings = replace(self._settings, run_keys=run_keys)
        self.views.settings = self._settings

    def start_anew(self) -> None:
        """Forget what another daemon may have changed: a new epoch begins."""
        self.views.start_anew()
        self._ended.start_anew()

    def observe(
        self,
        *,
        entropy: bytes,
        dry_run: bool,
        whole: bool,
        policy: Policy | None = None,
        provisioning: Provisioning | None = BUILT_IN,
        epoch: int = 0,
        agent: str | None = "",
        fence: Fence | None = None,
        host_jobs: BastionHostJobs = AS_DAEMON,
    ) -> World:
        """Read everything that changed and build the world.

        Args:
            whole: Whether this tick listed everything; only then may it act.
            policy: The quota file in force; sets the limits of the queue too.
            provisioning: The operator's settings in force; their zones are listed.
            fence: Which attempts count; None: all.
            host_jobs: Whether commands may start on the bastion's host.

        Raises:
            StoreError: Too little was read to decide anything in this tick.
        """
        folders, threads = self.folders, self._threads
        self.problems = []
        unanswered: dict[str, str] = {}
        if fence is not None and not fence.closed:
            # An earlier daemon may have just accepted them, and a listing may lack new states.
            names = folders.inbox.names if folders.inbox.on else folders.specs.listed
            unanswered = folders.states.look_up(names, threads)
        folders.states.fetch(list(folders.states.listed), threads)
        folders.states.unknown |= unanswered
        self._tell_unread()
        if folders.inbox.on:
            folders.invalid.fetch(list(folders.invalid.listed), threads)
            folders.inbox.resolve(
                folders.specs, folders.user_requests, folders.states, folders.invalid, policy, self.backlog
            )
        folders.user_requests.fetch(list(folders.user_requests.listed), threads)
        self.backlog.begin(policy)
        self._read_specs()
        folders.invalid.fetch(list(folders.invalid.listed), threads)
        records = {name: value for name, value in folders.states.values.items() if isinstance(value, JobRecord)}
        if folders.inbox.on:
            frozen = folders.states.problems.keys() | folders.states.unknown.keys()
            folders.copies.check(records, folders.specs.listed, frozen, threads)
        folders.requests.read(records, policy, threads)
        self._fetch_runs(records)
        self._forget_past_failures(records)
        places = [record.attempt.place for record in records.values() if record.attempt is not None]
        self._keep_clusters({place.zone: place.identity for place in places if place is not None and place.identity})
        needed = zones_needed(records.values(), provisioning)
        gangs = list_gangs(self._provisioners, sorted({*needed, *self.zones.known}), threads)
        self.zones.note_listings(gangs, needed, self._clock.monotonic())
        self.problems += gangs.problems
        if whole:
            self._reread_lost(records, gangs)
        self.views.host_jobs = host_jobs
        views = (
            self.views.build(gangs, threads, late=fence.late) if fence is not None else self.views.build(gangs, threads)
        )
        self.problems += self.views.problems
        awaiting = self._awaiting(views)
        uids = {view.record.uid for view in views.values() if view.record}
        uids |= {run.uid for view in views.values() for s in view.orphan_gangs if (run := Run.parse(s.status.run))}
        settings = replace(self._settings, host_jobs=host_jobs)
        if provisioning is not None:
            settings = replace(settings, budgets=provisioning.budgets, host_job_user=provisioning.host_job_user)
        return World(
            jobs=views,
            settings=settings,
            entropy=entropy,
            dry_run=dry_run,
            policy=policy,
            provisioning=provisioning,
            epoch=epoch,
            no_room=fence.no_room(views, whole=whole) if fence is not None else "",
            agent=agent,
            listed=Listed(
                user_requests=folders.inbox.all_requests() if folders.inbox.on else folders.user_requests.listed,
                job_requests=folders.requests.unanswered,
                claims=folders.claims.listed,
                run_objects=folders.run_objects.listed,
                heartbeat_runs=frozenset(folders.heartbeats.runs()),
                orphan_gangs=gangs.orphans(uids),
            ),
            backlog_groups=self.backlog.groups,
            silent_zones=frozenset(zone for zone, listing in gangs.slices.items() if listing.problem),
            awaiting=awaiting,
            outside=self._outside(views) if folders.inbox.on else None,
            proof=folders.inbox.kind_of_proof,
        )

    def _outside(self, views: Mapping[str, JobView]) -> Outside:
        return self.folders.inbox.outside({(view.name, view.owner) for view in views.values()}, self.folders.copies)

    def _awaiting(self, views: Mapping[str, JobView]) -> Mapping[str, Awaiting]:
        """What the waiting jobs await; reads the results of those that ended before."""
        specs, root = self.folders.specs.listed, self._settings.root
        resolved = resolve(views, specs, self._ended.known, root=root)
        if self._ended.look_up(resolved.not_live, self._threads):
            resolved = resolve(views, specs, self._ended.known, root=root)
        self.problems += self._ended.problems
        return resolved.awaiting

    def _tell_unread(self) -> None:
        states, most = self.folders.states, limits.ALARMS_OF_JOBS_MAX
        pause = f"{limits.UNREAD_STATE_SECONDS:.0f} s"
        unread, frozen = sorted(states.unknown.items()), sorted(states.problems.items())
        self.problems += [
            *(
                f"the state of {name} could not be read: {text}; no job starts for {pause}"
                for name, text in unread[:most]
            ),
            *(f"job {name} is frozen: {text}" for name, text in frozen[:most]),
        ]
        if len(unread) > most:
            self.problems.append(f"{len(unread) - most} more states could not be read")
        if len(frozen) > most:
            self.problems.append(f"{len(frozen) - most} more jobs are frozen: their states cannot be read")

    def _read_specs(self) -> None:
        wanted = self._specs_to_read()
        if len(wanted) > limits.SPECS_READ_AT_ONCE:
            listed = self.folders.specs.listed
            wanted = by_turns({name: listed[name] for name in wanted})
        before = len(self.folders.specs.problems)
        unknown: dict[str, str] = {}
        self.backlog.sort_out(list(self.folders.specs.values))  # read but not accepted, as in a dry run
        for first in range(0, min(len(wanted), limits.SPECS_READ_MAX) or 1, limits.SPECS_READ_AT_ONCE):
            some = wanted[first : first + limits.SPECS_READ_AT_ONCE]
            self.folders.specs.fetch(some, self._threads)
            unknown |= self.folders.specs.unknown
            self.backlog.sort_out(some)
            if self.folders.inbox.on and len(self.folders.specs.problems) - before >= limits.SPECS_REFUSED_MAX:
                break  # each is answered with a write; one user's flood must not make ticks long for the others
        self.folders.specs.unknown = unknown

    def _specs_to_read(self) -> list[str]:
        """Specs other than the accepted ones, without refused names and sizes."""
        specs, states = self.folders.specs, self.folders.states
        wanted = []
        for name, meta in specs.listed.items():
            record = states.values.get(name)
            if isinstance(record, JobRecord) and record.generation == meta.generation:
                specs.forget(name)
            elif self.backlog.holds(name, meta):
                continue
            elif specs.generation(name) != meta.generation and not self.views.refused_unread(name, meta):
                wanted.append(name)
        return self._that_have_room(wanted) if wanted else wanted

    def _that_have_room(self, wanted: list[str]) -> list[str]:
        """Specs that fit into memory now; small ones first."""
        listed = self.folders.specs.listed
        records = (value for value in self.folders.states.values.values() if isinstance(value, JobRecord))
        kept = sum(record.job.packed.size for record in records)
        kept += sum(spec.packed.size for spec in self.folders.specs.values.values())
        if kept + sum(listed[name].size for name in wanted) <= limits.SPECS_KEPT_MAX_BYTES * 3 // 4:
            return wanted
        taken = []
        for name in sorted(wanted, key=lambda name: (listed[name].size, listed[name].updated)):
            size = listed[name].size
            most = limits.SPECS_KEPT_MAX_BYTES
            if size > limits.SPEC_ORDINARY_MAX_BYTES:
                most = most * 3 // 4
            if kept + size > most:
                break
            kept += size
            taken.append(name)
        left = len(wanted) - len(taken)
        if left:
            self.problems.append(
                f"{left} specs are not read yet: the specs of live jobs use {kept // 2**20} of at most "
                f"{limits.SPECS_KEPT_MAX_BYTES // 2**20} MiB; cancel jobs, or submit smaller specs"
            )
        return taken

    def _fetch_runs(self, records: Mapping[str, JobRecord]) -> None:
        claims, run_objects = self.folders.claims, self.folders.run_objects
        plans = [
            plan_attempt(record, a, self._settings)
            for record in records.values()
            for a in (record.attempt, record.cleanup)
            if a
        ]
        self.folders.proofs.use({plan.run: plan.attempt.public_key for plan in plans})
        claims.fetch([name for plan in plans if (name := plan.claim) in claims.listed], self._threads)
        # By name: other objects, such as reports of hosts that a run does not have, are ignored.
        run_objects.fetch([n for plan in plans for n in plan.objects() if n in run_objects.listed], self._threads)

    def _forget_past_failures(self, records: Mapping[str, JobRecord]) -> None:
        failures = self.views.creation_failures
        if failures:
            current = {
                plan_attempt(record, a, self._settings).ref.name
                for record in records.values()
                for a in (record.attempt, record.cleanup)
                if a
            }
            self.views.creation_failures = {n: why for n, why in failures.items() if n in current}

    def _reread_lost(self, records: Mapping[str, JobRecord], gangs: Gangs) -> None:
        lost = gangs.lost_runs
        suspects = [
            record
            for record in records.values()
            for a in (record.attempt, record.cleanup)
            if a and a.ending is None and str(record.run(a)) in lost
        ]
        if suspects:
            for folder in (self.folders.claims, self.folders.run_objects):
                folder.take(list(self._store.list(folder.prefix)))
            self._fetch_runs(records)


def by_turns(specs: Mapping[str, ObjectMeta]) -> list[str]:
    """Names in the order of reading: the oldest of each inbox, then the second of each. Mode `open` has one owner."""
    turns: Counter[str] = Counter()
    found = []
    for updated, name in sorted((meta.updated, name) for name, meta in specs.items()):
        owner = keys.inbox_user(specs[name].key)
        turns[owner] += 1
        found.append((turns[owner], updated, name))
    return [name for _, _, name in sorted(found)]


def zones_needed(records: Iterable[JobRecord], provisioning: Provisioning | None) -> set[str]:
    """Return the zones that may need slices: the settings' zones, and those of present and past attempts."""
    zones = set(provisioning.zones() if provisioning is not None else ())
    own = provisioning is None or "" in zones
    for record in records:
        if (record.attempt is None and not record.attempts) or record.job.runner is None:
            continue  # nearly every job
        if record.attempt is not None:
            zones.add(record.attempt.place.zone if record.attempt.place else "")
        # One without a zone ran on the bastion, before an update, if zones have names.
        zones.update(past.zone for past in record.attempts if past.zone or own)
    return zones
