"""Why each job that competes for capacity does not start, with the arithmetic, and its place in the queue.

Layer: `scheduler`, pure. The rule that keeps reasons honest: a pool with as much more free as `Reason.missing` says
starts the job in the next pass, jobs ahead of it that fit as well included. The queue is the order in which jobs would
start if the pool grew: the least served project first, counting what its jobs ahead would hold.

Where another project has a job ahead that is too big for what is granted, the jobs behind that one may move up and be
in the way; `missing` does not foresee this, and the next pass then says what is missing still.
"""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from quota import Policy
from scheduler.admission import backoff_code, backoff_reason, waiting_since
from scheduler.ledger import Ledger
from scheduler.model import Decision, Job, JobStatus, Reason, ReasonCode, Verdict
from scheduler.waiting import Request, order_in_project

_HOLDERS_SHOWN = 10
# Beyond so many different sizes ahead of a job, its missing units are bounded more coarsely to stay cheap.
_SIZES_WEIGHED = 64


@dataclass(frozen=True, slots=True)
class _Case:
    """What the jobs of one project and priority that ask the same have in common."""

    code: ReasonCode
    also: tuple[ReasonCode, ...]
    text: str
    holders: tuple[str, ...]
    unblock: str


class _Ahead:
    """The waiting jobs ahead of the one in hand, for one resource type."""

    def __init__(self, room: int) -> None:
        self.room = room
        self.jobs = 0
        self.units = 0
        self._all_units = 0
        self._largest = 0
        self._units_of_size: dict[int, int] = {}
        self._needed: dict[int, int] = {}

    def add(self, amount: int, competes: bool) -> None:
        if competes:
            self.jobs += 1
            self.units += amount
        # Others are ahead without being in the queue: jobs larger than the pool, and those whose room is being made.
        self._all_units += amount
        self._largest = max(self._largest, amount)
        self._units_of_size[amount] = self._units_of_size.get(amount, 0) + amount

    def missing(self, amount: int) -> int:
        """How much more has to be free so that `amount` is left over, whichever of the jobs ahead then start.

        Jobs ahead that do not fit in that are passed, so they do not count. The least such number; it only grows
        with the queue, so the search goes on from the last answer for the same amount.
        """
        needed = self._needed.get(amount, max(amount, self.room))
        while needed < self._largest and len(self._units_of_size) <= _SIZES_WEIGHED:
            taken = 0
            for size, units in self._units_of_size.items():
                if size <= needed:
                    taken += units
            if taken + amount <= needed:
                break
            needed = taken + amount
        else:
            needed = max(needed, self._all_units + amount)
        self._needed[amount] = needed
        return max(0, needed - self.room)


