"""Ask something of a job besides its end: hold, release, requeue; and note that somebody enters a worker."""

from __future__ import annotations

import secrets
from dataclasses import dataclass

from bastion.client.jobs.client import Client
from bastion.client.jobs.job_info import JobInfo, Stage
from bastion.core.bucket import keys
from bastion.core.errors import Refused
from bastion.core.instants import to_rfc3339
from bastion.core.model.job_request import JobRequest, RequestKind
from bastion.core.model.lifecycle import Status

_ID_BYTES = 10
# By whether the job is held.
_NOTHING_TO_DO = ((RequestKind.HOLD, True), (RequestKind.RELEASE, False))


@dataclass(frozen=True, slots=True, kw_only=True)
class Requested:
    """A request that was written.

    Attributes:
        uid: Of the job; empty if the daemon has not accepted it.
        already: Nothing was written: the job is held, or not held, already.
        submitter: Whose job it is, if the daemon lets only admins do this; otherwise empty.
    """

    name: str
    kind: RequestKind
    uid: str = ""
    already: bool = False
    submitter: str = ""


def ask(client: Client, name: str, kind: RequestKind, *, by: str, reason: str = "", worker: int = 0) -> Requested:
    """Write a request about a job and return at once.

    Args:
        by: The user, for the history.
        reason: Why, for people.
        worker: EXEC: which one.

    Raises:
        Refused: there is no such job, it has ended, or nothing can come of the request.
    """
    client.check_name(name)
    info = client.require(name)
    _check(info, kind)
    uid = info.uid if info.stage is Stage.KNOWN else ""
    submitter = client.only_admins_ask(info, by)
    if info.record is not None and (kind, info.record.held is not None) in _NOTHING_TO_DO:
        return Requested(name=name, kind=kind, uid=uid, already=True, submitter=submitter)
    request = JobRequest(kind=kind, by=by, at=to_rfc3339(client.clock.now()), uid=uid, reason=reason, worker=worker)
    key = keys.request(name, secrets.token_hex(_ID_BYTES), client.inbox_of(by))
    client.store.put(key, request.to_bytes(), generation=0)
    return Requested(name=name, kind=kind, uid=uid, submitter=submitter)


def _check(info: JobInfo, kind: RequestKind) -> None:
    name = info.name
    if info.stage is Stage.COMPLETED:
        outcome = info.result.outcome if info.result else "completed"
        raise Refused(f"the job {name!r} has already ended ({outcome}); there is nothing to {kind.value}")
    if info.stage is Stage.INVALID:
        raise Refused(f"the spec of {name!r} was refused, so the job does not start (bastion why {name})")
    if info.status not in (None, Status.PENDING, Status.ACTIVE):
        raise Refused(f"the job {name!r} is already ending; there is nothing to {kind.value}")
    if kind is RequestKind.REQUEUE and info.status is not Status.ACTIVE:
        raise Refused(f"the job {name!r} is not running; it is queued already (bastion why {name})")
