"""Observing: one listing per folder, one download per change, then the nodes; the result is a `World`.

Order matters. Nodes are listed after the bucket, so that a node's state is never older than the record it is judged by;
and when a node looks lost, its reports are read once more, because a host may report and vanish in between.
"""

from __future__ import annotations

from collections.abc import Mapping
from concurrent.futures import Executor, wait
from dataclasses import dataclass, replace

from bastion.core import documents, jobspec, keys, limits, protocol
from bastion.core.errors import (
    BastionError,
    InvalidDocument,
    InvalidSpec,
    ProvisionerRefused,
    Stockout,
    StoreError,
    StoreUnavailable,
    UnknownInstanceType,
)
from bastion.core.job_record import Attempt, JobRecord
from bastion.core.job_record import read as read_record
from bastion.core.jobspec import JobSpec
from bastion.core.keys import Run
from bastion.core.lifecycle import Status
from bastion.core.objects import check_key
from bastion.core.protocol import Claim, Order, Report
from bastion.core.runs import RunPlan, plan_attempt
from bastion.core.slices import SliceState, SliceStatus
from bastion.core.world import NOTHING_SEEN, JobView, RunView, Settings, StrayNode, Wish, World
from bastion.daemon.beats import Beats
from bastion.daemon.object_cache import ObjectCache
from bastion.ports import Clock, ObjectMeta, ObjectStore, Provisioner


@dataclass(frozen=True, slots=True, kw_only=True)
class Provisioners:
    """Where nodes come from: slices, and the bastion's own host for jobs without one."""

    slices: Provisioner
    bastion_host: Provisioner

    def of(self, *, on_bastion: bool) -> Provisioner:
        return self.bastion_host if on_bastion else self.slices


@dataclass(frozen=True, slots=True, kw_only=True)
class Invalid:
    """A `jobs/invalid/` object: whose spec it explains."""

    name: str
    spec_generation: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Listing:
    """Nodes of one provisioner in this tick; `problem` is not empty when it did not answer."""

    nodes: Mapping[str, SliceStatus]
    problem: str = ""


def _read_wish(_name: str, data: bytes) -> tuple[bool, str, str]:
    """`(cancel, uid, by)`; a plain-text status is accepted as well, as the ancestor's clients once wrote it."""
    text = data.strip().decode("utf-8", "replace")
    if text.upper() == Status.CANCELLING.value:
        return True, "", ""
    try:
        document = documents.loads(data)
    except documents.DocumentError as error:
        raise InvalidDocument(str(error)) from error
    if not isinstance(document, dict):
        raise InvalidDocument("a wish is a JSON object")
    uid, by = document.get("uid"), document.get("by")
    cancel = str(document.get("status", "")).upper() == Status.CANCELLING.value
    return cancel, uid if isinstance(uid, str) else "", by[:128] if isinstance(by, str) else ""


def _read_invalid(key_name: str, data: bytes) -> Invalid:
    try:
        document = documents.loads(data)
        explained = Invalid(name=str(document["name"]), spec_generation=int(document["generation"]))
        check_key(keys.active(explained.name))
    except (ValueError, TypeError, KeyError) as error:
        raise InvalidDocument(f"not ours: {error}") from error
    if keys.key_name(explained.name) != key_name:
        raise InvalidDocument(f"not ours: it is about {explained.name[:80]!r}")
    return explained


def _read_run_object(name: str, data: bytes) -> Order | Report:
    return protocol.read(Order, data) if name.endswith("/order") else protocol.read(Report, data)


