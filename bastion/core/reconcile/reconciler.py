"""`reconcile(world, plan, now) -> effects`: the action on each job, from what was observed and decided.

Pure. Each job gets at most one new record. Its effects are in execution order: the record first (intent before effect),
then everything that depends on it. Every tick starts from the record and from what exists, and so repairs a crash
between any two.
"""

from __future__ import annotations

from bastion.core import limits
from bastion.core.bucket import keys
from bastion.core.instants import duration
from bastion.core.model.clusters import where
from bastion.core.model.gangs import GangState
from bastion.core.model.job_record import Attempt, Cause, Ending, HistoryLine, JobRecord, Outcome, PastAttempt
from bastion.core.model.lifecycle import Status
from bastion.core.model.world import JobView, World, next_place
from bastion.core.plain_text import plain
from bastion.core.reconcile import attempt_end, capacity, finish, runs, tries
from bastion.core.reconcile.accept import accept, quarantine
from bastion.core.reconcile.adopt import adopt, adopted_attempt
from bastion.core.reconcile.checkpoints import saved_until
from bastion.core.reconcile.cleanup_slots import CleanupSlots
from bastion.core.reconcile.effects import (
    AppendHistory,
    CloseGate,
    DeleteGang,
    DropRecord,
    DropUserRequest,
    Effect,
    PutRecord,
)
from bastion.core.reconcile.retry_policy import EndedAttempt, after_attempt
from bastion.core.reconcile.runs import RunPlan
from scheduler import Decision, Plan, Verdict


def reconcile(world: World, plan: Plan, now: float) -> dict[str, list[Effect]]:
    """Return the effects of one tick, by job; none in a dry run. `plan` has the decisions on the same observations."""
    if world.dry_run:
        return {}
    # Only starts and evictions depend on usage.
    decisions = {} if world.no_room else {decision.name: decision for decision in plan.acting}
    work: dict[str, list[Effect]] = {}
    cleaning = CleanupSlots(
        view.record.started_job.user_id
        for view in world.jobs.values()
        if view.record is not None and view.record.cleanup is not None
    )
    for name, view in world.jobs.items():
        effects = reconcile_job(view, decisions.get(name), world, now, cleaning)
        if effects:
            work[name] = effects
    return work


def reconcile_job(
    view: JobView, decision: Decision | None, world: World, now: float, cleaning: CleanupSlots
) -> list[Effect]:
    """Return the effects for one job. `cleaning` says which users hold the slots for cleanup commands."""
    if view.ghost:
        return [DropRecord(name=view.name, generation=view.record_generation)]
    if view.frozen:
        return adopt(view, world, now)
    if view.record is None:
        return accept(view, world, now)
    if _keeps_waiting(view, view.record, decision):
        return []
    before = view.record
    record = before.model_copy(update={"history": _history_to_keep(view, before)})
    job = _JobReconciler(view, decision, world, now, cleaning)
    record = job.advance(record)
    effects: list[Effect] = []
    if job.changed:
        effects.append(PutRecord(record=record, generation=view.record_generation))
    if record.history and record.history[-1].number > view.history_own:
        effects.append(AppendHistory(record=record))
    effects += job.effects
    if record.status is Status.COMPLETED:
        effects += finish.finish(view, record, just_written=job.changed)
    return effects + quarantine(view)


def _keeps_waiting(view: JobView, record: JobRecord, decision: Decision | None) -> bool:
    """Whether a queued job keeps waiting and needs nothing, which holds for nearly every job."""
    return (
        record.status is Status.PENDING
        and (decision is None or decision.verdict is not Verdict.START)
        and view.user_request is None
        and view.spec is None
        and not view.spec_gone
        and not view.spec_problem
        and not view.orphan_gangs
        and not view.invalid_object_generation
        and view.doubt is None
        and (not record.history or record.history[-1].number <= view.history_own)
    )


