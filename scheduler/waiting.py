"""The pending jobs of a project in order, grouped by what they ask.

Layer: `scheduler`, pure. Ten thousand jobs ask for a handful of sizes. A pass only ever looks at the first job of each
size, so its cost follows what it starts, not what waits.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from typing import NamedTuple

from scheduler.capacity import Amounts, amounts_of
from scheduler.model import Job
from scheduler.turns import Place


class Request(NamedTuple):
    """What a job asks for; equal requests get equal answers."""

    amounts: Amounts
    on_bastion: bool

    @staticmethod
    def of(job: Job) -> Request:
        return Request(amounts_of(job.demand), job.on_bastion)


class ProjectQueue:
    """One project's pending jobs.

    Attributes:
        oldest: When the oldest of the jobs that it began with was queued; settles ties between projects.
    """

    def __init__(self, jobs: Sequence[Job], place: Callable[[Job], Place], *, fifo: bool = False) -> None:
        """`fifo`: only the job in front may be taken by `first` and `heads`."""
        self.oldest = min(job.queued_at for job in jobs)
        self._place = place
        self._fifo = fifo
        self._barrier: Place | None = None
        self._lines: dict[Request, deque[tuple[Place, Job]]] = {}
        for key, job in sorted((place(job), job) for job in jobs):
            self._lines.setdefault(Request.of(job), deque()).append((key, job))

    def first(self, acceptable: Callable[[Request], bool]) -> tuple[Request, Job] | None:
        """The first job in order whose request is acceptable."""
        best: tuple[Place, Job] | None = None
        best_request: Request | None = None
        for request, line in self._front() if self._fifo else self._lines.items():
            if (best is None or line[0][0] < best[0]) and acceptable(request):
                best, best_request = line[0], request
        if best is None or best_request is None:
            return None
        return best_request, best[1]

    def heads(self) -> list[tuple[Request, Job]]:
        """The first job of each request."""
        return [(request, line[0][1]) for request, line in (self._front() if self._fifo else self._lines.items())]

    def hold_behind(self, job: Job) -> None:
        """In a queue in which nobody passes: `job` is not in it, and nobody behind it may be taken."""
        place = self._place(job)
        self._barrier = place if self._barrier is None else min(self._barrier, place)

    def remove_first(self, request: Request) -> None:
        """Takes out the first job with that request."""
        line = self._lines[request]
        line.popleft()
        if not line:
            del self._lines[request]

    def remove(self, job: Job) -> None:
        """Takes out that job."""
        request = Request.of(job)
        line = self._lines[request]
        line.remove((self._place(job), job))
        if not line:
            del self._lines[request]

    def candidates(self) -> list[Job]:
        """The jobs that may start before others of the queue: all of them, or where nobody passes the one in front."""
        return [line[0][1] for _, line in self._front()] if self._fifo else self.remaining()

    def remaining(self) -> list[Job]:
        """All jobs, in order."""
        return [job for _, job in sorted(entry for line in self._lines.values() for entry in line)]

    def _front(self) -> list[tuple[Request, deque[tuple[Place, Job]]]]:
        """The line of the job in front, if nobody outside the queue is before it."""
        if not self._lines:
            return []
        request, line = min(self._lines.items(), key=lambda entry: entry[1][0][0])
        return [(request, line)] if self._barrier is None or line[0][0] < self._barrier else []
