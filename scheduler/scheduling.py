"""The scheduler: `schedule(snapshot, now) -> Plan`, and a stateful form that reuses work between passes."""

from __future__ import annotations

from operator import attrgetter

from scheduler.decide.memory import Remembered
from scheduler.model import Plan, Snapshot
from scheduler.one_pass import Pass


def schedule(snapshot: Snapshot, now: float) -> Plan:
    """Decide on every job of the snapshot. Raises ValueError if two jobs have the same name."""
    return Scheduler().schedule(snapshot, now)


class Scheduler:
    """`schedule` for repeated passes: skips what has not changed since the last one.

    Jobs are compared by identity, so pass the same object for an unchanged job; an equal copy only costs time. Plans
    equal those of `schedule` and stay valid after later passes.
    """

    def __init__(self) -> None:
        self._remembered: Remembered | None = None
        self._last: tuple[Pass, Plan] | None = None

    def schedule(self, snapshot: Snapshot, now: float) -> Plan:
        jobs = dict(zip(map(attrgetter("name"), snapshot.jobs), snapshot.jobs, strict=True))
        if len(jobs) != len(snapshot.jobs):
            raise ValueError("two jobs of the snapshot have the same name; names identify jobs")
        remembered, last = self._remembered, self._last
        if remembered is None or not remembered.matches(snapshot):
            remembered, last = Remembered(snapshot), None
        # Dropped if an exception interrupts the pass.
        self._remembered = None
        if remembered.take_over(jobs) or last is None or not last[0].still_holds(snapshot, now):
            this = Pass(remembered, snapshot, now)
            last = this, this.plan()
        self._remembered, self._last = remembered, last
        return last[1]
