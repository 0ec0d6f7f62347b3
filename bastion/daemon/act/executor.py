"""The executor: carry out the reconciler's effects, guarded by generations.

It works in four phases: all records (each after the effects that its change would make the daemon forget), the audit
trail, all history, then the rest, job by job in order. So intents are durable before effects, requests are in the trail
before they are answered, and a history file costs one append a tick. After a failed effect, the job's other effects are
skipped; the next tick decides again.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field

from bastion.core import limits
from bastion.core.bucket import keys
from bastion.core.bucket.protocol import Claim
from bastion.core.errors import (
    BastionError,
    GangExists,
    InvalidDocument,
    NotFound,
    ObjectTooLarge,
    PreconditionFailed,
    ProvisionerRefused,
    Stockout,
    StoreError,
    StoreUnavailable,
)
from bastion.core.model.cancel_request import CancelRequest
from bastion.core.model.gangs import failure_of
from bastion.core.model.job_record import JobRecord
from bastion.core.model.job_spec import JobSpec
from bastion.core.model.refusal import Refusal
from bastion.core.plain_text import plain_line
from bastion.core.reconcile.effects import (
    JUST_WRITTEN,
    AppendHistory,
    CloseGate,
    CreateGang,
    DeleteGang,
    DropCopy,
    DropInvalid,
    DropJobRequest,
    DropRecord,
    DropRun,
    DropRuns,
    DropSpec,
    DropUserRequest,
    Effect,
    PutComplete,
    PutCopy,
    PutInvalid,
    PutOrder,
    PutRecord,
    TellLogGap,
)
from bastion.core.reconcile.finish import whose_result
from bastion.daemon.act import lost_logs
from bastion.daemon.act.audit_trail import AuditTrail
from bastion.daemon.act.history import LEASE_RAN_OUT, HistoryWriter
from bastion.daemon.observe.folders import Folders
from bastion.daemon.observe.gangs import Provisioners
from bastion.daemon.observe.job_views import JobViews
from bastion.daemon.observe.object_cache import ObjectCache
from bastion.daemon.thread_pool import ThreadPool
from bastion.ports import ObjectStore, StoredObject

_AUDIT_WAITS = "answers to refused requests and the end of jobs wait for the audit trail, for a minute at most"


@dataclass(slots=True)
class Outcome:
    """The result of executing a tick's effects. `records` were written; `done` counts the effects carried out."""

    records: dict[str, JobRecord] = field(default_factory=dict)
    dropped: set[str] = field(default_factory=set)
    problems: list[str] = field(default_factory=list)
    done: int = 0

    def blame(self, name: str, problem: str) -> None:
        """Add a job's problem; what holds all of them up is reported once."""
        text = problem if problem in (LEASE_RAN_OUT, _AUDIT_WAITS) else f"{name}: {problem}"
        if text not in self.problems[-1:]:
            self.problems.append(text)


# Effects that wait until the history of the job's end is written.
_NEEDS_HISTORY = (PutComplete, DropSpec, DropCopy, DropRuns, DropRecord)
# Effects that need what the record's change makes the daemon forget.
_BEFORE_RECORDS = (TellLogGap, PutCopy)
# A new daemon does not know which lines the histories have; it checks this many waiting jobs a tick, so that thousands
# do not delay it.
_CATCH_UP_JOBS = 250


