"""Delegated jobs: which are handed over to the scheduler that decides on them, Kueue.

They hold and ask for nothing here, so they neither block other jobs nor wait for them. Only their number is limited:
places are given in the order of priority and age. The last tenth of them is kept for projects that have few, so that
one project with many jobs does not keep the others out.
"""

from __future__ import annotations

import heapq
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping

from scheduler.decide.admission import backoff_reason, backs_off, waiting_since
from scheduler.decide.user_order import order_across
from scheduler.model import Decision, Job, Reason, ReasonCode, Verdict


class Handover:
    """What one pass does with the waiting delegated jobs.

    Args:
        submitted: Number of those that were handed over, by project.
        submitted_most: How many may be at once.

    Attributes:
        starting: Those that it hands over, in order.
        backing_off: Those that must not start yet.
        behind: Those that are too many, in any order.
    """

    def __init__(self, waiting: Iterable[Job], submitted: Mapping[str, int], submitted_most: int, now: float) -> None:
        ready: list[Job] = []
        self.backing_off: list[Job] = []
        for job in waiting:
            (self.backing_off if backs_off(job, now) else ready).append(job)
        self._most = submitted_most
        self._kept = submitted_most // 10
        self._few = max(1, submitted_most // 100)
        self._counts = Counter(submitted)
        self._total = sum(submitted.values())
        chosen = heapq.nsmallest(max(0, submitted_most - self._kept - self._total), ready, key=order_across)
        self._count(chosen)
        chosen += self._of_small_projects(ready, {job.name for job in chosen})
        self.starting = sorted(chosen, key=order_across)
        started = {job.name for job in chosen}
        self.behind = [job for job in ready if job.name not in started]

    def _of_small_projects(self, ready: Iterable[Job], started: set[str]) -> list[Job]:
        """Give the kept places."""
        chosen: list[Job] = []
        rest = (job for job in ready if self._counts[job.project_id] < self._few and job.name not in started)
        for job in sorted(rest, key=order_across) if self._total < self._most else ():
            if self._total < self._most and self._counts[job.project_id] < self._few:
                self._count([job])
                chosen.append(job)
        return chosen

    def _count(self, jobs: Iterable[Job]) -> None:
        for job in jobs:
            self._counts[job.project_id] += 1
            self._total += 1

    @property
    def full(self) -> bool:
        """Whether only jobs of projects that have few could still be handed over, if any."""
        return self._total >= self._most - self._kept

    def idle(self) -> bool:
        """Whether it did nothing, and time changes nothing."""
        return not (self.starting or self.backing_off)

    def starts(self) -> Iterator[Decision]:
        for job in self.starting:
            yield Decision(name=job.name, verdict=Verdict.START, message="Kueue decides when it runs")

    def waits(self) -> Iterator[Decision]:
        counts = Counter(self._counts)
        for ahead, job in enumerate(sorted(self.behind, key=order_across)):
            small = counts[job.project_id] < self._few
            counts[job.project_id] += 1
            yield Decision(name=job.name, verdict=Verdict.WAIT, reason=self._too_many(job, ahead, small=small))
        for job in sorted(self.backing_off, key=order_across):
            yield Decision(name=job.name, verdict=Verdict.WAIT, reason=backoff_reason(job))

    def _too_many(self, job: Job, ahead: int, *, small: bool) -> Reason:
        """`small`: its project has few, also when those of its jobs that go first are submitted."""
        kept = "" if small or self._total >= self._most else f", {self._kept} of them kept for projects with few"
        first = f"; {ahead} waiting job{'s go' if ahead > 1 else ' goes'} first" if ahead else ""
        ends = ahead + 1 + max(0, self._total - (self._most if small else self._most - self._kept))
        return Reason(
            code=ReasonCode.TOO_MANY_SUBMITTED,
            message=f"Kueue already has {self._total} jobs of this bastion; at most {self._most} are "
            f"submitted at once{kept}{first}",
            since=waiting_since(job),
            unblock=f"{ends} of the submitted jobs end{'s' if ends == 1 else ''}",
        )
