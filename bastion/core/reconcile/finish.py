"""The end of a job, in the only safe order: history, result, spec, user request, runs, state.

While the state exists and says COMPLETED, a remaining spec counts as done. Any other order would run the job again.
"""

from __future__ import annotations

from typing import Any

from bastion.core import documents, limits
from bastion.core.bucket import keys
from bastion.core.instants import to_rfc3339
from bastion.core.model.awaiting import EndedJob
from bastion.core.model.job_record import JobRecord
from bastion.core.model.world import JobView, UserRequest, World
from bastion.core.plain_text import plain
from bastion.core.reconcile import asked
from bastion.core.reconcile.effects import (
    JUST_WRITTEN,
    DropCopy,
    DropRecord,
    DropRuns,
    DropSpec,
    DropUserRequest,
    Effect,
    PutComplete,
)


def result_document(record: JobRecord) -> dict[str, Any]:
    assert record.outcome is not None  # decided before CLEANING
    result: dict[str, Any] = {
        "uid": record.uid,
        "outcome": record.outcome.outcome,
        "exit_code": record.outcome.exit_code,
        "message": record.outcome.message,
        "failed_worker": record.outcome.failed_worker,
        "by": record.outcome.by or None,
        "queued_at": to_rfc3339(record.queued_at),
        "attempts": [attempt.model_dump(mode="json") for attempt in record.attempts],
    }
    if record.earlier_keys:
        result["earlier_keys"] = record.earlier_keys
    if record.pin is not None:
        result["inbox"] = record.pin.user
    if record.cleanup_end is not None:
        result["cleanup"] = {
            "tries": max(1, record.cleanups),
            **record.cleanup_end.model_dump(mode="json", exclude_none=True),
            "public_keys": record.cleanup_keys,
        }
    return {**record.job.document, "result": result}


def whose_result(data: bytes) -> tuple[str, str]:
    """Return name and uid of the job in a `jobs/complete/` object, each empty if missing or not valid in a key."""
    try:
        document = documents.loads(data, max_bytes=limits.RESULT_MAX_BYTES)
        name, uid = str(document["name"]), str(document["result"]["uid"])
    except (documents.DocumentError, TypeError, KeyError):
        return "", ""
    if not keys.is_uid(uid):
        return "", ""
    return (name if keys.is_plain_name(name) else ""), uid


def ended_job(data: bytes) -> EndedJob:
    """How the job of a `jobs/complete/` object ended; the outcome is `unknown` if another implementation wrote it."""
    try:
        result = documents.loads(data, max_bytes=limits.RESULT_MAX_BYTES)["result"]
        outcome, exit_code = result["outcome"], result["exit_code"]
    except (documents.DocumentError, TypeError, KeyError):
        return EndedJob(outcome="unknown")
    known = isinstance(outcome, str) and bool(outcome) and isinstance(exit_code, int)
    return EndedJob(outcome=outcome, exit_code=exit_code) if known else EndedJob(outcome="unknown")


def finish(view: JobView, record: JobRecord, world: World, *, just_written: bool) -> list[Effect]:
    """Return the effects that end a job. Each is idempotent; after a crash all are repeated."""
    effects: list[Effect] = [
        PutComplete(record=record, document=documents.dumps(result_document(record))),
        *_drop_spec(record),
    ]
    if (request := view.user_request) is not None:
        told = None
        if not _was_honoured(request, record):
            told = asked.ignored(request, "the job had ended before", world, uid=record.uid)
        effects.append(
            DropUserRequest(name=record.name, generation=request.generation, owner=request.owner, asked=told)
        )
    effects.append(DropRuns(uid=record.uid))
    effects.append(DropRecord(name=record.name, generation=JUST_WRITTEN if just_written else view.record_generation))
    return effects


def _was_honoured(request: UserRequest, record: JobRecord) -> bool:
    """Whether the request ended the job, and so has its line in the audit trail."""
    outcome = record.outcome
    return outcome is not None and outcome.outcome == "cancelled" and outcome.by == plain(request.by)


def _drop_spec(record: JobRecord) -> list[Effect]:
    """Delete the spec where it was accepted from, before its copy: a restart must not accept it again."""
    pin = record.pin
    if pin is None:
        return [DropSpec(name=record.name, generation=record.generation)]
    accepted = DropSpec(name=record.name, generation=pin.generation, owner=pin.user)
    if pin.generation == record.generation:
        return [accepted, DropCopy(name=record.name, sha256=pin.sha256)]
    # The mode is `open` now, and the job goes on from `jobs/active/`.
    return [accepted, DropSpec(name=record.name, generation=record.generation)]