class Observer:
    """Keeps what was read, and reads only what changed.

    Attributes:
        states, specs, ...: One cache per folder; the executor feeds them with what it writes.
        creation_failures: Creations that were refused at once, by node id: (cause, message).
        history_done: Number of the last history line known to be appended, by uid.
    """

    def __init__(
        self,
        store: ObjectStore,
        provisioners: Provisioners,
        clock: Clock,
        settings: Settings,
        pool: Executor,
    ) -> None:
        self._store = store
        self._provisioners = provisioners
        self._clock = clock
        self._settings = settings
        self._pool = pool
        self.specs: ObjectCache[JobSpec] = ObjectCache(store, keys.JOBS_ACTIVE, self._read_spec)
        self.states: ObjectCache[JobRecord | Status] = ObjectCache(
            store, keys.JOBS_STATES, lambda name, data: read_record(data, name=name), confirm_absence=True
        )
        self.wishes = ObjectCache(store, keys.JOBS_USER_STATES, _read_wish)
        self.claims: ObjectCache[Claim] = ObjectCache(
            store, keys.JOBS_CLAIMS, lambda _, data: protocol.read(Claim, data), confirm_absence=True
        )
        self.run_objects: ObjectCache[Order | Report] = ObjectCache(
            store, keys.RUNS, _read_run_object, confirm_absence=True
        )
        self.invalid = ObjectCache(store, keys.JOBS_INVALID, _read_invalid)
        self.beats = Beats(clock)
        self.creation_failures: dict[str, tuple[str, str]] = {}
        self.history_done: dict[str, int] = {}
        self.orphan_nodes: tuple[StrayNode, ...] = ()
        self.problems: list[str] = []
        self._bad: dict[str, tuple[int, float]] = {}
        self._bad_before: dict[str, tuple[int, float]] = {}

    # -- one tick -----------------------------------------------------------------------------------------------

    def observe(self, *, entropy: bytes, dry_run: bool) -> World:
        """Reads everything that changed.

        Raises:
            StoreError: a folder could not be listed; without it nothing can be decided this tick.
        """
        self.problems = []
        self._bad_before, self._bad = self._bad, {}
        caches = (self.specs, self.states, self.wishes, self.claims, self.run_objects, self.invalid)
        listings = [self._pool.submit(cache.list) for cache in caches]
        beats = self._pool.submit(lambda: list(self._store.list(keys.BEATS)))
        # Also when one fails: a straggler must not overwrite the next tick's listing.
        wait(listings)
        wait([beats])
        for listing in listings:
            listing.result()
        self.beats.observe(beats.result())
        self.states.fetch(list(self.states.listed), self._pool)
        self._require_all_states()
        self.problems += [f"the job {name} stands still: {text}" for name, text in sorted(self.states.problems.items())]
        self.specs.fetch(self._specs_to_read(), self._pool)
        self.wishes.fetch(list(self.wishes.listed), self._pool)
        self.invalid.fetch(list(self.invalid.listed), self._pool)
        records = {name: value for name, value in self.states.values.items() if isinstance(value, JobRecord)}
        self._fetch_runs(records)
        self._forget_past_failures(records)
        slices = self._list_nodes(on_bastion=False)
        host = self._list_nodes(on_bastion=True)
        self._reread_lost(records, slices, host)
        names = {*self.specs.listed, *self.states.listed, *(entry.name for entry in self.invalid.values.values())}
        by_uid = self._nodes_by_uid(slices, host)
        views = {name: self._view(name, slices, host, by_uid) for name in sorted(names)}
        uids = {view.record.uid for view in views.values() if view.record}
        uids |= {run.uid for view in views.values() for s in view.stray_nodes if (run := Run.parse(s.status.run))}
        self.orphan_nodes = tuple(
            stray for uid, strays in sorted(by_uid.items()) if uid not in uids for stray in strays
        )
        return World(jobs=views, settings=self._settings, entropy=entropy, dry_run=dry_run)

    def _require_all_states(self) -> None:
        """A state that was never read may hold any part of the pool: without it, nothing may be decided."""
        blind = [name for name in self.states.unknown if name not in self.states.values]
        if blind:
            raise StoreUnavailable(f"the state of {blind[0]} could not be read: {self.states.unknown[blind[0]]}")

    # -- specs --------------------------------------------------------------------------------------------------

    def _read_spec(self, name: str, data: bytes) -> JobSpec:
        try:
            return jobspec.parse(data, name=name, bastion=self._settings.bastion)
        except (InvalidSpec, UnknownInstanceType) as error:
            raise InvalidDocument(str(error)) from error

    def _specs_to_read(self) -> list[str]:
        """Specs that are not the accepted ones; names and sizes that are refused are not even downloaded."""
        wanted = []
        for name, meta in self.specs.listed.items():
            record = self.states.values.get(name)
            if isinstance(record, JobRecord) and record.generation == meta.generation:
                self.specs.forget(name)
            elif not self._refused_unread(name, meta.size):
                wanted.append(name)
        return wanted

    def _refused_unread(self, name: str, size: int) -> str:
        try:
            keys.check_job_name(name, bastion=self._settings.bastion)
        except InvalidSpec as error:
            return str(error)
        if size > limits.SPEC_MAX_BYTES:
            return f"the spec has {size} bytes; {limits.SPEC_MAX_BYTES} are the most"
        return ""

    def _spec_problem(self, name: str) -> str:
        """Why the present object is refused, once it has been still for a second: until then it may be half written."""
        meta = self.specs.listed.get(name)
        if meta is None:
            return ""
        problem = self._refused_unread(name, meta.size)
        if not problem and self.specs.generation(name) == meta.generation:
            problem = self.specs.problems.get(name, "")
        return problem if problem and self._still(meta) else ""

    def _still(self, meta: ObjectMeta) -> bool:
        """Whether a bad object has not changed for a second. It is asked in every tick as long as it matters."""
        now = self._clock.monotonic()
        before = self._bad_before.get(meta.key)
        seen = before if before is not None and before[0] == meta.generation else (meta.generation, now)
        self._bad[meta.key] = seen
        return now - seen[1] >= limits.QUARANTINE_STILL_SECONDS

    # -- runs and nodes -----------------------------------------------------------------------------------------

    def _fetch_runs(self, records: Mapping[str, JobRecord]) -> None:
        runs = {str(record.run(a)) for record in records.values() for a in (record.attempt, record.cleanup) if a}
        self.claims.fetch([run for run in runs if run in self.claims.listed], self._pool)
        self.run_objects.fetch([n for n in self.run_objects.listed if n.partition("/")[0] in runs], self._pool)

    def _forget_past_failures(self, records: Mapping[str, JobRecord]) -> None:
        if self.creation_failures:
            current = {
                node_id
                for record in records.values()
                for a in (record.attempt, record.cleanup)
                if a
                for node_id in plan_attempt(record, a, self._settings).node_ids
            }
            self.creation_failures = {n: why for n, why in self.creation_failures.items() if n in current}

    def _list_nodes(self, *, on_bastion: bool) -> Listing:
        try:
            listed = self._provisioners.of(on_bastion=on_bastion).list()
            return Listing(nodes={status.node_id: status for status in listed})
        except BastionError as error:
            where = "the bastion's own host" if on_bastion else "slices"
            self.problems.append(f"cannot list {where}: {error}")
            return Listing(nodes={}, problem=str(error))

    def _reread_lost(self, records: Mapping[str, JobRecord], slices: Listing, host: Listing) -> None:
        lost = {s.run for listing in (slices, host) for s in listing.nodes.values() if s.state is SliceState.LOST}
        suspects = [
            record
            for record in records.values()
            for a in (record.attempt, record.cleanup)
            if a and a.ending is None and str(record.run(a)) in lost
        ]
        if suspects:
            self.claims.list()
            self.run_objects.list()
            self._fetch_runs(records)

    def _nodes_by_uid(self, slices: Listing, host: Listing) -> dict[str, list[StrayNode]]:
        by_uid: dict[str, list[StrayNode]] = {}
        for listing, on_bastion in ((slices, False), (host, True)):
            for status in listing.nodes.values():
                run = Run.parse(status.run)
                if run is None:  # rule 4: only what is labelled with a run of ours is ever deleted
                    self.problems.append(f"the node {status.node_id} has our label and no run of ours; look at it")
                    continue
                by_uid.setdefault(run.uid, []).append(StrayNode(status=status, on_bastion=on_bastion))
        return by_uid

    def _run_view(self, record: JobRecord, attempt: Attempt | None, listing: Listing) -> RunView:
        if attempt is None:
            return NOTHING_SEEN
        plan = plan_attempt(record, attempt, self._settings)
        provisioner = self._provisioners.of(on_bastion=plan.on_bastion)
        order = self.run_objects.values.get(f"{plan.run}/order")
        reports = {}
        for host in range(plan.hosts):
            report = self.run_objects.values.get(f"{plan.run}/reports/{host}")
            if isinstance(report, Report) and report.token == attempt.token and report.host == host:
                reports[host] = report
        nodes = {node_id: listing.nodes[node_id] for node_id in plan.node_ids if node_id in listing.nodes}
        gone: set[str] = set()
        failures: dict[str, tuple[str, str]] = {}
        for node_id in plan.node_ids:
            status = nodes.get(node_id)
            if status is None and not plan.foreign_host:
                status = provisioner.get(node_id)
                if status is None:
                    gone.add(node_id)
                else:
                    nodes[node_id] = status
            if attempt.ending is None and (status is None or status.state is SliceState.CREATING):
                failure = self.creation_failures.get(node_id) or _failure(provisioner.failure(node_id))
                if failure is not None:
                    failures[node_id] = failure
        return RunView(
            order=order if isinstance(order, Order) else None,
            order_generation=self.run_objects.generation(f"{plan.run}/order"),
            claim=self._claim(plan.run),
            reports=reports,
            nodes=nodes,
            nodes_gone=frozenset(gone),
            failures=failures,
            silent_seconds=self._silent_seconds(plan, reports),
        )

    def _claim(self, run: str) -> Claim | None:
        """The run's claim. An unreadable one lets nobody pass and cannot be closed: it counts as a stranger's."""
        return self.claims.values.get(run) or (Claim(run=run) if run in self.claims.problems else None)

    def _silent_seconds(self, plan: RunPlan, reports: Mapping[int, Report]) -> dict[int, float]:
        """A host that came up and never beat has been silent since we first saw that it came up."""
        up = {0, *reports} if self._claim(plan.run) else set(reports)
        return {**self.beats.silent_seconds(plan.run), **self.beats.never_heard(plan.run, up)}

    # -- one job ------------------------------------------------------------------------------------------------

    def _view(self, name: str, slices: Listing, host: Listing, by_uid: Mapping[str, list[StrayNode]]) -> JobView:
        meta = self.specs.listed.get(name)
        value = self.states.values.get(name)
        record = value if isinstance(value, JobRecord) else None
        wish = self._wish(name)
        invalid_name = keys.key_name(name)
        explained = self.invalid.values.get(invalid_name)
        explained_meta = self.invalid.listed.get(invalid_name)
        read = meta is not None and self.specs.generation(name) == meta.generation
        current = read and name not in self.specs.problems
        view = JobView(
            name=name,
            spec_meta=meta,
            spec=self.specs.values.get(name) if current else None,
            spec_problem=self._spec_problem(name),
            record=record,
            record_generation=self.states.generation(name),
            frozen=self.states.problems.get(name) or self.states.unknown.get(name) or self.specs.unknown.get(name, ""),
            wish=wish,
            invalid_generation=explained.spec_generation if explained and explained.name == name else 0,
            invalid_object_generation=explained_meta.generation if explained_meta else 0,
            history_done=self.history_done.get(record.uid, 0) if record else 0,
        )
        try:
            if meta is None and (record is None or record.status is not Status.COMPLETED):
                view = replace(view, spec_gone=self._store.head(keys.active(name)) is None)
            if record is None and view.frozen and meta is not None:
                uid = keys.job_uid(self._settings.root, name, meta.generation)
                view = replace(view, stray_nodes=tuple(by_uid.get(uid, [])))
            if record is not None:
                view = self._with_runs(view, record, slices, host, by_uid.get(record.uid, []))
        except (StoreError, BastionError) as error:
            self.problems.append(f"{name}: {error}")
            view = replace(view, frozen=str(error))
        return view

    def _wish(self, name: str) -> Wish | None:
        meta = self.wishes.listed.get(name)
        if meta is None or name in self.wishes.unknown:
            return None
        if name in self.wishes.problems and not self._still(meta):
            return None  # it may be half written
        cancel, uid, by = self.wishes.values.get(name, (False, "", ""))
        return Wish(generation=meta.generation, written_at=meta.updated, cancel=cancel, uid=uid, by=by)

    def _with_runs(
        self, view: JobView, record: JobRecord, slices: Listing, host: Listing, nodes: list[StrayNode]
    ) -> JobView:
        on_bastion = record.job.runner is None
        listing = host if on_bastion else slices
        if listing.problem and record.attempt is not None:
            return replace(view, frozen=listing.problem)
        own = {
            *(plan_attempt(record, record.attempt, self._settings).node_ids if record.attempt else ()),
            *(plan_attempt(record, record.cleanup, self._settings).node_ids if record.cleanup else ()),
        }
        strays = []
        for stray in nodes:
            run = Run.parse(stray.status.run)
            newer = run is not None and run.attempt >= record.next_attempt
            if stray.status.node_id not in own and not newer:
                strays.append(stray)
        return replace(
            view,
            attempt=self._run_view(record, record.attempt, listing),
            cleanup=self._run_view(record, record.cleanup, host),
            stray_nodes=tuple(strays),
            nodes_unknown=bool(listing.problem),
        )


def _failure(error: Exception | None) -> tuple[str, str] | None:
    match error:
        case None:
            return None
        case Stockout():
            return "capacity", str(error)
        case ProvisionerRefused():
            return "refused", str(error)
        case _:
            return "infrastructure", str(error)