class Executor:
    """Carries out effects and updates the observer's caches with its own writes."""

    def __init__(
        self,
        store: ObjectStore,
        provisioners: Provisioners,
        folders: Folders,
        views: JobViews,
        history: HistoryWriter,
        audit: AuditTrail,
        threads: ThreadPool,
        may_act: Callable[[], bool],
    ) -> None:
        """Carry out effects while `may_act` says that the lease holds; it is asked before every effect."""
        self._store = store
        self._provisioners = provisioners
        self._folders = folders
        self._views = views
        self._history = history
        self._audit = audit
        self._threads = threads
        self._may_act = may_act

    def execute(self, work: Mapping[str, list[Effect]], *, known_projects: Collection[str]) -> Outcome:
        outcome = Outcome()
        self._views.share_history(known_projects)
        work = self._before_records(work, outcome)
        puts = {name: e for name, effects in work.items() for e in effects if isinstance(e, PutRecord)}
        failed = set()
        for name, problem in zip(puts, self._threads.each(self._attempt, puts.values()), strict=True):
            if problem:
                failed.add(name)
                outcome.blame(name, problem)
            else:
                outcome.records[name] = puts[name].record
                outcome.done += 1
        fresh = {name for name, put in puts.items() if put.generation == 0}
        going_on = {name: effects for name, effects in work.items() if name not in failed}
        records = _with_history(going_on, set(puts))
        self._append_audit(going_on, records)
        history_problems = self._append_history(records, fresh, known_projects, outcome)
        remaining = {
            name: others
            for name, effects in going_on.items()
            if (others := [e for e in effects if not isinstance(e, (PutRecord, AppendHistory))])
        }
        # Explanations last: thousands of them may take until the lease runs out, and no job waits for one.
        ordered = sorted(remaining, key=lambda name: all(isinstance(e, PutInvalid) for e in remaining[name]))
        results = self._threads.each(
            lambda name: self._in_order(remaining[name], history_problems.get(name, "")), ordered
        )
        for name, (done, problem) in zip(ordered, results, strict=True):
            outcome.done += done
            if problem:
                outcome.blame(name, problem)
            elif any(isinstance(effect, DropRecord) for effect in remaining[name]):
                outcome.dropped.add(name)
        return outcome

    def _before_records(self, work: Mapping[str, list[Effect]], outcome: Outcome) -> Mapping[str, list[Effect]]:
        first = [(name, e) for name, effects in work.items() for e in effects if isinstance(e, _BEFORE_RECORDS)]
        if not first:
            return work
        failed = set()
        for (name, _), problem in zip(
            first, self._threads.each(lambda each: self._attempt(each[1]), first), strict=True
        ):
            if problem:
                failed.add(name)
                outcome.blame(name, problem)
            else:
                outcome.done += 1
        return {
            name: [e for e in effects if not isinstance(e, _BEFORE_RECORDS)]
            for name, effects in work.items()
            if name not in failed
        }

    def _append_history(
        self,
        records: Mapping[str, JobRecord],
        fresh: set[str],
        known_projects: Collection[str],
        outcome: Outcome,
    ) -> dict[str, str]:
        """Return the problems, by job.

        Args:
            records: By name.
            fresh: Names whose record is their first.
            outcome: Receives counts and problems.
        """
        by_uid = self._history.append(
            records.values(),
            known_projects=known_projects,
            fresh={record.uid for name, record in records.items() if name in fresh},
            may_act=self._may_act,
        )
        problems = {}
        for name, record in records.items():
            problem = by_uid.get(record.uid, "")
            if problem:
                problems[name] = problem
                outcome.blame(name, problem)
            else:
                self._views.history_appended(record, shared=record.job.project_id in known_projects)
                outcome.done += 1
        return problems

    def _append_audit(self, work: Mapping[str, list[Effect]], records: Mapping[str, JobRecord]) -> None:
        for record in records.values():
            self._audit.note_record(record)
        for effects in work.values():
            self._audit.note_effects(effects)
        if not self._may_act():
            return
        if self._audit.flush():
            self._views.audit_waits.clear()
        else:
            self._views.audit_failed(records.values())

    def _in_order(self, effects: Sequence[Effect], history_problem: str) -> tuple[int, str]:
        done = 0
        kept = ""
        for effect in effects:
            if history_problem and isinstance(effect, _NEEDS_HISTORY):
                return done, kept or history_problem
            if self._audit.holds_up and (isinstance(effect, DropRecord) or _is_answer(effect)):
                kept = kept or _AUDIT_WAITS
                continue
            problem = self._attempt(effect)
            if not problem:
                done += 1
            elif isinstance(effect, DeleteGang):
                kept = problem  # deletions of other gangs go on
            else:
                return done, problem
        return done, kept

    def _attempt(self, effect: Effect) -> str:
        if not self._may_act():
            return LEASE_RAN_OUT
        try:
            self._do(effect)
        except (BastionError, ValueError) as error:  # ValueError: an invalid key
            return f"{type(effect).__name__}: {error}"
        return ""

    def _do(self, effect: Effect) -> None:
        match effect:
            case PutRecord():
                self._put_record(effect)
            case TellLogGap():
                lost_logs.tell(self._store, effect)
            case DropRecord():
                self._drop_record(effect)
            case PutOrder(order=order, generation=generation):
                meta = self._store.put(keys.order(order.run), order.to_bytes(), generation=generation)
                self._folders.run_objects.remember(f"{order.run}/order", meta, order)
            case CloseGate(key=key, claim=claim):
                self._close_gate(key, claim)
            case CreateGang():
                self._create(effect)
            case DeleteGang(ref=ref, on_bastion=on_bastion):
                self._provisioners.of(on_bastion=on_bastion).delete(ref)
                self._views.creation_failures.pop(ref.name, None)
            case PutComplete():
                self._complete(effect)
            case PutCopy():
                self._put_copy(effect)
            case DropSpec(name=name, generation=generation, owner=owner):
                self._drop(keys.active(name, owner), generation)
                self._forget(self._folders.specs, name, keys.active(name, owner))
            case DropCopy(name=name, sha256=sha256):
                generation = self._folders.copies.generation(name, sha256) or self._copy_of(name, sha256)
                if generation:
                    self._drop(keys.active(name), generation)
            case DropUserRequest(name=name, generation=generation, owner=owner):
                self._drop(keys.user_state(name, owner), generation)
                self._forget(self._folders.user_requests, name, keys.user_state(name, owner))
            case DropJobRequest(key=key, generation=generation):
                self._drop(key, generation)
                self._folders.requests.forget(key)
            case DropRuns(uid=uid):
                self._drop_all(keys.RUNS, f"{uid}-", self._folders.run_objects.drop, keep="/order")
                self._drop_all(keys.BEATS, f"{uid}-", lambda _: None)
            case DropRun(run=run):
                # The claim last: a late host must not find an order without a claim.
                self._drop_all(keys.RUNS, f"{run}/", self._folders.run_objects.drop)
                self._drop_all(keys.BEATS, f"{run}.", lambda _: None)
                for meta in list(self._store.list(keys.JOBS_CLAIMS + run)):
                    name = meta.key.removeprefix(keys.JOBS_CLAIMS)
                    if keys.run_of_claim(name) == run:
                        self._drop(meta.key, meta.generation)
                        self._folders.claims.drop(name)
            case PutInvalid():
                self._put_invalid(effect)
            case DropInvalid(name=name, generation=generation, owner=owner):
                self._drop(keys.invalid(name, owner), generation)
                self._folders.invalid.drop(keys.invalid_name(name, owner))
            case AppendHistory():
                raise AssertionError("history is appended for all jobs at once")

    def _drop(self, key: str, generation: int) -> None:
        try:
            self._store.delete(key, generation=generation)
        except PreconditionFailed:
            return

    def _forget(self, cache: ObjectCache[JobSpec] | ObjectCache[CancelRequest], name: str, key: str) -> None:
        """Forget what was deleted; another user's object of that name may be listed."""
        found = cache.listed.get(name)
        if found is not None and found.key == key:
            cache.drop(name)

    def _put_copy(self, effect: PutCopy) -> None:
        name, pin = effect.name, effect.pin
        source, key = keys.active(name, pin.user), keys.active(name)
        stored = self._store.get(source, max_bytes=limits.SPEC_MAX_BYTES)
        if stored.meta.generation != pin.generation or hashlib.sha256(stored.data).hexdigest() != pin.sha256:
            raise PreconditionFailed(f"{source} has changed since it was read; the next tick reads it again")
        found = self._store.head(key)
        if found is None or self._copy_of(name, pin.sha256) != found.generation:
            found = self._store.put(key, stored.data, generation=found.generation if found is not None else 0)
        self._folders.copies.note(name, found, pin.sha256)

    def _copy_of(self, name: str, sha256: str) -> int:
        """The generation of the copy in `jobs/active/` if it has these bytes; 0 otherwise."""
        try:
            stored = self._store.get(keys.active(name), max_bytes=limits.SPEC_MAX_BYTES)
        except (NotFound, ObjectTooLarge):
            return 0
        return stored.meta.generation if hashlib.sha256(stored.data).hexdigest() == sha256 else 0

    def _drop_all(self, prefix: str, start: str, forget: Callable[[str], None], *, keep: str = "") -> None:
        """Delete all objects below a prefix whose name has that start, except keys that end in `keep`."""
        for meta in list(self._store.list(f"{prefix}{start}")):
            if keep and meta.key.endswith(keep):
                continue
            if not self._may_act():  # there may be thousands of objects
                raise StoreUnavailable(LEASE_RAN_OUT)
            self._store.delete(meta.key, generation=meta.generation)
            forget(meta.key[len(prefix) :])

    def _put_record(self, effect: PutRecord) -> None:
        name = effect.record.name
        try:
            meta = self._store.put(keys.state(name), effect.record.to_bytes(), generation=effect.generation)
        except PreconditionFailed:
            self._views.doubts.pop(name, None)  # a start in doubt has landed or can no longer land
            raise
        except StoreError:
            self._views.in_doubt(effect.record, effect.generation)
            raise
        self._views.doubts.pop(name, None)
        self._folders.states.remember(name, meta, effect.record)

    def _drop_record(self, effect: DropRecord) -> None:
        generation = effect.generation
        if generation == JUST_WRITTEN:
            generation = self._folders.states.generation(effect.name)
        record = self._folders.states.values.get(effect.name)
        self._store.delete(keys.state(effect.name), generation=generation)
        self._folders.states.drop(effect.name)
        self._history.forget(effect.name, record.uid if isinstance(record, JobRecord) else "")
        if isinstance(record, JobRecord):
            self._views.forget_history(record.uid)

    def _close_gate(self, key: str, claim: Claim) -> None:
        try:
            meta = self._store.put(key, claim.to_bytes(), generation=0)
        except PreconditionFailed:
            return  # a host was first: the next tick reads its claim
        self._folders.claims.remember(key.removeprefix(keys.JOBS_CLAIMS), meta, claim)

    def _create(self, effect: CreateGang) -> None:
        provisioner = self._provisioners.of(on_bastion=effect.on_bastion)
        name = effect.request.ref.name
        self._views.creation_failures.pop(name, None)
        try:
            provisioner.create(effect.request)
        except GangExists:
            # With our token: an earlier request landed. Otherwise the next tick sees the foreign token.
            return
        except (Stockout, ProvisionerRefused) as error:
            self._views.creation_failures[name] = failure_of(error)

    def _complete(self, effect: PutComplete) -> None:
        name = effect.record.name
        key = keys.complete(name)
        found = self._store.head(key)
        if found is None:
            self._store.put(key, effect.document, generation=0)
            return
        if found.size > limits.RESULT_MAX_BYTES:
            raise InvalidDocument(f"{key} is {found.size} bytes long, so it is not ours; move it away")
        present = self._store.get(key, max_bytes=limits.RESULT_MAX_BYTES)
        owner, uid = whose_result(present.data)
        if uid == effect.record.uid:
            return
        if self._store.head(keys.former_result(name, effect.record.uid)) is not None:
            return  # written earlier, and moved aside by a later job of the name
        # Versions up to 0.1.0 moved older results of other jobs to this key.
        moved_here = owner != name and key == keys.former_result_before(owner, uid)
        aside = keys.former_result(owner if moved_here else name, uid or str(present.meta.generation))
        self._move_aside(present, aside)
        self._store.put(key, effect.document, generation=present.meta.generation)

    def _move_aside(self, present: StoredObject, aside: str) -> None:
        """Copy a result to `aside`, or to its own key if another result is there."""
        if not self._copied(present, aside) and not self._copied(present, f"{aside}~{present.meta.generation}"):
            raise InvalidDocument(f"{aside} already holds another result; move it away")

    def _copied(self, present: StoredObject, key: str) -> bool:
        """Whether `key` now holds the same bytes, from this call or an earlier one."""
        try:
            self._store.put(key, present.data, generation=0)
        except PreconditionFailed:
            return self._store.get(key, max_bytes=limits.RESULT_MAX_BYTES).data == present.data
        return True

    def _put_invalid(self, effect: PutInvalid) -> None:
        refusal = Refusal(
            name=effect.name,
            generation=effect.spec_generation,
            problem=plain_line(effect.problem),
            owner=effect.owner,
            request=effect.request,
        )
        meta = self._store.put(
            keys.invalid(effect.name, effect.owner), refusal.to_bytes(), generation=effect.generation
        )
        self._folders.invalid.remember(keys.invalid_name(effect.name, effect.owner), meta, refusal)


def _with_history(work: Mapping[str, list[Effect]], moved: set[str]) -> dict[str, JobRecord]:
    """The records with lines to append; `moved`: names whose record was written in this tick."""
    records = {}
    patience = _CATCH_UP_JOBS
    for name, effects in work.items():
        for effect in effects:
            if isinstance(effect, AppendHistory):
                urgent = name in moved or any(isinstance(e, _NEEDS_HISTORY) for e in effects)
                if urgent or patience > 0:
                    records[name] = effect.record
                    patience -= not urgent
    return records


def _is_answer(effect: Effect) -> bool:
    return isinstance(effect, (PutInvalid, DropUserRequest, DropJobRequest)) and effect.asked is not None
