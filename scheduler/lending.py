"""Who gets idle capacity first, and how much of it is held back for a moment.

Layer: `scheduler`, pure. Small jobs first: of what is lent they give most back soon, and many of them fit where one
large job does not. A job that was evicted after hours of running goes behind those that were not, since it will run
for hours again. Among equals the project that would hold least of its share, then its oldest job.

Inside a project nobody passes a job of a higher priority, or of a user who used less, that would fit as well.

What a project never lends (`lending_limit`) stays free for it, and no project borrows beyond its `borrowing_limit`.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Mapping

from quota import Policy
from scheduler.model import Job, JobStatus
from scheduler.shares import Shares, Standing
from scheduler.turns import Place, Turns, order_across
from scheduler.waiting import ProjectQueue, Request


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
                for kind, amount in job.owned.items():
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


# Where a job stands among those that borrow, least first: unique.
LendingKey = tuple[bool, int, tuple[bool, float], tuple[int, float, str]]
Borrower = tuple[LendingKey, str, Request, Job]


def first_borrower(
    project: str,
    queue: ProjectQueue,
    fits: Callable[[str, Request], bool] | None,
    standing: Standing,
    turns: Turns,
) -> Borrower | None:
    """The job of a project that idle capacity would go to first, and where it stands among those of other projects.

    Of those that fit, the ones of the highest priority; of these the least served user's; of these the smallest.

    Args:
        fits: Whether what the project's job asks can be lent to the project now; None: everything can.
        standing: The project's.
    """
    best: tuple[TurnToBorrow, Request, Job] | None = None
    for request, job in queue.heads():
        if fits is None or fits(project, request):
            key = turn_to_borrow(request, job, turns.place(job))
            if best is None or key < best[0]:
                best = key, request, job
    if best is None:
        return None
    _, request, job = best
    return (request.long, size(job), standing.rank(request.amounts), order_across(job)), project, request, job


TurnToBorrow = tuple[int, int, bool, int, Place]


def turn_to_borrow(request: Request, job: Job, place: Place) -> TurnToBorrow:
    """When a job borrows, among those of its project; `request` is the job's, and `place` its place there."""
    return place[0], place[1], request.long, size(job), place


def size(job: Job) -> int:
    """The most units of a type that it asks for. Not a part of the pool: a pool that grows must not turn the queue."""
    demand = job.demand
    if len(demand) == 1:  # nearly every job
        (amount,) = demand.values()
        return max(amount, 0)
    return max(demand.values(), default=0)


def held_back(policy: Policy, shares: Shares, recently: Mapping[str, Mapping[str, int]]) -> dict[tuple[str, str], int]:
    """Units per project and type that it gave back a moment ago and is entitled to: they are not lent yet."""
    held: dict[tuple[str, str], int] = {}
    for project, kinds in recently.items():
        for kind, most in kinds.items():
            back = min(policy.entitlement(project, kind), most) - shares.held(project, kind)
            if back > 0:
                held[project, kind] = back
    return held
