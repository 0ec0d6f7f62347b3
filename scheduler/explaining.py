"""Why each job that competes for capacity does not start, with the arithmetic, and its place in the queue.

Layer: `scheduler`, pure. The rule that keeps reasons honest: a pool with as much more free as `Reason.missing` says
starts the job in the next pass, jobs ahead of it that fit as well included, if its project's borrowing limit is raised
by what `Reason.over_limit` says. The queue is the order in which jobs would
start if the pool grew (`scheduler.lending.queue_order`), counting what the jobs ahead would hold.

Known limits: where another project has a job ahead that is too big for what is granted, the jobs behind that one may
move up and be in the way; the same where several projects await what is being freed. `missing` does not foresee this,
and the next pass then says what is missing still.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from quota import Policy
from scheduler.admission import backoff_code, backoff_reason, waiting_since
from scheduler.ahead import Ahead
from scheduler.capacity import Amounts, amounts_of
from scheduler.ledger import Ledger, Promise
from scheduler.lending import queue_order
from scheduler.model import Decision, Job, JobStatus, Reason, ReasonCode, Verdict
from scheduler.turns import Turns
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
    wanted: Mapping[str, tuple[int, int]]


@dataclass(slots=True)
class _InFront:
    """What is ahead of a job in its own project."""

    # Units that the waiting jobs ahead ask for.
    asked: dict[str, int] = field(default_factory=dict)
    # The job that nobody passes, where the rules say so; and the largest amounts that jobs before the one in hand ask.
    first: str = ""
    largest: dict[str, int] = field(default_factory=dict)
    # The same of jobs that only a larger pool or limit would let start.
    impossible: list[Job] = field(default_factory=list)

    def grow(self, amounts: Amounts) -> None:
        for kind, amount in amounts:
            self.largest[kind] = max(self.largest.get(kind, 0), amount)


class Explainer:
    """Turns the end of a pass into decisions for those who wait."""

    def __init__(self, policy: Policy, ledger: Ledger, turns: Turns, backing_off: Sequence[Job]) -> None:
        self._policy = policy
        self._ledger = ledger
        self._turns = turns
        self._limits: dict[tuple[str, str], Ahead] = {}
        self._front: dict[str, _InFront] = {}
        self._plain: dict[str, bool] = {}
        self._outside: dict[str, list[Job]] = {}
        for job in (*backing_off, *(promise.job for promise in ledger.promises.values())):
            if policy.rules(job.project_id).fifo:
                self._outside.setdefault(job.project_id, []).append(job)
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
        self,
        promised: Sequence[Promise],
        waiting: Mapping[str, Sequence[Job]],
        too_large: Sequence[Job],
        beyond: Sequence[tuple[Job, Reason]],
    ) -> list[Decision]:
        """Decisions in order of the queue.

        Args:
            promised: The promises that could not be kept yet, claims first, each group in order.
            waiting: The other jobs that compete, per project and in the project's order.
            too_large: Jobs that ask for more than the pool has.
            beyond: Jobs that ask for more than their project may ever hold, with what is known of why.
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
        oversized = {job.name for job in too_large}
        too_much = {job.name: reason for job, reason in beyond}
        for job in self._merged(waiting, [*too_large, *(job for job, _ in beyond)]):
            request = Request.of(job)
            competes = job.name not in oversized and job.name not in too_much
            has_slot = self._ledger.has_slot(request)
            if competes:
                for_slot = not has_slot and not self._lacking(request)
                decisions.append(self._wait(job, self._reason(job, request), slots=for_slot))
            else:
                missing, over = self._missing(job, request, self._wanted(job.project_id, request))
                reason = too_much.get(job.name) or self._too_large_reason(job, request, missing)
                reason = replace(reason, missing=missing, over_limit=over)
                outside.append(Decision(name=job.name, verdict=Verdict.WAIT, reason=reason))
            self._put_in_front(job, request, competes=competes, has_slot=has_slot)
        return decisions + outside

    def _put_in_front(self, job: Job, request: Request, *, competes: bool, has_slot: bool) -> None:
        """The job is ahead of those that are explained from now on."""
        if has_slot:  # more free capacity would not start the others
            for kind, amount in request.amounts:
                self._ahead[kind].add(amount, competes)
        if self._is_plain(job.project_id):
            return
        front = self._front.setdefault(job.project_id, _InFront())
        if competes:
            front.first = front.first or job.name
            front.grow(request.amounts)
        else:
            front.impossible.append(job)
        for kind, amount in request.amounts:
            front.asked[kind] = front.asked.get(kind, 0) + amount
            limit = self._limit(job.project_id, kind)
            if has_slot and limit is not None:
                limit.add(amount, competes)

    def _is_plain(self, project: str) -> bool:
        """Whether no rule comes between the project's jobs and the pool: nearly every project."""
        plain = self._plain.get(project)
        if plain is None:
            rules = self._policy.rules(project)
            plain = not (rules.fifo or rules.borrowing_limit or self._ledger.lending_little)
            self._plain[project] = plain
        return plain

    def _limit(self, project: str, kind: str) -> Ahead | None:
        """The project's waiting jobs against its borrowing limit; None where it has none."""
        room = self._ledger.shares.below_limit(project, kind)
        if room is None:
            return None
        limit = self._limits.get((project, kind))
        if limit is None:
            limit = self._limits[project, kind] = Ahead(room)
        return limit

    def _missing(
        self, job: Job, request: Request, wanted: Mapping[str, tuple[int, int]]
    ) -> tuple[dict[str, int], dict[str, int]]:
        """What the pool lacks for the job, and what its project's borrowing limit lacks, per type that lacks any."""
        if self._is_plain(job.project_id):
            missing = {}
            for kind, (amount, first) in wanted.items():
                lacking = self._ahead[kind].missing(amount, first)
                if lacking > 0:
                    missing[kind] = lacking
            return missing, {}
        front = self._front.get(job.project_id) or _InFront()
        if not self._policy.rules(job.project_id).fifo:
            return self._lacking_for(job, request, wanted, front.asked, {})
        largest = dict(front.largest)
        for other in self._outside.get(job.project_id, ()):
            if self._turns.place(other) < self._turns.place(job):
                for kind, amount in amounts_of(other.demand):
                    largest[kind] = max(largest.get(kind, 0), amount)
        missing, over = self._lacking_for(job, request, wanted, front.asked, largest)
        if front.impossible and (missing or over):
            # So much more might let those in front compete that could not before, and nobody passes them.
            for other in front.impossible:
                for kind, amount in amounts_of(other.demand):
                    largest[kind] = max(largest.get(kind, 0), amount)
            missing, over = self._lacking_for(job, request, wanted, front.asked, largest)
        return missing, over

    def _lacking_for(
        self,
        job: Job,
        request: Request,
        wanted: Mapping[str, tuple[int, int]],
        asked: Mapping[str, int],
        largest: Mapping[str, int],
    ) -> tuple[dict[str, int], dict[str, int]]:
        missing: dict[str, int] = {}
        over: dict[str, int] = {}
        project = job.project_id
        own = self._ledger.shares.covers(project, request.amounts, asked)
        for kind in sorted({*wanted, *largest}):
            amount, first = wanted.get(kind, (0, 0))
            # What others never lend has to stay free, unless the job is within its own project's share.
            kept = 0 if own or not amount else self._ledger.unlent(project, kind)
            lacking = self._ahead[kind].missing(amount + kept, max(first, largest.get(kind, 0)))
            if lacking > 0:
                missing[kind] = lacking
            limit = self._limit(project, kind)
            if limit is not None and (lacking := limit.missing(amount, largest.get(kind, 0))) > 0:
                over[kind] = lacking
        return missing, over

    def backing_off(self, job: Job) -> Decision:
        """A job that must not start yet, and perhaps could not."""
        request = Request.of(job)
        shares, project = self._ledger.shares, job.project_id
        lent = shares.permits(project, request.amounts) and self._ledger.leaves_unlent(project, request)
        if self._ledger.fits_now(request) and (lent or shares.covers(project, request.amounts)):
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
        return queue_order(lines, self._ledger.shares, self._policy, self._turns)

    def _reason(self, job: Job, request: Request) -> Reason:
        key = (job.project_id, job.priority, request)
        case = self._cases.get(key)
        if case is None:
            case = self._cases[key] = self._case(job, request)
        missing, over = self._missing(job, request, case.wanted)
        text = case.text
        for kind in missing:
            ahead = self._ahead[kind]
            if ahead.jobs:
                asks = "asks" if ahead.jobs == 1 else "ask"
                text += f"; {_jobs(ahead.jobs)} ahead of it {asks} for {ahead.units} {kind}"
        reason = Reason(
            code=case.code,
            message=text,
            since=waiting_since(job),
            holders=case.holders,
            unblock=case.unblock + _more_free(missing) if missing else case.unblock,
            also=case.also,
            missing=missing,
            over_limit=over,
        )
        if self._is_plain(job.project_id):
            return reason
        first = self._before(job)
        if first:
            return _behind_first(reason, job.project_id, first)
        return self._at_limit(reason, job.project_id, over) if over else reason

    def _before(self, job: Job) -> str:
        """The job of its project that has to start first; empty if there is none, or jobs may be passed."""
        if not self._policy.rules(job.project_id).fifo:
            return ""
        place = self._turns.place(job)
        outside = [other for other in self._outside.get(job.project_id, ()) if self._turns.place(other) < place]
        if outside:
            return min(outside, key=self._turns.place).name
        front = self._front.get(job.project_id)
        return front.first if front is not None else ""

    def _at_limit(self, reason: Reason, project: str, over: Mapping[str, int]) -> Reason:
        """Of a job for which its project would have to hold more than its borrowing limit allows."""
        shares = self._ledger.shares
        parts, raised = [], []
        for kind, amount in over.items():
            limit, own = shares.limit(project, kind) or 0, shares.entitlement(project, kind)
            ahead = self._limits[project, kind]
            parts.append(
                f"project {project} may hold {limit} {kind} (its {own} and a borrowing_limit of {limit - own}) "
                f"and holds {shares.held(project, kind)}"
                + (f" and has {shares.ordered(project, kind)} ordered" if shares.ordered(project, kind) else "")
                + (f", and its jobs ahead ask for {ahead.units}" if ahead.units else "")
            )
            raised.append(f"{amount} {kind}")
        unblock = f"jobs of project {project} end that hold {' and '.join(raised)}, or an admin raises its "
        unblock += f"borrowing_limit by {' and '.join(raised)}"
        unblock += f"; and {_more_free(reason.missing)}" if reason.missing else ""
        return replace(
            reason,
            code=ReasonCode.WAITING_FOR_PROJECT_SHARE,
            message=f"{reason.message}; {'; '.join(parts)}",
            holders=self._holding(next(iter(over)), project) or reason.holders,
            unblock=unblock,
            also=(ReasonCode.WAITING_FOR_POOL,) if reason.missing else (),
        )

    def _wanted(self, project: str, request: Request) -> dict[str, tuple[int, int]]:
        """Per type what must be left over for the request, and up to which size its project's jobs must start first.

        Nothing is lent to a project that awaits the room for a job of its own.
        """
        first: dict[str, int] = {}
        if project in self._awaiting:
            for promise in self._ledger.promises.values():
                if promise.job.project_id == project and not promise.claim:
                    for kind, amount in promise.amounts:
                        first[kind] = max(first.get(kind, 0), amount)
        amounts = dict(request.amounts)
        return {kind: (amounts.get(kind, 0), first.get(kind, 0)) for kind in sorted({*amounts, *first})}

    def _case(self, job: Job, request: Request) -> _Case:
        ledger, shares, project = self._ledger, self._ledger.shares, job.project_id
        covered = shares.covers(project, request.amounts)
        unlent = {kind: 0 if covered else ledger.unlent(project, kind) for kind, _ in request.amounts}
        room = {kind: self._ahead[kind].room - unlent[kind] for kind, _ in request.amounts}
        lacking = [kind for kind, amount in request.amounts if amount > room[kind]]
        code, also, unblock = ReasonCode.WAITING_FOR_POOL, list[ReasonCode](), ""
        parts = [self._arithmetic(project, kind, amount, unlent[kind]) for kind, amount in request.amounts]
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
        elif lacking and within and not covered:
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

    def _too_large_reason(self, job: Job, request: Request, missing: Mapping[str, int]) -> Reason:
        parts = [
            f"needs {amount} {kind}, and the whole pool has {self._policy.total(kind)}"
            for kind, amount in request.amounts
            if amount > self._policy.total(kind)
        ]
        return Reason(
            code=ReasonCode.EXCEEDS_POOL,
            message="; ".join(parts),
            since=waiting_since(job),
            unblock="an admin raises total_resources, or the job asks for less; it starts with "
            + _more_free(missing, verb=False),
        )

    def _arithmetic(self, project: str, kind: str, amount: int, unlent: int) -> str:
        shares, free = self._ledger.shares, self._free(kind)
        ordered = shares.ordered(project, kind)
        text = (
            f"needs {amount} {kind}: project {project} holds {shares.held(project, kind)} of its "
            f"{shares.entitlement(project, kind)}"
            + (f" and has {ordered} ordered" if ordered else "")
            + f", {free} of {self._policy.total(kind)} are free"
        )
        room = max(self._ahead[kind].room, 0)
        kept, unlent = free - room, min(unlent, room)
        whom = "jobs whose room is being made or projects that gave them back a moment ago"
        if kept > 0:
            text += f", {kept} of them kept for {whom}"
        if unlent > 0:
            text += f", {unlent} of them for other projects, which do not lend them (lending_limit)"
        return text

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


def _behind_first(reason: Reason, project: str, first: str) -> Reason:
    """Of a job of a project in which nobody passes the job in front."""
    return replace(
        reason,
        code=ReasonCode.BEHIND_HIGHER_PRIORITY,
        message=f"{first} is in front of it, and in project {project} nobody passes the job in front (fifo); "
        + reason.message,
        holders=(first,),
        unblock=f"{first} starts" + (f" and {_more_free(reason.missing)}" if reason.missing else ""),
        also=(),
    )


def _jobs(count: int) -> str:
    return "1 job" if count == 1 else f"{count} jobs"


def _are_gone(names: Sequence[str]) -> str:
    more = len(names) - _HOLDERS_SHOWN
    others = f" and {more} others" if more > 0 else ""
    return f"{', '.join(names[:_HOLDERS_SHOWN])}{others} {'is' if len(names) == 1 else 'are'} gone"


def _more_free(missing: Mapping[str, int], *, verb: bool = True) -> str:
    amounts = " and ".join(f"{amount} more {kind}" for kind, amount in missing.items())
    return f"{amounts} become free" if verb else f"{amounts} free"
