"""Doing what the reconciler wants, guarded by generations.

Three phases, so that intents are durable before effects and the history of a tick costs one append per file: all
records, then all history, then the rest, job by job in order. A job whose effect fails has its turn ended there; the
next tick derives anew what is left to do.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Mapping
from concurrent.futures import Executor as ThreadPool
from dataclasses import dataclass, field

from bastion.core import documents, keys
from bastion.core.effects import (
    JUST_WRITTEN,
    AppendHistory,
    CloseGate,
    CreateNode,
    DeleteNode,
    DropInvalid,
    DropRecord,
    DropRuns,
    DropSpec,
    DropWish,
    Effect,
    PutComplete,
    PutInvalid,
    PutOrder,
    PutRecord,
)
from bastion.core.documents import DocumentError
from bastion.core.errors import (
    BastionError,
    NotFound,
    PreconditionFailed,
    ProvisionerRefused,
    SliceExists,
    Stockout,
    StoreError,
)
from bastion.core.job_record import JobRecord
from bastion.core.protocol import Claim
from bastion.daemon.history import HistoryWriter
from bastion.daemon.observe import Observer, Provisioners
from bastion.ports import ObjectStore


@dataclass(slots=True)
class Outcome:
    """What a tick's execution did.

    Attributes:
        records: The records as they stand now, for those jobs whose record was written.
        problems: What failed, for people.
        done: Number of effects carried out.
    """

    records: dict[str, JobRecord] = field(default_factory=dict)
    dropped: set[str] = field(default_factory=set)
    problems: list[str] = field(default_factory=list)
    done: int = 0


# What must not happen while the history of the job's end is not written.
_NEEDS_HISTORY = (PutComplete, DropSpec, DropRuns, DropRecord)


class Executor:
    """Carries effects out and tells the observer what it wrote, so that nothing of ours is downloaded again."""

    def __init__(
        self,
        store: ObjectStore,
        provisioners: Provisioners,
        observer: Observer,
        history: HistoryWriter,
        pool: ThreadPool,
    ) -> None:
        self._store = store
        self._provisioners = provisioners
        self._observer = observer
        self._history = history
        self._pool = pool

    def execute(self, turns: Mapping[str, list[Effect]], *, known_projects: Iterable[str]) -> Outcome:
        outcome = Outcome()
        puts = {name: e for name, effects in turns.items() for e in effects if isinstance(e, PutRecord)}
        failed = set()
        for name, problem in zip(puts, self._pool.map(self._attempt, puts.values()), strict=True):
            if problem:
                failed.add(name)
                outcome.problems.append(f"{name}: {problem}")
            else:
                outcome.records[name] = puts[name].record
                outcome.done += 1
        history_problem = self._append_history(turns, failed, known_projects, outcome)
        rest = {
            name: [e for e in effects if not isinstance(e, (PutRecord, AppendHistory))]
            for name, effects in turns.items()
            if name not in failed
        }
        results = self._pool.map(lambda effects: self._in_order(effects, history_problem), rest.values())
        for name, (done, problem) in zip(rest, results, strict=True):
            outcome.done += done
            if problem:
                outcome.problems.append(f"{name}: {problem}")
            elif any(isinstance(effect, DropRecord) for effect in rest[name]):
                outcome.dropped.add(name)
        return outcome

    def _append_history(
        self, turns: Mapping[str, list[Effect]], failed: set[str], known_projects: Iterable[str], outcome: Outcome
    ) -> str:
        records = [
            e.record
            for name, effects in turns.items()
            if name not in failed
            for e in effects
            if isinstance(e, AppendHistory)
        ]
        if not records:
            return ""
        try:
            self._history.append(records, known_projects=known_projects)
        except StoreError as error:
            outcome.problems.append(f"history: {error}")
            return str(error)
        for record in records:
            self._observer.history_done[record.uid] = record.history_next - 1
        outcome.done += len(records)
        return ""

    def _in_order(self, effects: list[Effect], history_problem: str) -> tuple[int, str]:
        done = 0
        for effect in effects:
            if history_problem and isinstance(effect, _NEEDS_HISTORY):
                return done, f"waits for its history: {history_problem}"
            problem = self._attempt(effect)
            if problem:
                return done, problem
            done += 1
        return done, ""

    def _attempt(self, effect: Effect) -> str:
        """Carries one effect out; returns what went wrong, or nothing."""
        try:
            self._do(effect)
        except BastionError as error:
            return f"{type(effect).__name__}: {error}"
        return ""

    def _do(self, effect: Effect) -> None:
        match effect:
            case PutRecord(record=record, generation=generation):
                meta = self._store.put(keys.state(record.name), record.to_bytes(), generation=generation)
                self._observer.states.remember(record.name, meta, record)
            case DropRecord():
                self._drop_record(effect)
            case PutOrder(order=order, generation=generation):
                meta = self._store.put(keys.order(order.run), order.to_bytes(), generation=generation)
                self._observer.run_objects.remember(f"{order.run}/order", meta, order)
            case CloseGate(run=run, reason=reason):
                self._close_gate(run, reason)
            case CreateNode():
                self._create(effect)
            case DeleteNode(node_id=node_id, on_bastion=on_bastion):
                self._provisioners.of(on_bastion=on_bastion).delete(node_id)
                self._observer.creation_failures.pop(node_id, None)
            case PutComplete():
                self._complete(effect)
            case DropSpec(name=name, generation=generation):
                self._drop(keys.active(name), generation)
                self._observer.specs.forget(name)
            case DropWish(name=name, generation=generation):
                self._drop(keys.user_state(name), generation)
                self._observer.wishes.forget(name)
            case DropRuns(uid=uid):
                for prefix in (keys.JOBS_CLAIMS, keys.RUNS, keys.BEATS):
                    for meta in list(self._store.list(f"{prefix}{uid}-")):
                        self._store.delete(meta.key, generation=meta.generation)
            case PutInvalid():
                self._put_invalid(effect)
            case DropInvalid(name=name, generation=generation):
                self._drop(keys.invalid(name), generation)
                self._observer.invalid.forget(keys.key_name(name))
            case AppendHistory():
                raise AssertionError("history is appended for all jobs at once")

    def _drop(self, key: str, generation: int) -> None:
        """Deletes that very object; another one in its place is somebody's newer word and stays."""
        try:
            self._store.delete(key, generation=generation)
        except PreconditionFailed:
            return

    def _drop_record(self, effect: DropRecord) -> None:
        generation = effect.generation
        if generation == JUST_WRITTEN:
            generation = self._observer.states.generation(effect.name)
        record = self._observer.states.values.get(effect.name)
        self._store.delete(keys.state(effect.name), generation=generation)
        self._observer.states.forget(effect.name)
        self._history.forget(effect.name)
        if isinstance(record, JobRecord):
            self._observer.history_done.pop(record.uid, None)

    def _close_gate(self, run: str, reason: str) -> None:
        claim = Claim(run=run, closed=reason)
        try:
            meta = self._store.put(keys.claim(run), claim.to_bytes(), generation=0)
        except PreconditionFailed:
            return  # a host was first: the next tick reads its claim
        self._observer.claims.remember(run, meta, claim)

    def _create(self, effect: CreateNode) -> None:
        provisioner = self._provisioners.of(on_bastion=effect.on_bastion)
        node_id = effect.request.node_id
        self._observer.creation_failures.pop(node_id, None)
        try:
            provisioner.create(effect.request)
        except SliceExists:
            # Ours by its token: an earlier request landed. Not ours: the next tick sees the foreign token.
            return
        except Stockout as error:
            self._observer.creation_failures[node_id] = ("capacity", str(error))
        except ProvisionerRefused as error:
            self._observer.creation_failures[node_id] = ("refused", str(error))

    def _complete(self, effect: PutComplete) -> None:
        name = effect.record.name
        key = keys.complete(name)
        try:
            present = self._store.get(key)
        except NotFound:
            self._store.put(key, effect.document, generation=0)
            return
        uid = _uid_of(present.data)
        if uid == effect.record.uid:
            return
        aside = f"{key}.{uid or present.meta.generation}"
        with contextlib.suppress(PreconditionFailed):  # moved by an earlier try of this very step
            self._store.put(aside, present.data, generation=0)
        self._store.put(key, effect.document, generation=present.meta.generation)

    def _put_invalid(self, effect: PutInvalid) -> None:
        document = documents.dumps(
            {"format": 1, "name": effect.name, "generation": effect.spec_generation, "problem": effect.problem}
        )
        self._store.put(keys.invalid(effect.name), document, generation=effect.generation)


def _uid_of(data: bytes) -> str:
    try:
        uid = str(documents.loads(data)["result"]["uid"])
    except (DocumentError, TypeError, KeyError):
        return ""
    return uid if keys.is_uid(uid) else ""  # it becomes part of a key
