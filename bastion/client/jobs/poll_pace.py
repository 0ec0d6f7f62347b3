"""How often a follower asks what: in slots, one after the other.

Layer: client, pure but for the clock. On a folder every slot looks at everything, and slots are short. A bucket in the
cloud bills each request and takes 50 to 100 ms for it: there a slot is one request, and what is looked at takes turns.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum

from bastion.ports import Clock


@dataclass(frozen=True, slots=True, kw_only=True)
class Pace:
    """The numbers in which a folder and a bucket in the cloud differ.

    Attributes:
        slot_seconds: From one slot to the next.
        sparing: Whether a slot looks at one thing only, and a look that takes more requests uses up more slots.
        connections: Requests that may be under way at the same time.
    """

    slot_seconds: float
    sparing: bool
    connections: int

    def pause(self, requests: float) -> float:
        """Seconds to wait after a slot that made so many requests and found nothing."""
        return self.slot_seconds * max(1, requests if self.sparing else 1)


LOCAL = Pace(slot_seconds=0.3, sparing=False, connections=1)
REMOTE = Pace(slot_seconds=2.0, sparing=True, connections=8)


class Look(Enum):
    """What a follower looks at."""

    LOGS = "the run's output"
    STATE = "the daemon's state of the job"
    STATUS = "the job's entry in the published status"
    SPEC = "the spec that lies there, and whether it is refused"
    LEASE = "whether a daemon is at work"


class Rotation:
    """Whose turn it is: where one look a slot is made, the one that is most overdue by its own measure."""

    def __init__(self, clock: Clock, *, sparing: bool) -> None:
        self._clock = clock
        self._sparing = sparing
        self._last = dict.fromkeys(Look, float("-inf"))

    def turns(self, periods: Mapping[Look, float]) -> list[Look]:
        """The looks of this slot.

        Args:
            periods: What there is to look at, and every how many seconds, if there are slots enough; with fewer, each
                comes later in the same proportion.
        """
        now = self._clock.monotonic()
        chosen = list(periods)
        if self._sparing:
            chosen = [max(periods, key=lambda look: (now - self._last[look]) / periods[look])]
        for look in chosen:
            self._last[look] = now
        return chosen

    def looked(self, look: Look) -> None:
        """That was looked at out of its turn."""
        self._last[look] = self._clock.monotonic()
