"""Adoption: a new daemon writes its epoch into the attempts of its predecessors; `daemon.fence` says when all are."""

from __future__ import annotations

from bastion.core.model.job_record import Attempt, JobRecord
from bastion.core.model.world import JobView, World
from bastion.core.reconcile.effects import Effect, PutRecord


def adopted_attempt(view: JobView, record: JobRecord, world: World) -> Attempt | None:
    """Return the attempt with this epoch; None if it has it already, or never counted."""
    attempt = record.attempt
    if attempt is None or view.late or attempt.epoch == world.epoch:
        return None
    return attempt.model_copy(update={"epoch": world.epoch})


def adopt(view: JobView, world: World, now: float) -> list[Effect]:
    """Adopt the attempt of a job that needs nothing else now, so that no other job waits for it."""
    record = view.record
    if record is None or not view.current or (adopted := adopted_attempt(view, record, world)) is None:
        return []
    return [PutRecord(record=record.evolve(at=now, attempt=adopted), generation=view.record_generation)]
