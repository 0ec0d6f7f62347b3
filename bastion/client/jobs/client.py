"""Jobs of one bastion: submit, look, cancel.

Layer: client, through the port. Nothing is cached but the status document, by its generation,
and where it is asked for the quota file.

Invariants:

* Every name is checked before it becomes part of a key.
* A job is told from its namesakes by its uid; what belongs to another uid is never shown as this job's.
"""

from __future__ import annotations

import contextlib
import difflib
from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from functools import partial
from itertools import islice
from typing import Any, Protocol

import quota
from bastion.client.concurrently import concurrently
from bastion.client.jobs.poll_pace import LOCAL, REMOTE, Pace
from bastion.client.jobs.results import Result, read_result
from bastion.client.logs.reader import RunLogs
from bastion.core import documents, limits
from bastion.core.bucket import keys
from bastion.core.errors import (
    InvalidDocument,
    InvalidSpec,
    NotFound,
    ObjectTooLarge,
    PreconditionFailed,
    Refused,
    StoreError,
)
from bastion.core.instants import to_rfc3339
from bastion.core.model import cancel_request, job_record, job_spec
from bastion.core.model.job_record import JobRecord
from bastion.core.model.lifecycle import Status
from bastion.core.status import packing
from bastion.ports import Clock, ObjectStore

# Names looked through for "did you mean"; a bucket may hold a hundred thousand results.
_NAMES_MAX = 2000
_TRIES = 5


class BastionRoot(Protocol):
    """Where a bastion lies (`bastion.wiring.roots.Root`): uids are drawn from `url`, names checked by `bastion`."""

    @property
    def url(self) -> str: ...

    @property
    def bastion(self) -> str: ...

    @property
    def local(self) -> bool: ...


class Stage(str, Enum):
    """How far a job is, as far as the bucket tells."""

    SUBMITTED = "submitted"  # its spec lies there, the daemon has not taken it up
    KNOWN = "known"  # the daemon has a state for it
    INVALID = "invalid"  # the daemon refuses the spec that lies there
    COMPLETED = "completed"


@dataclass(frozen=True, slots=True, kw_only=True)
class Submitted:
    """A spec that lies in the bucket. `update`: it replaces the spec of the same job, whose uid stays."""

    name: str
    uid: str
    generation: int
    update: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class JobInfo:
    """What the bucket holds of one name now.

    Attributes:
        uid: Of the newest job of that name; empty if nobody gave it one (a refused name, a foreign state).
        entry: Its entry in the status document, if that is this uid's.
        record: The daemon's state, if it is one of ours.
        status: Its status, also if the state is a foreign one; None without a state.
        problem: Why the spec that lies there is refused; empty if it is not.
        generation: Of the spec object; 0 if there is none.
    """

    name: str
    uid: str
    stage: Stage
    entry: Mapping[str, Any] | None = None
    record: JobRecord | None = None
    status: Status | None = None
    result: Result | None = None
    problem: str = ""
    generation: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Cancelled:
    """What a cancel did.

    Attributes:
        uid: Of the job that ends; empty where only a refused spec was removed.
        generation: Of its spec object.
        already: The wish lay there before.
        removed: It was no job yet: the refused spec is gone.
    """

    name: str
    uid: str
    generation: int = 0
    already: bool = False
    removed: bool = False


