"""A project's pending jobs in order, grouped by request.

Ten thousand jobs ask for a handful of sizes. A pass looks only at the first job of each size, so its cost follows what
it starts, not what waits.

Invariant: a `Line` is never changed, only replaced. A queue stays valid whatever later passes do.
"""

from __future__ import annotations

from bisect import insort
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from scheduler.decide.capacity import Amounts, amounts_of
from scheduler.decide.user_order import Place
from scheduler.model import Job

# Up to this many new jobs are inserted one by one; for more, sorting is faster.
_FEW = 16


# Evicted running time from which a job counts as long.
LONG_SECONDS = 7200.0


class Request(NamedTuple):
    """What a job asks for; equal requests get equal answers.

    Attributes:
        long: Was evicted after hours of running. Such a job borrows after the others, so it has a line of its own.
        user: Who takes the slot, for a job on the bastion's own host; else empty.
    """

    amounts: Amounts
    on_bastion: bool
    long: bool = False
    user: str = ""

    @staticmethod
    def of(job: Job) -> Request:
        user = job.user_id if job.on_bastion else ""
        return Request(amounts_of(job.demand), job.on_bastion, job.evicted_seconds >= LONG_SECONDS, user)


@dataclass(frozen=True, slots=True)
class Line:
    """Jobs of one project with the same request, in their project's order and by age."""

    by_place: Sequence[Job] = ()
    by_age: Sequence[Job] = ()

    def changed(self, gone: Collection[str], come: Sequence[Job], place: Callable[[Job], Place]) -> Line:
        """The line without the names `gone` and with the jobs `come`; `place` is its sort key."""
        return Line(_changed(self.by_place, gone, come, place), _changed(self.by_age, gone, come, age))

    def sorted_anew(self, place: Callable[[Job], Place]) -> Line:
        return Line(sorted(self.by_place, key=place), self.by_age)


def age(job: Job) -> tuple[float, str]:
    return job.queued_at, job.name


def _changed(
    jobs: Sequence[Job],
    gone: Collection[str],
    come: Sequence[Job],
    key: Callable[[Job], Place] | Callable[[Job], tuple[float, str]],
) -> list[Job]:
    left = [job for job in jobs if job.name not in gone] if gone else list(jobs)
    if len(come) <= _FEW:
        for job in come:
            insort(left, job, key=key)
    else:
        left += come
        left.sort(key=key)
    return left


class ProjectQueue:
    """One project's pending jobs, for one pass.

    `oldest`: when the oldest of the initial jobs was queued; breaks ties between projects. `overdue`: the job that jobs
    of a lower priority may not pass.
    """

    def __init__(
        self,
        lines: Mapping[Request, Line],
        place: Callable[[Job], Place],
        *,
        extra_jobs: Sequence[Job],
        fifo: bool,
        overdue: Job | None = None,
    ) -> None:
        """The lines and `extra_jobs` hold at least one job in all. `fifo`: only the job in front starts."""
        self._place = place
        self.overdue = overdue
        self._fifo = fifo
        self._barrier: Place | None = None
        self._lines = dict(lines)
        for job in extra_jobs:
            request = Request.of(job)
            self._lines[request] = self._lines.get(request, Line()).changed((), (job,), place)
        self.oldest = min(line.by_age[0].queued_at for line in self._lines.values())
        # Index of the first job of each line that is not taken.
        self._at = dict.fromkeys(self._lines, 0)

    def first(self, acceptable: Callable[[Request], bool]) -> tuple[Request, Job] | None:
        best: tuple[Place, Request, Job] | None = None
        for request, job in self.heads():
            if acceptable(request):
                place = self._place(job)
                if best is None or place < best[0]:
                    best = place, request, job
        return None if best is None else (best[1], best[2])

    def heads(self) -> list[tuple[Request, Job]]:
        heads = [(request, line.by_place[self._at[request]]) for request, line in self._lines.items()]
        if self.overdue is not None:
            heads = [head for head in heads if not self.may_not_pass(head[1])]
        if not self._fifo or not heads:
            return heads
        front = min(heads, key=lambda head: self._place(head[1]))
        return [front] if self._barrier is None or self._place(front[1]) < self._barrier else []

    def may_not_pass(self, job: Job) -> bool:
        return self.overdue is not None and job.priority > self.overdue.priority

    def priorities(self) -> int:
        """How many different priorities its jobs have; exact for one, else at least two."""
        ends = (job.priority for line in self._lines.values() for job in (line.by_place[0], line.by_place[-1]))
        return len({*ends})

    def block_behind(self, job: Job) -> None:
        """FIFO: no job behind `job`, which is outside this queue, may be taken."""
        place = self._place(job)
        self._barrier = place if self._barrier is None else min(self._barrier, place)

    def remove_first(self, request: Request) -> None:
        if self.overdue is not None and self._lines[request].by_place[self._at[request]].name == self.overdue.name:
            self.overdue = None
        self._at[request] += 1
        if self._at[request] == len(self._lines[request].by_place):
            del self._lines[request], self._at[request]

    def remove(self, job: Job) -> None:
        request = Request.of(job)
        line, at = self._lines[request], self._at[request]
        if line.by_place[at].name == job.name:
            self.remove_first(request)
        else:
            self._lines[request] = line.changed((job.name,), (), self._place)
            if self.overdue is not None and job.name == self.overdue.name:
                self.overdue = None

    def candidates(self) -> list[tuple[Request, Iterable[Job]]]:
        """The jobs that may start before others of the queue, by request and age; FIFO: the job in front."""
        if self._fifo:
            return [(request, (job,)) for request, job in self.heads()]
        return [(request, self._that_may_pass(line)) for request, line in self.left().items()]

    def _that_may_pass(self, line: Line) -> Iterable[Job]:
        if not self.may_not_pass(line.by_place[-1]):
            return line.by_age
        if self.may_not_pass(line.by_place[0]):
            return ()
        return (job for job in line.by_age if not self.may_not_pass(job))

    def requests(self) -> Collection[Request]:
        return self._lines.keys()

    def left(self) -> dict[Request, Line]:
        return {request: self._line_left(request) for request in self._lines}

    def _line_left(self, request: Request) -> Line:
        line, at = self._lines[request], self._at[request]
        return line.changed({job.name for job in line.by_place[:at]}, (), self._place) if at else line
