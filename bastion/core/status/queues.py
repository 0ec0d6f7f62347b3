"""What Kueue says of an attempt, as the status shows it; its size is bounded."""

from __future__ import annotations

from bastion.core import limits
from bastion.core.model.gangs import GangStatus
from bastion.core.model.job_record import Cause, JobRecord
from bastion.core.model.kueue import KueueStatus
from bastion.core.plain_text import plain_line
from bastion.core.status.document import QueueCheck, QueueCondition, QueueEntry


def queue_entry(record: JobRecord, gang: GangStatus | None) -> QueueEntry | None:
    """None if the scheduler decides. `gang`: of the present attempt, if it was seen."""
    attempt = record.attempt
    if attempt is None or attempt.place is None or not attempt.place.queue:
        return None
    said = gang.kueue if gang is not None else None
    said = said if said is not None else KueueStatus(queue=attempt.place.queue)
    return QueueEntry(
        name=_short(said.queue),
        workload=_short(said.workload),
        admitted=said.admitted,
        conditions=tuple(
            QueueCondition(
                type=_short(each.type),
                status=each.status,
                reason=_short(each.reason),
                message=_short(each.message),
                since=each.since,
            )
            for each in said.conditions[: limits.QUEUE_FACTS_SHOWN]
        ),
        checks=tuple(
            QueueCheck(name=_short(each.name), state=_short(each.state), message=_short(each.message))
            for each in said.checks[: limits.QUEUE_FACTS_SHOWN]
        ),
        evictions=said.evictions + sum(past.cause is Cause.EVICTED for past in record.attempts),
    )


def _short(text: str) -> str:
    return plain_line(text)[: limits.MESSAGE_MAX_CHARS]