def _history_to_keep(view: JobView, record: JobRecord) -> tuple[HistoryLine, ...]:
    """Return the lines that some history still lacks; for an unknown project their number is bounded."""
    lines = [line for line in record.history if line.number > view.history_done]
    shared_later = sum(line.number <= view.history_own for line in lines)
    return tuple(lines[max(0, shared_later - limits.HISTORY_KEPT_FOR_PROJECT) :])


def cancel_requested(view: JobView) -> bool:
    user_request, record = view.user_request, view.record
    if user_request is None or record is None or not user_request.cancel:
        return False
    # A request without a uid comes from an older client. Acceptance deletes requests for earlier jobs of the name.
    return user_request.uid == record.uid if user_request.uid else True


class _JobReconciler:
    """One job in this tick: `advance` steps the record until nothing more can be decided."""

    def __init__(
        self, view: JobView, decision: Decision | None, world: World, now: float, cleaning: CleanupSlots
    ) -> None:
        self.view = view
        self.cleaning = cleaning
        self.decision = decision
        self.settings = world.settings
        self.world = world
        self.policy = world.policy
        self.entropy = world.entropy
        self.now = now
        # After the next write of the state, a start in doubt can no longer land.
        self.changed = view.doubt is not None
        self.effects: list[Effect] = []

    def advance(self, record: JobRecord) -> JobRecord:
        adopted = adopted_attempt(self.view, record, self.world)
        if adopted is not None:
            record = self._evolve(record, attempt=adopted)
        record = self._user_requests(record)
        while True:
            following = self._step(record)
            if following is record:
                return record
            record = following

    def _evolve(self, record: JobRecord, text: str = "", **changes: object) -> JobRecord:
        self.changed = True
        return record.evolve(at=self.now, text=text, **changes)

    # -- what users asked for -----------------------------------------------------------------------------------

    def _user_requests(self, record: JobRecord) -> JobRecord:
        view = self.view
        if view.user_request is not None and not cancel_requested(view):
            self.effects.append(DropUserRequest(name=record.name, generation=view.user_request.generation))
        if record.status not in (Status.PENDING, Status.ACTIVE) or _has_ended(record):
            return record
        if cancel_requested(view):
            by = view.user_request.by if view.user_request else ""
            return self._cancel(record, f"cancelled{' by ' + by if by else ''}", by)
        if view.spec_gone:
            return self._cancel(record, f"its spec {keys.active(record.name)} was deleted", "")
        if view.spec is not None and view.spec_meta is not None:
            return self._overwritten(record)
        return record

    def _overwritten(self, record: JobRecord) -> JobRecord:
        spec, meta = self.view.spec, self.view.spec_meta
        assert spec is not None and meta is not None  # checked by the caller
        if spec == record.job:  # touched or uploaded again, not changed
            return self._evolve(record, generation=meta.generation)
        if not spec.updates(record.job):
            return self._cancel(record, "another job with the same name replaced its spec", spec.user_id)
        if record.status is Status.PENDING:
            changes = {"generation": meta.generation, "job": spec, "failed_tries": 0}
            if record.had_attempt and record.started is None:
                changes["started"] = record.job
            return self._evolve(record, f"updated to version {spec.version}", **changes)
        return self._end(record, Cause.UPDATED, f"new spec, version {spec.version}")

    def _cancel(self, record: JobRecord, message: str, by: str) -> JobRecord:
        outcome = Outcome(outcome="cancelled", exit_code=143, message=message, by=plain(by))
        record = self._evolve(record, message, status=Status.CANCELLING, outcome=outcome)
        return self._end(record, Cause.CANCELLED, message) if record.attempt else record

    def _end(
        self,
        record: JobRecord,
        cause: Cause,
        message: str,
        evicted_for: str | None = None,
        *,
        exit_code: int | None = None,
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
        text = "" if cause is Cause.CANCELLED else f"stopping attempt {attempt.number}: {cause.value}: {message}"
        if cause is Cause.EVICTED and (saved_at := saved_until(attempt, self.view.attempt)) is not None:
            text += f"; last checkpoint {duration(self.now - saved_at)} ago"
        return self._evolve(record, text, attempt=attempt.model_copy(update={"ending": ending}))

    def _grace(self, record: JobRecord, cause: Cause) -> float:
        """Return the project's grace period, or the shorter one of a cancelled job, which has nothing to save."""
        if cause is Cause.CANCELLED or self.policy is None:
            return self.settings.budgets.eviction_grace_seconds
        return self.policy.rules(record.job.project_id).grace_seconds

    def _overtime(self, record: JobRecord, attempt: Attempt) -> str:
        """Return the message if the attempt exceeds its maximum runtime; empty otherwise."""
        if self.policy is None or attempt.running_since is None:
            return ""
        project = record.job.project_id
        most = self.policy.rules(project).maximum_runtime_seconds
        if most is None or self.now - attempt.running_since < most:
            return ""
        return f"ran longer than the maximum runtime of project {project}, {most / 3600:g} h (maximum_runtime_hours)"

    # -- the states ---------------------------------------------------------------------------------------------

    def _step(self, record: JobRecord) -> JobRecord:
        match record.status:
            case Status.PENDING:
                return self._pending(record)
            case Status.ACTIVE:
                return self._active(record)
            case Status.CANCELLING:
                return self._cancelling(record)
            case Status.CLEANING:
                return self._cleaning(record)
            case Status.COMPLETED:
                return record

    def _pending(self, record: JobRecord) -> JobRecord:
        # No new attempt while a node of an old one is listed, or while no listing is available.
        if self._orphan_gangs() or self.view.gangs_unknown:
            return record
        if self.view.record is None or record.job != self.view.record.job:
            return record  # updated in this tick: the decision was about another size
        if self.view.doubt is not None:
            return record
        if self.decision is None or self.decision.verdict is not Verdict.START:
            return record
        runner = record.job.runner
        place = next_place(self.world, runner, self.decision.tier, record.zone_turn) if runner else None
        if runner and place is None:
            return record  # the settings changed, or no zone answers
        if runner and self.world.agent is None:
            return record  # its nodes would find no agent
        number = record.next_attempt
        attempt = Attempt(
            number=number,
            token=runs.draw_token(self.entropy, f"{record.uid}-{number}"),
            started_at=self.now,
            tier=self.decision.tier,
            charged=dict(record.job.resources),
            host_identity="" if runner else self.settings.host_identity,
            place=place,
            try_number=tries.first_number(record),
            agent=(self.world.agent or "") if runner else "",
            epoch=self.world.epoch,
        )
        what = "on the bastion"
        if runner is not None:
            several = f"{runner.num_replicas} x " if runner.num_replicas > 1 else ""
            what = several + runner.instance_type.name
        if attempt.place is not None:
            what += where(attempt.place.zone)
        metadata = {**record.metadata, "tier": attempt.tier or 0}
        record = self._evolve(
            record,
            f"attempt {number} is starting: {what}",
            status=Status.ACTIVE,
            attempt=attempt,
            next_attempt=number + 1,
            metadata=metadata,
            started=None,
            not_before=None,
            stockout=False,
        )
        self.effects += runs.begin(runs.plan_attempt(record, attempt, self.settings))
        return record

    def _zones(self, record: JobRecord, attempt: Attempt) -> tuple[str, ...]:
        runner, provisioning = record.job.runner, self.world.provisioning
        if runner is None or provisioning is None:
            return ()
        places = provisioning.places(runner.instance_type, attempt.tier, has_image=runner.has_image)
        return tuple(place.zone for place in places)

    def _active(self, record: JobRecord) -> JobRecord:
        attempt = record.attempt
        assert attempt is not None  # a job is ACTIVE from its attempt's intent on
        plan = runs.plan_attempt(record, attempt, self.settings)
        if self.view.record is None or self.view.record.attempt is None:
            return record  # started in this tick: not observed yet
        if attempt.ending is not None:
            return self._stop(record, attempt)
        if self.view.late:
            text = "a daemon without the lease started it, and the write arrived late"
            return self._end(record, Cause.SUPERSEDED, text)
        if attempt.restart is not None and runs.restart_is_late(plan, self.view.attempt, self.now):
            restart = attempt.restart.model_copy(update={"since": self.now})
            return self._evolve(record, attempt=attempt.model_copy(update={"restart": restart}))
        ended = self._ended(record, attempt, plan)
        if ended is not record:
            return ended
        overtime = self._overtime(record, attempt)
        if overtime:
            claimant = self.decision.evicted_for if self.decision is not None else None
            return self._end(record, Cause.OVERTIME, overtime, claimant, exit_code=limits.OVERTIME_EXIT_CODE)
        if self.decision is not None and self.decision.verdict is Verdict.EVICT:
            claimant = self.decision.evicted_for
            reason = self.decision.message or f"{claimant} needs its project's share"
            return self._end(record, Cause.EVICTED, reason, claimant)
        return self._goes_on(record, attempt, plan)

    def _ended(self, record: JobRecord, attempt: Attempt, plan: RunPlan) -> JobRecord:
        view, budgets = self.view.attempt, self.settings.budgets
        ending = attempt_end.verdict(plan, view, self.now)
        if ending is not None and ending.cause is Cause.FAILED and attempt.restart is None and not ending.gang_failed:
            restarting = tries.begin(plan, view, self.now)
            if restarting is not None:
                return self._evolve(record, tries.history_text(plan, ending), attempt=restarting)
        if ending is None and attempt.waiting is not None:
            ending = capacity.given_up(record, attempt, len(self._zones(record, attempt)), budgets, self.now)
        if ending is None:
            return record
        what = "ended; stopping its workers" if ending.provisional else ending.cause.value
        text = f"attempt {attempt.number} {what}: {ending.message}"
        return self._evolve(record, text, attempt=attempt.model_copy(update={"ending": ending}))

    def _goes_on(self, record: JobRecord, attempt: Attempt, plan: RunPlan) -> JobRecord:
        view = self.view.attempt
        if attempt.running_since is None and view.claim is not None and view.claim.token == attempt.token:
            text = f"attempt {attempt.number} is running on {plan.hosts} worker{'s' * (plan.hosts > 1)}"
            up_since = attempt.up_since if attempt.waiting is None else self.now
            running = attempt.model_copy(
                update={"running_since": self.now, "waiting": None, "up_since": up_since},
            )
            waited = capacity.waited_seconds(record, attempt, self.now)
            return self._evolve(record, text, attempt=running, waited_seconds=waited, capacity_failures=0)
        moved = tries.go_on(plan, view, self.now) if attempt.restart is not None else attempt
        if moved.try_number > attempt.try_number:
            text = f"try {moved.try_number} is starting"
            return self._evolve(record, text, attempt=moved, failed_tries=moved.try_number - 1)
        moved = capacity.with_wait(moved, view, self.now)
        if moved is not attempt:
            came = attempt.waiting is not None and moved.waiting is None
            waited = capacity.waited_seconds(record, attempt, self.now) if came else record.waited_seconds
            return self._evolve(record, capacity.history_text(attempt, moved), attempt=moved, waited_seconds=waited)
        self.effects += runs.keep_going(plan, view)
        return record

    def _stop(self, record: JobRecord, attempt: Attempt) -> JobRecord:
        assert attempt.ending is not None  # checked by the caller
        plan = runs.plan_attempt(record, attempt, self.settings)
        view = self.view.attempt
        if runs.stop_is_late(view, attempt.ending, self.now):
            ending = attempt.ending.model_copy(update={"at": self.now})
            return self._evolve(record, attempt=attempt.model_copy(update={"ending": ending}))
        if attempt.ending.provisional:
            settled = attempt_end.classify(plan, view, attempt.ending, self.now)
            if settled is not None:
                text = f"attempt {attempt.number} {settled.cause.value}: {settled.message}"
                return self._evolve(record, text, attempt=attempt.model_copy(update={"ending": settled}))
        if attempt.ending.provisional or not runs.stopped(plan, view):
            self.effects += runs.stop(plan, view, attempt.ending, self.now)
            return record
        self.effects += runs.lost_logs(plan, view, self.now)
        return self._attempt_over(record, attempt, attempt.ending)

    def _attempt_over(self, record: JobRecord, attempt: Attempt, ending: Ending) -> JobRecord:
        past = PastAttempt(
            number=attempt.number,
            started_at=attempt.started_at,
            running_since=attempt.running_since,
            ended_at=self.now,
            cause=ending.cause,
            message=ending.message,
            exit_code=ending.exit_code,
            failed_worker=ending.failed_worker,
            checkpointed_at=saved_until(attempt, self.view.attempt),
            zone=attempt.place.zone if attempt.place else "",
            tries=attempt.tries,
        )
        record = self._evolve(record, attempt=None, attempts=(*record.attempts, past)[-limits.PAST_ATTEMPTS_KEPT :])
        if record.status is Status.CANCELLING:
            return record
        over = EndedAttempt(attempt=attempt, ending=ending, zones=self._zones(record, attempt))
        text, changes = after_attempt(record, over, self.now, self.settings.budgets)
        return self._evolve(record, text, **changes)

    def _cancelling(self, record: JobRecord) -> JobRecord:
        if record.attempt is not None:
            if record.attempt.ending is None:
                return self._end(record, Cause.CANCELLED, "cancelled")
            return self._stop(record, record.attempt)
        return self._evolve(record, "all processes have stopped", status=Status.CLEANING)

    def _cleaning(self, record: JobRecord) -> JobRecord:
        if self._orphan_gangs():
            return record
        has_cleanup = record.started_job.has_cleanup
        # It runs as the daemon's user, so only a spec that the scheduler admitted may run.
        if not (has_cleanup and record.had_attempt) or record.cleanup_done:
            outcome = record.outcome
            assert outcome is not None  # decided before CLEANING
            text = f"completed: {outcome.outcome}"
            if has_cleanup and not record.had_attempt:
                text += "; skipping its cleanup command: the job never started"
            return self._evolve(record, text, status=Status.COMPLETED)
        if record.cleanup is None and not self.cleaning.take(record.started_job.user_id):
            return record
        if record.cleanup is None:
            run = f"{record.uid}-cleanup"
            attempt = Attempt(
                number=0,
                token=runs.draw_token(self.entropy, run),
                started_at=self.now,
                host_identity=self.settings.host_identity,
            )
            record = self._evolve(record, "the cleanup command is starting", cleanup=attempt)
            self.effects += runs.begin(runs.plan_attempt(record, attempt, self.settings))
            return record
        return self._cleanup_run(record, record.cleanup)

    def _cleanup_run(self, record: JobRecord, attempt: Attempt) -> JobRecord:
        if self.view.record is None or self.view.record.cleanup is None:
            return record  # started in this tick
        plan, view = runs.plan_attempt(record, attempt, self.settings), self.view.cleanup
        if attempt.ending is None:
            ending = attempt_end.verdict(plan, view, self.now)
            if ending is None and self.now - attempt.started_at >= limits.CLEANUP_TIMEOUT_SECONDS:
                text = f"the cleanup command exceeded {limits.CLEANUP_TIMEOUT_SECONDS:.0f} s"
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
        text = f"the cleanup command {attempt.ending.cause.value}: {attempt.ending.message}"
        return self._evolve(record, text, cleanup=None, cleanup_done=True)

    def _orphan_gangs(self) -> bool:
        """Close the gates of orphaned gangs and delete them; True while there are any."""
        if not self.effects:  # once a tick, however often the record changes
            for orphan in self.view.orphan_gangs:
                if orphan.status.state is not GangState.DELETING:
                    self.effects.append(CloseGate(run=orphan.status.run, reason="its attempt has ended"))
                    self.effects.append(DeleteGang(ref=orphan.status.ref, on_bastion=orphan.on_bastion))
        return bool(self.view.orphan_gangs)


def _has_ended(record: JobRecord) -> bool:
    """Whether the job's own end is decided: a later cancel changes nothing."""
    ending = record.attempt.ending if record.attempt else None
    return ending is not None and ending.cause in (
        Cause.SUCCEEDED,
        Cause.FAILED,
        Cause.OVERTIME,
        Cause.REFUSED,
    )
