"""`reconcile(world, plan, now) -> effects`: the action on each job, from what was observed and decided.

Pure. Each job gets at most one new record. Its effects are in execution order: the record first (intent before effect),
then everything that depends on it. Every tick starts from the record and from what exists, and so repairs a crash
between any two.
"""

from __future__ import annotations

from dataclasses import replace

from bastion.core import limits
from bastion.core.errors import EXIT_REFUSED
from bastion.core.model import kueue
from bastion.core.model.clusters import where
from bastion.core.model.job_record import (
    Attempt,
    Cause,
    Ending,
    HistoryLine,
    JobRecord,
    Outcome,
    PastAttempt,
    keys_beyond,
)
from bastion.core.model.lifecycle import Status
from bastion.core.model.world import JobView, World, next_place, places_for
from bastion.core.reconcile import (
    asked,
    attempt_end,
    capacity,
    dependencies,
    finish,
    inbox,
    run_time,
    runs,
    tries,
)
from bastion.core.reconcile.accept import accept, quarantine
from bastion.core.reconcile.adopt import adopt, adopted_attempt
from bastion.core.reconcile.checkpoints import saved_until, steps
from bastion.core.reconcile.cleanup_slots import CleanupSlots
from bastion.core.reconcile.effects import (
    AppendHistory,
    DropRecord,
    Effect,
    PutRecord,
)
from bastion.core.reconcile.groups import Groups
from bastion.core.reconcile.retry_policy import EndedAttempt, after_attempt, overtime
from bastion.core.reconcile.runs import RunPlan
from bastion.core.reconcile.user_requests import UserRequests
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
    groups = Groups(world)
    for name, view in world.jobs.items():
        effects = reconcile_job(view, decisions.get(name), world, now, cleaning, groups)
        if effects:
            work[name] = effects
    return work | inbox.outside(world)


def reconcile_job(
    view: JobView, decision: Decision | None, world: World, now: float, cleaning: CleanupSlots, groups: Groups
) -> list[Effect]:
    """Return the effects for one job. `cleaning` says which users hold the slots for cleanup commands."""
    if view.ghost:
        return [DropRecord(name=view.name, generation=view.record_generation)]
    if view.frozen:
        return adopt(view, world, now)
    if view.record is None:
        return accept(view, world, now)
    awaiting = world.awaiting.get(view.name)
    news = awaiting is not None and dependencies.has_news(view, awaiting, now)
    if not news and _keeps_waiting(view, view.record, decision):
        return []
    before = view.record
    record = before.model_copy(update={"history": _history_to_keep(view, before)})
    job = _JobReconciler(view, decision, world, now, cleaning, groups)
    record = job.advance(record)
    effects: list[Effect] = []
    if job.changed:
        effects += inbox.copy_before(before, record)
        effects.append(PutRecord(record=record, generation=view.record_generation))
    if record.history and record.history[-1].number > view.history_own:
        effects.append(AppendHistory(record=record))
    effects += job.effects
    if record.status is Status.COMPLETED:
        effects += finish.finish(view, record, world, just_written=job.changed)
    return effects + quarantine(view, world)


