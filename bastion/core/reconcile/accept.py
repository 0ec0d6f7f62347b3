"""Accepting specs: a valid spec becomes a state; an invalid one gets an explanation for its owner."""

from __future__ import annotations

from bastion.core import limits
from bastion.core.bucket import keys
from bastion.core.model.audit import Request
from bastion.core.model.job_record import JobRecord
from bastion.core.model.world import JobView, World
from bastion.core.reconcile import asked
from bastion.core.reconcile.effects import AppendHistory, DropInvalid, DropUserRequest, Effect, PutInvalid, PutRecord
from bastion.core.reconcile.inbox import copy_before, pinned


def _describe(record: JobRecord) -> str:
    needs = ", ".join(f"{n} {resource_type}" for resource_type, n in sorted(record.job.resources.items())) or "no slice"
    return f"project {record.job.project_id}, user {record.job.user_id}, needs {needs}"


def accept(view: JobView, world: World, now: float) -> list[Effect]:
    """Accept the spec of a name without a state, or explain what is wrong with it."""
    if view.spec is None or view.spec_meta is None:
        return quarantine(view, world)
    uid = keys.job_uid(world.settings.root, view.name, view.spec_meta.generation, owner=view.owner)
    user_request = view.user_request
    if user_request is not None and (
        user_request.uid != uid if user_request.uid else user_request.written_at < view.spec_meta.updated
    ):
        # A request for an earlier job of this name. Delete it first: any later request is for this job.
        return [
            DropUserRequest(
                name=view.name,
                generation=user_request.generation,
                owner=user_request.owner,
                asked=asked.ignored(user_request, "it is for an earlier job of this name", world),
            )
        ]
    record = JobRecord(
        name=view.name,
        uid=uid,
        **pinned(view),
        job=view.spec,
        queued_at=view.spec_meta.updated,
        next_attempt=view.attempts_seen + 1,
        # Continue after the lines of a lost state: history numbers are unique.
        history_next=view.attempts_seen * limits.HISTORY_LINES_OF_AN_ATTEMPT_MAX + 1,
    )
    submitted = asked.by_spec(Request.SUBMIT, view, view.spec, world)
    record = record.evolve(at=now, text=f"queued: {_describe(record)}", asked=submitted)
    if view.attempts_seen:
        text = f"the job's state was lost after attempt {view.attempts_seen}; stopping its remaining processes first"
        record = record.evolve(at=now, text=text)
    put = PutRecord(record=record, generation=view.record_generation)
    return [*copy_before(None, record), put, AppendHistory(record=record), *quarantine(view, world)]


def quarantine(view: JobView, world: World) -> list[Effect]:
    """Keep the explanation of the present object in line with it."""
    if view.spec_problem and view.spec_meta is not None:
        if view.invalid_generation == view.spec_meta.generation:
            return []
        return [
            PutInvalid(
                name=view.name,
                owner=view.owner,
                spec_generation=view.spec_meta.generation,
                problem=view.spec_problem,
                generation=view.invalid_object_generation,
                asked=asked.refused_spec(view, world),
            )
        ]
    mended = view.spec is not None or view.spec_gone
    if view.invalid_object_generation and mended:
        return [DropInvalid(name=view.name, owner=view.owner, generation=view.invalid_object_generation)]
    return []
