"""The recall: evict borrowers to free capacity for overdue jobs (`scheduler.decide.deadline`).

One overdue job per pass: the oldest for which enough borrowers can be evicted together. Until then no capacity is
drained or kept idle for it.

Units within a project's own share are not loans. If only these block an overdue job, lower-priority jobs of its project
may no longer pass it, so the share drains. Jobs of equal priority still pass: in a project that asks for more than it
gets, all would otherwise wait behind one large job after another (docs/adr/0010).
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Mapping

from scheduler.decide.capacity import Amounts
from scheduler.decide.deadline import TOO_LONG, is_overdue, overdue_since
from scheduler.decide.elastic import given_back, reclaimable, take_back
from scheduler.decide.incumbents import Incumbents
from scheduler.decide.ledger import Ledger
from scheduler.decide.project_queue import Line, ProjectQueue, Request, age
from scheduler.decide.shares import Shares
from scheduler.decide.victims import Victims
from scheduler.model import Job


class Recall:
    def __init__(
        self,
        now: float,
        ledger: Ledger,
        shares: Shares,
        victims: Victims,
        incumbents: Incumbents,
        queues: Mapping[str, ProjectQueue],
        block_behind: Callable[[Job], None],
    ) -> None:
        """`block_behind` is called with each job that leaves its project's queue to wait for a promise."""
        self._now = now
        self._since = overdue_since(now)
        self._ledger = ledger
        self._shares = shares
        self._victims = victims
        self._incumbents = incumbents
        self._queues = queues
        self._block_behind = block_behind

    def protect_overdue_jobs(self) -> None:
        """Set `overdue` of every queue: the job that lower-priority jobs of its project may not pass.

        This is a job that could start if its project held nothing within its share. Holding the project back would not
        help a job that other projects' shares block.
        """
        for queue in self._queues.values():
            if queue.oldest <= self._since and queue.priorities() > 1:
                queue.overdue = self._job_not_to_pass(queue)

    def _job_not_to_pass(self, queue: ProjectQueue) -> Job | None:
        found = []
        for request, line in queue.left().items():
            job = self._first_overdue(line)
            if job is not None:
                found.append((job.priority, age(job), request, job))
        found.sort()  # ages are unique
        for _, _, request, job in found:
            if self._would_fit_alone(job.project_id, request):
                return job
        return None

    def _first_overdue(self, line: Line) -> Job | None:
        highest, found = line.by_place[0].priority, None
        for job in line.by_age:
            if job.queued_at > self._since or (found is not None and found.priority == highest):
                break
            if (found is None or job.priority < found.priority) and is_overdue(job, self._shares, self._now):
                found = job
        return found

    def _would_fit_alone(self, project: str, request: Request) -> bool:
        """Whether the job could start or get victims now if its project held nothing within its share."""
        if not self._ledger.has_slot(request) or not self._shares.permits(project, request.amounts):
            return False
        lacking = {
            resource: amount - min(self._shares.held(project, resource), self._shares.entitlement(project, resource))
            for resource, amount in self._ledger.later.lacking(request.amounts).items()
        }
        lacking = {resource: amount for resource, amount in lacking.items() if amount > 0}
        _, remaining = given_back(reclaimable(self._ledger, self._incumbents.elastic), lacking)
        return not remaining or self._victims.for_recall(remaining, self._waiting_requests) is not None

    def for_the_oldest(self) -> bool:
        """Start, or evict borrowers for, the one job that has waited longest past the deadline; all or nothing.

        Jobs that no eviction could help now are skipped. Returns whether jobs of its project may pass that could not
        before.
        """
        lines = [
            (request, iter(jobs))
            for queue in self._queues.values()
            if queue.oldest <= self._since
            for request, jobs in queue.candidates()
        ]
        by_age_heap: list[tuple[tuple[float, str], int, Job]] = []

        def put_first_of(place: int) -> None:
            job = next(lines[place][1], None)
            if job is not None:
                heapq.heappush(by_age_heap, (age(job), place, job))

        # Of jobs with equal requests only the first matters, unless it is not overdue again yet.
        for place in range(len(lines)):
            put_first_of(place)
        hopeless: set[Request] = set()
        while by_age_heap and by_age_heap[0][0][0] <= self._since:
            _, place, job = heapq.heappop(by_age_heap)
            request = lines[place][0]
            if request in hopeless or not self._shares.permits(job.project_id, request.amounts):
                continue
            queue = self._queues[job.project_id]
            if not is_overdue(job, self._shares, self._now):
                put_first_of(place)
            elif self._free_capacity(job, request):
                before = queue.overdue
                queue.remove(job)
                return before is not queue.overdue
            elif self._may_ever_fit(request):
                return False
            else:
                hopeless.add(request)
        return False

    def _free_capacity(self, job: Job, request: Request) -> bool:
        if not self._ledger.has_slot(request):
            return False
        if self._ledger.fits_now(request):
            message = f"has waited for {TOO_LONG}"
            self._ledger.start(job, request, message)
            return True
        lacking = self._ledger.later.lacking(request.amounts)
        replicas, remaining = given_back(reclaimable(self._ledger, self._incumbents.elastic), lacking)
        victims = self._victims.for_recall(remaining, self._waiting_requests) if remaining else ()
        if victims is None:
            return False
        take_back(self._ledger, replicas, victims, job, lacking)
        for victim in victims:
            message = (
                f"frees capacity for {job.name} of project {job.project_id}, which has waited for {TOO_LONG}; "
                f"project {victim.project_id} is using more than its share"
            )
            self._victims.evict(self._ledger, victim, job, message)
        self._ledger.promise(job, request)
        self._block_behind(job)
        return True

    def _may_ever_fit(self, request: Request) -> bool:
        if not self._ledger.has_slot(request):
            return False
        lacking = self._ledger.later.lacking(request.amounts)
        _, lacking = given_back(reclaimable(self._ledger, self._incumbents.elastic), lacking)
        return not lacking or self._victims.for_recall(lacking, self._waiting_requests, include_spared=True) is not None

    def _waiting_requests(self, project: str) -> list[Amounts]:
        queue = self._queues.get(project)
        return [request.amounts for request in queue.requests()] if queue is not None else []
