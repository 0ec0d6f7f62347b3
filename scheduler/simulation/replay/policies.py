"""Reference policies: first come first served, hard private quotas, and the ancestor's re-plan every tick."""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from dataclasses import replace

from scheduler.simulation.replay.engine import Round, State
from scheduler.simulation.replay.trace import Window


class Fifo:
    """One queue for all projects, oldest job first; no job passes another."""

    time_dependent = False

    def decide(self, state: State, _now: float, /) -> Sequence[Round]:
        start, free = [], state.free
        for index in heapq.merge(*state.pending.values()):
            chips = state.jobs[index].chips
            if chips > free:
                break
            free -= chips
            start.append(index)
        return (Round((), start),)


class Static:
    """Hard private quotas without borrowing; each project's jobs in order, whatever fits.

    Jobs above their project's quota never run: remove them with `private_window`.
    """

    time_dependent = False

    def decide(self, state: State, _now: float, /) -> Sequence[Round]:
        start = []
        for project, pending in state.pending.items():
            room = state.window.entitlements[project] - state.held[project]
            for index in pending:
                if room <= 0:
                    break
                if state.jobs[index].chips <= room:
                    room -= state.jobs[index].chips
                    start.append(index)
        return (Round((), start),)


class Greedy:
    """The ancestor's rule: reassign the whole pool every tick and stop jobs that were not admitted.

    Repeatedly the project with the least (granted + its next job) / share, then the older job; jobs that do not fit are
    passed over.
    """

    time_dependent = False

    def decide(self, state: State, _now: float, /) -> Sequence[Round]:
        pool, shares, jobs = state.window.pool, state.window.shares, state.jobs
        queues = {p: [*heapq.merge(state.pending[p], sorted(state.running[p]))] for p in state.pending}
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
        running = {index for indices in state.running.values() for index in indices}
        return (Round(sorted(running - admitted), sorted(admitted - running)),)


def private_window(window: Window) -> Window:
    """The window without the jobs that no private quota could run."""
    kept = [job for job in window.jobs if job.chips <= window.entitlements[job.project]]
    return replace(window, jobs=kept)


def _part(chips: int, share: float) -> float:
    return chips / share if share else float("inf")
