"""Looking at single jobs.

Invariants:

* Every name is checked before it becomes part of a key.
* The uid tells a job from its namesakes; what belongs to another uid is never shown as this job's.
"""

from __future__ import annotations

import difflib
from itertools import islice

from bastion.client.jobs.job_info import JobInfo, Stage
from bastion.client.jobs.overview import Overview
from bastion.client.jobs.results import Result, read_result
from bastion.client.logs.reader import RunLogs
from bastion.core import limits
from bastion.core.bucket import keys
from bastion.core.errors import InvalidDocument, InvalidSpec, NotFound, ObjectTooLarge, Refused
from bastion.core.model import job_record, job_spec, refusal
from bastion.core.model.job_record import JobRecord
from bastion.core.model.lifecycle import Status
from bastion.core.model.run_public_keys import NOBODY, RunPublicKeys
from bastion.core.status.document import BacklogEntry, JobEntry

# Names considered for "did you mean"; a bucket may hold a hundred thousand results.
_NAMES_MAX = 2000


class Lookup(Overview):
    """One bastion, with its jobs."""

    def check_name(self, name: str) -> None:
        """Raise `InvalidSpec` unless the text can be a job's name."""
        keys.check_job_name(name, bastion=self.bastion)

    def look(self, name: str) -> JobInfo | None:
        """Find the job of that name, the live one before the completed one; None if there is none.

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
        owner = self._pinned(state)
        meta = self.store.head(keys.active(name, owner))
        generation = meta.generation if meta else 0
        problem = self._problem(name, generation=generation, owner=owner) if meta else ""
        if isinstance(state, JobRecord):
            # A job's end writes the result first, then deletes the spec and the state.
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
            own = self.look_in_inbox(name)
            if own is not None:
                return own
            stage = Stage.INVALID if problem else Stage.SUBMITTED
            uid = self._uid(name, generation, owner=owner)
            return JobInfo(name=name, uid=uid, stage=stage, problem=problem, generation=generation)
        result = self.result(name)
        if result is None or result.inbox:
            own = self.look_in_inbox(name)
            if own is not None or result is None:
                return own
        return JobInfo(name=name, uid=result.uid, stage=Stage.COMPLETED, result=result)

    def look_in_inbox(self, name: str) -> JobInfo | None:
        """Find what this client's inbox holds of that name, while it is no job; None if there is nothing."""
        owner = self.inbox if self.takes_inboxes else ""
        meta = self.store.head(keys.active(name, owner)) if owner else None
        if meta is None:
            return None
        problem = self._problem(name, generation=meta.generation, owner=owner)
        uid, stage = self._uid(name, meta.generation, owner=owner), Stage.INVALID if problem else Stage.SUBMITTED
        return JobInfo(name=name, uid=uid, stage=stage, problem=problem, generation=meta.generation)

    def spec_key(self, name: str) -> str:
        """Where the spec of that name is that is not accepted yet."""
        return keys.active(name, self._inbox_of(None))

    def refusal_key(self, name: str) -> str:
        """Where the daemon says why it refuses that spec."""
        return keys.invalid(name, self._inbox_of(None))

    def _inbox_of(self, state: JobRecord | Status | None) -> str:
        """Whose inbox has the spec: the job's, else ours; empty if it is in `jobs/active/`."""
        if isinstance(state, JobRecord):
            return self._pinned(state)
        return self.inbox if self.takes_inboxes else ""

    @staticmethod
    def _pinned(state: JobRecord | Status | None) -> str:
        return state.pin.user if isinstance(state, JobRecord) and state.pin is not None else ""

    def require(self, name: str) -> JobInfo:
        """Find the job as `look` does. Raises `Refused` if there is no such job; the message suggests similar names."""
        found = self.look(name)
        if found is None:
            raise self.unknown(name)
        return found

    def unknown(self, name: str) -> Refused:
        """Make the error for a job that does not exist."""
        near = difflib.get_close_matches(name, self.names(), n=3, cutoff=0.5)
        hint = f"did you mean {' or '.join(near)}?" if near else "use bastion list --all to see all jobs"
        return Refused(f"no such job: {name!r} in {self.root.url}; {hint}")

    def names(self) -> list[str]:
        """Names of live and completed jobs, at most 2000 of each."""
        found: dict[str, None] = {}
        for prefix in (keys.JOBS_ACTIVE, keys.JOBS_STATES, keys.JOBS_COMPLETE):
            for meta in islice(self.store.list(prefix), _NAMES_MAX):
                found[keys.job_of_result(meta.key.removeprefix(prefix))] = None
        return list(found)

    def result(self, name: str, uid: str = "") -> Result | None:
        """The job's result; with `uid`, that of this job even if a namesake has completed since."""
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
        """The spec of the job with that uid, live or completed; None if it is not available."""
        return self.spec_and_keys(name, uid)[0]

    def spec_and_keys(self, name: str, uid: str) -> tuple[job_spec.JobSpec | None, RunPublicKeys | None]:
        """The spec of the job with that uid, and the public keys of its runs; each None if it is not available."""
        public_keys = None
        try:
            state = self._state(name)
            if isinstance(state, JobRecord) and state.uid == uid:
                return state.job, state.public_keys
            result = self.result(name, uid)
            if result is not None:
                public_keys = result.public_keys
                return job_spec.from_document(result.document, name=name), public_keys
            owner = self._inbox_of(state)
            stored = self.store.get(keys.active(name, owner), max_bytes=limits.SPEC_MAX_BYTES)
            if self._uid(name, stored.meta.generation, owner=owner) == uid:
                return job_spec.parse(stored.data, name=name, bastion=self.bastion), RunPublicKeys(uid=uid)
        except (NotFound, InvalidDocument, Refused):
            return None, public_keys
        return None, public_keys

    def kept_out(self, info: JobInfo) -> BacklogEntry | None:
        """The entry of `backlog` that keeps a submitted job out of the queue; None if none does."""
        if info.stage is not Stage.SUBMITTED or not self.backlog(again=False):
            return None
        spec = self.spec(info.name, info.uid)
        return None if spec is None else self.backlog_of(spec.project_id, spec.user_id)

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
        public_key: str | None = None,
    ) -> RunLogs:
        """Open the output of one run; for the arguments see `RunLogs`.

        Args:
            public_key: None: look for the run's, and read nothing that does not prove to be of it.
        """
        if public_key is None:
            known = self.spec_and_keys(name, run.uid)[1]
            public_key = known.of(run) if known is not None else None
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
            public_key=NOBODY if public_key is None else public_key,
        )

    def history(self, name: str) -> list[str]:
        """Lines `<instant> <uid>#<n> <STATUS> <text>` of all jobs that have had the name, oldest first."""
        self.check_name(name)
        try:
            data = self.store.get(keys.job_history(name)).data
        except NotFound:
            return []
        return [line for line in data.decode("utf-8", "replace").split("\n") if line]

    def _uid(self, name: str, generation: int, *, owner: str = "") -> str:
        """The uid that the daemon gives; it hashes the daemon's spelling of the ROOT (ours may be a symlink)."""
        status = self.status(again=False)
        root = status.root if status is not None else ""
        return keys.job_uid(root or self.root.url, name, generation, owner=owner)

    def _state(self, name: str) -> JobRecord | Status | None:
        try:
            return job_record.read(
                self.store.get(keys.state(name), max_bytes=limits.DOCUMENT_MAX_BYTES).data, name=name
            )
        except NotFound:
            return None

    def _entry(self, name: str, uid: str) -> JobEntry | None:
        try:
            entry = self.entries().get(name)
        except InvalidDocument:
            return None  # the state says enough to cancel the job
        return entry if entry is not None and entry.uid == uid else None

    def _problem(self, name: str, *, generation: int | None, owner: str = "") -> str:
        """The problem that `jobs/invalid/` holds for the spec of that generation (None: of any)."""
        try:
            found = refusal.read(self.store.get(keys.invalid(name, owner), max_bytes=limits.DOCUMENT_MAX_BYTES).data)
        except (NotFound, ObjectTooLarge, InvalidDocument):
            return ""
        if found.name != name or found.request or generation not in (None, found.generation):
            return ""
        return found.problem or "it is not a valid job spec"
