"""Why a job does not start although the scheduler has chosen it."""

from __future__ import annotations

from bastion.core.model.clusters import shown
from bastion.core.model.job_record import JobRecord
from bastion.core.model.lifecycle import Status
from bastion.core.model.provisioning import why_not_in_tier
from bastion.core.model.world import World, places_for
from bastion.core.status.document import WaitReason
from scheduler import Decision, ReasonCode, Verdict


def start_held(world: World, record: JobRecord, decision: Decision | None) -> WaitReason | None:
    """Return the reason; None if nothing holds it, or if the scheduler has not chosen it."""
    if decision is None or decision.verdict is not Verdict.START or record.status is not Status.PENDING:
        return None
    return _no_answer(world, record, decision) or _no_place(world, record, decision)


def _no_answer(world: World, record: JobRecord, decision: Decision) -> WaitReason | None:
    """The reason of a job without a place that answers."""
    runner, silent = record.job.runner, world.silent_zones
    if not silent or runner is None:
        return None
    earlier = {past.zone for past in record.attempts} & silent  # may still have its slices
    places = {place.zone for place in places_for(world, runner, decision.tier)}
    awaited = sorted(earlier or (places if places <= silent else ()))
    if not awaited:
        return None
    return WaitReason(
        code=ReasonCode.HELD.value,
        message=f"no answer from {', '.join(shown(zone) or 'the Cloud TPU API' for zone in awaited)}; see the alarms",
        since=record.queued_at,
        unblock="the place answers",
    )


def _no_place(world: World, record: JobRecord, decision: Decision) -> WaitReason | None:
    """The reason of a job that the scheduler starts in a tier without a place for it."""
    runner, provisioning = record.job.runner, world.provisioning
    if runner is None or provisioning is None:
        return None
    message = why_not_in_tier(provisioning, runner, decision.tier or 0)
    unblock = "an operator changes the daemon's settings"
    since = record.queued_at
    return WaitReason(code=ReasonCode.HELD.value, message=message, since=since, unblock=unblock) if message else None
