"""What users asked of a job: its cancel, its update or replacement, hold, release, requeue; how an attempt is ended."""

from __future__ import annotations

from dataclasses import replace

from bastion.core.bucket import keys
from bastion.core.errors import EXIT_CANCELLED
from bastion.core.instants import duration
from bastion.core.model import spec_changes
from bastion.core.model.audit import Audited, Came, Request
from bastion.core.model.job_record import (
    Cause,
    Ending,
    JobRecord,
    Outcome,
)
from bastion.core.model.job_request import RequestKind
from bastion.core.model.job_spec import JobSpec
from bastion.core.model.lifecycle import Status
from bastion.core.model.world import JobView, UserRequest, World
from bastion.core.plain_text import plain
from bastion.core.reconcile import (
    asked,
    inbox,
    job_requests,
    tries,
)
from bastion.core.reconcile.checkpoints import saved_until
from bastion.core.reconcile.cleaning import Cleaning
from bastion.core.reconcile.cleanup_slots import CleanupSlots
from bastion.core.reconcile.effects import (
    DropJobRequest,
    DropUserRequest,
    Effect,
)
from bastion.core.reconcile.groups import Groups
from scheduler import Decision


def cancel_requested(view: JobView) -> bool:
    user_request, record = view.user_request, view.record
    if user_request is None or record is None or not user_request.cancel:
        return False
    # A request without a uid comes from an older client. Acceptance deletes requests for earlier jobs of the name.
    return user_request.uid == record.uid if user_request.uid else True


def has_ended(record: JobRecord) -> bool:
    """Whether the job's own end is decided: a later cancel changes nothing."""
    ending = record.attempt.ending if record.attempt else None
    return ending is not None and ending.cause in (
        Cause.SUCCEEDED,
        Cause.FAILED,
        Cause.OVERTIME,
        Cause.STUCK,
        Cause.REFUSED,
    )


