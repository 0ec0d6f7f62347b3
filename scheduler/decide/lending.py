"""Who borrows idle capacity first, and how much is kept back for a while.

Small jobs first: most of them return their loans soon, and they fit where a large job does not. A job that was evicted
after hours of running comes last: it will run for hours again. Ties: the project that would hold least of its share,
then its oldest job.

Inside a project no job passes one of a higher priority, or of a user with less usage, that would fit as well. What a
project does not lend (`lending_limit`) stays free for it. No project borrows beyond its `borrowing_limit`.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from types import MappingProxyType

from quota import Policy
from scheduler.decide.project_queue import ProjectQueue, Request
from scheduler.decide.shares import Shares, Standing
from scheduler.decide.user_order import Place, UserOrder, order_across
from scheduler.model import Job, JobStatus, RecentUnits

NOTHING_HELD: Mapping[str, Mapping[str, RecentUnits]] = MappingProxyType({})
NO_SECONDS: Mapping[str, float] = MappingProxyType({})
# The assumed cost of a restart without a measurement, and the longest time that units are kept unless the rules say
# otherwise. The replays and the figures of ADR 10 use this cost.
RESTART_SECONDS = 300.0


class RecentHoldings:
    """The most that each project held at once within its `keep_idle_seconds`, over passes."""

    def __init__(self, before: Mapping[str, Mapping[str, RecentUnits]] = NOTHING_HELD) -> None:
        """`before`: what an earlier `note` returned."""
        # Per project and type: (counts until, units), units descending.
        self._seen: dict[tuple[str, str], deque[tuple[float, int]]] = {}
        for project, resource_types in before.items():
            for resource, steps in resource_types.items():
                self._seen[project, resource] = _line(steps)

    def note(
        self, jobs: Iterable[Job], now: float, policy: Policy, restart_seconds: Mapping[str, float] = NO_SECONDS
    ) -> Mapping[str, Mapping[str, RecentUnits]]:
        """Record what runs now and return `Snapshot.held_recently`.

        `restart_seconds`: by type, for projects without `keep_idle_seconds`. `now`: on the clock of the snapshot.
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
            if line and line[-1][0] > now + keep:  # recorded under a longer `keep`
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


def _line(steps: RecentUnits) -> deque[tuple[float, int]]:
    """The steps in order of time, with descending units: others may have written them, and `note` clears in order."""
    line: deque[tuple[float, int]] = deque()
    for until, units in sorted(step for step in steps if step[0] < math.inf):
        while line and line[-1][1] <= units:
            line.pop()
        line.append((until, units))
    return line


# A job's place among those that borrow, lowest first; unique.
LendingKey = tuple[bool, int, tuple[bool, float], tuple[int, float, str]]
Borrower = tuple[LendingKey, str, Request, Job]


def first_borrower(
    project: str,
    queue: ProjectQueue,
    fits: Callable[[str, Request], bool] | None,
    standing: Standing,
    user_order: UserOrder,
) -> Borrower | None:
    """The project's job that borrows first, with its place among those of other projects.

    Of the jobs that fit: those of the highest priority; of these the least served user's; of these the smallest.
    `fits`: whether the project can borrow that request now; None: always.
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
    """The order in which jobs of one project borrow; `place` is the job's `UserOrder.place`."""
    return place[0], place[1], request.long, size(job), place


def size(job: Job) -> int:
    """The most units of one type that the job asks for. In units, because a growing pool must not reorder the queue."""
    demand = job.demand
    if len(demand) == 1:  # nearly every job
        (amount,) = demand.values()
        return max(amount, 0)
    return max(demand.values(), default=0)


@dataclass(frozen=True, slots=True)
class KeptBack:
    units: int
    # At least some of the units are kept until this instant.
    until: float


def held_back(
    policy: Policy,
    shares: Shares,
    recently: Mapping[str, Mapping[str, RecentUnits]],
    now: float,
    could_use: Callable[[str, str], bool],
) -> dict[tuple[str, str], KeptBack]:
    """What each project gave back recently and is entitled to, by project and type; it is not lent yet.

    `could_use(project, type)`: whether a job of the project, waiting or yet to come, could start on such units.
    """
    held: dict[tuple[str, str], KeptBack] = {}
    for project, resource_types in recently.items():
        for resource, steps in resource_types.items():
            entitled, holds = policy.entitlement(project, resource), shares.held(project, resource)
            live = [step for step in steps if step[0] >= now]
            back = min(entitled, live[0][1]) - holds if live else 0
            if back > 0 and could_use(project, resource):
                # Steps above the entitlement do not matter.
                until = max(until for until, units in live if min(entitled, units) - holds == back)
                held[project, resource] = KeptBack(back, until)
    return held
