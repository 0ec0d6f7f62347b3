"""Synthetic jobs to benchmark the scheduler: projects of different weights, jobs of many shapes, a full pool."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Mapping
from dataclasses import replace

from quota import Policy
from scheduler import Job, JobStatus, Plan, Snapshot, Verdict

_RESOURCE_TYPES = ("v4", "v5e")
_SIZES = (8, 16, 32, 64, 128, 256)
# Cumulative percentages of the sizes but the last.
_BORDERS = (52, 72, 84, 92, 97)
_USERS_PER_PROJECT = 20
_TICK_SECONDS = 10.0
_DAY_SECONDS = 86_400.0


class SyntheticLoad:
    """Waiting and running jobs; `now` is the instant of the next decision."""

    def __init__(self, *, pending: int, projects: int, running: int, draw: Callable[[], float], chain: int = 1) -> None:
        """`running` jobs fill the pool, `pending` more wait. `draw` gives uniform numbers in [0, 1).

        `chain`: Of so many waiting jobs, each awaits the one before it.
        """
        self.now = 30 * _DAY_SECONDS
        self._draw = draw
        self._number = 0
        self._projects = [f"project-{number}" for number in range(projects)]
        self._shapes: dict[tuple[str, int], Mapping[str, int]] = {
            (resource, size): {resource: size} for resource in _RESOURCE_TYPES for size in _SIZES
        }
        self._jobs: dict[str, Job] = {}
        self._chain = 1
        # By job, the one that awaits it.
        self._next: dict[str, str] = {}
        for _ in range(running):
            self._run(self._new_job(age=7 * _DAY_SECONDS))
        totals = dict.fromkeys(_RESOURCE_TYPES, _SIZES[-1])
        for resource in _RESOURCE_TYPES:
            totals[resource] = max(totals[resource], sum(job.charged.get(resource, 0) for job in self._jobs.values()))
        self._policy = Policy(
            tiers=(totals,),
            weights={
                project: dict.fromkeys(_RESOURCE_TYPES, 1.0 + number % 4)
                for number, project in enumerate(self._projects)
            },
            members={project: (f"user-{number}-[0-9]+",) for number, project in enumerate(self._projects)},
        )
        self._chain = chain
        for _ in range(pending):
            self._add(self._new_job(age=2 * _DAY_SECONDS))

    def snapshot(self) -> Snapshot:
        return Snapshot(policy=self._policy, jobs=(*self._jobs.values(),))

    def step(self, plan: Plan, *, changes: int) -> None:
        """Apply the plan; `changes` jobs each come, end and are cancelled; a tick passes. Evicted jobs wait again."""
        for decision in plan.acting:
            if decision.verdict is Verdict.START:
                self._run(self._jobs[decision.name])
            elif decision.verdict is Verdict.EVICT:
                job = self._jobs[decision.name]
                self._add(replace(job, status=JobStatus.PENDING, tier=None, charged={}, started_at=None))
        self.now += _TICK_SECONDS
        for status in (JobStatus.RUNNING, JobStatus.PENDING):
            names = [name for name, job in self._jobs.items() if job.status is status]
            for _ in range(min(changes, len(names))):
                place = int(self._draw() * len(names))
                names[place], names[-1] = names[-1], names[place]
                self._end(names.pop())
        for _ in range(2 * changes):
            self._add(self._new_job(age=0.0))

    def _add(self, job: Job) -> None:
        self._jobs[job.name] = job

    def _end(self, name: str) -> None:
        del self._jobs[name]
        following = self._next.pop(name, "")
        if following in self._jobs:
            self._add(replace(self._jobs[following], after=()))

    def _run(self, job: Job) -> None:
        started = self.now - (self.now - job.queued_at) * self._draw()
        self._add(replace(job, status=JobStatus.RUNNING, tier=0, charged=job.demand, started_at=started))

    def _new_job(self, *, age: float) -> Job:
        self._number += 1
        project = int(self._draw() ** 1.5 * len(self._projects))  # some ask more than others
        user = int(self._draw() * _USERS_PER_PROJECT)
        size = _SIZES[bisect_right(_BORDERS, self._draw() * 100)]
        resource = _RESOURCE_TYPES[self._draw() < 0.3]
        name, before = f"job-{self._number:07d}", f"job-{self._number - 1:07d}"
        awaits = self._number % self._chain != 0 and before in self._jobs
        if awaits:
            self._next[before] = name
        return Job(
            name=name,
            project_id=self._projects[project],
            user_id=f"user-{project}-{user}",
            priority=1 + int(self._draw() * 5),
            queued_at=self.now - age * self._draw(),
            demand=self._shapes[resource, size],
            after=(before,) if awaits else (),
        )
