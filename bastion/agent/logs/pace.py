"""When a host may store its next log segment, so that all hosts of a job together write few. Pure.

Hosts do not talk to each other: each has its own slots on a time grid that follows from its number, the number of hosts
and the time of day.

Invariants:
* While a job runs, its hosts have at most `JOB_SEGMENTS_A_SECOND` slots in any second; a host stores at most one
  segment per slot.
* Each of the first `FIRST_HOSTS` hosts has a slot at least every 4/3 s.
* After its command has ended, a host has a slot at least every `ENDED_PERIOD_SECONDS`, so that no idle slice waits for
  minutes. If more than 56 hosts end together, this exceeds the first bound.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

JOB_SEGMENTS_A_SECOND = 20
FIRST_HOSTS = 16
# The first hosts' share of the job's slots a second, if the others need theirs.
_FIRST_HOSTS_A_SECOND = 12
ENDED_PERIOD_SECONDS = 5.0
# Each segment costs a write in the cloud, so a host with little to store skips slots.
REMOTE_INTERVAL_SECONDS = 4 / 3
LOCAL_INTERVAL_SECONDS = 0.5
# Floats of seconds since 1970 are exact to a quarter of a microsecond, so slots are not exact.
_SAME_SLOT = 1e-4


@dataclass(frozen=True, slots=True, kw_only=True)
class Pace:
    """The slots of one host; times in seconds of its monotonic clock.

    Attributes:
        period_seconds: From one slot to the next.
        phase: The fraction of the period before this host's slot, 0 to 1.
        calm_slots: A host without a backlog uses one slot in this many.
        offset_seconds: Time of day minus monotonic clock.
    """

    period_seconds: float
    phase: float
    calm_slots: int
    offset_seconds: float

    @classmethod
    def of_host(cls, host: int, hosts: int, *, local: bool, now: float, monotonic: float) -> Pace:
        """The pace of one of a job's hosts.

        Args:
            local: Whether writes cost nothing.
            now: Time of day, seconds since the epoch.
            monotonic: The monotonic clock at the same moment.
        """
        period, phase = _slot(host, hosts)
        interval = LOCAL_INTERVAL_SECONDS if local else REMOTE_INTERVAL_SECONDS
        return cls(
            period_seconds=period,
            phase=phase,
            calm_slots=max(1, math.floor(interval / period + 1e-9)),
            offset_seconds=now - monotonic,
        )

    @classmethod
    def of_raw_log(cls, *, local: bool, now: float, monotonic: float) -> Pace:
        """The pace of appends to one object: Cloud Storage takes one a second, and copies the object for each."""
        period, calm_slots = (0.1, 5) if local else (1.0, 10)
        return cls(period_seconds=period, phase=0.0, calm_slots=calm_slots, offset_seconds=now - monotonic)

    def ended(self) -> Pace:
        return Pace(
            period_seconds=min(self.period_seconds, ENDED_PERIOD_SECONDS),
            phase=self.phase,
            calm_slots=1,
            offset_seconds=self.offset_seconds,
        )

    def next_slot(self, *, ready_at: float, last_at: float, behind: bool) -> float:
        """When the next segment may be stored.

        Args:
            ready_at: Since when there is something to store, or the earliest time of a retry.
            last_at: When the last one was begun; minus infinity if there was none.
            behind: Whether more waits than one segment holds.
        """
        slot = math.ceil(self._slots(ready_at) - _SAME_SLOT)
        if last_at > -math.inf:
            slot = max(slot, math.floor(self._slots(last_at) + _SAME_SLOT) + (1 if behind else self.calm_slots))
        return (slot + self.phase) * self.period_seconds - self.offset_seconds

    def _slots(self, at: float) -> float:
        return (at + self.offset_seconds) / self.period_seconds - self.phase


def _slot(host: int, hosts: int) -> tuple[float, float]:
    """The period in seconds and the phase."""
    if hosts * _FIRST_HOSTS_A_SECOND <= FIRST_HOSTS * JOB_SEGMENTS_A_SECOND:
        return hosts / JOB_SEGMENTS_A_SECOND, host / hosts
    if host < FIRST_HOSTS:
        return FIRST_HOSTS / _FIRST_HOSTS_A_SECOND, host / FIRST_HOSTS
    others = hosts - FIRST_HOSTS
    return others / (JOB_SEGMENTS_A_SECOND - _FIRST_HOSTS_A_SECOND), (host - FIRST_HOSTS) / others
