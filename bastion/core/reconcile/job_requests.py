"""What comes of requests about a job: hold, release, requeue, and the note that somebody entered a worker.

They are answered in the order of the bucket's time. What was answered is remembered in the state that the answer
changes, and deleted afterwards: whenever the daemon dies, each is answered once. A cancel wins over all.
"""

from __future__ import annotations

from bastion.core import limits
from bastion.core.instants import to_rfc3339
from bastion.core.model.audit import Audited, Came, Proof, Request
from bastion.core.model.job_record import Held, JobRecord
from bastion.core.model.job_request import RequestKind
from bastion.core.model.lifecycle import Status
from bastion.core.model.world import AskedOfJob, JobView, World

_AUDITED = {
    RequestKind.HOLD: Request.HOLD,
    RequestKind.RELEASE: Request.RELEASE,
    RequestKind.REQUEUE: Request.REQUEUE,
    RequestKind.EXEC: Request.EXEC,
}


def why_not(asked: AskedOfJob, record: JobRecord) -> str:
    """Why nothing comes of the request; empty if it is to be done. `record`: after the earlier requests."""
    if asked.problem or asked.kind is None:
        return asked.problem
    if asked.uid != record.uid if asked.uid else asked.written_at < record.queued_at:
        return "it is for an earlier job of this name"
    if record.status not in (Status.PENDING, Status.ACTIVE):
        return "the job is ending"
    attempt = record.attempt
    match asked.kind:
        case RequestKind.HOLD:
            return "" if record.held is None else f"it is already held by {record.held.by}"
        case RequestKind.RELEASE:
            return "" if record.held is not None else "it is not held"
        case RequestKind.REQUEUE:
            if attempt is None:
                return "it has no attempt to end"
            return "" if attempt.ending is None else f"attempt {attempt.number} is already ending"
        case RequestKind.EXEC:
            return "" if attempt is not None else "it does not run"


def text_of(asked: AskedOfJob) -> str:
    """The line of the history."""
    who = asked.by or "somebody"
    because = f": {asked.reason}" if asked.reason else ""
    match asked.kind:
        case RequestKind.HOLD:
            return f"held by {who}{because}"
        case RequestKind.RELEASE:
            return f"released by {who}"
        case RequestKind.REQUEUE:
            return f"requeued by {who}{because}"
        case _:
            return f"{who} entered worker {asked.worker}"


def held_after(asked: AskedOfJob, now: float, held: Held | None) -> Held | None:
    """The hold after the request."""
    if asked.kind is RequestKind.HOLD:
        return Held(by=asked.by or "somebody", since=now, reason=asked.reason)
    return None if asked.kind is RequestKind.RELEASE else held


def remembered(record: JobRecord, asked: AskedOfJob) -> tuple[str, ...]:
    return (*record.requests_done, asked.mark)[-limits.REQUESTS_REMEMBERED :]


def hold_of(view: JobView, record: JobRecord) -> Held | None:
    """Whose hold will be in force once the requests of this tick are answered; the scheduler must know it before."""
    for asked in view.requests:
        if asked.mark not in record.requests_done and not why_not(asked, record):
            record = record.model_copy(update={"held": held_after(asked, asked.written_at, record.held)})
    return record.held


def hold_text(held: Held) -> str:
    return f"held by {held.by} since {to_rfc3339(held.since)}" + (f": {held.reason}" if held.reason else "")


def audited(asked: AskedOfJob, came: Came, why: str, world: World, *, uid: str) -> Audited:
    proof = (world.proof or Proof.INBOX) if asked.owner else Proof.SELF_DECLARED if asked.by else None
    return Audited(
        request=_AUDITED[asked.kind] if asked.kind is not None else Request.ASK,
        outcome=came,
        why=why,
        uid=uid,
        generation=asked.generation,
        object_time=asked.written_at,
        who=asked.by,
        proof=proof,
    )
