"""Goodput of a job from what its record, its status entry or its result tell."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from bastion.client.jobs.job_info import JobInfo
from bastion.client.jobs.results import PastAttempt, PastTry
from bastion.core.goodput import Goodput, Run, account
from bastion.core.model.job_record import Attempt, Cause
from bastion.core.status.document import JobEntry


@dataclass(frozen=True, slots=True)
class Life:
    """A job's runs from `queued_at` to `until`: now, or when its last attempt ended."""

    queued_at: float
    until: float
    runs: tuple[Run, ...]

    def goodput(self, until: float) -> Goodput:
        """Account for its time until an instant of its life."""
        return account(self.queued_at, self.runs, min(until, self.until))


def goodput(info: JobInfo, now: float) -> Goodput | None:
    """Account for a job's time until now, or until its last attempt ended; None if it had none."""
    life = life_of(info, now)
    return life.goodput(life.until) if life is not None else None


def life_of(info: JobInfo, now: float) -> Life | None:
    """Return a job's life so far; None if it had no attempt."""
    if info.result is not None:
        attempts = [attempt for attempt in info.result.attempts if attempt.ended_at is not None]
        if info.result.queued_at is None or not attempts:
            return None
        return Life(info.result.queued_at, attempts[-1].ended_at or 0.0, (*_past(attempts),))
    record = info.record
    if record is None or not record.had_attempt:
        return None
    runs = [*_past(map(PastAttempt.of, record.attempts))]
    if record.attempt is not None:
        runs += _present(record.attempt, info.entry, now)
    return Life(record.queued_at, max(now, record.queued_at), tuple(runs))


def _past(attempts: Iterable[PastAttempt]) -> Iterator[Run]:
    for attempt in attempts:
        if attempt.started_at is None or attempt.ended_at is None:
            continue  # another implementation wrote it
        held_at = attempt.held_at
        if held_at is None:
            held_at = attempt.ended_at if attempt.cause == Cause.CAPACITY.value else attempt.started_at
        yield from _failed_tries(attempt.tries, held_at, attempt.running_since)
        yield Run(
            held_at=held_at,
            running_since=attempt.try_since if attempt.tries else attempt.running_since,
            stopped_at=attempt.ended_at if attempt.stopped_at is None else attempt.stopped_at,
            freed_at=attempt.ended_at,
            saved_at=attempt.checkpointed_at,
            succeeded=attempt.cause == Cause.SUCCEEDED.value,
            first_step=attempt.first_step,
            last_step=attempt.last_step,
        )


def _present(attempt: Attempt, entry: JobEntry | None, now: float) -> Iterator[Run]:
    """The tries of the present attempt; `entry` knows what it saved, a few minutes late."""
    held_at = now if attempt.waiting is not None else attempt.up_since or attempt.started_at
    tries = [PastTry.model_validate(each.model_dump(mode="json")) for each in attempt.tries]
    yield from _failed_tries(tries, held_at, attempt.running_since)
    known = entry if entry is not None and entry.attempt == attempt.number else None
    yield Run(
        held_at=held_at,
        running_since=attempt.try_since if tries else attempt.running_since,
        stopped_at=attempt.ending.at if attempt.ending is not None else None,
        saved_at=known.checkpointed_at if known is not None else None,
        succeeded=attempt.ending is not None and attempt.ending.cause is Cause.SUCCEEDED,
        first_step=known.first_step if known is not None else None,
        last_step=known.last_step if known is not None else None,
    )


def _failed_tries(tries: Sequence[PastTry], held_at: float, running_since: float | None) -> Iterator[Run]:
    for number, each in enumerate(tries):
        yield Run(
            held_at=held_at,
            running_since=running_since if number == 0 or each.started_at is None else each.started_at,
            stopped_at=each.ended_at,
            freed_at=each.ended_at,
            saved_at=each.checkpointed_at,
            first_step=each.first_step,
            last_step=each.last_step,
        )