def _keeps_waiting(view: JobView, record: JobRecord, decision: Decision | None) -> bool:
    """Whether a queued job keeps waiting and needs nothing, which holds for nearly every job."""
    return (
        record.status is Status.PENDING
        and (decision is None or decision.verdict is not Verdict.START)
        and view.user_request is None
        and not view.requests
        and not view.refused_requests
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
    lines = [
        line
        for line in record.history
        if line.number > view.history_done or (line.asked is not None and 0 < view.audit_waits_from <= line.number)
    ]
    shared_later = sum(line.number <= view.history_own for line in lines)
    return tuple(lines[max(0, shared_later - limits.HISTORY_KEPT_FOR_PROJECT) :])


class _JobReconciler(UserRequests):
    """One job in this tick: `advance` steps the record until nothing more can be decided."""

    def advance(self, record: JobRecord) -> JobRecord:
        adopted = adopted_attempt(self.view, record, self.world)
        if adopted is not None:
            record = self._evolve(record, attempt=adopted)
        record = self._user_requests(record)
        if self.view.requests:
            record = self._job_requests(record)
        while True:
            following = self._step(record)
            if following is record:
                return record
            record = following

    def _overtime(self, record: JobRecord, message: str) -> JobRecord:
        claimant = self.decision.evicted_for if self.decision is not None else None
        return self._end(record, Cause.OVERTIME, message, claimant, exit_code=limits.OVERTIME_EXIT_CODE)

    def _plan(self, record: JobRecord, attempt: Attempt) -> RunPlan:
        plan = runs.plan_attempt(record, attempt, self.settings)
        if plan.cleanup or record.job.limits.max_run_seconds is None:
            return plan
        grace_seconds = self._grace(record, Cause.OVERTIME)
        return replace(plan, time_left=run_time.time_left(record, attempt, self.now, grace_seconds))

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
        spent = run_time.used_up(record)
        if spent:  # by an update: otherwise its last attempt was the end
            _, changes = overtime(spent)
            return self._evolve(record, spent, **{**changes, "status": Status.CANCELLING})
        # No new attempt while a node of an old one is listed, or while no listing is available.
        if self._orphan_gangs() or self.view.gangs_unknown:
            return record
        if record.held is not None:
            return record
        if self.view.record is None or record.job != self.view.record.job:
            return record  # updated in this tick: the decision was about another size
        if self.view.doubt is not None:
            return record
        awaiting = self.world.awaiting.get(record.name)
        refused = dependencies.refused(self.view, awaiting, self.now)
        if refused:
            outcome = Outcome(outcome="refused", exit_code=EXIT_REFUSED, message=refused)
            return self._evolve(record, f"refused: {refused}", status=Status.CANCELLING, outcome=outcome)
        if awaiting is not None and awaiting.met != (record.after_met or ()):
            text = "" if awaiting.names else dependencies.history_text(record, self.now)
            record = self._evolve(record, text, after_met=awaiting.met)
        if self.decision is None or self.decision.verdict is not Verdict.START:
            return record
        runner = record.job.runner
        place = next_place(self.world, runner, self.decision.tier, record.zone_turn) if runner else None
        if runner and place is None:
            return record  # the settings changed, or no zone answers
        if runner and self.world.agent is None:
            return record  # its nodes would find no agent
        if place is not None and self.world.provisioning is not None:
            place = self.world.provisioning.of_project(place, record.job.project_id)
        if place is not None and place.queue:
            place = replace(place, queue=kueue.local_queue(place.queue, record.job.project_id))
        queued = place is not None and bool(place.queue)
        number = record.next_attempt
        attempt = Attempt(
            number=number,
            token="",
            started_at=self.now,
            tier=self.decision.tier,
            charged={} if queued else dict(record.job.resources),
            host_identity="" if runner else self.settings.host_identity,
            place=place,
            try_number=tries.first_number(record),
            stuck_tries=record.stuck_tries,
            agent=(self.world.agent or "") if runner else "",
            epoch=self.world.epoch,
        )
        attempt = runs.with_token(record, attempt, self.world)
        what = "on the bastion"
        if runner is not None:
            several = f"{runner.num_replicas} x " if runner.num_replicas > 1 else ""
            what = several + runner.instance_type.name + (" as root" if runner.root else "")
        if attempt.place is not None:
            what += where(attempt.place.zone) + (f", queue {attempt.place.queue}" if attempt.place.queue else "")
        metadata = {**record.metadata, "tier": attempt.tier or 0}
        record = self._evolve(
            record,
            f"attempt {number} is starting: {what}",
            asked=asked.as_root(record, self.world) if record.job.as_root else None,
            status=Status.ACTIVE,
            attempt=attempt,
            next_attempt=number + 1,
            metadata=metadata,
            started=None,
            not_before=None,
            stockout=False,
        )
        self.effects += runs.begin(self._plan(record, attempt))
        return record

    def _zones(self, record: JobRecord, attempt: Attempt) -> tuple[str, ...]:
        runner = record.job.runner
        if runner is None:
            return ()
        return tuple(place.zone for place in places_for(self.world, runner, attempt.tier))

    def _active(self, record: JobRecord) -> JobRecord:
        attempt = record.attempt
        assert attempt is not None  # a job is ACTIVE from its attempt's intent on
        plan = self._plan(record, attempt)
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
        over = run_time.overtime(record, attempt, self.policy, self.now)
        if over is not None and not attempt_end.commands_ended(plan, self.view.attempt):
            return self._overtime(record, over.message)
        if self.decision is not None and self.decision.verdict is Verdict.EVICT:
            claimant = self.decision.evicted_for
            reason = self.decision.message or f"{claimant} needs its project's share"
            return self._end(record, Cause.EVICTED, reason, claimant)
        return self._goes_on(record, attempt, plan)

    def _ended(self, record: JobRecord, attempt: Attempt, plan: RunPlan) -> JobRecord:
        view, budgets = self.view.attempt, self.settings.budgets
        ending = attempt_end.verdict(plan, view, self.now)
        if ending is None or ending.provisional or ending.cause is Cause.INFRASTRUCTURE:
            # A host may fail because the time was over on another one.
            over = run_time.overtime(record, attempt, self.policy, self.now) if ending is not None else None
            if attempt_end.out_of_time(view) or (over is not None and over.own):
                return self._overtime(record, run_time.reached(record))
        if ending is not None and ending.cause is Cause.FAILED and attempt.restart is None and not ending.gang_failed:
            restarting = tries.begin(plan, view, self.now)
            if restarting is not None:
                return self._evolve(record, tries.history_text(plan, ending), attempt=restarting)
        if ending is None and attempt.restart is None and attempt_end.stuck(plan, view):
            text, restarting, in_a_row = tries.when_stuck(record, plan, view, self.now)
            if restarting is None:
                return self._end(record, Cause.STUCK, text, exit_code=limits.STUCK_EXIT_CODE)
            return self._evolve(record, text, attempt=restarting, stuck_in_a_row=in_a_row)
        if ending is None and attempt.waiting is not None:
            ending = capacity.given_up(record, attempt, len(self._zones(record, attempt)), budgets, self.now)
        if ending is None:
            return record
        what = "ended; stopping its workers" if ending.provisional else ending.cause.value
        text = f"attempt {attempt.number} {what}: {ending.message}"
        return self._evolve(record, text, attempt=attempt.model_copy(update={"ending": ending}))

    def _goes_on(self, record: JobRecord, attempt: Attempt, plan: RunPlan) -> JobRecord:
        view = self.view.attempt
        if attempt.running_since is None and view.claim is not None and view.claim.opened:
            text = f"attempt {attempt.number} is running on {plan.hosts} worker{'s' * (plan.hosts > 1)}"
            up_since = attempt.up_since if attempt.waiting is None else self.now
            changes = {"running_since": self.now, "waiting": None, "up_since": up_since}
            if attempt.waiting is not None:
                changes["held_since"] = None
            running = attempt.model_copy(update=changes)
            waited = capacity.waited_seconds(record, attempt, self.now)
            return self._evolve(record, text, attempt=running, waited_seconds=waited, capacity_failures=0)
        moved = tries.go_on(plan, view, self.now) if attempt.restart is not None else attempt
        if moved.try_number > attempt.try_number:
            text = f"try {moved.try_number} is starting"
            failed, stuck = moved.try_number - 1, moved.stuck_tries
            return self._evolve(record, text, attempt=moved, failed_tries=failed, stuck_tries=stuck)
        moved = run_time.with_hold(record, capacity.with_wait(moved, view, self.now), view, self.now)
        if moved is not attempt:
            came = attempt.waiting is not None and moved.waiting is None
            waited = capacity.waited_seconds(record, attempt, self.now) if came else record.waited_seconds
            return self._evolve(record, capacity.history_text(attempt, moved), attempt=moved, waited_seconds=waited)
        self.effects += runs.keep_going(plan, view)
        return record

    def _stop(self, record: JobRecord, attempt: Attempt) -> JobRecord:
        assert attempt.ending is not None  # checked by the caller
        plan = self._plan(record, attempt)
        view = self.view.attempt
        if runs.stop_is_late(view, attempt.ending, self.now):
            ending = attempt.ending.model_copy(update={"at": self.now})
            return self._evolve(record, attempt=attempt.model_copy(update={"ending": ending}))
        if attempt.ending.provisional and attempt_end.out_of_time(view):
            changes = {"cause": Cause.OVERTIME, "exit_code": limits.OVERTIME_EXIT_CODE, "provisional": False}
            message = f"{run_time.reached(record)}; also: {attempt.ending.message}"[: limits.MESSAGE_MAX_CHARS]
            ending = attempt.ending.model_copy(update={**changes, "message": message})
            text = f"attempt {attempt.number} {ending.cause.value}: {message}"
            return self._evolve(record, text, attempt=attempt.model_copy(update={"ending": ending}))
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
        stopped_at = attempt_end.stopped_at(attempt, self.view.attempt, ending, record.job.hosts)
        past = PastAttempt(
            number=attempt.number,
            started_at=attempt.started_at,
            running_since=attempt.running_since,
            ended_at=self.now,
            cause=ending.cause,
            message=ending.message,
            exit_code=ending.exit_code,
            failed_worker=ending.failed_worker,
            held_at=capacity.held_at(attempt, ending, self.now),
            try_since=attempt.try_since,
            stopped_at=stopped_at,
            checkpointed_at=saved_until(attempt, self.view.attempt),
            **steps(attempt, self.view.attempt),
            zone=attempt.place.zone if attempt.place else "",
            tries=attempt.tries,
            public_key=attempt.public_key,
        )
        if not past.may_have_run:
            past = past.model_copy(update={"public_key": ""})  # a job may wait for capacity a thousand times
        attempts = (*record.attempts, past)
        record = self._evolve(
            record,
            attempt=None,
            attempts=attempts[-limits.PAST_ATTEMPTS_KEPT :],
            earlier_keys=keys_beyond(attempts, record.earlier_keys),
            held_seconds=run_time.held_seconds(record, attempt, ending, self.now, stopped_at=stopped_at),
        )
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
