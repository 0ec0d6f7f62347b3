"""Who gets idle capacity first, and how much of it is held back for a moment.

Layer: `scheduler`, pure. Small jobs first: of what is lent they give most back soon, and many of them fit where one
large job does not. A job that was evicted after hours of running goes behind those that were not, since it will run
for hours again. Among equals the project that would hold least of its share, then its oldest job.

Inside a project nobody passes a job of a higher priority, or of a user who used less, that would fit as well.

What a project never lends (`lending_limit`) stays free for it, and no project borrows beyond its `borrowing_limit`.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from types import MappingProxyType

from quota import Policy
from scheduler.decide.shares import Shares, Standing
from scheduler.decide.user_order import Place, UserOrder, order_across
from scheduler.decide.waiting_jobs import ProjectQueue, Request
from scheduler.model import Job, JobStatus, RecentUnits

NOTHING_HELD: Mapping[str, Mapping[str, RecentUnits]] = MappingProxyType({})
NO_SECONDS: Mapping[str, float] = MappingProxyType({})
# What a restart is taken to cost where nobody has measured one, and the most that a project's units are kept for
# unless its rules say otherwise. In the replays a restart costs so much, and the figures of ADR 10 were found with it.
RESTART_SECONDS = 300.0


class RecentHoldings:
    """Remembers, over passes, the most that each project held at once within its `keep_idle_seconds`."""

    def __init__(self, before: Mapping[str, Mapping[str, RecentUnits]] = NOTHING_HELD) -> None:
        """`before`: what an earlier `note` returned; what its jobs hold now is noted anew."""
        # Per project and type: until when they count, and units. The units fall: the front is the greatest of late.
        self._seen: dict[tuple[str, str], deque[tuple[float, int]]] = {}
        for project, resource_types in before.items():
            for resource, steps in resource_types.items():
                self._seen[project, resource] = deque(step for step in steps if step[0] < math.inf)

    def note(
        self, jobs: Iterable[Job], now: float, policy: Policy, restart_seconds: Mapping[str, float] = NO_SECONDS
    ) -> Mapping[str, Mapping[str, RecentUnits]]:
        """Takes in who runs now; returns what `Snapshot.held_recently` wants.

        Args:
            jobs: All jobs.
            now: Seconds, on the same clock as the snapshot's instants.
            policy: The quota file in force.
            restart_seconds: By type, what a restart costs; used where a project's rules name no `keep_idle_seconds`.
        """
        held: dict[tuple[str, str], int] = {}
        for job in jobs:
            if job.status is JobStatus.RUNNING:
                for resource, amount in job.owned.items():
                    place = (job.project_id, resource)
                    held[place] = held.get(place, 0) + amount
        most: dict[str, dict[str, RecentUnits]] = {}
        for place in sorted({*self._seen, *held}):
            line = self._seen.setdefault(place, deque())
            units = held.get(place, 0)
            while line and line[-1][1] <= units:
                line.pop()
            keep = policy.rules(place[0]).keep_idle_seconds
            if keep is None:
                keep = min(restart_seconds.get(place[1], RESTART_SECONDS), RESTART_SECONDS)
            if line and line[-1][0] > now + keep:  # noted when more was kept, or for longer
                line = self._seen[place] = deque((min(until, now + keep), held) for until, held in line)
            line.append((now + keep, units))
            while line[0][0] < now:
                line.popleft()
            if line[0][1]:
                steps = (*(step for step in line if step[1] > units), (math.inf, units))
                most.setdefault(place[0], {})[place[1]] = steps
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
    user_order: UserOrder,
) -> Borrower | None:
    """The job of a project that idle capacity would go to first, and where it stands among those of other projects.

    Of those that fit, the ones of the highest priority; of these the least served user's; of these the smallest.

    Args:
        fits: Whether what the project's job asks can be lent to the project now; None: everything can.
        standing: The project's.
    """
    best: tuple[BorrowKey, Request, Job] | None = None
    for request, job in queue.heads():
        if fits is None or fits(project, request):
            key = borrow_key(request, job, user_order.place(job))
            if best is None or key < best[0]:
                best = key, request, job
    if best is None:
        return None
    _, request, job = best
    return (request.long, size(job), standing.rank(request.amounts), order_across(job)), project, request, job


BorrowKey = tuple[int, int, bool, int, Place]


def borrow_key(request: Request, job: Job, place: Place) -> BorrowKey:
    """When a job borrows, among those of its project; `request` is the job's, and `place` its place there."""
    return place[0], place[1], request.long, size(job), place


def size(job: Job) -> int:
    """The most units of a type that it asks for. Not a part of the pool: a pool that grows must not turn the queue."""
    demand = job.demand
    if len(demand) == 1:  # nearly every job
        (amount,) = demand.values()
        return max(amount, 0)
    return max(demand.values(), default=0)


@dataclass(frozen=True, slots=True)
class KeptBack:
    """Units of one type that are not lent yet, and until when at least some of them are not."""

    units: int
    until: float


def held_back(
    policy: Policy,
    shares: Shares,
    recently: Mapping[str, Mapping[str, RecentUnits]],
    now: float,
    could_use: Callable[[str, str], bool],
) -> dict[tuple[str, str], KeptBack]:
    """What each project gave back a moment ago and is entitled to, by project and type: it is not lent yet.

    Args:
        policy: The quota file in force.
        shares: What the projects hold, with the starts of this pass.
        recently: `Snapshot.held_recently`.
        now: The instant of the pass.
        could_use: Whether a job of the project, one that waits or may still come, could start on units of the type.
    """
    held: dict[tuple[str, str], KeptBack] = {}
    for project, resource_types in recently.items():
        for resource, steps in resource_types.items():
            entitled, holds = policy.entitlement(project, resource), shares.held(project, resource)
            live = [step for step in steps if step[0] >= now]
            back = min(entitled, live[0][1]) - holds if live else 0
            if back > 0 and could_use(project, resource):
                # Steps above the entitlement end unseen.
                until = max(until for until, units in live if min(entitled, units) - holds == back)
                held[project, resource] = KeptBack(back, until)
    return held
