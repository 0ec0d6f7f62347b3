"""The client of one bastion: look at jobs, submit and cancel them."""

from __future__ import annotations

from bastion.client.jobs.job_info import Cancelled, JobInfo, Stage, Submitted
from bastion.client.jobs.lookup import Lookup
from bastion.core import limits
from bastion.core.bucket import keys
from bastion.core.bucket.objects import ObjectMeta
from bastion.core.errors import AccessDenied, InvalidDocument, NotFound, ObjectTooLarge, PreconditionFailed, Refused
from bastion.core.instants import to_rfc3339
from bastion.core.model import cancel_request, job_spec
from bastion.core.model.job_record import JobRecord
from bastion.core.model.lifecycle import Status

_TRIES = 5


def _exists(name: str) -> Refused:
    return Refused(
        f"a job named {name!r} already exists (bastion why {name}); choose another name, or cancel it first: "
        f"bastion cancel --wait {name}"
    )


def _taken_by(state: JobRecord) -> Refused:
    return Refused(
        f"a job of {state.owner} named {state.name!r} already exists (bastion why {state.name}); choose another name"
    )


class Client(Lookup):
    """One bastion for its users."""

    def submit(self, spec: job_spec.JobSpec, data: bytes | None = None) -> Submitted:
        """Write a spec: a new job, or, with `metadata.version` one higher, an update of the live job.

        Args:
            data: The bytes to write; default: the spec's own.

        Raises:
            Refused: a job of that name already exists, or the update does not fit it.
        """
        self.check_name(spec.name)
        owner = ""
        if self.takes_inboxes:
            self.user = spec.user_id
            owner = self._checked_inbox(self.inbox)
        content = spec.to_bytes() if data is None else data
        if owner and isinstance(state := self._state(spec.name), JobRecord):
            if state.owner != owner:
                raise _taken_by(state)
            return self._update(spec, content, owner)
        try:
            meta = self._put_spec(spec.name, content, owner, generation=0)
        except PreconditionFailed:
            return self._update(spec, content, owner)
        uid = self._uid(spec.name, meta.generation, owner=owner)
        return Submitted(name=spec.name, uid=uid, generation=meta.generation)

    def check_free(self, name: str, user_id: str) -> None:
        """Raise Refused if a job, or a spec that is not accepted, has the name; `user_id`: whose job it would be."""
        if self.takes_inboxes:
            self.user = user_id
            state = self._state(name)
            if isinstance(state, JobRecord) and state.owner != self.inbox:
                raise _taken_by(state)
        if self.store.head(self.spec_key(name)) is not None:
            raise _exists(name)

    def _put_spec(self, name: str, content: bytes, owner: str, *, generation: int) -> ObjectMeta:
        try:
            return self.store.put(keys.active(name, owner), content, generation=generation)
        except AccessDenied as error:
            if not owner:
                raise
            raise AccessDenied(
                f"you may not write to {keys.INBOX}{owner}/; if your inbox has another name, set it: bastion config "
                f"set user_id NAME; a new one can be written to some minutes after it was added ({error})"
            ) from error

    def _checked_inbox(self, user: str) -> str:
        if not keys.is_inbox_user(user):
            raise Refused(
                f"this bastion takes jobs from inboxes, and {user!r} is no name of one (1 to 63 of a-z, 0-9, '.', '_', "
                "'-'); ask its administrator for yours, then set it: user_id in the user config, or --user_id"
            )
        return user

    def _update(self, spec: job_spec.JobSpec, content: bytes, owner: str) -> Submitted:
        name = spec.name
        state = self._state(name)
        if spec.version is None or not isinstance(state, JobRecord):
            raise _exists(name)
        present = state.job.version or 0
        if spec.version != present + 1:
            raise Refused(
                f"a job named {name!r} already exists with metadata.version {present}; an update must have version "
                f"{present + 1}, not {spec.version}"
            )
        job_spec.overwriting(spec, state.job)
        if state.status not in (Status.PENDING, Status.ACTIVE):
            raise Refused(f"the job {name!r} is ending ({state.status.value}); submit the new spec after it has ended")
        # A job that was accepted before there were inboxes has no object in one yet.
        generation = 0 if owner and state.pin is None else state.generation
        try:
            meta = self._put_spec(name, content, owner, generation=generation)
        except PreconditionFailed as error:
            raise Refused(
                f"someone else changed the spec of {name!r} in the meantime; check it (bastion why {name}), then try "
                "again"
            ) from error
        return Submitted(name=name, uid=state.uid, generation=meta.generation, update=True)

    def cancel(self, name: str, *, by: str, only_of: str | None = None) -> Cancelled:
        """Request the job's end and return at once; a refused spec is deleted instead.

        Args:
            by: The user, for the history.
            only_of: The user whose job it must be; None: anybody's.

        Raises:
            Refused: there is no such job, it has ended, or it is somebody else's.
        """
        self.check_name(name)
        info = self.require(name)
        if only_of is not None and self._submitter(info) != only_of:
            raise Refused(f"the job {name!r} is not a job of {only_of}; it is left alone")
        if info.stage is Stage.COMPLETED:
            outcome = info.result.outcome if info.result else "completed"
            raise Refused(f"the job {name!r} has already ended ({outcome}); there is nothing to cancel")
        if info.stage is Stage.INVALID:
            self.store.delete(self.spec_key(name), generation=info.generation)
            return Cancelled(name=name, uid="", removed=True)
        waits = info.record is not None and info.record.awaits_group
        if info.status in (Status.CLEANING, Status.COMPLETED) and not waits:
            raise Refused(f"the job {name!r} is already ending; there is nothing to cancel")
        # Until the daemon has accepted the job, its uid is our guess; the request's time identifies the job as well.
        uid = info.uid if info.stage is Stage.KNOWN else ""
        data = cancel_request.to_bytes(by=by, at=to_rfc3339(self.clock.now()), uid=uid)
        key = self._request_key(name, by)
        for _ in range(_TRIES):
            present = self.store.head(key)
            if present is not None and self.is_cancelled(name, info.uid):
                return Cancelled(name=name, uid=info.uid, generation=info.generation, already=True)
            try:
                self.store.put(key, data, generation=present.generation if present else 0)
            except PreconditionFailed:
                continue  # another request came or went meanwhile
            return Cancelled(
                name=name, uid=info.uid, generation=info.generation, submitter=self.only_admins_ask(info, by)
            )
        raise PreconditionFailed(f"{key} keeps changing: someone else is writing it; try again")

    def _request_key(self, name: str, by: str = "") -> str:
        return keys.user_state(name, self.inbox_of(by))

    def inbox_of(self, by: str) -> str:
        """The inbox for requests of that user; empty in mode `open`. Raises Refused if it can be none's."""
        return self._checked_inbox(self.inbox or by) if self.takes_inboxes else ""

    def only_admins_ask(self, info: JobInfo, by: str) -> str:
        """The submitter of somebody else's job, of a bastion that asks who may end it; otherwise empty."""
        if not self.takes_inboxes or info.record is None or info.record.owner == (self.inbox or by):
            return ""
        return info.record.job.user_id

    def _submitter(self, info: JobInfo) -> str | None:
        """Whose job it is; None if there is no readable spec."""
        if info.record is not None:
            return info.record.job.user_id
        try:
            data = self.store.get(self.spec_key(info.name), max_bytes=limits.SPEC_MAX_BYTES).data
            return job_spec.parse(data, name=info.name, bastion=self.bastion).user_id
        except (NotFound, ObjectTooLarge, Refused):
            return None

    def is_cancelled(self, name: str, uid: str) -> bool:
        """Whether a request for the job's end waits for the daemon, or for the end."""
        try:
            data = self.store.get(self._request_key(name), max_bytes=limits.DOCUMENT_MAX_BYTES).data
            user_request = cancel_request.read(data)
        except (NotFound, ObjectTooLarge, InvalidDocument, Refused):
            return False
        return user_request.cancel and bool(uid) and user_request.uid == uid
