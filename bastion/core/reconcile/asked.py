"""What the audit trail says of requests about jobs: who asked, how that is proved, and what came of it.

In mode `inbox` the bucket proves who wrote an object; administrators, who may write every inbox, count as its user. In
mode `open` the document says who wrote it, and a document that is refused is not believed at all.
"""

from __future__ import annotations

from typing import Any

from bastion.core.bucket.objects import ObjectMeta
from bastion.core.model.audit import Audited, Came, Proof, Request
from bastion.core.model.job_record import JobRecord
from bastion.core.model.job_spec import JobSpec
from bastion.core.model.world import JobView, OutsideObject, UserRequest, World
from quota.permissions import Asked, denial

_OUTCOMES = {"succeeded": Came.SUCCEEDED, "failed": Came.FAILED, "cancelled": Came.CANCELLED, "refused": Came.REFUSED}


def by_spec(request: Request, view: JobView, spec: JobSpec, world: World) -> Audited:
    """A spec that is taken. If the quota file does not allow it to start, that is what came of it."""
    denied = _denied(spec, world)
    return Audited(
        request=request,
        outcome=Came.WAITING if denied else Came.ACCEPTED,
        why=f"NotAllowed: {denied}" if denied else "",
        sha256=view.spec_sha256,
        **_author(view.owner, spec.user_id, world),
        **_object(view),
    )


def _denied(spec: JobSpec, world: World) -> str:
    if world.policy is None or spec.project_id not in world.policy.projects:
        return ""
    asked = Asked(
        instance_type=spec.runner.instance_type.name if spec.runner is not None else "",
        priority=spec.priority,
        root=spec.as_root,
        cleanup=spec.has_cleanup,
    )
    found = denial(spec.project_id, world.policy.rules(spec.project_id), asked)
    return found.problem if found is not None else ""


def by_deletion(view: JobView, world: World) -> Audited:
    """A spec that is gone: only who may write its place can have deleted it."""
    return Audited(request=Request.DELETE, outcome=Came.ACCEPTED, **_author(view.owner, "", world))


def by_request(request: UserRequest, world: World) -> Audited:
    """A cancel that is honoured."""
    return _of_request(request, Came.ACCEPTED, "", world)


def refused(request: UserRequest, why: str, record: JobRecord, world: World) -> Audited:
    return _of_request(request, Came.REFUSED, why, world, uid=record.uid)


def ignored(request: UserRequest, why: str, world: World, *, uid: str = "") -> Audited:
    """A request that changes nothing."""
    return _of_request(request, Came.IGNORED, why, world, uid=uid)


def _of_request(request: UserRequest, outcome: Came, why: str, world: World, *, uid: str = "") -> Audited:
    return Audited(
        request=Request.CANCEL,
        outcome=outcome,
        why=why,
        uid=uid,
        generation=request.generation,
        object_time=request.written_at,
        **_author(request.owner, request.by, world),
    )


def refused_spec(view: JobView, world: World) -> Audited:
    return Audited(
        request=Request.UPDATE if view.record is not None else Request.SUBMIT,
        outcome=Came.REFUSED,
        why=view.spec_problem,
        sha256=view.spec_sha256,
        uid=view.record.uid if view.record is not None else "",
        **_author(view.owner, "", world),
        **_object(view),
    )


def refused_outside(each: OutsideObject, world: World) -> Audited:
    """An object that no job comes from."""
    return Audited(
        request=Request.CANCEL if each.request else Request.SUBMIT,
        outcome=Came.REFUSED,
        why=each.problem,
        generation=each.generation,
        **_author(each.owner, "", world),
    )


def unknown_job(owner: str, generation: int, written_at: float, world: World) -> Audited:
    return Audited(
        request=Request.CANCEL,
        outcome=Came.IGNORED,
        why="there is no such job",
        generation=generation,
        object_time=written_at,
        **_author(owner, "", world),
    )


def unknown_request(owner: str, meta: ObjectMeta, why: str, world: World) -> Audited:
    """A request about a job that is deleted unread."""
    return Audited(
        request=Request.ASK,
        outcome=Came.IGNORED,
        why=why,
        generation=meta.generation,
        object_time=meta.updated,
        **_author(owner, "", world),
    )


def as_root(record: JobRecord, world: World) -> Audited:
    """An attempt whose command is root: who submitted or updated the job asked for it."""
    author = _author(record.pin.user if record.pin is not None else "", record.owner, world)
    return Audited(request=Request.ROOT, outcome=Came.ACCEPTED, **author)


def ended(record: JobRecord) -> Audited:
    """The job's end. Who cancelled it has the cancel's own line, with the proof."""
    outcome = record.outcome
    assert outcome is not None  # decided before the end
    came = _OUTCOMES.get(outcome.outcome, Came.FAILED)
    return Audited(request=Request.END, outcome=came, who=outcome.by, why=outcome.message, proof=Proof.DAEMON)


def _author(owner: str, declared: str, world: World) -> dict[str, Any]:
    if owner:
        return {"who": owner, "proof": world.proof or Proof.INBOX}
    return {"who": declared, "proof": Proof.SELF_DECLARED} if declared else {}


def _object(view: JobView) -> dict[str, Any]:
    meta = view.spec_meta
    return {"generation": meta.generation, "object_time": meta.updated} if meta is not None else {}
