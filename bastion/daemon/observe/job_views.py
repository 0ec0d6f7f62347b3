"""Builds one `JobView` per name; reuses views of waiting jobs while all inputs stay the same."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace

from bastion.core import limits
from bastion.core.bucket import keys
from bastion.core.bucket.keys import Run
from bastion.core.bucket.objects import ObjectMeta
from bastion.core.bucket.protocol import Order
from bastion.core.errors import BastionError, InvalidSpec, NotFound
from bastion.core.model import bastion_host_jobs, job_spec
from bastion.core.model.bastion_host_jobs import AS_DAEMON
from bastion.core.model.cancel_request import CancelRequest
from bastion.core.model.gangs import GangFailure, GangRef, GangState, GangStatus, failure_of
from bastion.core.model.job_record import Attempt, JobRecord
from bastion.core.model.lifecycle import Status
from bastion.core.model.world import NOTHING_SEEN, Installation, JobView, OrphanGang, RunView, UserRequest
from bastion.core.reconcile.finish import whose_result
from bastion.core.reconcile.runs import RunPlan, plan_attempt
from bastion.daemon.observe.folders import Folders
from bastion.daemon.observe.gangs import Gangs, Listing, Provisioners, look_up
from bastion.daemon.observe.host_words import HostWords, is_proven
from bastion.daemon.thread_pool import ThreadPool
from bastion.ports import Clock, ObjectStore


@dataclass(frozen=True, slots=True)
class _Reusable:
    """The reusable view of a job with a state, the accepted spec, and nothing else."""

    record: JobRecord
    spec_generation: int
    history: tuple[int, int, int]
    view: JobView


@dataclass(frozen=True, slots=True)
class _Unaccepted:
    """The reusable view of a name with a spec that no job comes from, and nothing else."""

    uid: str
    seen: tuple[object, ...]
    view: JobView


class JobViews:
    """Builds views tick by tick.

    Attributes:
        creation_failures: Creations refused at once, by the gang's name.
        history_done: By uid, number of the last history line that all histories have.
        history_own: The same for the jobs' own histories.
        audit_waits: By uid, number of the first history line that the audit trail may lack.
        unshared: By uid, projects whose histories lack lines because the quota file lacks the project.
        doubts: By name, starts without a reply: the generation they replace, and the record.
        problems: Failures while building this tick's views, for people.
        host_jobs: Whether commands may start on the bastion's host now.
    """

    def __init__(
        self,
        store: ObjectStore,
        folders: Folders,
        provisioners: Provisioners,
        clock: Clock,
        settings: Installation,
        backlog: Collection[str] = (),
    ) -> None:
        """Build no view of the names in `backlog`: the queue is full."""
        self._backlog = backlog
        self._store = store
        self._folders = folders
        self._provisioners = provisioners
        self._clock = clock
        self.settings = settings
        self.creation_failures: dict[str, GangFailure] = {}
        self.history_done: dict[str, int] = {}
        self.doubts: dict[str, tuple[int, JobRecord]] = {}
        self.history_own: dict[str, int] = {}
        self.audit_waits: dict[str, int] = {}
        self.unshared: dict[str, str] = {}
        self.problems: list[str] = []
        self.host_jobs = AS_DAEMON
        self._bad: dict[str, tuple[int, float]] = {}
        self._bad_before: dict[str, tuple[int, float]] = {}
        self._words = HostWords(folders, clock)
        self._reusable: dict[str, _Reusable] = {}
        self._unaccepted: dict[str, _Unaccepted] = {}
        self._all_gangs_known = False
        self._inbox_is_on = False
        # Gangs of attempts later than their states know: the state's generation, and since when.
        self._later_gangs: dict[str, tuple[int, float]] = {}
        self._no_ghosts: dict[str, int] = {}
        # The highest attempt number among claims and orders, by uid; None: not computed yet.
        self._runs_of: dict[str, int] | None = None
        # Of this tick's gangs that no listing has.
        self._looked_up: Mapping[str, GangStatus | BastionError | None] = {}
        self._late: Callable[[JobRecord], bool] = lambda _: False

    def start_anew(self) -> None:
        """Forget what another daemon may have changed: a new epoch begins."""
        self.creation_failures.clear()
        self.doubts.clear()
        self._later_gangs.clear()

    def in_doubt(self, record: JobRecord, generation: int) -> None:
        known = self._folders.states.values.get(record.name)
        starts = record.attempt is not None and isinstance(known, JobRecord) and known.attempt is None
        if starts:
            self.doubts[record.name] = generation, record

    def build(
        self, gangs: Gangs, threads: ThreadPool, *, late: Callable[[JobRecord], bool] = lambda _: False
    ) -> dict[str, JobView]:
        """Return the sorted views of every name with a spec, a state or an explanation.

        `late` tells whether a job's attempt never counted.
        """
        folders = self._folders
        states = folders.states
        self.doubts = {
            name: doubt
            for name, doubt in self.doubts.items()
            if name in states.unknown or states.generation(name) == doubt[0]
        }
        self._no_ghosts = {n: g for n, g in self._no_ghosts.items() if states.generation(n) == g}
        self._late = late
        self._runs_of = None
        self.problems = []
        self._bad_before, self._bad = self._bad, {}
        self._words.begin()
        # In mode `inbox` the explanations without a present object are `World.outside`.
        explained = () if folders.inbox.on else (entry.name for entry in folders.invalid.values.values())
        names = sorted({*folders.specs.listed, *folders.states.listed, *explained}.difference(self._backlog))
        reusable, self._reusable = self._reusable, {}
        unaccepted, self._unaccepted = self._unaccepted, {}
        self._looked_up = look_up(self._provisioners.slices.get, self._not_listed(names, gangs), threads)
        self._inbox_is_on = folders.inbox.on
        self._all_gangs_known = not (gangs.problem(on_bastion=False) or gangs.bastion_host.problem)
        views = {name: self._view(name, gangs, reusable.get(name), unaccepted.get(name)) for name in names}
        self.problems += self._words.alarms()
        return views

    def history_appended(self, record: JobRecord, *, shared: bool) -> None:
        """Record that the job's history, and its project's if `shared`, has all lines of the record."""
        self.history_own[record.uid] = record.history_next - 1
        if shared:
            self.history_done[record.uid] = record.history_next - 1
            self.unshared.pop(record.uid, None)
        else:
            self.unshared[record.uid] = record.job.project_id

    def share_history(self, known_projects: Collection[str]) -> None:
        """Make lines of newly known projects due; their files show which lines they have."""
        for uid in [uid for uid, project in self.unshared.items() if project in known_projects]:
            del self.unshared[uid]
            self.history_own.pop(uid, None)

    def audit_failed(self, records: Iterable[JobRecord]) -> None:
        """Keep the lines of these records until the audit trail has them."""
        for record in records:
            for line in reversed([line for line in record.history if line.asked is not None]):
                self.audit_waits[record.uid] = line.number

    def forget_history(self, uid: str) -> None:
        for known in (self.history_done, self.history_own, self.audit_waits, self.unshared):
            known.pop(uid, None)

    # -- specs and requests ------------------------------------------------------------------------------------

    def refused_unread(self, name: str, meta: ObjectMeta) -> str:
        """Return why a spec of that name is not downloaded; empty if it is."""
        try:
            keys.check_job_name(name, bastion=self.settings.bastion)
        except InvalidSpec as error:
            return str(error)
        if meta.size > limits.SPEC_MAX_BYTES:
            return f"the spec is {meta.size} bytes long; the maximum is {limits.SPEC_MAX_BYTES}"
        return self._folders.inbox.problem(meta) if self._folders.inbox.on else ""

    def _spec_problem(self, name: str, meta: ObjectMeta | None) -> str:
        """Return why the present object is refused; empty during its first second, when it may be half written."""
        if meta is None:
            return ""
        specs = self._folders.specs
        problem = self.refused_unread(name, meta)
        if not problem and specs.generation(name) == meta.generation:
            problem = specs.problems.get(name, "")
        return problem if problem and self._still(meta) else ""

    def _still(self, meta: ObjectMeta) -> bool:
        now = self._clock.monotonic()
        before = self._bad_before.get(meta.key)
        seen = before if before is not None and before[0] == meta.generation else (meta.generation, now)
        self._bad[meta.key] = seen
        return now - seen[1] >= limits.QUARANTINE_STILL_SECONDS

    def _user_request(self, name: str) -> UserRequest | None:
        user_requests = self._folders.user_requests
        meta = user_requests.listed.get(name)
        if meta is None or name in user_requests.unknown:
            return None
        if name in user_requests.problems and not self._still(meta):
            return None  # it may be half written
        said = user_requests.values.get(name, CancelRequest(cancel=False))
        owner = keys.inbox_user(meta.key)
        return UserRequest(
            generation=meta.generation,
            written_at=meta.updated,
            cancel=said.cancel,
            uid=said.uid,
            by=owner or said.by,
            owner=owner,
        )

    def _refused_request(self, meta: ObjectMeta) -> UserRequest:
        owner = keys.inbox_user(meta.key)
        problem = self._folders.inbox.problem(meta)
        return UserRequest(
            generation=meta.generation, written_at=meta.updated, cancel=False, by=owner, owner=owner, problem=problem
        )

    def _owner(self, meta: ObjectMeta | None, record: JobRecord | None) -> str:
        """In whose inbox the spec is, or was; empty in mode `open`."""
        if not self._folders.inbox.on:
            return ""
        found = keys.inbox_user(meta.key) if meta is not None else ""
        return found or (record.owner if record is not None and keys.is_inbox_user(record.owner) else "")

    # -- one job ------------------------------------------------------------------------------------------------

    def _view(self, name: str, gangs: Gangs, reusable: _Reusable | None, unaccepted: _Unaccepted | None) -> JobView:
        meta = self._folders.specs.listed.get(name)
        value = self._folders.states.values.get(name)
        record = value if isinstance(value, JobRecord) else None
        if record is None and meta is not None and self._is_only_a_spec(name):
            return self._unaccepted_view(name, meta, gangs, unaccepted)
        if meta is None or record is None or not self._is_unchanged(name, meta, record, gangs):
            return self._new_view(name, meta, record, gangs)
        uid = record.uid
        waits = self.audit_waits.get(uid, 0) if self.audit_waits else 0  # rarely any
        history = (self.history_done.get(uid, 0), self.history_own.get(uid, 0), waits)
        known = (
            reusable is not None
            and reusable.record is record
            and reusable.spec_generation == meta.generation
            and reusable.history == history
        )
        if reusable is None or not known:
            reusable = _Reusable(record, meta.generation, history, self._new_view(name, meta, record, gangs))
        self._reusable[name] = reusable
        return reusable.view

    def _is_unchanged(self, name: str, meta: ObjectMeta, record: JobRecord, gangs: Gangs) -> bool:
        """Whether the view depends only on the record, the spec's generation and the history."""
        folders = self._folders
        return (
            record.attempt is None
            and record.cleanup is None
            and record.generation == meta.generation
            and record.uid not in gangs.by_uid
            and self._all_gangs_known
            and name not in folders.user_requests.listed
            and name not in folders.requests.of_jobs
            and name not in folders.states.problems
            and name not in folders.states.unknown
            and name not in self.doubts
            and name not in folders.specs.unknown
            and name not in folders.specs.problems
            and not (
                folders.invalid.listed and keys.invalid_name(name, self._owner(meta, record)) in folders.invalid.listed
            )
            and not (self._inbox_is_on and folders.inbox.refused_requests(name))
        )

    def _is_only_a_spec(self, name: str) -> bool:
        """Whether there is no state, no request, and no valid spec that was read."""
        folders = self._folders
        return (
            name not in folders.states.listed
            and name not in folders.states.values
            and name not in folders.states.problems
            and name not in folders.states.unknown
            and (name not in folders.specs.values or name in folders.specs.problems)
            and name not in folders.specs.unknown
            and name not in folders.user_requests.listed
            and name not in folders.user_requests.unknown
            and name not in folders.requests.of_jobs
            and name not in self.doubts
            and not (self._inbox_is_on and folders.inbox.refused_requests(name))
        )

    def _unaccepted_view(self, name: str, meta: ObjectMeta, gangs: Gangs, known: _Unaccepted | None) -> JobView:
        """Reuse it: users may leave 100,000 bad specs for weeks. Of past attempts only an accepted spec is told."""
        folders = self._folders
        invalid_name = keys.invalid_name(name, self._owner(meta, None))
        read = folders.specs.generation(name) == meta.generation
        explained = folders.invalid.values.get(invalid_name), folders.invalid.listed.get(invalid_name)
        seen = (meta, read, self._spec_problem(name, meta), *explained)
        if known is None or known.seen != seen or known.uid in gangs.by_uid:
            view = self._new_view(name, meta, None, gangs)
            if view.frozen or view.orphan_gangs:
                return view
            uid = keys.job_uid(self.settings.root, name, meta.generation, owner=view.owner)
            known = _Unaccepted(uid, seen, view)
        self._unaccepted[name] = known
        return known.view

    def _new_view(self, name: str, meta: ObjectMeta | None, record: JobRecord | None, gangs: Gangs) -> JobView:
        folders = self._folders
        specs, states, inbox = folders.specs, folders.states, folders.inbox
        owner = self._owner(meta, record)
        invalid_name = keys.invalid_name(name, owner)
        explained = folders.invalid.values.get(invalid_name)
        explained_meta = folders.invalid.listed.get(invalid_name)
        read = meta is not None and specs.generation(name) == meta.generation
        spec = specs.values.get(name) if read and name not in specs.problems else None
        spec_problem = self._spec_problem(name, meta)
        if spec is not None and record is not None:
            try:
                spec = job_spec.overwriting(spec, record.job)
            except InvalidSpec as error:
                spec, spec_problem = None, str(error)
        if spec is not None and not (record is not None and meta is not None and record.generation == meta.generation):
            denied = bastion_host_jobs.why_refused(spec, self.host_jobs.mode.value, self.host_jobs.reason)
            spec, spec_problem = (None, denied) if denied else (spec, spec_problem)
        view = JobView(
            name=name,
            spec_meta=meta,
            spec=spec,
            spec_problem=spec_problem,
            record=record,
            record_generation=states.generation(name),
            frozen=states.problems.get(name)
            or states.unknown.get(name)
            or specs.unknown.get(name)
            # Read a present user request before accepting the job: it may be for an earlier one.
            or (folders.user_requests.unknown.get(name, "") if record is None else ""),
            user_request=self._user_request(name),
            requests=tuple(folders.requests.of_jobs.get(name, ())),
            invalid_generation=explained.generation
            if explained and explained.name == name and not explained.request
            else 0,
            invalid_object_generation=explained_meta.generation if explained_meta else 0,
            history_done=self.history_done.get(record.uid, 0) if record else 0,
            unread=name in states.unknown,
            current=not (name in states.problems or name in states.unknown),
            doubt=self.doubts[name][1] if name in self.doubts else None,
            late=record is not None and self._late(record),
            history_own=self.history_own.get(record.uid, 0) if record else 0,
            audit_waits_from=self.audit_waits.get(record.uid, 0) if record else 0,
            owner=owner,
            spec_sha256=inbox.digest(name, meta.generation)
            if meta is not None and (spec is not None or spec_problem)
            else "",
        )
        others = inbox.refused_requests(name) if inbox.on else ()
        strangers = {asked.owner for asked in view.requests if asked.denied}
        if others or strangers:
            requests = tuple(map(self._refused_request, others))
            authors = strangers | {each.owner for each in requests}
            told = {who: found for who in sorted(authors) if (found := inbox.explained_to(name, who))}
            view = replace(view, refused_requests=requests, explained_to=told)
        try:
            if meta is None and (record is None or record.status is not Status.COMPLETED):
                # A listing may lack a new spec that replaced the job's own.
                present = self._store.head(keys.active(name, owner)) if owner or not inbox.on else None
                view = replace(view, spec_gone=present is None, spec_meta=present)
            if record is None and meta is not None:
                uid = keys.job_uid(self.settings.root, name, meta.generation, owner=owner)
                orphans = gangs.by_uid.get(uid, ())
                view = replace(view, orphan_gangs=orphans, attempts_seen=self._attempts_seen(uid, orphans))
            if record is not None and self._is_ghost(view, record):
                return replace(view, ghost=True)
            if record is not None:
                view = self._with_runs(view, record, gangs)
        except BastionError as error:
            self.problems.append(f"{name}: {error}")
            view = replace(view, frozen=str(error))
        return view

    def _is_ghost(self, view: JobView, record: JobRecord) -> bool:
        """Whether the state was created after the job's end: it never ran, and its spec is gone. Checked once."""
        fresh = record.status is Status.PENDING and not record.had_attempt
        replaced = view.spec_meta is not None and view.spec_meta.generation != record.generation
        if not fresh or not view.current or not (view.spec_gone or replaced):
            return False
        if self._no_ghosts.get(view.name) == view.record_generation:
            return False
        name, uid = view.name, record.uid
        for candidate in (
            keys.complete(name),
            keys.former_result(name, uid),
            keys.former_result_before(name, uid),
        ):
            found = self._store.head(candidate)
            if found is not None and found.size <= limits.RESULT_MAX_BYTES:
                with contextlib.suppress(NotFound):
                    stored = self._store.get(candidate, max_bytes=limits.RESULT_MAX_BYTES)
                    if whose_result(stored.data)[1] == uid:
                        return True
        self._no_ghosts[view.name] = view.record_generation
        return False

    def _with_runs(self, view: JobView, record: JobRecord, gangs: Gangs) -> JobView:
        on_bastion = record.job.runner is None
        if record.attempt is None:
            listing = gangs.bastion_host
        else:
            listing = gangs.of(plan_attempt(record, record.attempt, self.settings).ref, on_bastion=on_bastion)
            if listing.problem:
                return replace(view, frozen=listing.problem)
        return replace(
            view,
            attempt=self._run_view(record, record.attempt, listing),
            cleanup=self._run_view(record, record.cleanup, gangs.bastion_host),
            orphan_gangs=self._orphans_of(record, view.record_generation, gangs.by_uid.get(record.uid, ())),
            # Nodes of past attempts; a first attempt may start in another zone.
            gangs_unknown=bool(
                gangs.problem(
                    on_bastion=on_bastion, zones={past.zone for past in record.attempts} & gangs.slices.keys()
                )
            ),
        )

    def _attempts_seen(self, uid: str, gangs: tuple[OrphanGang, ...]) -> int:
        """The highest attempt number among the objects and gangs of a job without a state; 0 if none."""
        if self._runs_of is None:
            texts = {
                *map(keys.run_of_claim, self._folders.claims.listed),
                *(n.partition("/")[0] for n in self._folders.run_objects.listed),
            }
            self._runs_of = {}
            for run in filter(None, map(Run.parse, texts)):
                if run.attempt <= limits.ATTEMPT_NUMBER_BELIEVED_MAX:  # others may write such names
                    self._runs_of[run.uid] = max(run.attempt, self._runs_of.get(run.uid, 0))
        created = (found.attempt for gang in gangs if (found := Run.parse(gang.status.run)) is not None)
        return max((self._runs_of.get(uid, 0), *created))

    def _orphans_of(self, record: JobRecord, generation: int, gangs: tuple[OrphanGang, ...]) -> tuple[OrphanGang, ...]:
        """Return the gangs outside the record's runs.

        A gang of a later attempt may belong to a newer state, and is left alone for a while.
        """
        if not gangs:
            return ()
        own = {
            plan_attempt(record, attempt, self.settings).ref.name
            for attempt in (record.attempt, record.cleanup)
            if attempt is not None
        }
        orphans = []
        for orphan in gangs:
            run = Run.parse(orphan.status.run)
            newer = run is not None and run.attempt >= record.next_attempt
            if orphan.status.ref.name not in own and not (newer and self._is_news(orphan.status.ref.name, generation)):
                orphans.append(orphan)
        return tuple(orphans)

    def _is_news(self, gang: str, generation: int) -> bool:
        now = self._clock.monotonic()
        before = self._later_gangs.get(gang)
        self._later_gangs[gang] = before if before is not None and before[0] == generation else (generation, now)
        return now - self._later_gangs[gang][1] < limits.LATER_GANG_SECONDS

    def _not_listed(self, names: Iterable[str], gangs: Gangs) -> Iterator[GangRef]:
        """Yield the slices of attempts that their zone's listing lacks: only a look-up tells whether they are gone."""
        for name in names:
            record = self._folders.states.values.get(name)
            if not isinstance(record, JobRecord) or record.attempt is None or record.job.runner is None:
                continue
            plan = plan_attempt(record, record.attempt, self.settings)
            listing = gangs.of(plan.ref, on_bastion=False)
            if not listing.problem and plan.ref.name not in listing.gangs:
                yield plan.ref

    # -- one run ------------------------------------------------------------------------------------------------

    def _run_view(self, record: JobRecord, attempt: Attempt | None, listing: Listing) -> RunView:
        if attempt is None:
            return NOTHING_SEEN
        plan = plan_attempt(record, attempt, self.settings)
        self._words.require_all_read(plan)
        order = self._folders.run_objects.values.get(f"{plan.run}/order")
        reports, reported_at = self._words.reports(plan)
        gang = listing.gangs.get(plan.ref.name)
        if gang is None and not plan.foreign_host:
            gang = self._found(plan)
        return RunView(
            order=order if isinstance(order, Order) else None,
            order_generation=self._folders.run_objects.generation(f"{plan.run}/order"),
            claim=self._words.claim(plan),
            reports=reports,
            reported_at=reported_at,
            gang=gang,
            gang_gone=gang is None and not plan.foreign_host,
            failure=self._failure(plan, gang),
            silent_seconds=self._words.silent_seconds(plan, reports),
            proven=is_proven(plan),
        )

    def _found(self, plan: RunPlan) -> GangStatus | None:
        if plan.ref.name not in self._looked_up:
            return self._provisioners.of(on_bastion=plan.on_bastion).get(plan.ref)
        found = self._looked_up[plan.ref.name]
        if isinstance(found, BastionError):
            raise found
        return found

    def _failure(self, plan: RunPlan, gang: GangStatus | None) -> GangFailure | None:
        if gang is not None and gang.state is GangState.LOST:
            return gang.failure
        if plan.attempt.ending is not None:
            return None
        if gang is not None and gang.state not in (GangState.CREATING, GangState.FAILED):
            return None
        known = self.creation_failures.get(plan.ref.name) or (gang.failure if gang is not None else None)
        if known is not None:
            return known
        error = self._provisioners.of(on_bastion=plan.on_bastion).failure(plan.ref)
        return None if error is None else failure_of(error)
