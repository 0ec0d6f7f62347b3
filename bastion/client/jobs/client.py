"""The client of one bastion: look at jobs, submit and cancel them."""

from __future__ import annotations

from bastion.client.jobs.job_info import Cancelled, Stage, Submitted
from bastion.client.jobs.lookup import Lookup
from bastion.core import limits
from bastion.core.bucket import keys
from bastion.core.errors import InvalidDocument, NotFound, ObjectTooLarge, PreconditionFailed, Refused
from bastion.core.instants import to_rfc3339
from bastion.core.model import cancel_request, job_spec
from bastion.core.model.job_record import JobRecord
from bastion.core.model.lifecycle import Status

_TRIES = 5


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
        key = keys.active(spec.name)
        content = spec.to_bytes() if data is None else data
        try:
            meta = self.store.put(key, content, generation=0)
        except PreconditionFailed:
            return self._update(spec, content)
        return Submitted(name=spec.name, uid=self._uid(spec.name, meta.generation), generation=meta.generation)

    def _update(self, spec: job_spec.JobSpec, content: bytes) -> Submitted:
        name = spec.name
        exists = Refused(
            f"a job named {name!r} already exists (bastion why {name}); choose another name, or cancel it first: "
            f"bastion cancel --wait {name}"
        )
        state = self._state(name)
        if spec.version is None or not isinstance(state, JobRecord):
            raise exists
        present = state.job.version or 0
        if spec.version != present + 1:
            raise Refused(
                f"a job named {name!r} already exists with metadata.version {present}; an update must have version "
                f"{present + 1}, not {spec.version}"
            )
        job_spec.overwriting(spec, state.job)
        if state.status not in (Status.PENDING, Status.ACTIVE):
            raise Refused(f"the job {name!r} is ending ({state.status.value}); submit the new spec after it has ended")
        try:
            meta = self.store.put(keys.active(name), content, generation=state.generation)
        except PreconditionFailed as error:
            raise Refused(
                f"someone else changed the spec of {name!r} in the meantime; check it (bastion why {name}), then try "
                "again"
            ) from error
        return Submitted(name=name, uid=state.uid, generation=meta.generation, update=True)

    def cancel(self, name: str, *, by: str) -> Cancelled:
        """Request the job's end and return at once; a refused spec is deleted instead.

        Args:
            by: The user, for the history.

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
            raise Refused(f"the job {name!r} is already ending; there is nothing to cancel")
        # Until the daemon has accepted the job, its uid is our guess; the request's time identifies the job as well.
        uid = info.uid if info.stage is Stage.KNOWN else ""
        data = cancel_request.to_bytes(by=by, at=to_rfc3339(self.clock.now()), uid=uid)
        for _ in range(_TRIES):
            present = self.store.head(keys.user_state(name))
            if present is not None and self._is_requested(name, info.uid):
                return Cancelled(name=name, uid=info.uid, generation=info.generation, already=True)
            try:
                self.store.put(keys.user_state(name), data, generation=present.generation if present else 0)
            except PreconditionFailed:
                continue  # another request came or went meanwhile
            return Cancelled(name=name, uid=info.uid, generation=info.generation)
        raise PreconditionFailed(f"{keys.user_state(name)} keeps changing: someone else is writing it; try again")

    def _is_requested(self, name: str, uid: str) -> bool:
        try:
            data = self.store.get(keys.user_state(name), max_bytes=limits.DOCUMENT_MAX_BYTES).data
            user_request = cancel_request.read(data)
        except (NotFound, ObjectTooLarge, InvalidDocument):
            return False
        return user_request.cancel and bool(uid) and user_request.uid == uid
