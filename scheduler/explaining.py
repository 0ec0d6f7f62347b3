"""Why each job that competes for capacity does not start, with the arithmetic, and its place in the queue.

Layer: `scheduler`, pure. The rule that keeps reasons honest: a pool with as much more free as `Reason.missing` says
starts the job in the next pass, jobs ahead of it that fit as well included. The queue is the order in which jobs would
start if the pool grew (`scheduler.lending.queue_order`), counting what the jobs ahead would hold.

Known limits: where another project has a job ahead that is too big for what is granted, the jobs behind that one may
move up and be in the way; the same where several projects await what is being freed. `missing` does not foresee this,
and the next pass then says what is missing still.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from quota import Policy
from scheduler.admission import backoff_code, backoff_reason, waiting_since
from scheduler.ahead import Ahead
from scheduler.ledger import Ledger, Promise
from scheduler.lending import queue_order
from scheduler.model import Decision, Job, JobStatus, Reason, ReasonCode, Verdict
from scheduler.waiting import Request

_HOLDERS_SHOWN = 10


@dataclass(frozen=True, slots=True)
class _Case:
    """What the jobs of one project and priority that ask the same have in common."""

    code: ReasonCode
    also: tuple[ReasonCode, ...]
    text: str
    holders: tuple[str, ...]
    unblock: str
    # Per type what must be left over for it, and up to which size jobs ahead must start first.
    wanted: Sequence[tuple[str, int, int]]


class Explainer:
    """Turns the end of a pass into decisions for those who wait."""

    def __init__(self, policy: Policy, ledger: Ledger) -> None:
        self._policy = policy
        self._ledger = ledger
        self._cases: dict[tuple[str, int, Request], _Case] = {}
        self._ahead: dict[str, Ahead] = {
            kind: Ahead(min(ledger.now.free(kind), ledger.later.free(kind))) for kind in policy.resource_types
        }
        self._holders: dict[tuple[str, str | None], tuple[str, ...]] = {}
        self._awaiting = ledger.awaiting_projects()
        self._in_pool = 0
        self._for_slots = 0
        self._in_project: dict[str, int] = {}

    def queue(
        self, promised: Sequence[Promise], waiting: Mapping[str, Sequence[Job]], too_large: Sequence[Job]
    ) -> list[Decision]:
        """Decisions in order of the queue.

        Args:
            promised: The promises that could not be kept yet, claims first, each group in order.
            waiting: The other jobs that compete, per project and in the project's order.
            too_large: Jobs that ask for more than the pool has.
        """
        decisions, outside = [], []
        claimed: dict[str, int] = {}
        for promise in promised:
            # More free capacity would first start those whose room is still being made.
            kept = dict(promise.kept)
            for kind, amount in promise.amounts:
                claimed[kind] = claimed.get(kind, 0) + amount - kept.get(kind, 0)
                self._ahead[kind].add(amount - kept.get(kind, 0), False)
        for promise in promised:
            reason = self._claim_reason(promise) if promise.claim else self._awaiting_reason(promise, claimed)
            decisions.append(self._wait(promise.job, reason, slots=False))
        too_large_names = {job.name for job in too_large}
        for job in self._merged(waiting, too_large):
            request = Request.of(job)
            competes = job.name not in too_large_names
            has_slot = self._ledger.has_slot(request)
            if competes:
                for_slot = not has_slot and not self._lacking(request)
                decisions.append(self._wait(job, self._reason(job, request), slots=for_slot))
            else:
                reason = self._too_large_reason(job, request)
                outside.append(Decision(name=job.name, verdict=Verdict.WAIT, reason=reason))
            if has_slot:  # more free capacity would not start the others
                for kind, amount in request.amounts:
                    self._ahead[kind].add(amount, competes)
        return decisions + outside

    def backing_off(self, job: Job) -> Decision:
        """A job that must not start yet, and perhaps could not."""
        request = Request.of(job)
        if self._ledger.fits_now(request):
            reason = backoff_reason(job)
        else:
            reason = self._reason(job, request)
            reason = replace(
                reason,
                also=(*reason.also, backoff_code(job)),
                unblock=f"{reason.unblock}, and {backoff_reason(job).unblock}",
            )
        return Decision(name=job.name, verdict=Verdict.WAIT, reason=reason)

    def _wait(self, job: Job, reason: Reason, *, slots: bool) -> Decision:
        if slots:
            self._for_slots += 1
            position = self._for_slots
        else:
            self._in_pool += 1
            position = self._in_pool
        in_project = self._in_project[job.project_id] = self._in_project.get(job.project_id, 0) + 1
        return Decision(
            name=job.name, verdict=Verdict.WAIT, reason=reason, position=position, position_in_project=in_project
        )

    def _merged(self, waiting: Mapping[str, Sequence[Job]], too_large: Sequence[Job]) -> list[Job]:
        lines = {project: list(jobs) for project, jobs in waiting.items()}
        for job in too_large:
            lines.setdefault(job.project_id, []).append(job)
        return queue_order(lines, self._ledger.shares)

    def _reason(self, job: Job, request: Request) -> Reason:
        key = (job.project_id, job.priority, request)
        case = self._cases.get(key)
        if case is None:
            case = self._cases[key] = self._case(job, request)
        text, missing = case.text, {}
        for kind, amount, first in case.wanted:
            ahead = self._ahead[kind]
            lacking = ahead.missing(amount, first)
            if lacking > 0:
                missing[kind] = lacking
                if ahead.jobs:
                    asks = "asks" if ahead.jobs == 1 else "ask"
                    text += f"; {_jobs(ahead.jobs)} ahead of it {asks} for {ahead.units} {kind}"
        return Reason(
            code=case.code,
            message=text,
            since=waiting_since(job),
            holders=case.holders,
            unblock=case.unblock + _more_free(missing) if missing else case.unblock,
            also=case.also,
            missing=missing,
        )

    def _wanted(self, project: str, request: Request) -> list[tuple[str, int, int]]:
        """Per type what must be left over for the request, and up to which size its project's jobs must start first.

        Nothing is lent to a project that awaits the room for a job of its own.
        """
        if project not in self._awaiting:
            return [(kind, amount, 0) for kind, amount in request.amounts]
        first: dict[str, int] = {}
        for promise in self._ledger.promises.values():
            if promise.job.project_id == project and not promise.claim:
                for kind, amount in promise.amounts:
                    first[kind] = max(first.get(kind, 0), amount)
        amounts = dict(request.amounts)
        return [(kind, amounts.get(kind, 0), first.get(kind, 0)) for kind in sorted({*amounts, *first})]

    def _case(self, job: Job, request: Request) -> _Case:
        ledger, shares, project = self._ledger, self._ledger.shares, job.project_id
        room = {kind: self._ahead[kind].room for kind, _ in request.amounts}
        lacking = [kind for kind, amount in request.amounts if amount > room[kind]]
        code, also, unblock = ReasonCode.WAITING_FOR_POOL, list[ReasonCode](), ""
        parts = [self._arithmetic(project, kind, amount, room[kind]) for kind, amount in request.amounts]
        holders = self._holding(lacking[0], None) if lacking else ()
        within = all(amount <= shares.entitlement(project, kind) for kind, amount in request.amounts)
        awaited = [p for p in ledger.promises.values() if p.job.project_id == project and not p.claim]
        if not lacking and awaited:
            code = ReasonCode.BEHIND_HIGHER_PRIORITY
            holders = tuple(promise.job.name for promise in awaited)
            parts.append(
                f"{', '.join(holders[:_HOLDERS_SHOWN])} of its project comes first, and its room is being freed"
            )
            unblock = f"{', '.join(holders[:_HOLDERS_SHOWN])} starts, or "
        elif lacking and self._behind(job, request, room):
            code = ReasonCode.BEHIND_HIGHER_PRIORITY
            holders = tuple(name for name, promise in ledger.promises.items() if promise.job.project_id == project)
            unblock = f"{', '.join(holders[:_HOLDERS_SHOWN])} starts and ends, or "
        elif lacking and within and not shares.covers(project, request.amounts):
            code, also = ReasonCode.WAITING_FOR_PROJECT_SHARE, [ReasonCode.WAITING_FOR_POOL]
            holders = self._holding(lacking[0], project) or holders
            unblock = f"jobs of project {project} end, or "
        if not ledger.has_slot(request):
            parts.append("the bastion's own host runs as many jobs as it may")
            if not lacking:
                holders = tuple(sorted(name for name, other in ledger.holders.items() if other.on_bastion))
                unblock = "a job on the bastion's own host ends"
        return _Case(
            code, tuple(also), "; ".join(parts), holders[:_HOLDERS_SHOWN], unblock, self._wanted(project, request)
        )

    def _behind(self, job: Job, request: Request, room: Mapping[str, int]) -> bool:
        """Whether only room kept for jobs of higher priority in the same project is in the way."""
        for kind, amount in request.amounts:
            kept = sum(
                units
                for promise in self._ledger.promises.values()
                if promise.job.project_id == job.project_id and promise.job.priority < job.priority
                for other, units in promise.amounts
                if other == kind
            )
            if amount > min(self._free(kind), room[kind] + kept):
                return False
        return True

    def _claim_reason(self, promise: Promise) -> Reason:
        """Of a job for which others were evicted."""
        own = self._ledger.leaving_for.get(promise.job.name, ())
        names = {job.name for job in own}
        for kind, amount in promise.amounts:
            if amount > self._free(kind) + sum(job.charged.get(kind, 0) for job in own):
                names.update(self._stopping({kind}))  # it also counts on what others leave over
        shown = sorted(names)
        return Reason(
            code=ReasonCode.WAITING_FOR_PREEMPTED,
            message=f"room is made for it by stopping {_jobs(len(shown))}; {self._needs(promise)}",
            since=waiting_since(promise.job),
            holders=tuple(shown[:_HOLDERS_SHOWN]),
            unblock=_are_gone(shown),
        )

    def _stopping(self, kinds: set[str]) -> list[str]:
        """Names of the jobs that stop and hold one of the types, sorted."""
        return sorted(
            name
            for name, job in self._ledger.holders.items()
            if (job.status is JobStatus.STOPPING or name in self._ledger.evictions) and kinds & job.charged.keys()
        )

    def _awaiting_reason(self, promise: Promise, claimed: Mapping[str, int]) -> Reason:
        """Of a job that needs nobody evicted, as enough is being freed.

        Args:
            claimed: Units that it and all others with a promise would take of what is free now.
        """
        names = self._stopping({kind for kind, _ in promise.amounts})
        missing = {
            kind: lacking for kind, _ in promise.amounts if (lacking := claimed[kind] - self._ledger.now.free(kind)) > 0
        }
        return Reason(
            code=ReasonCode.WAITING_FOR_POOL,
            message=f"what it needs is being freed by {_jobs(len(names))}; {self._needs(promise)}",
            since=waiting_since(promise.job),
            holders=tuple(names[:_HOLDERS_SHOWN]),
            unblock=f"{_are_gone(names)}, or {_more_free(missing)}",
            missing=missing,
        )

    def _needs(self, promise: Promise) -> str:
        parts = [
            f"needs {amount} {kind}, {self._free(kind)} of {self._policy.total(kind)} are free"
            for kind, amount in promise.amounts
        ]
        return "; ".join(parts)

    def _too_large_reason(self, job: Job, request: Request) -> Reason:
        missing, parts = {}, []
        for kind, amount, first in self._wanted(job.project_id, request):
            lacking = self._ahead[kind].missing(amount, first)
            if lacking > 0:
                missing[kind] = lacking
            if amount > self._policy.total(kind):
                parts.append(f"needs {amount} {kind}, and the whole pool has {self._policy.total(kind)}")
        return Reason(
            code=ReasonCode.EXCEEDS_POOL,
            message="; ".join(parts),
            since=waiting_since(job),
            unblock="an admin raises total_resources, or the job asks for less; it starts with "
            + _more_free(missing, verb=False),
            missing=missing,
        )

    def _arithmetic(self, project: str, kind: str, amount: int, room: int) -> str:
        shares, free = self._ledger.shares, self._free(kind)
        ordered = shares.ordered(project, kind)
        text = (
            f"needs {amount} {kind}: project {project} holds {shares.held(project, kind)} of its "
            f"{shares.entitlement(project, kind)}"
            + (f" and has {ordered} ordered" if ordered else "")
            + f", {free} of {self._policy.total(kind)} are free"
        )
        kept = free - max(room, 0)
        whom = "jobs whose room is being made or projects that gave them back a moment ago"
        return f"{text}, {kept} of them kept for {whom}" if kept > 0 else text

    def _free(self, kind: str) -> int:
        return max(0, self._policy.total(kind) - self._ledger.taken[kind])

    def _lacking(self, request: Request) -> bool:
        return not (self._ledger.now.fits(request.amounts) and self._ledger.later.fits(request.amounts))

    def _holding(self, kind: str, project: str | None) -> tuple[str, ...]:
        """Names of the jobs (of that project) that hold most of the type, the largest first."""
        key = (kind, project)
        if key not in self._holders:
            amounts = {
                name: (job.demand if job.status is JobStatus.PENDING else job.charged).get(kind, 0)
                for name, job in self._ledger.holders.items()
                if project is None or job.project_id == project
            }
            names = sorted((name for name in amounts if amounts[name] > 0), key=lambda name: (-amounts[name], name))
            self._holders[key] = tuple(names[:_HOLDERS_SHOWN])
        return self._holders[key]


def _jobs(count: int) -> str:
    return "1 job" if count == 1 else f"{count} jobs"


def _are_gone(names: Sequence[str]) -> str:
    more = len(names) - _HOLDERS_SHOWN
    others = f" and {more} others" if more > 0 else ""
    return f"{', '.join(names[:_HOLDERS_SHOWN])}{others} {'is' if len(names) == 1 else 'are'} gone"


def _more_free(missing: Mapping[str, int], *, verb: bool = True) -> str:
    amounts = " and ".join(f"{amount} more {kind}" for kind, amount in missing.items())
    return f"{amounts} become free" if verb else f"{amounts} free"
