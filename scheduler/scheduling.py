"""The scheduler: `schedule(snapshot, now) -> Plan`, and one that remembers from pass to pass.

Layer: `scheduler`, pure. What a pass does is in `scheduler.one_pass`.
"""

from __future__ import annotations

from operator import attrgetter

from scheduler.decide.memory import Remembered
from scheduler.model import Plan, Snapshot
from scheduler.one_pass import Pass


def schedule(snapshot: Snapshot, now: float) -> Plan:
    """Decides what becomes of every job of the snapshot.

    Args:
        snapshot: The jobs, their names unique, and the quota in force.
        now: The present instant, in seconds since the epoch.

    Returns:
        A decision for every job. The same arguments give the same plan, whatever the order of the jobs.

    Raises:
        ValueError: two jobs have the same name.
    """
    return Scheduler().schedule(snapshot, now)


class Scheduler:
    """`schedule` for one who asks again and again: what stayed the same since the last time is not looked at anew.

    A job is recognised by its object: one that did not change should be the same object in the next snapshot. One that
    is only equal costs time, and nothing else. The plans are those of `schedule`, and stay good after later passes.
    """

    def __init__(self) -> None:
        self._remembered: Remembered | None = None
        self._last: tuple[Pass, Plan] | None = None

    def schedule(self, snapshot: Snapshot, now: float) -> Plan:
        """The same as the function."""
        jobs = dict(zip(map(attrgetter("name"), snapshot.jobs), snapshot.jobs, strict=True))
        if len(jobs) != len(snapshot.jobs):
            raise ValueError("two jobs of the snapshot have the same name; names identify jobs")
        remembered, last = self._remembered, self._last
        if remembered is None or not remembered.matches(snapshot):
            remembered, last = Remembered(snapshot), None
        # Forgotten if anything goes wrong on the way.
        self._remembered = None
        if remembered.take_over(jobs) or last is None or not last[0].still_holds(snapshot, now):
            this = Pass(remembered, snapshot, now)
            last = this, this.plan()
        self._remembered, self._last = remembered, last
        return last[1]