class Client:
    """One bastion, seen by its users.

    Args:
        store: Its keys are relative to the bastion's ROOT.
        root: Where that is.
        clock: Gives creation times and instants of wishes.
    """

    def __init__(self, store: ObjectStore, root: BastionRoot, clock: Clock) -> None:
        self.store = store
        self.root = root
        self.clock = clock
        self._status: Mapping[str, Any] | None = None
        self._status_generation = 0
        self._policy: quota.Policy | None = None

    @property
    def bastion(self) -> str:
        return self.root.bastion

    @property
    def pace(self) -> Pace:
        """How often this bastion's bucket may be asked."""
        return LOCAL if self.root.local else REMOTE

    # -- the whole bastion --------------------------------------------------------------------------------------

    def status(self, *, again: bool = True) -> Mapping[str, Any] | None:
        """`status/current.json`; None if no daemon has published one.

        Args:
            again: Ask whether there is a newer one than this client has read before.

        Raises:
            InvalidDocument: it is of another format.
        """
        if self._status is not None and not again:
            return self._status
        meta = self.store.head(keys.STATUS)
        if meta is None:
            return None
        if meta.size > limits.STATUS_MAX_BYTES:
            raise InvalidDocument(f"{keys.STATUS} has {meta.size} bytes: no daemon wrote that; it is written anew soon")
        if self._status is None or meta.generation != self._status_generation:
            try:
                stored = self.store.get(keys.STATUS, max_bytes=limits.STATUS_MAX_BYTES)
                document = packing.read(stored.data)
            except NotFound:
                return None
            except InvalidDocument as error:
                raise InvalidDocument(
                    f"{keys.STATUS}: {error}; use the version of bastion that its daemon has"
                ) from error
            self._status, self._status_generation = document, stored.meta.generation
        return self._status

    def entries(self, *, again: bool = True) -> dict[str, Mapping[str, Any]]:
        """The status document's jobs by name."""
        status = self.status(again=again)
        jobs = status.get("jobs") if status else None
        return {str(job.get("name")): job for job in jobs or () if isinstance(job, dict)}

    def unread(self, *, again: bool = True, most: int | None = None) -> list[str]:
        """Names of spec objects that the status document does not mention, in order.

        The daemon has not read them yet, or the queue has no room for them (`backlog`).

        Args:
            again: As in `status`.
            most: Look for no more than so many.
        """
        status = self.status(again=again) or {}
        known = {str(job.get("name")) for part in ("jobs", "invalid") for job in status.get(part) or ()}
        listed = (meta.key.removeprefix(keys.JOBS_ACTIVE) for meta in self.store.list(keys.JOBS_ACTIVE))
        return list(islice((name for name in listed if name not in known), most))

    def backlog(self, *, again: bool = True) -> list[Mapping[str, Any]]:
        """Of whose jobs the queue has no room for more, the largest number first.

        Each entry has `jobs` (not accepted yet), `queued`, `limit` and `rule`, the quota file's key; `project_id` and
        `user_id`, or None for users who are members of nothing: they share one limit, which has no `rule`.
        """
        entries = (self.status(again=again) or {}).get("backlog")
        return [entry for entry in entries if isinstance(entry, dict)] if isinstance(entries, list) else []

    def backlog_of(self, project_id: str, user_id: str) -> Mapping[str, Any] | None:
        """The entry of `backlog` that keeps out a job of that project and user; None if there is room."""
        entries = {(entry.get("project_id"), entry.get("user_id")): entry for entry in self.backlog(again=False)}
        found = entries.get((project_id, user_id))
        if found is None and (None, None) in entries:
            try:
                outside = not self.policy().is_member(user_id, project_id)
            except (NotFound, quota.QuotaFileError):
                outside = True
            found = entries[None, None] if outside else None
        return found

    def kept_out(self, info: JobInfo) -> Mapping[str, Any] | None:
        """The entry of `backlog` that keeps a submitted job out of the queue; None if nothing does."""
        if info.stage is not Stage.SUBMITTED or not self.backlog(again=False):
            return None
        spec = self.spec(info.name, info.uid)
        return None if spec is None else self.backlog_of(spec.project_id, spec.user_id)

    def completed(
        self, *, limit: int, among: int | None = None, since: float | None = None
    ) -> tuple[list[Result], int]:
        """The newest results, newest first, and how many there are in all.

        Args:
            among: Look at so many of them at most, in order of the names: each thousand costs a request.
            since: Only those written after this instant, by the store's clock.
        """
        listed = islice(self.store.list(keys.JOBS_COMPLETE), among)
        metas = sorted((meta for meta in listed if since is None or meta.updated > since), key=lambda m: -m.updated)
        wanted = [meta.key for meta in metas[:limit]]
        answers = concurrently(
            [partial(self.store.get, key, max_bytes=limits.RESULT_MAX_BYTES) for key in wanted],
            connections=self.pace.connections,
        )
        results = []
        for key, answer in zip(wanted, answers, strict=True):
            if isinstance(answer, (NotFound, ObjectTooLarge)):
                continue  # expired meanwhile, or somebody else's file
            if isinstance(answer, StoreError):
                raise answer
            with contextlib.suppress(InvalidDocument):  # somebody else's file
                results.append(read_result(answer.data, name=key.removeprefix(keys.JOBS_COMPLETE)))
        return results, len(metas)

    def policy(self, *, again: bool = True) -> quota.Policy:
        """The quota file in the bastion's bucket.

        Args:
            again: Read it though this client has read it before.

        Raises:
            NotFound: there is none here (it may lie in a private bucket).
            quota.QuotaFileError: it is broken.
        """
        if self._policy is None or again:
            self._policy = quota.load(self.store.get(keys.PROJECT_QUOTAS, max_bytes=limits.QUOTA_FILE_MAX_BYTES).data)
        return self._policy

    # -- one job ------------------------------------------------------------------------------------------------

    def check_name(self, name: str) -> None:
        """Refuses what cannot be a job's name.

        Raises:
            InvalidSpec: with the rule that it breaks.
        """
        keys.check_job_name(name, bastion=self.bastion)

    def look(self, name: str) -> JobInfo | None:
        """What there is of that name: the live job before the completed one; None if nothing.

        Raises:
            InvalidSpec: no job can have that name, and no refused spec has it.
        """
        try:
            self.check_name(name)
        except InvalidSpec:
            problem = self._problem(name, generation=None)
            if not problem:
                raise
            return JobInfo(name=name, uid="", stage=Stage.INVALID, problem=problem)
        state = self._state(name)
        meta = self.store.head(keys.active(name))
        generation = meta.generation if meta else 0
        problem = self._problem(name, generation=generation) if meta else ""
        if isinstance(state, JobRecord):
            # The last steps of a job's end: its result lies there before its spec and its state go.
            ending = state.status is Status.COMPLETED
            result = self.result(name, state.uid) if ending else None
            if not ending or generation in (0, state.generation):
                return JobInfo(
                    name=name,
                    uid=state.uid,
                    stage=Stage.COMPLETED if result else Stage.KNOWN,
                    entry=self._entry(name, state.uid),
                    record=state,
                    status=state.status,
                    result=result,
                    problem=problem,
                    generation=generation,
                )
        if isinstance(state, Status) and state is not Status.COMPLETED:
            return JobInfo(name=name, uid="", stage=Stage.KNOWN, status=state, problem=problem, generation=generation)
        if meta is not None:
            stage = Stage.INVALID if problem else Stage.SUBMITTED
            return JobInfo(
                name=name, uid=self._uid(name, generation), stage=stage, problem=problem, generation=generation
            )
        result = self.result(name)
        if result is None:
            return None
        return JobInfo(name=name, uid=result.uid, stage=Stage.COMPLETED, result=result)

    def require(self, name: str) -> JobInfo:
        """As `look`, for a name that must mean something.

        Raises:
            Refused: there is no such job; the message lists close names.
        """
        found = self.look(name)
        if found is None:
            raise self.unknown(name)
        return found

    def unknown(self, name: str) -> Refused:
        """The error about a job that nobody knows."""
        near = difflib.get_close_matches(name, self.names(), n=3, cutoff=0.5)
        hint = f"did you mean {' or '.join(near)}?" if near else "bastion list --all shows those there are"
        return Refused(f"there is no job {name!r} in {self.root.url}; {hint}")

    def names(self) -> list[str]:
        """Names of jobs, live and completed; of many only some."""
        found: dict[str, None] = {}
        for prefix in (keys.JOBS_ACTIVE, keys.JOBS_STATES, keys.JOBS_COMPLETE):
            for meta in islice(self.store.list(prefix), _NAMES_MAX):
                found[keys.job_of_result(meta.key.removeprefix(prefix))] = None
        return list(found)

    def result(self, name: str, uid: str = "") -> Result | None:
        """How the job ended; with `uid`, that very one, also if a namesake has completed since."""
        candidates = [keys.complete(name)]
        if uid:
            candidates += [keys.former_result(name, uid), keys.former_result_before(name, uid)]
        for key in candidates:
            try:
                result = read_result(self.store.get(key, max_bytes=limits.RESULT_MAX_BYTES).data, name=name)
            except NotFound:
                continue
            if result.name == name and (not uid or result.uid == uid):
                return result
        return None

    def spec(self, name: str, uid: str) -> job_spec.JobSpec | None:
        """The spec of that very job, live or completed; None if it is not to be had."""
        try:
            state = self._state(name)
            if isinstance(state, JobRecord) and state.uid == uid:
                return state.job
            result = self.result(name, uid)
            if result is not None:
                return job_spec.from_document(result.document, name=name)
            stored = self.store.get(keys.active(name), max_bytes=limits.SPEC_MAX_BYTES)
            if self._uid(name, stored.meta.generation) == uid:
                return job_spec.parse(stored.data, name=name, bastion=self.bastion)
        except (NotFound, InvalidDocument, Refused):
            return None
        return None

    def logs(
        self,
        name: str,
        run: keys.Run,
        *,
        hosts: int | None = None,
        worker: int | None = None,
        since: float | None = None,
        tail: int | None = None,
        source: keys.LogSource = "worker",
    ) -> RunLogs:
        """The output of one run; the arguments are those of `RunLogs`."""
        return RunLogs(
            self.store,
            name,
            run,
            hosts=hosts,
            worker=worker,
            connections=self.pace.connections,
            since=since,
            tail=tail,
            source=source,
        )

    def history(self, name: str) -> list[str]:
        """The history's lines `<instant> <uid>#<n> <STATUS> <text>`, of all jobs that had the name, oldest first."""
        self.check_name(name)
        try:
            data = self.store.get(keys.job_history(name)).data
        except NotFound:
            return []
        return [line for line in data.decode("utf-8", "replace").split("\n") if line]

    # -- changing -----------------------------------------------------------------------------------------------

    def submit(self, spec: job_spec.JobSpec, data: bytes | None = None) -> Submitted:
        """Puts a spec into the bucket: a new job, or with a `metadata.version` one higher an update of the live one.

        Args:
            data: The spec's own bytes, if they are to be kept as they are.

        Raises:
            Refused: a job of that name is there already, or the update does not fit it.
        """
        self.check_name(spec.name)
        key = keys.active(spec.name)
        content = spec.to_bytes() if data is None else data
        try:
            meta = self.store.put(key, content, generation=0)
        except PreconditionFailed:
            return self._update(spec, content)
        return Submitted(name=spec.name, uid=self._uid(spec.name, meta.generation), generation=meta.generation)

    def _update(self, spec: job_spec.JobSpec, content: bytes) -> Submitted:
        name = spec.name
        there = Refused(
            f"a job named {name!r} is there already (bastion why {name}); choose another name, or cancel it first: "
            f"bastion cancel --wait {name}"
        )
        state = self._state(name)
        if spec.version is None or not isinstance(state, JobRecord):
            raise there
        present = state.job.version or 0
        if spec.version != present + 1:
            raise Refused(
                f"a job named {name!r} is there already with metadata.version {present}; an update of it must have "
                f"{present + 1}, not {spec.version}"
            )
        job_spec.overwriting(spec, state.job)
        if state.status not in (Status.PENDING, Status.ACTIVE):
            raise Refused(f"the job {name!r} is ending ({state.status.value}); submit the new one when it has ended")
        try:
            meta = self.store.put(keys.active(name), content, generation=state.generation)
        except PreconditionFailed as error:
            raise Refused(f"the spec of {name!r} was changed by somebody else meanwhile; look at it again") from error
        return Submitted(name=name, uid=state.uid, generation=meta.generation, update=True)

    def cancel(self, name: str, *, by: str) -> Cancelled:
        """Asks for the job's end; returns at once. A refused spec is removed instead, since nobody would end it.

        Args:
            by: Who asks; stands in the history.

        Raises:
            Refused: there is no such job, or it has ended.
        """
        self.check_name(name)
        info = self.require(name)
        if info.stage is Stage.COMPLETED:
            outcome = info.result.outcome if info.result else "completed"
            raise Refused(f"the job {name!r} has already ended ({outcome}); there is nothing to cancel")
        if info.stage is Stage.INVALID:
            self.store.delete(keys.active(name), generation=info.generation)
            return Cancelled(name=name, uid="", removed=True)
        if info.status in (Status.CLEANING, Status.COMPLETED):
            raise Refused(f"the job {name!r} is ending already; there is nothing to cancel")
        # Before the daemon has taken the job up, its uid is our guess; the wish's later time says the same.
        uid = info.uid if info.stage is Stage.KNOWN else ""
        data = cancel_request.to_bytes(by=by, at=to_rfc3339(self.clock.now()), uid=uid)
        for _ in range(_TRIES):
            present = self.store.head(keys.user_state(name))
            if present is not None and self._same_wish(name, info.uid):
                return Cancelled(name=name, uid=info.uid, generation=info.generation, already=True)
            try:
                self.store.put(keys.user_state(name), data, generation=present.generation if present else 0)
            except PreconditionFailed:
                continue  # another wish came or went meanwhile
            return Cancelled(name=name, uid=info.uid, generation=info.generation)
        raise PreconditionFailed(f"{keys.user_state(name)} keeps changing; somebody else is at it, try again")

    def _same_wish(self, name: str, uid: str) -> bool:
        try:
            data = self.store.get(keys.user_state(name), max_bytes=limits.DOCUMENT_MAX_BYTES).data
            user_request = cancel_request.read(data)
        except (NotFound, ObjectTooLarge, InvalidDocument):
            return False
        return user_request.cancel and bool(uid) and user_request.uid == uid

    def _uid(self, name: str, generation: int) -> str:
        """The uid that the daemon gives; its own spelling of the ROOT counts (ours may go through a link)."""
        root = (self.status() or {}).get("root")
        return keys.job_uid(root if isinstance(root, str) and root else self.root.url, name, generation)

    # -- reading one object -------------------------------------------------------------------------------------

    def _state(self, name: str) -> JobRecord | Status | None:
        try:
            return job_record.read(
                self.store.get(keys.state(name), max_bytes=limits.DOCUMENT_MAX_BYTES).data, name=name
            )
        except NotFound:
            return None

    def _entry(self, name: str, uid: str) -> Mapping[str, Any] | None:
        entry = self.entries().get(name)
        return entry if entry is not None and entry.get("uid") == uid else None

    def _problem(self, name: str, *, generation: int | None) -> str:
        """What `jobs/invalid/` says about the spec of that generation (None: of any)."""
        try:
            document = documents.loads(self.store.get(keys.invalid(name), max_bytes=limits.DOCUMENT_MAX_BYTES).data)
        except (NotFound, ObjectTooLarge, documents.DocumentError):
            return ""
        if not isinstance(document, dict) or document.get("name") != name:
            return ""
        if generation is not None and document.get("generation") != generation:
            return ""
        return str(document.get("problem") or "it is not a valid job spec")
