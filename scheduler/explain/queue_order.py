"""The queue order: the order in which waiting jobs would start if the pool grew.

First jobs within their project's share, the least served project first; then jobs that borrow
(`scheduler.decide.lending`); last those beyond their project's limits. A project without rules of its own borrows in an
order independent of other projects, so its jobs are sorted once; only projects are compared job by job.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterator, Mapping

from quota import Policy
from scheduler.decide.lending import BorrowKey, LendingKey, borrow_key, first_borrower
from scheduler.decide.project_queue import ProjectQueue, Request
from scheduler.decide.shares import Shares, Standing
from scheduler.decide.user_order import UserOrder, order_across
from scheduler.model import Job

Queued = tuple[str, Request, Job]


def queue_order(
    queues: Mapping[str, ProjectQueue], shares: Shares, policy: Policy, user_order: UserOrder
) -> Iterator[Queued]:
    """All jobs of the queues, with project and request. Empties the queues."""
    lines: list[_SortedLine | _WeighedLine] = []
    owners = []
    for number, (project, queue) in enumerate(queues.items()):
        rules = policy.rules(project)
        strict = rules.fifo or bool(rules.borrowing_limit)
        line = (_WeighedLine if strict else _SortedLine)(project, queue, shares, user_order)
        lines.append(line)
        owners.append((line.standing.rank(), queue.oldest, project, number))
    heapq.heapify(owners)
    while owners:
        _, oldest, project, number = heapq.heappop(owners)
        line = lines[number]
        found = line.queue.first(line.covers)
        if found is not None:
            request, job = found
            line.queue.remove_first(request)
            line.standing.grant(request.amounts)
            yield project, request, job
            heapq.heappush(owners, (line.standing.rank(), oldest, project, number))

    heads = []
    for number, line in enumerate(lines):
        if line.advance():
            heads.append((line.key, number))
    heapq.heapify(heads)
    while heads:
        line = lines[heads[0][1]]
        yield line.project, line.request, line.job
        if line.advance():
            heapq.heapreplace(heads, (line.key, heads[0][1]))
        else:
            heapq.heappop(heads)
    for line in lines:
        if isinstance(line, _WeighedLine):
            line.lift_limits()
            while line.advance():
                yield line.project, line.request, line.job


class _Line:
    """One project's jobs in order: the current `job`, its `request`, and its `key` among all projects."""

    key: LendingKey
    request: Request
    job: Job

    def __init__(self, project: str, queue: ProjectQueue, shares: Shares, user_order: UserOrder) -> None:
        self.project = project
        self.queue = queue
        self.standing = Standing(shares, project)
        self._user_order = user_order

    def covers(self, request: Request) -> bool:
        return self.standing.covers(request.amounts)


class _SortedLine(_Line):
    """A project in which any job may pass any other."""

    _left: Iterator[tuple[BorrowKey, Request, Job]] | None = None

    def advance(self) -> bool:
        if self._left is None:
            place = self._user_order.place
            left = [
                (borrow_key(request, job, place(job)), request, job)
                for request, line in self.queue.left().items()
                for job in line.by_place
            ]
            left.sort()
            self._left = iter(left)
        found = next(self._left, None)
        if found is None:
            return False
        found_key, self.request, self.job = found
        self.standing.grant(self.request.amounts)
        self.key = found_key[2], found_key[3], self.standing.rank(), order_across(self.job)
        return True


class _WeighedLine(_Line):
    """A project whose rules may stop a job from starting or passing others."""

    _limited = True

    def lift_limits(self) -> None:
        self._limited = False

    def advance(self) -> bool:
        fits = self._permits if self._limited else None
        found = first_borrower(self.project, self.queue, fits, self.standing, self._user_order)
        if found is None:
            return False
        self.key, _, self.request, self.job = found
        self.queue.remove_first(self.request)
        self.standing.grant(self.request.amounts)
        return True

    def _permits(self, _project: str, request: Request) -> bool:
        return self.standing.permits(request.amounts)
