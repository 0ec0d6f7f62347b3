"""One pass over a snapshot.

Each step only adds to the decisions of the steps before:

1. Admission: set aside jobs that no capacity could help, and those that await other jobs, with a reason.
2. Promises: keep capacity ordered by earlier passes for its claimants, and start them once it is free.
3. Owners: projects by what they hold, the least served first. A job within its project's entitlement starts on free
   capacity, or on capacity that is being freed; else extra replicas are taken back and borrowers evicted.
4. Lending: give what is left to any job that fits, small jobs first (`decide.lending`); a project that awaits capacity
   does not borrow. Inside a project smaller jobs may pass one that does not fit, unless the rules say `fifo`, or it is
   overdue and has a higher priority.
5. Priorities: in projects with a minimum runtime, waiting jobs replace lower-priority ones within the share.
6. Elastic jobs get what is left as extra replicas.
7. Reasons for all waiting jobs, on demand.

Jobs that another scheduler decides on are handed over beside all that (`decide.delegation`).

Invariants: no over-commit; no start beyond its project's borrowing limit; no eviction of a job of a project at or under
its entitlement; running jobs keep running; exactly one reason per waiting job; a second pass over the outcome changes
nothing.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Mapping

from scheduler.decide.admission import backs_off, waiting_since
from scheduler.decide.capacity import amounts_of
from scheduler.decide.deadline import is_overdue, overdue_since
from scheduler.decide.delegation import Handover
from scheduler.decide.elastic import given_back, lend_replicas, reclaimable, take_back
from scheduler.decide.ledger import Ledger
from scheduler.decide.lending import Borrower, first_borrower, held_back
from scheduler.decide.memory import Remembered
from scheduler.decide.project_queue import ProjectQueue, Request
from scheduler.decide.recall import Recall
from scheduler.decide.shares import Shares, Standing
from scheduler.decide.totals import pool_usages, project_usages
from scheduler.decide.user_order import UserOrder, order_across
from scheduler.decide.victims import Victims
from scheduler.explain.waits import Explainer
from scheduler.model import Decision, Job, Plan, ProjectUsage, Snapshot, Verdict


class Pass:
    """One pass; `plan` runs steps 1 to 6, and the plan computes step 7 when someone reads it."""

    def __init__(self, remembered: Remembered, snapshot: Snapshot, now: float) -> None:
        self._now = now
        self._snapshot = snapshot
        self._admission = remembered.admission
        self._policy = policy = remembered.admission.policy
        self._incumbents = remembered.incumbents
        self._jobs_by_name = remembered.jobs
        self._shares = Shares(policy, remembered.incumbents.held)
        self._user_order = UserOrder(policy, snapshot.user_usage)
        self._ledger = Ledger.of(remembered.incumbents, policy, snapshot.bastion_slots, self._shares)
        self._victims = Victims(policy, self._shares, remembered.incumbents.running_of, now, self._user_order)
        backlog = remembered.backlog
        backlog.settle(now, self._user_order, self._ledger.leaving_for, remembered.jobs, self._shares)
        self._lines = dict(backlog.lines)
        self._promised_jobs = dict(backlog.claimants)
        self._backing_off = tuple(sorted(backlog.backing_off.values(), key=order_across))
        # Jobs that no free capacity could start.
        self._over_ceiling = tuple(backlog.over_ceiling.values())
        self._too_large = tuple(backlog.too_large.values())
        self._refused = tuple(backlog.refused.values())
        self._dependent = tuple(backlog.dependent.values())
        self._impossible = frozenset({*backlog.refused, *backlog.too_large, *backlog.over_ceiling})
        self._handover = Handover(
            backlog.delegated.values(), remembered.incumbents.delegated, snapshot.submitted_most, now
        )
        # Jobs whose claim lapsed; they compete like any other.
        self._lapsed: dict[str, list[Job]] = {}
        self._queues: dict[str, ProjectQueue] = {}

    def plan(self) -> Plan:
        self._keep_promises()
        recall = Recall(
            self._now, self._ledger, self._shares, self._victims, self._incumbents, self._queues, self._block_behind
        )
        recall.protect_overdue_jobs()
        self._serve_owners()
        if recall.for_the_oldest():
            self._serve_owners()
        if self._ledger.evictions or self._ledger.resized:
            self._renew_promises()
        self._lend()
        self._respect_priorities()
        lend_replicas(self._ledger, self._jobs_by_name)
        promises = self._ledger.promises.values()
        return Plan(
            acting=(*self._incumbent_decisions(), *self._start_decisions(), *self._handover.starts()),
            evicted=(*self._ledger.evictions,),
            promised=frozenset(promise.job.name for promise in promises if promise.claim),
            impossible=self._impossible,
            pool=pool_usages(self._policy, self._ledger.taken),
            explain=self._waiting_decisions,
            measure=self._project_usages,
        )

    def still_holds(self, snapshot: Snapshot, now: float) -> bool:
        """Whether the plan also holds for `snapshot`, given unchanged jobs; "no" costs a pass.

        True only if the plan did nothing and no job waits for a certain instant.
        """
        before, ledger = self._snapshot, self._ledger
        waits_for_time = (
            now < self._now  # a clock that went back
            or self._backing_off
            or not self._handover.idle()
            or any(queue.oldest <= overdue_since(now) for queue in self._queues.values())
            or any(self._policy.rules(project).minimum_runtime_seconds for project in self._queues)
            # Reasons of impossible jobs, and of those that await others, mention a backoff, too.
            or any(backs_off(job, self._now) for job in (*self._refused, *self._over_ceiling, *self._dependent))
        )
        return (
            not (ledger.starts or ledger.evictions or ledger.resized or ledger.promises or waits_for_time)
            and snapshot.bastion_slots == before.bastion_slots
            and snapshot.submitted_most == before.submitted_most
            and snapshot.held_recently == before.held_recently
            and self._user_order.same_as(UserOrder(self._policy, snapshot.user_usage))
        )

    # Step 2

    def _keep_promises(self) -> None:
        # Claims of the last pass come first, the oldest first. A job that only has stopping victims may have lost its
        # claim.
        claimants = sorted(
            self._promised_jobs.values(),
            key=lambda job: (
                not job.promised,
                waiting_since(job),
                self._shares.rank(job.project_id),
                order_across(job),
            ),
        )
        claimants = self._within_share(claimants)
        self._promised_jobs = {job.name: job for job in claimants}
        self._ledger.settle_claims(self._promised_jobs)
        for job in claimants:
            if not self._promise_if_it_fits(job):  # the pool has changed since; it competes like any other
                self._lapsed.setdefault(job.project_id, []).append(job)
        # After all promises, so that no claimant takes units freed for another. Those without victims left go first.
        for job in sorted(claimants, key=lambda job: job.name in self._ledger.leaving_for):
            if job.name in self._ledger.promises:
                request = Request.of(job)
                self._ledger.unpromise(job, request)
                if self._ledger.claim_fits_now(job, request):
                    message = "the capacity reserved for it is free"
                    self._ledger.start(job, request, message, claimed=True)
                else:
                    self._ledger.promise(job, request)
        self._queues = {
            project: ProjectQueue(
                self._lines.get(project, {}),
                self._user_order.place,
                extra_jobs=self._lapsed.get(project, ()),
                fifo=self._policy.rules(project).fifo,
            )
            for project in sorted({*self._lines, *self._lapsed})
        }
        for job in (*self._backing_off, *(promise.job for promise in self._ledger.promises.values())):
            self._block_behind(job)

    def _block_behind(self, job: Job) -> None:
        """FIFO: no job of its project passes the job, which waits outside the queue."""
        queue = self._queues.get(job.project_id)
        if queue is not None:
            queue.block_behind(job)

    def _within_share(self, claimants: list[Job]) -> list[Job]:
        """The claims that a project's entitlement could cover together; after a quota cut the others lapse.

        Ignores what the project's running jobs hold, because some of it may have been lent to it since.
        """
        claimed = Shares(self._policy)
        valid = []
        for job in claimants:
            request = Request.of(job)
            covered = claimed.covers(job.project_id, request.amounts) or is_overdue(job, self._shares, self._now)
            # The ceiling counts running jobs, because it may have been lowered since.
            if covered and self._shares.under_ceiling(
                job.project_id, request.amounts, claimed.all_held(job.project_id)
            ):
                claimed.hold(job.project_id, request.amounts)
                valid.append(job)
            else:
                self._lapsed.setdefault(job.project_id, []).append(job)
        return valid

    def _promise_if_it_fits(self, job: Job) -> bool:
        request = Request.of(job)
        fits = self._ledger.has_slot(request) and self._ledger.later.fits(request.amounts)
        if fits:
            self._ledger.promise(job, request)
        return fits

    def _renew_promises(self) -> None:
        """Promise spare units of evictions to claims that step 2 had to drop."""
        for job in self._promised_jobs.values():
            waits = job.name not in self._ledger.promises and job.name not in self._ledger.starts
            if waits and not self._ledger.fits_now(Request.of(job)) and self._promise_if_it_fits(job):
                self._queues[job.project_id].remove(job)
                self._block_behind(job)

    # Step 3

    def _serve_owners(self) -> None:
        # Claims that no eviction could help now; any eviction may change that.
        hopeless: set[tuple[str, Request]] = set()

        def acceptable(project: str) -> Callable[[Request], bool]:
            return lambda request: (
                (project, request) not in hopeless
                and self._shares.covers(project, request.amounts)
                and self._ledger.has_slot(request)
            )

        owners = self._owner_heap()
        while owners:
            project = self._next_owner(owners)
            queue = self._queues[project]
            found = queue.first(acceptable(project))
            if found is None:
                continue
            request, job = found
            victims = self._serve_owner(job, request)
            if victims is None:
                hopeless.add((project, request))
            else:
                queue.remove_first(request)
            if victims:
                hopeless.clear()
                # A project that lost a borrower may be an owner now.
                owners = self._owner_heap()
            else:
                heapq.heappush(owners, self._owner_key(project))

    def _serve_owner(self, job: Job, request: Request) -> tuple[Job, ...] | None:
        """Start the job or order capacity for it; return the victims, None if neither is possible."""
        if self._ledger.fits_now(request):
            self._ledger.start(job, request, "within its project's share")
            return ()
        lacking = self._ledger.later.lacking(request.amounts)
        replicas, remaining = given_back(reclaimable(self._ledger, self._incumbents.elastic), lacking)
        victims = self._victims.for_owner(remaining) if remaining else ()
        if victims is None:
            return None
        take_back(self._ledger, replicas, victims, job, lacking)
        for victim in victims:
            self._victims.evict(self._ledger, victim, job, self._eviction_message(victim, job, lacking))
        self._ledger.promise(job, request)
        self._block_behind(job)
        return victims

    # Step 4

    def _lend(self) -> None:
        # A loan to a project with a promise would take its job out of the project's share.
        awaiting = self._ledger.awaiting_projects()
        recently = self._snapshot.held_recently
        self._ledger.hold_back(held_back(self._policy, self._shares, recently, self._now, self._could_use))
        first = {project: self._first_borrower(project) for project in self._queues if project not in awaiting}
        while True:
            # Lending only shrinks what fits.
            for project, found in first.items():
                if found is not None and not self._may_borrow(project, found[2]):
                    first[project] = self._first_borrower(project)
            best = min((found for found in first.values() if found is not None), default=None)
            if best is None:
                return
            _, project, request, job = best
            self._queues[project].remove_first(request)
            self._ledger.start(job, request, "borrows idle capacity")
            first[project] = self._first_borrower(project)

    # Step 5

    def _respect_priorities(self) -> None:
        """Let waiting jobs replace running jobs of their own project with a lower priority.

        Only where a minimum runtime bounds how often that happens, and only within the share: the next owner would
        reclaim a borrowed place.
        """
        for project, queue in self._queues.items():
            if self._policy.rules(project).minimum_runtime_seconds > 0:
                while self._replace_lower_priority(queue):
                    pass

    def _replace_lower_priority(self, queue: ProjectQueue) -> bool:
        """Start one job of the queue, or order capacity for it; return whether one could."""
        for request, job in sorted(queue.heads(), key=lambda head: self._user_order.place(head[1])):
            lacking = self._lacking_in_place(job.project_id, request)
            victims = self._victims.of_lower_priority(job, lacking) if lacking else None
            if victims is None:
                continue
            for victim in victims:
                self._victims.evict(self._ledger, victim, job, self._priority_message(victim, job))
            if self._ledger.fits_now(request):  # only its project's share or limit blocked it
                message = "replaces lower-priority jobs of its project"
                self._ledger.start(job, request, message)
            else:
                self._ledger.promise(job, request)
                self._block_behind(job)
            queue.remove_first(request)
            return True
        return False

    def _lacking_in_place(self, project: str, request: Request) -> dict[str, int]:
        """Units that its project's other jobs must give up for a job; empty if that would not help."""
        shares = self._shares
        if not self._ledger.has_slot(request):
            return {}
        lacking = self._ledger.later.lacking(request.amounts)
        for resource, amount in request.amounts:
            own, held = shares.entitlement(project, resource), shares.held(project, resource)
            ordered = shares.ordered(project, resource)
            if held > own or amount + ordered > own:
                return {}
            lacking[resource] = max(lacking.get(resource, 0), held + ordered + amount - own)
        return {resource: amount for resource, amount in lacking.items() if amount > 0}

    def _first_borrower(self, project: str) -> Borrower | None:
        standing = Standing(self._shares, project)
        return first_borrower(project, self._queues[project], self._may_borrow, standing, self._user_order)

    def _could_use(self, project: str, resource_type: str) -> bool:
        """Whether idle units kept from the project's share could serve one of its jobs.

        No if the project is on hold, or if all its waiting jobs of the type need more than its share. With no job
        waiting, one may still come.
        """
        if self._policy.rules(project).hold:
            return False
        queue = self._queues.get(project)
        waiting = [] if queue is None else [request.amounts for request, _ in queue.heads()]
        waiting += [amounts_of(job.demand) for job in self._backing_off if job.project_id == project]
        asking = [amounts for amounts in waiting if any(each == resource_type for each, _ in amounts)]
        return not asking or any(self._shares.covers(project, amounts) for amounts in asking)

    def _may_borrow(self, project: str, request: Request) -> bool:
        return (
            self._ledger.fits_now(request)
            and self._shares.permits(project, request.amounts)
            and self._ledger.leaves_unlent(project, request)
        )

    def _owner_key(self, project: str) -> tuple[tuple[bool, float], float, str]:
        return (self._shares.rank(project), self._queues[project].oldest, project)

    def _owner_heap(self) -> list[tuple[tuple[bool, float], float, str]]:
        owners = [self._owner_key(project) for project in self._queues]
        heapq.heapify(owners)
        return owners

    def _next_owner(self, owners: list[tuple[tuple[bool, float], float, str]]) -> str:
        return heapq.heappop(owners)[2]

    # Step 7

    def _waiting_decisions(self) -> tuple[Decision, ...]:
        explainer = Explainer(self._policy, self._ledger, self._user_order, self._backing_off, self._queues)
        # In the order they were made, claims first.
        promised = sorted(self._ledger.promises.values(), key=lambda promise: not promise.claim)
        over_ceiling = [(job, self._admission.project_ceiling_reason(job, self._now)) for job in self._over_ceiling]
        decisions = explainer.queue(promised, self._too_large, over_ceiling)
        decisions += [explainer.backing_off(job) for job in self._backing_off]
        decisions += self._handover.waits()
        dependents = sorted(self._dependent, key=order_across)
        decisions += explainer.dependents(dependents, self._admission, self._handover, self._now)
        for job in sorted(self._refused, key=order_across):
            reason = self._admission.refusal(job, self._now)
            decisions.append(Decision(name=job.name, verdict=Verdict.WAIT, reason=reason))
        return tuple(decisions)

    def _project_usages(self) -> Mapping[str, ProjectUsage]:
        idle = self._impossible.union(job.name for job in self._dependent)
        return project_usages(self._policy, self._jobs_by_name.values(), self._ledger, idle)

    def _incumbent_decisions(self) -> list[Decision]:
        resized, evictions = self._ledger.resized, self._ledger.evictions
        return [
            self._changed_decision(decision) if decision.name in resized or decision.name in evictions else decision
            for decision in self._incumbents.decisions()
        ]

    def _changed_decision(self, before: Decision) -> Decision:
        ledger, name = self._ledger, before.name
        resized = name in ledger.resized
        return Decision(
            name=name,
            verdict=Verdict.RESIZE if resized else Verdict.EVICT,
            tier=before.tier,
            evicted_for=(ledger.resized[name] or None) if resized else ledger.evictions[name],
            message=ledger.messages[name],
            extra=tuple(ledger.extra[name]) if resized else (),
        )

    def _start_decisions(self) -> list[Decision]:
        return [
            Decision(
                name=name,
                verdict=Verdict.START,
                tier=tier,
                message=self._ledger.messages[name],
                extra=tuple(self._ledger.extra.get(name, ())),
            )
            for name, tier in self._ledger.starts.items()
        ]

    def _priority_message(self, victim: Job, claimant: Job) -> str:
        return (
            f"frees capacity for {claimant.name} of the same project, which has a higher priority "
            f"({claimant.priority}, this job has {victim.priority})"
        )

    def _eviction_message(self, victim: Job, claimant: Job, lacking: dict[str, int]) -> str:
        parts = [
            f"is using {self._shares.held(victim.project_id, resource)} {resource} and its share is "
            f"{self._shares.entitlement(victim.project_id, resource)}"
            for resource, _ in amounts_of(victim.charged)
            if resource in lacking
        ]
        return (
            f"frees capacity for {claimant.name} of project {claimant.project_id}, which is within its share; "
            f"project {victim.project_id} {' and '.join(parts)}"
        )
