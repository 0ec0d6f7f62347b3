"""How often a follower polls what, in slots.

On a folder every slot looks at everything, and slots are short. Cloud Storage bills each request and takes 50 to 100 ms
for it: there a slot makes one request, and the looks alternate.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum

from bastion.ports import Clock


@dataclass(frozen=True, slots=True, kw_only=True)
class Pace:
    """How to poll a folder or a bucket in the cloud.

    Attributes:
        slot_seconds: From one slot to the next.
        sparing: Make one look per slot; a look with more requests uses more slots.
        connections: Maximum number of requests under way.
    """

    slot_seconds: float
    sparing: bool
    connections: int

    def pause(self, requests: float) -> float:
        """Seconds to wait after a slot with that many requests and no news."""
        return self.slot_seconds * max(1, requests if self.sparing else 1)


LOCAL = Pace(slot_seconds=0.3, sparing=False, connections=1)
REMOTE = Pace(slot_seconds=2.0, sparing=True, connections=8)


class Look(Enum):
    """What a follower looks at."""

    LOGS = "the run's output"
    STATE = "the daemon's state of the job"
    STATUS = "the job's entry in the published status"
    SPEC = "the spec, and whether it is refused"
    LEASE = "whether a daemon is running"


class Rotation:
    """Chooses the looks of each slot; with one look per slot, the most overdue."""

    def __init__(self, clock: Clock, *, sparing: bool) -> None:
        self._clock = clock
        self._sparing = sparing
        self._last = dict.fromkeys(Look, float("-inf"))

    def due(self, periods: Mapping[Look, float]) -> list[Look]:
        """The looks that are due in this slot.

        Args:
            periods: Seconds between two looks of each kind; with too few slots all are delayed in proportion.
        """
        now = self._clock.monotonic()
        chosen = list(periods)
        if self._sparing:
            chosen = [max(periods, key=lambda look: (now - self._last[look]) / periods[look])]
        for look in chosen:
            self._last[look] = now
        return chosen

    def looked(self, look: Look) -> None:
        """Record a look outside of the rotation."""
        self._last[look] = self._clock.monotonic()
