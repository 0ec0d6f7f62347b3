"""The cleanup of a job that is over: when its cleanup command runs, how often, and how that ends.

It runs on the daemon's machine: only a spec that the scheduler admitted may run. With `cleanup_after_group_seconds` it
waits until no other job of the group is left. Only a tick that read the record as CLEANING decides that: everything
that the job's command has submitted is in its listing.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from bastion.core import limits
from bastion.core.errors import EXIT_CANCELLED
from bastion.core.model.audit import Audited
from bastion.core.model.job_record import Attempt, Cause, CleanupEnd, Ending, JobRecord, Outcome
from bastion.core.model.lifecycle import Status
from bastion.core.model.world import JobView, World
from bastion.core.plain_text import plain
from bastion.core.reconcile import asked, attempt_end, runs
from bastion.core.reconcile.cleanup_slots import CleanupSlots
from bastion.core.reconcile.groups import Groups
from bastion.core.reconcile.job_step import JobStep
from bastion.core.reconcile.retry_policy import backoff_seconds
from bastion.core.reconcile.runs import RunPlan


class Cleaning(JobStep):
    """The part of one job in this tick that concerns its cleanup."""

    def __init__(self, view: JobView, world: World, now: float, cleaning: CleanupSlots, groups: Groups) -> None:
        super().__init__(view, world, now)
        self._slots = cleaning
        self._groups = groups

    def _cancel_wait(self, record: JobRecord, message: str, by: str, told: Audited) -> JobRecord:
        """Cancel a job whose command has ended, and which waits for its group."""
        outcome = Outcome(outcome="cancelled", exit_code=EXIT_CANCELLED, message=message, by=plain(by))
        return self._evolve(record, f"{message}; it waits for its group no longer", asked=told, outcome=outcome)

    def _cleaning(self, record: JobRecord) -> JobRecord:
        if self._orphan_gangs():
            return record
        if not (record.started_job.has_cleanup and record.had_attempt) or record.cleanup_done:
            return self._completed(record)
        if record.cleanup is None:
            return self._begin_cleanup(record)
        return self._cleanup_run(record, record.cleanup)

    def _completed(self, record: JobRecord) -> JobRecord:
        outcome = record.outcome
        assert outcome is not None  # decided before CLEANING
        text = f"completed: {outcome.outcome}"
        if record.started_job.has_cleanup and not record.had_attempt:
            text += "; skipping its cleanup command: the job never started"
        return self._evolve(record, text, asked=asked.ended(record), status=Status.COMPLETED)

    def _begin_cleanup(self, record: JobRecord) -> JobRecord:
        if record.not_before is not None and self.now < record.not_before:
            return record
        if self.settings.host_jobs.off:
            return record  # it waits until an operator turns them on
        why = ""
        if record.awaits_group:
            if self.view.record is None or self.view.record.status is not Status.CLEANING:
                return record
            why = self._why_now(record)
            if not why:
                return record
        spec = record.started_job
        if not self._slots.take(spec.user_id):
            return record
        number = record.cleanups + 1
        attempt = Attempt(
            number=0,
            token="",
            started_at=self.now,
            host_identity=self.settings.host_identity,
            cleanup_try=number,
        )
        attempt = runs.with_token(record, attempt, self.world)
        again = f", try {number} of {spec.limits.cleanup_tries}" if number > 1 else ""
        record = self._evolve(
            record,
            f"the cleanup command is starting{again}{why}",
            cleanup=attempt,
            cleanups=number,
            not_before=None,
            cleanup_keys=(*record.cleanup_keys, attempt.public_key),
        )
        self.effects += runs.begin(self._cleanup_plan(record, attempt))
        return record

    def _why_now(self, record: JobRecord) -> str:
        """Why the job waits for its group no longer, for the history; empty while it does."""
        spec = record.started_job
        most = spec.limits.cleanup_after_group_seconds or 0
        left = self._groups.left(record)
        if not left:
            return f": no other job of group {spec.limits.group} is left"
        if self.now < record.queued_at + most:
            return ""
        others = left.jobs + left.unread
        return f": its time to wait for group {spec.limits.group} is over; {others} other job{'s' * (others > 1)} left"

    def _cleanup_plan(self, record: JobRecord, attempt: Attempt) -> RunPlan:
        plan = runs.plan_attempt(record, attempt, self.settings)
        outcome = record.outcome
        assert outcome is not None  # decided before CLEANING
        variables = {
            "BASTION_CLEANUP_TRY": str(attempt.cleanup_try),
            "BASTION_OUTCOME": outcome.outcome,
            "BASTION_EXIT_CODE": str(outcome.exit_code),
        }
        return replace(plan, variables=variables)

    def _cleanup_run(self, record: JobRecord, attempt: Attempt) -> JobRecord:
        if self.view.record is None or self.view.record.cleanup is None:
            return record  # started in this tick
        if self.view.record.cleanup.cleanup_try != attempt.cleanup_try:
            return record  # what was seen is of the try before
        plan, view = self._cleanup_plan(record, attempt), self.view.cleanup
        if attempt.ending is None:
            ending = attempt_end.verdict(plan, view, self.now)
            most = record.started_job.limits.cleanup_max_seconds or limits.CLEANUP_TIMEOUT_SECONDS
            if ending is None and self.now - attempt.started_at >= most:
                text = f"the cleanup command exceeded {most:.0f} s"
                ending = Ending(cause=Cause.FAILED, message=text, at=self.now, grace_seconds=5.0)
            if ending is None:
                self.effects += runs.keep_going(plan, view)
                return record
            return self._evolve(record, cleanup=attempt.model_copy(update={"ending": ending}))
        settled = attempt_end.classify(plan, view, attempt.ending, self.now) if attempt.ending.provisional else None
        if settled is not None:
            return self._evolve(record, cleanup=attempt.model_copy(update={"ending": settled}))
        if attempt.ending.provisional or not runs.stopped(plan, view):
            self.effects += runs.stop(plan, view, attempt.ending, self.now)
            return record
        self.effects += runs.lost_logs(plan, view, self.now)
        return self._cleanup_over(record, attempt.ending)

    def _cleanup_over(self, record: JobRecord, ending: Ending) -> JobRecord:
        succeeded = ending.cause is Cause.SUCCEEDED
        end = CleanupEnd(
            outcome="succeeded" if succeeded else "failed", exit_code=ending.exit_code, message=ending.message
        )
        text = f"the cleanup command {ending.cause.value}: {ending.message}"
        changes: dict[str, Any] = {"cleanup": None, "cleanup_end": end}
        if succeeded or record.cleanups >= record.started_job.limits.cleanup_tries:
            return self._evolve(record, text, **changes, cleanup_done=True)
        pause = backoff_seconds(
            limits.INFRASTRUCTURE_BACKOFF_SECONDS,
            limits.INFRASTRUCTURE_BACKOFF_MAX_SECONDS,
            record.cleanups,
            f"{record.uid}-cleanup{record.cleanups}",
        )
        return self._evolve(record, f"{text}; again in {pause:.0f} s", **changes, not_before=self.now + pause)


def waiting_cleanups(world: World) -> list[str]:
    """The jobs whose cleanup command waits, because commands on the bastion's host are off."""
    if not world.settings.host_jobs.off:
        return []
    records = (view.record for view in world.jobs.values())
    return sorted(
        record.name
        for record in records
        if record is not None
        and record.status is Status.CLEANING
        and record.cleanup is None
        and record.started_job.has_cleanup
        and record.had_attempt
        and not record.cleanup_done
    )