class UserRequests(Cleaning):
    """The part of a job's reconciliation that answers its users."""

    def __init__(
        self,
        view: JobView,
        decision: Decision | None,
        world: World,
        now: float,
        cleaning: CleanupSlots,
        groups: Groups,
    ) -> None:
        super().__init__(view, world, now, cleaning, groups)
        self.decision = decision

    def _user_requests(self, record: JobRecord) -> JobRecord:
        view = self.view
        for request in view.refused_requests:
            told = request.owner in view.explained_to  # one line for each user: others' jobs are not to be written full
            record = self._evolve(record, inbox.refusal_of(request, record)) if not told else record
            self.effects += inbox.refuse_request(request, record, view, self.world)
        if view.user_request is not None and not cancel_requested(view):
            self.effects.append(self._ignore(view.user_request, record))
        awaits_group = record.awaits_group
        if not awaits_group and (record.status not in (Status.PENDING, Status.ACTIVE) or has_ended(record)):
            return record
        if view.user_request is not None and cancel_requested(view):
            by = view.user_request.by
            told_by = asked.by_request(view.user_request, self.world)
            return self._cancel(record, f"cancelled{' by ' + by if by else ''}", by, told_by)
        if view.spec_gone:
            message = f"its spec {keys.active(record.name, view.owner)} was deleted"
            return self._cancel(record, message, "", asked.by_deletion(view, self.world))
        if view.spec is not None and view.spec_meta is not None:
            return self._overwritten(record)
        return record

    def _job_requests(self, record: JobRecord) -> JobRecord:
        told = set(self.view.explained_to) | {each.owner for each in self.view.refused_requests}
        for each in self.view.requests:
            drop = DropJobRequest(key=each.key, name=record.name, generation=each.generation)
            if each.mark in record.requests_done:  # answered by an earlier tick, which did not delete it
                self.effects.append(drop)
                continue
            why = job_requests.why_not(each, record)
            if not why and has_ended(record):
                why = "the job is ending"
            if each.denied:
                if each.owner not in told:  # one line for each user: others' jobs are not to be written full
                    record = self._evolve(record, f"request of {each.by} refused: {why}")
                    told.add(each.owner)
                    self.effects += inbox.explain_denied(each, record, self.view)
                came = job_requests.audited(each, Came.REFUSED, why, self.world, uid=record.uid)
                self.effects.append(replace(drop, asked=came))
                continue
            done = job_requests.remembered(record, each)
            if why:
                outcome = Came.REFUSED if each.problem else Came.IGNORED
                came = job_requests.audited(each, outcome, why, self.world, uid=record.uid)
                record = self._evolve(record, requests_done=done)
                self.effects.append(replace(drop, asked=came))
                continue
            came = job_requests.audited(each, Came.ACCEPTED, "", self.world, uid=record.uid)
            held = job_requests.held_after(each, self.now, record.held)
            text = job_requests.text_of(each)
            record = self._evolve(record, text, asked=came, held=held, requests_done=done)
            if each.kind is RequestKind.REQUEUE:
                record = self._end(record, Cause.REQUEUED, text)
            self.effects.append(drop)
        return record

    def _ignore(self, request: UserRequest, record: JobRecord) -> Effect:
        why = "it is for an earlier job of this name" if request.cancel else "it does not ask for a cancel"
        told = asked.ignored(request, why, self.world, uid=record.uid)
        return DropUserRequest(name=record.name, generation=request.generation, owner=request.owner, asked=told)

    def _overwritten(self, record: JobRecord) -> JobRecord:
        spec = self.view.spec
        assert spec is not None  # checked by the caller
        if record.status is Status.CLEANING and spec.updates(record.job):
            return record  # its command has ended
        if spec == record.job:  # touched or uploaded again, not changed
            return self._evolve(record, **inbox.pinned(self.view))
        if not spec.updates(record.job):
            by = self.view.owner or spec.user_id
            told = asked.by_spec(Request.REPLACE, self.view, spec, self.world)
            return self._cancel(record, "another job with the same name replaced its spec", by, told)
        changed = spec_changes.changes(spec, record.job)
        text = f"updated to version {spec.version}" + (f": {spec_changes.text(changed)}" if changed else "")
        if record.status is Status.PENDING:
            changes = {**inbox.pinned(self.view), "job": spec, **tries.NONE_BEFORE}
            if record.had_attempt and record.started is None:
                changes["started"] = record.job
            if spec.limits.after != record.job.limits.after:
                changes["after_met"] = None
            return self._evolve(record, text, asked=self._update(record, spec), **changes)
        if record.status is Status.ACTIVE and spec_changes.keeps_running(changed):
            told = asked.by_spec(Request.UPDATE, self.view, spec, self.world)
            return self._evolve(record, text, asked=told, **inbox.pinned(self.view), job=spec)
        unless_told, message = self._update(record, spec), f"new spec, version {spec.version}"
        stopping = self._end(record, Cause.UPDATED, message, told=unless_told)
        if unless_told is None:  # it waits for the attempt to end
            return stopping
        if stopping is record:  # the attempt was ending
            stopping = self._evolve(record, f"version {spec.version} is to follow", asked=unless_told)
        return self._evolve(stopping, update_told=unless_told.generation)

    def _update(self, record: JobRecord, spec: JobSpec) -> Audited | None:
        """For the audit trail; nothing if it has the line since the update began to stop an attempt."""
        told = asked.by_spec(Request.UPDATE, self.view, spec, self.world)
        return None if told.generation == record.update_told else told

    def _cancel(self, record: JobRecord, message: str, by: str, told: Audited) -> JobRecord:
        if record.status is Status.CLEANING:
            return self._cancel_wait(record, message, by, told)
        outcome = Outcome(outcome="cancelled", exit_code=EXIT_CANCELLED, message=message, by=plain(by))
        record = self._evolve(record, message, asked=told, status=Status.CANCELLING, outcome=outcome)
        return self._end(record, Cause.CANCELLED, message) if record.attempt else record

    def _end(
        self,
        record: JobRecord,
        cause: Cause,
        message: str,
        evicted_for: str | None = None,
        *,
        exit_code: int | None = None,
        told: Audited | None = None,
    ) -> JobRecord:
        attempt = record.attempt
        assert attempt is not None  # only called for a job with an attempt
        if attempt.ending is not None:
            return record
        ending = Ending(
            cause=cause,
            message=message,
            at=self.now,
            grace_seconds=self._grace(record, cause),
            exit_code=exit_code,
            evicted_for=evicted_for,
        )
        own_line = cause in (Cause.CANCELLED, Cause.REQUEUED)  # the request's
        text = "" if own_line else f"stopping attempt {attempt.number}: {cause.value}: {message}"
        if cause is Cause.EVICTED and (saved_at := saved_until(attempt, self.view.attempt)) is not None:
            text += f"; last checkpoint {duration(self.now - saved_at)} ago"
        return self._evolve(record, text, asked=told, attempt=attempt.model_copy(update={"ending": ending}))

    def _grace(self, record: JobRecord, cause: Cause) -> float:
        """Return the project's grace period, or the shorter one of a job that has nothing to save."""
        if cause is Cause.STUCK:
            return self.settings.budgets.failure_grace_seconds
        if cause is Cause.CANCELLED or self.policy is None:
            return self.settings.budgets.eviction_grace_seconds
        return self.policy.rules(record.job.project_id).grace_seconds
