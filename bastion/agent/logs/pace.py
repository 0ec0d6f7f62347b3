"""When a host may store the next segment of its log, so that all hosts of a job together store few.

Layer: worker, pure. Hosts do not speak with each other: each has its own turns on a grid of instants that follows from
its number, the number of hosts, and the time of day, which all hosts know well enough.

Invariants:

* While a job runs, its hosts have at most `JOB_SEGMENTS_A_SECOND` turns in any second, and a host stores at most one
  segment a turn.
* Each of the first `FIRST_HOSTS` hosts has a turn at least every 4/3 s, however many others there are.
* Once a host's command has ended its turns come at least every `ENDED_PERIOD_SECONDS`: nobody pays for a slice for
  minutes so that it can wait for its turn. With more than 56 hosts that end together this is more than the bound above.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

JOB_SEGMENTS_A_SECOND = 20
FIRST_HOSTS = 16
# Of the job's turns a second these are the first hosts' if the others need theirs too.
_FIRST_HOSTS_A_SECOND = 12
ENDED_PERIOD_SECONDS = 5.0
# Every segment costs a write on a bucket in the cloud, so a host that has little to store lets turns pass.
REMOTE_INTERVAL_SECONDS = 4 / 3
LOCAL_INTERVAL_SECONDS = 0.5
# Instants since 1970 are exact to a quarter of a microsecond, so turns are not exact.
_SAME_TURN = 1e-4


@dataclass(frozen=True, slots=True, kw_only=True)
class Pace:
    """The turns of one host; instants in seconds of its monotonic clock.

    Attributes:
        period_seconds: From one turn to the next.
        phase: Which part of the period goes by before this host's turn, 0 to 1.
        calm_turns: A host that is not behind uses one turn of so many.
        offset_seconds: Time of day minus monotonic clock.
    """

    period_seconds: float
    phase: float
    calm_turns: int
    offset_seconds: float

    @classmethod
    def of_host(cls, host: int, hosts: int, *, local: bool, now: float, monotonic: float) -> Pace:
        """The pace of one of a job's `hosts`.

        Args:
            local: Whether a segment costs nothing.
            now: Time of day, seconds since the epoch.
            monotonic: The monotonic clock at that instant.
        """
        period, phase = _turn(host, hosts)
        interval = LOCAL_INTERVAL_SECONDS if local else REMOTE_INTERVAL_SECONDS
        return cls(
            period_seconds=period,
            phase=phase,
            calm_turns=max(1, math.floor(interval / period + 1e-9)),
            offset_seconds=now - monotonic,
        )

    @classmethod
    def of_raw_log(cls, *, local: bool, now: float, monotonic: float) -> Pace:
        """The pace of appends to one object, which Cloud Storage takes once a second, and copies for each."""
        period, calm_turns = (0.1, 5) if local else (1.0, 10)
        return cls(period_seconds=period, phase=0.0, calm_turns=calm_turns, offset_seconds=now - monotonic)

    def ended(self) -> Pace:
        """The pace after the command's end."""
        return Pace(
            period_seconds=min(self.period_seconds, ENDED_PERIOD_SECONDS),
            phase=self.phase,
            calm_turns=1,
            offset_seconds=self.offset_seconds,
        )

    def next_turn(self, *, ready_at: float, last_at: float, behind: bool) -> float:
        """When the next segment may be stored.

        Args:
            ready_at: Since when there is something to store, or not before when to try again.
            last_at: When the last one was begun; minus infinity: there was none.
            behind: Whether more waits than one segment holds.
        """
        turn = math.ceil(self._turns(ready_at) - _SAME_TURN)
        if last_at > -math.inf:
            turn = max(turn, math.floor(self._turns(last_at) + _SAME_TURN) + (1 if behind else self.calm_turns))
        return (turn + self.phase) * self.period_seconds - self.offset_seconds

    def _turns(self, at: float) -> float:
        return (at + self.offset_seconds) / self.period_seconds - self.phase


def _turn(host: int, hosts: int) -> tuple[float, float]:
    """Period in seconds, and phase."""
    if hosts * _FIRST_HOSTS_A_SECOND <= FIRST_HOSTS * JOB_SEGMENTS_A_SECOND:
        return hosts / JOB_SEGMENTS_A_SECOND, host / hosts
    if host < FIRST_HOSTS:
        return FIRST_HOSTS / _FIRST_HOSTS_A_SECOND, host / FIRST_HOSTS
    others = hosts - FIRST_HOSTS
    return others / (JOB_SEGMENTS_A_SECOND - _FIRST_HOSTS_A_SECOND), (host - FIRST_HOSTS) / others