class Explainer:
    """Turns the end of a pass into decisions for those who wait."""

    def __init__(self, policy: Policy, ledger: Ledger) -> None:
        self._policy = policy
        self._ledger = ledger
        self._cases: dict[tuple[str, int, Request], _Case] = {}
        self._ahead: dict[str, _Ahead] = {
            kind: _Ahead(min(ledger.now.free(kind), ledger.later.free(kind))) for kind in policy.resource_types
        }
        self._holders: dict[tuple[str, str | None], tuple[str, ...]] = {}
        self._in_pool = 0
        self._for_slots = 0
        self._in_project: dict[str, int] = {}

    def queue(
        self, promised: Sequence[Job], waiting: Mapping[str, Sequence[Job]], too_large: Sequence[Job]
    ) -> list[Decision]:
        """Decisions in order of the queue.

        Args:
            promised: Jobs whose room is being made, in order.
            waiting: The other jobs that compete, per project and in the project's order.
            too_large: Jobs that ask for more than the pool has.
        """
        decisions = [self._wait(job, self._promised_reason(job), slots=False) for job in promised]
        outside = []
        for promise in self._ledger.promises.values():
            # More free capacity would first start those whose room is still being made.
            kept = dict(promise.kept)
            for kind, amount in promise.amounts:
                self._ahead[kind].add(amount - kept.get(kind, 0), False)
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
        shares = self._ledger.shares
        lines = {project: deque(jobs) for project, jobs in waiting.items() if jobs}
        for project in sorted({job.project_id for job in too_large}):
            more = [job for job in too_large if job.project_id == project]
            lines[project] = deque(sorted((*lines.get(project, ()), *more), key=order_in_project))
        granted: dict[str, dict[str, int]] = {project: {} for project in lines}
        oldest = {project: min(job.queued_at for job in line) for project, line in lines.items()}
        turns = [(shares.rank(project), oldest[project], project) for project in lines]
        heapq.heapify(turns)
        order: list[Job] = []
        while turns:
            project = turns[0][2]
            line = lines[project]
            job = line.popleft()
            order.append(job)
            holdings = granted[project]
            for kind, amount in job.demand.items():
                holdings[kind] = holdings.get(kind, 0) + amount
            if line:
                heapq.heapreplace(turns, (shares.rank(project, holdings), oldest[project], project))
            else:
                heapq.heappop(turns)
        return order

    def _reason(self, job: Job, request: Request) -> Reason:
        key = (job.project_id, job.priority, request)
        case = self._cases.get(key)
        if case is None:
            case = self._cases[key] = self._case(job, request)
        text, missing = case.text, {}
        for kind, amount in request.amounts:
            ahead = self._ahead[kind]
            lacking = ahead.missing(amount)
            if lacking > 0:
                missing[kind] = lacking
                if ahead.jobs:
                    text += f"; {_jobs(ahead.jobs)} ahead of it ask for {ahead.units} {kind}"
        return Reason(
            code=case.code,
            message=text,
            since=waiting_since(job),
            holders=case.holders,
            unblock=case.unblock + _more_free(missing) if missing else case.unblock,
            also=case.also,
            missing=missing,
        )

    def _case(self, job: Job, request: Request) -> _Case:
        ledger, shares, project = self._ledger, self._ledger.shares, job.project_id
        room = {kind: self._ahead[kind].room for kind, _ in request.amounts}
        lacking = [kind for kind, amount in request.amounts if amount > room[kind]]
        code, also, unblock = ReasonCode.WAITING_FOR_POOL, list[ReasonCode](), ""
        parts = [self._arithmetic(project, kind, amount, room[kind]) for kind, amount in request.amounts]
        holders = self._holding(lacking[0], None) if lacking else ()
        within = all(amount <= shares.entitlement(project, kind) for kind, amount in request.amounts)
        if lacking and self._behind(job, request, room):
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
        return _Case(code, tuple(also), "; ".join(parts), holders[:_HOLDERS_SHOWN], unblock)

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

    def _promised_reason(self, job: Job) -> Reason:
        request = Request.of(job)
        leaving = self._ledger.leaving_for.get(job.name)
        if leaving:
            names = sorted(other.name for other in leaving)
            text = f"room is made for it by stopping {_jobs(len(names))}"
        else:
            kinds = {kind for kind, _ in request.amounts}
            names = sorted(
                name
                for name, other in self._ledger.holders.items()
                if other.status is JobStatus.STOPPING and kinds & other.charged.keys()
            )
            text = "what it needs is being freed"
        parts = [
            f"needs {amount} {kind}, {self._free(kind)} of {self._policy.total(kind)} are free"
            for kind, amount in request.amounts
        ]
        shown = tuple(names[:_HOLDERS_SHOWN])
        return Reason(
            code=ReasonCode.WAITING_FOR_PREEMPTED,
            message=f"{text}; {'; '.join(parts)}",
            since=waiting_since(job),
            holders=shown,
            unblock=f"{', '.join(shown)}{' and others' if len(names) > len(shown) else ''} are gone",
        )

    def _too_large_reason(self, job: Job, request: Request) -> Reason:
        missing, parts = {}, []
        for kind, amount in request.amounts:
            lacking = self._ahead[kind].missing(amount)
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
        return f"{text}, {kept} of them kept for jobs whose room is being made" if kept > 0 else text

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


def _more_free(missing: Mapping[str, int], *, verb: bool = True) -> str:
    amounts = " and ".join(f"{amount} more {kind}" for kind, amount in missing.items())
    return f"{amounts} become free" if verb else f"{amounts} free"
