"""Who gets idle capacity first, and how much of it is held back for a moment.

Layer: `scheduler`, pure. Small jobs first: of what is lent they give most back soon, and many of them fit where one
large job does not. A job that was evicted after hours of running goes behind those that were not, since it will run
for hours again. Among equals the project that would hold least of its share, then its oldest job.

Inside a project nobody passes a job of a higher priority, or of a user who used less, that would fit as well.

What a project never lends (`lending_limit`) stays free for it, and no project borrows beyond its `borrowing_limit`.
"""

from __future__ import annotations

import functools
import heapq
from collections import deque
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence

from quota import Policy
from scheduler.model import Job, JobStatus
from scheduler.shares import Shares
from scheduler.turns import Place, Turns, order_across
from scheduler.waiting import ProjectQueue, Request

# An evicted job that has run so long is taken for a long one.
LONG_SECONDS = 7200.0


class RecentHoldings:
    """Remembers, over passes, the most that each project held at once within its `keep_idle_seconds`."""

    def __init__(self) -> None:
        # Per project and type: instants and units, both falling from the front: the front is the greatest of late.
        self._seen: dict[tuple[str, str], deque[tuple[float, int]]] = {}

    def note(self, jobs: Iterable[Job], now: float, policy: Policy) -> Mapping[str, Mapping[str, int]]:
        """Takes in who runs now; returns what `Snapshot.held_recently` wants."""
        held: dict[tuple[str, str], int] = {}
        for job in jobs:
            if job.status is JobStatus.RUNNING:
                for kind, amount in job.charged.items():
                    place = (job.project_id, kind)
                    held[place] = held.get(place, 0) + amount
        most: dict[str, dict[str, int]] = {}
        for place in sorted({*self._seen, *held}):
            line = self._seen.setdefault(place, deque())
            units = held.get(place, 0)
            while line and line[-1][1] <= units:
                line.pop()
            line.append((now, units))
            keep = policy.rules(place[0]).keep_idle_seconds
            while line[0][0] < now - keep:
                line.popleft()
            if line[0][1]:
                most.setdefault(place[0], {})[place[1]] = line[0][1]
            else:
                del self._seen[place]
        return most


LendingKey = tuple[bool, int, tuple[bool, float], tuple[int, float, str]]


def next_borrower(
    queues: Mapping[str, ProjectQueue],
    passed_over: Collection[str],
    fits: Callable[[str, Request], bool],
    shares: Shares,
    turns: Turns,
) -> tuple[Request, Job] | None:
    """The job that idle capacity goes to; None if none of them fits.

    Args:
        passed_over: Projects that nothing is lent to now.
        fits: Whether what a project's job asks can be lent to the project now.
    """
    best: tuple[LendingKey, Request, Job] | None = None
    for project, queue in queues.items():
        if project in passed_over:
            continue
        head = _first_to_borrow(queue, functools.partial(fits, project), turns)
        if head is not None:
            key = _key(head[1], shares, {})
            if best is None or key < best[0]:
                best = key, *head
    return None if best is None else (best[1], best[2])


def queue_order(waiting: Mapping[str, Sequence[Job]], shares: Shares, policy: Policy, turns: Turns) -> list[Job]:
    """All waiting jobs in the order in which they would start if the pool grew.

    First those within their project's share, the least served project first; then those that borrow; at last those for
    which their project would have to hold more than it may.
    """
    queues = {
        project: ProjectQueue(jobs, turns.place, fifo=policy.rules(project).fifo)
        for project, jobs in sorted(waiting.items())
        if jobs
    }
    granted: dict[str, dict[str, int]] = {project: {} for project in queues}
    order: list[Job] = []

    def take(project: str, request: Request, job: Job) -> None:
        queues[project].remove_first(request)
        for kind, amount in request.amounts:
            granted[project][kind] = granted[project].get(kind, 0) + amount
        order.append(job)

    def covered(project: str) -> Callable[[Request], bool]:
        return lambda request: shares.covers(project, request.amounts, granted[project])

    owners = [(shares.rank(project), queue.oldest, project) for project, queue in queues.items()]
    heapq.heapify(owners)
    while owners:
        _, oldest, project = heapq.heappop(owners)
        found = queues[project].first(covered(project))
        if found is not None:
            take(project, *found)
            heapq.heappush(owners, (shares.rank(project, granted[project]), oldest, project))

    borrowers: list[tuple[LendingKey, str, Request, Job]] = []

    def permitted(project: str) -> Callable[[Request], bool] | None:
        if not policy.rules(project).borrowing_limit:
            return None
        return lambda request: shares.permits(project, request.amounts, granted[project])

    def line_up(project: str) -> None:
        head = _first_to_borrow(queues[project], permitted(project), turns)
        if head is not None:
            heapq.heappush(borrowers, (_key(head[1], shares, granted[project]), project, *head))

    for project in queues:
        line_up(project)
    while borrowers:
        _, project, request, job = heapq.heappop(borrowers)
        take(project, request, job)
        line_up(project)
    for project, queue in queues.items():
        while (head := _first_to_borrow(queue, None, turns)) is not None:
            take(project, *head)
    return order


def _first_to_borrow(
    queue: ProjectQueue, fits: Callable[[Request], bool] | None, turns: Turns
) -> tuple[Request, Job] | None:
    """Of one project's jobs that fit, those of the highest priority; of these the least served user's; the smallest."""
    best: tuple[tuple[int, float, bool, int, Place], Request, Job] | None = None
    for request, job in queue.heads():
        if fits is None or fits(request):
            place = turns.place(job)
            key = place[0], place[1], _is_long(job), _size(job), place
            if best is None or key < best[0]:
                best = key, request, job
    return None if best is None else (best[1], best[2])


def _key(job: Job, shares: Shares, granted: Mapping[str, int]) -> LendingKey:
    """The place of a job among those that borrow, least first."""
    holdings = dict(job.demand)
    for kind, amount in granted.items():
        holdings[kind] = holdings.get(kind, 0) + amount
    return _is_long(job), _size(job), shares.rank(job.project_id, holdings), order_across(job)


def _is_long(job: Job) -> bool:
    return job.evicted_seconds >= LONG_SECONDS


def _size(job: Job) -> int:
    """The most units of a type that it asks for. Not a part of the pool: a pool that grows must not turn the queue."""
    return max(job.demand.values(), default=0)


def held_back(policy: Policy, shares: Shares, recently: Mapping[str, Mapping[str, int]]) -> dict[tuple[str, str], int]:
    """Units per project and type that it gave back a moment ago and is entitled to: they are not lent yet."""
    held: dict[tuple[str, str], int] = {}
    for project, kinds in recently.items():
        for kind, most in kinds.items():
            back = min(policy.entitlement(project, kind), most) - shares.held(project, kind)
            if back > 0:
                held[project, kind] = back
    return held
