"""Why each competing job does not start, with the arithmetic, and its queue position.

A reason must be exact: with `Reason.missing` more free units, and the borrowing limit raised by `Reason.over_limit`,
the next pass starts the job together with the jobs ahead of it that fit.

Known limits of `missing`, which the next pass corrects: a job ahead in another project is too big for the granted units
and jobs behind it move up; several projects await capacity that is being freed; an overdue job takes the granted units.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from quota import Policy
from scheduler.decide.admission import Admission, backoff_reason, waiting_since
from scheduler.decide.capacity import Amounts, amounts_of
from scheduler.decide.delegation import Handover
from scheduler.decide.ledger import Ledger, Promise
from scheduler.decide.project_queue import ProjectQueue, Request
from scheduler.decide.user_order import UserOrder
from scheduler.explain import dependents
from scheduler.explain.dependents import Lacking
from scheduler.explain.queue_order import queue_order
from scheduler.explain.reasons import (
    Case,
    Cases,
    behind_first,
    behind_overdue,
    count_jobs,
    more_free,
    more_slots,
    starts,
)
from scheduler.explain.shortfall import Shortfall
from scheduler.model import NOTHING, Decision, Job, Reason, ReasonCode, Verdict


@dataclass(slots=True)
class _InFront:
    """The explained jobs of one project, which are ahead of its next ones."""

    # Units that the waiting jobs ahead ask for.
    asked: dict[str, int] = field(default_factory=dict)
    # FIFO: the job in front, and the largest amounts that jobs before the current one ask for.
    first: Job | None = None
    largest: dict[str, int] = field(default_factory=dict)
    # Jobs before it that only a larger pool or limit would let start.
    impossible: list[Job] = field(default_factory=list)

    def grow(self, amounts: Amounts) -> None:
        for resource, amount in amounts:
            self.largest[resource] = max(self.largest.get(resource, 0), amount)


class Explainer:
    def __init__(
        self,
        policy: Policy,
        ledger: Ledger,
        user_order: UserOrder,
        backing_off: Sequence[Job],
        waiting: Mapping[str, ProjectQueue],
    ) -> None:
        """`waiting`: the competing jobs without a promise, per project."""
        self._waiting = waiting
        self._overdue = {project: queue.overdue for project, queue in waiting.items() if queue.overdue is not None}
        self._asked_first = {project: dict(amounts_of(job.demand)) for project, job in self._overdue.items()}
        self._policy = policy
        self._ledger = ledger
        self._user_order = user_order
        self._cases = Cases(policy, ledger)
        self._limits: dict[tuple[str, str], Shortfall] = {}
        self._front: dict[str, _InFront] = {}
        self._plain: dict[str, bool] = {}
        self._outside: dict[str, list[Job]] = {}
        for job in (*backing_off, *(promise.job for promise in ledger.promises.values())):
            if policy.rules(job.project_id).fifo:
                self._outside.setdefault(job.project_id, []).append(job)
        self._shortfalls = {resource: Shortfall(available) for resource, available in self._cases.unreserved.items()}
        # Explained jobs by whether they wait for a slot only, and by project.
        self._explained = Counter[bool]()
        # Jobs ahead that wait for a slot, by user.
        self._slots_ahead = Counter[str]()
        self._explained_in = Counter[str]()

    def queue(
        self,
        promised: Sequence[Promise],
        too_large: Sequence[Job],
        over_ceiling: Sequence[tuple[Job, Reason]],
    ) -> list[Decision]:
        """Decisions in queue order; `promised` has claims first, each group in order."""
        decisions, outside = [], []
        claimed: dict[str, int] = {}
        for promise in promised:
            # More free capacity would first start jobs with a promise.
            kept = dict(promise.kept)
            for resource, amount in promise.amounts:
                claimed[resource] = claimed.get(resource, 0) + amount - kept[resource]
                self._shortfalls[resource].add(amount - kept[resource], False)
        for promise in promised:
            reason = self._cases.claim(promise) if promise.claim else self._cases.awaiting(promise, claimed)
            decisions.append(self._wait(promise.job, reason, slots=False))
        impossible: dict[str, Reason | None] = {job.name: None for job in too_large}
        impossible.update((job.name, reason) for job, reason in over_ceiling)
        queues = self._with_impossible([*too_large, *(job for job, _ in over_ceiling)])
        for _, request, job in queue_order(queues, self._ledger.shares, self._policy, self._user_order):
            competes = not impossible or job.name not in impossible
            has_slot = self._ledger.has_slot(request)
            if competes:
                for_slot = not has_slot and not self._lacking(request)
                decisions.append(self._wait(job, self._reason(job, request), slots=for_slot))
            else:
                missing, over = self._missing(job, request, self._cases.wanted(job.project_id, request))
                given = impossible[job.name] or self._cases.too_large(job, request, missing)
                given = replace(given, missing=missing, over_limit=over)
                outside.append(Decision(name=job.name, verdict=Verdict.WAIT, reason=given))
            self._put_in_front(job, request, competes=competes, has_slot=has_slot)
        return decisions + outside

    def dependents(self, jobs: Sequence[Job], admission: Admission, handover: Handover, now: float) -> list[Decision]:
        """Decisions for jobs that await others, in their order; call it after `queue`."""

        def lacking(job: Job, request: Request) -> Lacking:
            if job.delegated:
                return Lacking(codes=(ReasonCode.TOO_MANY_SUBMITTED,) if handover.full else ())
            return self._lacking_behind_all(job, request)

        return list(dependents.waits(jobs, lacking, admission, now))

    def _lacking_behind_all(self, job: Job, request: Request) -> Lacking:
        case = self._cases.of(job, request)
        missing, over = self._missing(job, request, case.wanted)
        slots = self._slots_missing(request)
        first = "" if self._is_plain(job.project_id) else self._before(job)
        if not (missing or over or slots or first):
            return Lacking()
        return Lacking(
            codes=(ReasonCode.BEHIND_HIGHER_PRIORITY,) if first else (case.code, *case.also),
            missing=missing,
            over_limit=over or NOTHING,
            slots=slots,
            first=first,
            possible=bool(self._within_pool(missing)),
            own_ends=self._own_ends(request, slots) if slots else 0,
        )

    def _with_impossible(self, jobs: Sequence[Job]) -> dict[str, ProjectQueue]:
        waiting = self._waiting
        extra_jobs: dict[str, list[Job]] = {}
        for job in jobs:
            extra_jobs.setdefault(job.project_id, []).append(job)
        queues = {}
        for project in sorted({*waiting, *extra_jobs}):
            queue = waiting[project].left() if project in waiting else {}
            if queue or project in extra_jobs:
                fifo = self._policy.rules(project).fifo
                queues[project] = ProjectQueue(
                    queue,
                    self._user_order.place,
                    extra_jobs=extra_jobs.get(project, ()),
                    fifo=fifo,
                    overdue=self._overdue.get(project),
                )
        return queues

    def _put_in_front(self, job: Job, request: Request, *, competes: bool, has_slot: bool) -> None:
        """Count the job as ahead of all jobs explained later."""
        if competes and not has_slot:
            self._slots_ahead[request.user] += 1
        if has_slot:  # free capacity does not start jobs without a slot
            for resource, amount in request.amounts:
                self._shortfalls[resource].add(amount, competes)
        if self._is_plain(job.project_id):
            return
        front = self._front.setdefault(job.project_id, _InFront())
        if competes:
            front.first = front.first or job
            front.grow(request.amounts)
        else:
            front.impossible.append(job)
        for resource, amount in request.amounts:
            front.asked[resource] = front.asked.get(resource, 0) + amount
            limit = self._limit(job.project_id, resource)
            if has_slot and limit is not None:
                limit.add(amount, competes)

    def _is_plain(self, project: str) -> bool:
        """Whether no rule applies between the project's jobs and the pool, as for nearly every project."""
        plain = self._plain.get(project)
        if plain is None:
            rules = self._policy.rules(project)
            plain = not (rules.fifo or rules.borrowing_limit or self._ledger.limited_lenders)
            self._plain[project] = plain
        return plain

    def _limit(self, project: str, resource_type: str) -> Shortfall | None:
        available = self._ledger.shares.below_limit(project, resource_type)
        if available is None:
            return None
        limit = self._limits.get((project, resource_type))
        if limit is None:
            limit = self._limits[project, resource_type] = Shortfall(available)
        return limit

    def _missing(
        self, job: Job, request: Request, wanted: Mapping[str, tuple[int, int]]
    ) -> tuple[dict[str, int], dict[str, int]]:
        """Units missing in the pool, and below the project's borrowing limit, per type that lacks any."""
        overdue = self._held_by(job)
        largest = {} if overdue is None else self._asked_first[job.project_id]
        if self._is_plain(job.project_id):
            missing = {}
            for resource in sorted({*wanted, *largest}) if largest else wanted:
                amount, first = wanted.get(resource, (0, 0))
                lacking = self._shortfalls[resource].missing(amount, max(first, largest.get(resource, 0)))
                if lacking > 0:
                    missing[resource] = lacking
            return missing, {}
        front = self._front.get(job.project_id) or _InFront()
        if not self._policy.rules(job.project_id).fifo:
            return self._lacking_for(job, request, wanted, front.asked, largest)
        largest = dict(front.largest)
        for other in self._outside.get(job.project_id, ()):
            if self._user_order.place(other) < self._user_order.place(job):
                for resource, amount in amounts_of(other.demand):
                    largest[resource] = max(largest.get(resource, 0), amount)
        missing, over = self._lacking_for(job, request, wanted, front.asked, largest)
        if front.impossible and (missing or over):
            # That much more might let impossible jobs in front compete, and no job passes them.
            for other in front.impossible:
                for resource, amount in amounts_of(other.demand):
                    largest[resource] = max(largest.get(resource, 0), amount)
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
        for resource in sorted({*wanted, *largest}):
            amount, first = wanted.get(resource, (0, 0))
            # What others do not lend must stay free, unless the job is within its own project's share.
            kept = 0 if own or not amount else self._ledger.unlent(project, resource)
            lacking = self._shortfalls[resource].missing(amount + kept, max(first, largest.get(resource, 0)))
            if lacking > 0:
                missing[resource] = lacking
            limit = self._limit(project, resource)
            if limit is not None and (lacking := limit.missing(amount, largest.get(resource, 0))) > 0:
                over[resource] = lacking
        return missing, over

    def backing_off(self, job: Job) -> Decision:
        request, backoff = Request.of(job), backoff_reason(job)
        shares, project = self._ledger.shares, job.project_id
        lent = shares.permits(project, request.amounts) and self._ledger.leaves_unlent(project, request)
        fits = self._ledger.fits_now(request) and (lent or shares.covers(project, request.amounts))
        if fits and not self._before(job) and self._held_by(job) is None:
            reason = backoff
        else:
            reason = self._reason(job, request)
            reason = replace(
                reason,
                also=(*reason.also, backoff.code),
                unblock=f"{reason.unblock}, and {backoff.unblock}",
            )
        return Decision(name=job.name, verdict=Verdict.WAIT, reason=reason)

    def _wait(self, job: Job, reason: Reason, *, slots: bool) -> Decision:
        self._explained[slots] += 1
        self._explained_in[job.project_id] += 1
        return Decision(
            name=job.name,
            verdict=Verdict.WAIT,
            reason=reason,
            position=self._explained[slots],
            position_in_project=self._explained_in[job.project_id],
        )

    def _reason(self, job: Job, request: Request) -> Reason:
        case = self._cases.of(job, request)
        slots = self._slots_missing(request)
        missing, over = self._missing(job, request, case.wanted)
        text = case.text
        for resource in missing:
            shortfall = self._shortfalls[resource]
            if shortfall.jobs:
                asks = "asks" if shortfall.jobs == 1 else "ask"
                text += f"; {count_jobs(shortfall.jobs)} ahead of it {asks} for {shortfall.units} {resource}"
        first = "" if self._is_plain(job.project_id) else self._before(job)
        overdue = None if first else self._held_by(job)
        if overdue is None:
            code, also, holders = case.code, case.also, case.holders
            condition = case.unblock
            if slots:
                ends = more_slots(slots, self._own_ends(request, slots), request.user)
                condition = f"{ends}, and either {condition}" if condition else ends
            unblock = self._unblock(case, condition, missing)
        else:
            code, also, holders = ReasonCode.BEHIND_HIGHER_PRIORITY, (), (overdue.name,)
            text, unblock = behind_overdue(overdue.name, text), starts(overdue.name, self._within_pool(missing))
        reason = Reason(
            code=code,
            message=text,
            since=waiting_since(job),
            holders=holders,
            unblock=unblock,
            also=also,
            missing=missing,
            over_limit=over or NOTHING,
            slots=slots,
        )
        if first:
            return behind_first(reason, job.project_id, first, self._within_pool(missing))
        return self._at_limit(reason, job.project_id, over) if over and overdue is None else reason

    def _within_pool(self, missing: Mapping[str, int]) -> Mapping[str, int]:
        """`missing`, or nothing if less is in use, since that much can never become free."""
        taken = self._ledger.taken
        return missing if all(units <= taken[resource] for resource, units in missing.items()) else NOTHING

    def _unblock(self, case: Case, condition: str, missing: Mapping[str, int]) -> str:
        """The condition with what is missing; a condition that ends with a space already has its conjunction."""
        if not missing:
            return condition
        more = more_free(missing)
        jobs = max(self._shortfalls[resource].jobs for resource in missing)
        if self._within_pool(missing):
            if case.reserved_until and not jobs:
                more = f"the reservation ends at {case.reserved_until}, or {more}"
        elif jobs:  # they run one after the other
            more = f"{count_jobs(jobs)} ahead of it {'starts and ends' if jobs == 1 else 'start and end'}"
        elif until := self._cases.reservations_end(missing):
            reserved = self._cases.reserved
            extra = {
                resource: units - reserved(resource)
                for resource, units in missing.items()
                if units > reserved(resource)
            }
            more = f"the reservation ends at {until}" + (f" and {more_free(extra)}" if extra else "")
        whole = condition and not condition.endswith(" ")
        return f"{condition}, and {more}" if whole else condition + more

    def _slots_missing(self, request: Request) -> int:
        """Slots its user lacks, after all jobs ahead that wait for a slot took theirs."""
        if self._ledger.slots is None or self._ledger.has_slot(request):
            return 0
        ahead = self._slots_ahead
        held = self._ledger.slots_of[request.user] + ahead[request.user]
        return ahead.total() + held + 1 - self._ledger.slots

    def _own_ends(self, request: Request, slots: int) -> int:
        """How many of the user's own jobs there must end instead: each frees a slot and lowers the user's count."""
        own = (slots + 1) // 2
        return own if own <= self._ledger.slots_of[request.user] else 0

    def _before(self, job: Job) -> str:
        """FIFO: the job of its project that must start first; empty if none."""
        if not self._policy.rules(job.project_id).fifo:
            return ""
        place = self._user_order.place(job)
        outside = [other for other in self._outside.get(job.project_id, ()) if self._user_order.place(other) < place]
        if outside:
            return min(outside, key=self._user_order.place).name
        front = self._front.get(job.project_id)
        if front is None or front.first is None or self._user_order.place(front.first) > place:
            return ""
        return front.first.name

    def _held_by(self, job: Job) -> Job | None:
        """The overdue job of its project that this one may not pass."""
        overdue = self._overdue.get(job.project_id)
        return None if overdue is None or job.priority <= overdue.priority else overdue

    def _at_limit(self, reason: Reason, project: str, over: Mapping[str, int]) -> Reason:
        shares = self._ledger.shares
        parts, raised = [], []
        for resource, amount in over.items():
            limit, own = shares.limit(project, resource) or 0, shares.entitlement(project, resource)
            shortfall, ordered = self._limits[project, resource], shares.ordered(project, resource)
            parts.append(
                f"project {project} can use at most {limit} {resource} (share {own}, borrowing_limit {limit - own}) "
                f"and is using {shares.held(project, resource)}"
                + (f", with {ordered} promised to its waiting jobs" if ordered else "")
                + (f"; its jobs ahead ask for {shortfall.units}" if shortfall.units else "")
            )
            raised.append(f"{amount} {resource}")
        unblock = f"jobs of project {project} release {' and '.join(raised)}, or an admin raises its "
        unblock += f"borrowing_limit by {' and '.join(raised)}"
        unblock += f"; and {more_free(reason.missing)}" if reason.missing else ""
        return replace(
            reason,
            code=ReasonCode.WAITING_FOR_PROJECT_SHARE,
            message=f"{reason.message}; {'; '.join(parts)}",
            holders=self._cases.holding(next(iter(over)), project) or reason.holders,
            unblock=unblock,
            also=(ReasonCode.WAITING_FOR_POOL,) if reason.missing else (),
        )

    def _lacking(self, request: Request) -> bool:
        return not (self._ledger.now.fits(request.amounts) and self._ledger.later.fits(request.amounts))
