"""One pass: `schedule(snapshot, now) -> Plan`.

Layer: `scheduler`, pure. The steps, each of which only adds to what the ones before decided:

1. Admission: jobs that no capacity could help are set aside, each with its reason.
2. Promises: room that earlier passes ordered is kept for whom it was ordered, and they start once it is free.
3. Owners: projects in order of what they hold; a job within its project's entitlement starts on free capacity, or
   else on what is being freed, or else borrowers are evicted for it, enough and no more.
4. Lending: what is left goes to any job that fits, projects in the same order, except those that await their own.
   Within a project, smaller jobs may pass one that does not fit, unless its rules say `fifo`.
5. Reasons for all who wait.

Invariants: nothing is over-committed; nothing starts beyond its project's borrowing limit; no job of a project at or
under its entitlement is evicted; incumbents run on; every waiting job has exactly one reason; a second pass over the
outcome changes nothing.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable

from quota import Policy
from scheduler.admission import Admission, waiting_since
from scheduler.capacity import amounts_of
from scheduler.explaining import Explainer
from scheduler.ledger import Ledger
from scheduler.lending import held_back, next_borrower
from scheduler.model import Decision, Job, JobStatus, Plan, Reason, Snapshot, Verdict
from scheduler.recall import is_overdue
from scheduler.shares import Shares
from scheduler.turns import Turns, order_across
from scheduler.usage import pool_usages, project_usages
from scheduler.victims import Victims
from scheduler.waiting import ProjectQueue, Request


def schedule(snapshot: Snapshot, now: float) -> Plan:
    """Decides what becomes of every job of the snapshot.

    Args:
        snapshot: The jobs, their names unique, and the quota in force.
        now: The present instant, in seconds since the epoch.

    Returns:
        A decision for every job. The same arguments give the same plan, whatever the order of the jobs.

    Raises:
        ValueError: two jobs have the same name.
    """
    if len({job.name for job in snapshot.jobs}) != len(snapshot.jobs):
        raise ValueError("two jobs of the snapshot have the same name; names identify jobs")
    return _Pass(snapshot, now).plan()


class _Pass:
    def __init__(self, snapshot: Snapshot, now: float) -> None:
        self._now = now
        self._policy = snapshot.policy or Policy(tiers=(), weights={}, members={})
        self._shares = Shares(self._policy)
        self._order = Turns(self._policy, snapshot.user_usage)
        self._ledger = Ledger.of(snapshot, self._shares)
        self._incumbents = sorted(
            (job for job in snapshot.jobs if job.status is not JobStatus.PENDING),
            key=lambda job: (job.started_at or 0.0, job.name),
        )
        self._victims = Victims(self._policy, self._shares, self._ledger.running.values(), now, self._order)
        self._held_recently = snapshot.held_recently
        self._refused: list[tuple[Job, Reason]] = []
        self._too_large: list[Job] = []
        self._beyond: list[tuple[Job, Reason]] = []
        self._backing_off: list[Job] = []
        self._queues: dict[str, ProjectQueue] = {}
        self._promised_jobs: dict[str, Job] = {}
        self._jobs_by_name = {job.name: job for job in snapshot.jobs}
        self._admit(snapshot)

    def plan(self) -> Plan:
        self._keep_promises()
        self._serve_owners()
        self._recall()
        if self._ledger.evictions:
            self._renew_promises()
        self._lend()
        impossible = {job.name for job, _ in (*self._refused, *self._beyond)} | {job.name for job in self._too_large}
        return Plan(
            decisions=(*self._incumbent_decisions(), *self._start_decisions(), *self._waiting_decisions()),
            projects=project_usages(self._policy, self._jobs_by_name.values(), self._ledger.starts, impossible),
            pool=pool_usages(self._policy, self._ledger.taken),
        )

    # Step 1

    def _admit(self, snapshot: Snapshot) -> None:
        admission = Admission(snapshot, self._now)
        competing: dict[str, list[Job]] = {}
        for job in sorted((job for job in snapshot.jobs if job.status is JobStatus.PENDING), key=self._order.place):
            reason = admission.refusal(job)
            if reason is not None:
                self._refused.append((job, reason))
            elif admission.exceeds_pool(job):
                self._too_large.append(job)
            elif (beyond := admission.beyond_project(job)) is not None:
                self._beyond.append((job, beyond))
            elif admission.backs_off(job):
                self._backing_off.append(job)
            elif job.promised or job.name in self._ledger.leaving_for:
                self._promised_jobs[job.name] = job
            else:
                competing.setdefault(job.project_id, []).append(job)
        self._competing = competing

    # Step 2

    def _keep_promises(self) -> None:
        # Whose room the last pass kept comes first, the oldest claim before the newer ones; a job that only has victims
        # on their way may have lost its claim.
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
            if not self._promise_if_it_fits(job):  # the pool has changed since; it competes like anybody
                self._competing.setdefault(job.project_id, []).append(job)
        # Only now, so that none of them takes what was freed for another; those whose victims are all gone first.
        for job in sorted(claimants, key=lambda job: job.name in self._ledger.leaving_for):
            if job.name in self._ledger.promises:
                request = Request.of(job)
                self._ledger.unpromise(job, request)
                if self._ledger.claim_fits_now(job, request):
                    message = f"the room ordered for it is free{self._holding(job, request)}"
                    self._ledger.start(job, request, message, claimed=True)
                else:
                    self._ledger.promise(job, request)
        self._queues = {
            project: ProjectQueue(jobs, self._order.place, fifo=self._policy.rules(project).fifo)
            for project, jobs in sorted(self._competing.items())
        }
        for job in (*self._backing_off, *(promise.job for promise in self._ledger.promises.values())):
            self._hold_behind(job)

    def _hold_behind(self, job: Job) -> None:
        """The job waits outside its project's queue; nobody passes it where the rules say so."""
        queue = self._queues.get(job.project_id)
        if queue is not None:
            queue.hold_behind(job)

    def _within_share(self, claimants: list[Job]) -> list[Job]:
        """The claims that a project's entitlement could cover together; after a cut of its quota the rest lapse.

        What the project's running jobs hold is left aside: some of it may be borrowed, and be lent to it only since.
        """
        claimed = Shares(self._policy)
        valid = []
        for job in claimants:
            request = Request.of(job)
            covered = claimed.covers(job.project_id, request.amounts) or is_overdue(job, self._shares, self._now)
            # The ceiling counts what runs: it may have been lowered since.
            if covered and self._shares.under_ceiling(
                job.project_id, request.amounts, claimed.all_held(job.project_id)
            ):
                claimed.hold(job.project_id, request.amounts)
                valid.append(job)
            else:
                self._competing.setdefault(job.project_id, []).append(job)
        return valid

    def _promise_if_it_fits(self, job: Job) -> bool:
        request = Request.of(job)
        fits = self._ledger.has_slot(request) and self._ledger.later.fits(request.amounts)
        if fits:
            self._ledger.promise(job, request)
        return fits

    def _renew_promises(self) -> None:
        """Evictions may have brought more than their claims need: enough for a claim that step 2 had to drop."""
        for job in self._promised_jobs.values():
            waits = job.name not in self._ledger.promises and job.name not in self._ledger.starts
            if waits and not self._ledger.fits_now(Request.of(job)) and self._promise_if_it_fits(job):
                self._queues[job.project_id].remove(job)
                self._hold_behind(job)

    # Step 3

    def _serve_owners(self) -> None:
        # Claims that no eviction could help; any eviction may change that.
        hopeless: set[tuple[str, Request]] = set()

        def acceptable(project: str) -> Callable[[Request], bool]:
            return lambda request: (
                (project, request) not in hopeless
                and self._shares.covers(project, request.amounts)
                and self._ledger.has_slot(request)
            )

        turns = self._turns()
        while turns:
            project = self._next_turn(turns)
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
                # A project whose borrower goes may be an owner now.
                turns = self._turns()
            else:
                heapq.heappush(turns, self._turn(project))

    def _serve_owner(self, job: Job, request: Request) -> tuple[Job, ...] | None:
        """Starts the job or makes room for it; returns whom that evicts, or None if it cannot be done."""
        if self._ledger.fits_now(request):
            self._ledger.start(job, request, f"within its project's share{self._holding(job, request)}")
            return ()
        lacking = self._ledger.later.lacking(request.amounts)
        victims = self._victims.choose(lacking)
        for victim in victims or ():
            self._evict(victim, job, self._eviction_message(victim, job, lacking))
        if victims is not None:
            self._ledger.promise(job, request)
            self._hold_behind(job)
        return victims

    # Step 4

    def _recall(self) -> None:
        """Makes room for the one job that has waited longest beyond the deadline, all at once or not at all."""
        overdue = [
            job
            for queue in self._queues.values()
            for job in queue.candidates()
            if is_overdue(job, self._shares, self._now) and self._shares.permits(job.project_id, amounts_of(job.demand))
        ]
        if not overdue:
            return
        job = min(overdue, key=lambda job: (job.queued_at, job.name))
        request = Request.of(job)
        if not self._ledger.has_slot(request):
            return
        if not self._ledger.fits_now(request):
            lacking = self._ledger.later.lacking(request.amounts)
            victims = self._victims.choose(lacking, spared_too=False) if lacking else ()
            if victims is None:
                return
            for victim in victims:
                self._evict(victim, job, self._recall_message(victim, job))
            if victims or lacking == {}:
                self._ledger.promise(job, request)
                self._hold_behind(job)
        else:
            self._ledger.start(job, request, f"has waited for more than a day{self._holding(job, request)}")
        self._queues[job.project_id].remove(job)

    def _evict(self, victim: Job, claimant: Job, message: str) -> None:
        self._victims.forget(victim)
        self._ledger.evict(victim, claimant, message)

    # Step 5

    def _lend(self) -> None:
        # Their own job is about to get its room; lent to them now, the same room would no longer be within their share.
        awaiting = self._ledger.awaiting_projects()
        back = held_back(self._policy, self._shares, self._held_recently)
        self._ledger.hold_back(back)
        while True:
            found = next_borrower(self._queues, awaiting, self._may_borrow, self._shares, self._order)
            if found is None:
                return
            request, job = found
            self._queues[job.project_id].remove_first(request)
            self._ledger.start(job, request, f"borrows idle capacity{self._holding(job, request)}")

    def _may_borrow(self, project: str, request: Request) -> bool:
        return (
            self._ledger.fits_now(request)
            and self._shares.permits(project, request.amounts)
            and self._ledger.leaves_unlent(project, request)
        )

    def _turn(self, project: str) -> tuple[tuple[bool, float], float, str]:
        return (self._shares.rank(project), self._queues[project].oldest, project)

    def _turns(self) -> list[tuple[tuple[bool, float], float, str]]:
        """The projects as a heap, the least served first; among equals the one with the oldest job."""
        turns = [self._turn(project) for project in self._queues]
        heapq.heapify(turns)
        return turns

    def _next_turn(self, turns: list[tuple[tuple[bool, float], float, str]]) -> str:
        return heapq.heappop(turns)[2]

    # Step 6

    def _waiting_decisions(self) -> list[Decision]:
        explainer = Explainer(self._policy, self._ledger, self._order, self._backing_off)
        # In the order in which they were made, claims first.
        promised = sorted(self._ledger.promises.values(), key=lambda promise: not promise.claim)
        waiting = {project: queue.remaining() for project, queue in self._queues.items()}
        decisions = explainer.queue(promised, waiting, self._too_large, self._beyond)
        decisions += [explainer.backing_off(job) for job in self._backing_off]
        decisions += [Decision(name=job.name, verdict=Verdict.WAIT, reason=reason) for job, reason in self._refused]
        return decisions

    def _incumbent_decisions(self) -> list[Decision]:
        decisions = []
        for job in self._incumbents:
            verdict, evicted_for = Verdict.KEEP, None
            if job.status is JobStatus.STOPPING:
                verdict, evicted_for = Verdict.STOPPING, job.evicted_for
            elif job.name in self._ledger.evictions:
                verdict, evicted_for = Verdict.EVICT, self._ledger.evictions[job.name]
            message = self._ledger.messages.get(job.name, "")
            decisions.append(
                Decision(name=job.name, verdict=verdict, tier=job.tier, evicted_for=evicted_for, message=message)
            )
        return decisions

    def _start_decisions(self) -> list[Decision]:
        return [
            Decision(name=name, verdict=Verdict.START, tier=tier, message=self._ledger.messages[name])
            for name, tier in self._ledger.starts.items()
        ]

    def _holding(self, job: Job, request: Request) -> str:
        shares, project = self._shares, job.project_id
        parts = [
            f"{shares.held(project, kind) + amount} of its {shares.entitlement(project, kind)} {kind}"
            for kind, amount in request.amounts
        ]
        return f"; with it project {project} holds {' and '.join(parts)}" if parts else ""

    def _recall_message(self, victim: Job, claimant: Job) -> str:
        return (
            f"makes room for {claimant.name} of project {claimant.project_id}, which has waited for more than a day; "
            f"project {victim.project_id} holds more than it is entitled to"
        )

    def _eviction_message(self, victim: Job, claimant: Job, lacking: dict[str, int]) -> str:
        parts = [
            f"holds {self._shares.held(victim.project_id, kind)} {kind} and is entitled to "
            f"{self._shares.entitlement(victim.project_id, kind)}"
            for kind, _ in amounts_of(victim.charged)
            if kind in lacking
        ]
        return (
            f"makes room for {claimant.name} of project {claimant.project_id}, which is within its share; "
            f"project {victim.project_id} {' and '.join(parts)}"
        )
