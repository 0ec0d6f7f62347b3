"""Reference policies: first come first served, hard private quotas, and the rule of AXLearn's Bastion."""

from __future__ import annotations

import heapq
from dataclasses import replace

from scheduler.simulation.replay.replay import Replay
from scheduler.simulation.replay.trace import Window


class Fifo:
    """One queue for all projects, oldest job first; no job passes another."""

    time_dependent = False

    def decide(self, replay: Replay, /) -> None:
        starting, free = [], replay.free
        for index in heapq.merge(*replay.pending.values()):
            job = replay.trace[index]
            if job.chips > free:
                break
            free -= job.chips
            starting.append(job.trace.name)
        for name in starting:
            replay.start(name)


class Static:
    """Hard private quotas without borrowing: each project's jobs in order, whatever fits (`private_window`)."""

    time_dependent = False

    def decide(self, replay: Replay, /) -> None:
        for project, pending in replay.pending.items():
            for index in [*pending]:
                unused = replay.window.entitlements[project] - replay.held[project]
                if unused <= 0:
                    break
                if replay.trace[index].chips <= unused:
                    replay.start(replay.trace[index].trace.name)


class Greedy:
    """The rule of AXLearn's Bastion: reassign the whole pool at each tick, and stop jobs that get nothing.

    Next is the project with the least (granted + its next job) / share, then the older job. Jobs that do not fit wait.
    """

    time_dependent = False

    def decide(self, replay: Replay, /) -> None:
        pool, shares, jobs = replay.window.pool, replay.window.shares, replay.trace
        queues = {p: [*heapq.merge(replay.pending[p], sorted(replay.running[p]))] for p in replay.pending}
        granted = dict.fromkeys(queues, 0)
        place = dict.fromkeys(queues, 0)
        heap: list[tuple[float, int, str]] = []
        for project, queue in queues.items():
            if queue:
                heap.append((_part(jobs[queue[0]].chips, shares[project]), queue[0], project))
        heapq.heapify(heap)
        free, admitted = pool, set()
        while heap and free > 0:
            _, index, project = heapq.heappop(heap)
            if jobs[index].chips <= free:
                free -= jobs[index].chips
                granted[project] += jobs[index].chips
                admitted.add(index)
            place[project] += 1
            if place[project] < len(queues[project]):
                following = queues[project][place[project]]
                rank = _part(granted[project] + jobs[following].chips, shares[project])
                heapq.heappush(heap, (rank, following, project))
        running = {index for indices in replay.running.values() for index in indices}
        for index in sorted(running - admitted):
            replay.evict(jobs[index].trace.name)
        for index in sorted(admitted - running):
            replay.start(jobs[index].trace.name)


def private_window(window: Window) -> Window:
    """The window without the jobs that no private quota could run."""
    kept = [job for job in window.jobs if job.chips <= window.entitlements[job.project]]
    return replace(window, jobs=kept)


def _part(chips: int, share: float) -> float:
    return chips / share if share else float("inf")
