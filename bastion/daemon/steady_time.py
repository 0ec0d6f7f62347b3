"""Steady time: seconds since the epoch that only go forward, whatever happens to the wall clock.

All stored instants (starts, budgets, backoff, grace) are steady time. It advances with the boot clock, begins at the
server time of the lease's first write, and follows server times slowly. Invariants:

* It never goes back while any job is known, and never jumps forward while a daemon acts.
* A successor continues its predecessor's time: exactly within the same boot, otherwise by the server times of the
  lease.
"""

from __future__ import annotations

import math

from bastion.core.model.lease import SteadyPoint
from bastion.ports import Clock

# Maximum rate difference to the boot clock: a limit of 180 s is off by at most 0.9 s.
SLEW = 1 / 200
# Smaller differences are within the precision of server times.
_CLOSE_SECONDS = 1.0
# A predecessor's time further from server time is ignored, so that one document cannot end every job.
_BELIEVED_SECONDS = 86_400.0
# Larger differences are reported.
_TOLD_SECONDS = 60.0


class SteadyTime:
    """A `Clock` whose `now` is steady time. While `idle` (no job is known), a renewal may correct the time."""

    def __init__(self, clock: Clock, *, boot_id: str) -> None:
        self._clock = clock
        self._boot_id = boot_id
        self._steady: float | None = None  # at `_boot`
        self._boot = 0.0
        self._rate = 1.0
        self._ahead = 0.0
        self._point: SteadyPoint | None = None
        self.idle = False

    def now(self) -> float:
        return self._clock.now() if self._steady is None else self._at(self._clock.monotonic())

    @property
    def begun(self) -> bool:
        return self._steady is not None

    def monotonic(self) -> float:
        return self._clock.monotonic()

    def sleep(self, seconds: float) -> None:
        self._clock.sleep(seconds)

    @property
    def problem(self) -> str:
        """The alarm about displayed times; empty if they are right."""
        if abs(self._ahead) < _TOLD_SECONDS:
            return ""
        minutes, way = round(abs(self._ahead) / 60), "ahead of" if self._ahead > 0 else "behind"
        return (
            f"a clock was set: times of jobs are about {minutes} min {way} the bucket's clock; "
            "limits and pauses are not affected; the difference shrinks slowly, or ends when no job is left"
        )

    def take_over(
        self, before: SteadyPoint | None, *, server: float, at_least: float = 0.0, at_most: float = math.inf
    ) -> None:
        """Continue a predecessor's time after taking the lease.

        Args:
            before: The point in the predecessor's lease, if any.
            server: Server time of the write that took it.
            at_least, at_most: Bounds for the seconds since the point.
        """
        boot = self._clock.monotonic()
        steady = server
        if before is not None:
            elapsed = boot - before.boot_seconds
            if not (before.boot_id and before.boot_id == self._boot_id and elapsed >= 0):
                elapsed = min(max(server - before.server, at_least), at_most)
            steady = before.steady + elapsed
            if abs(steady - server) > _BELIEVED_SECONDS:
                steady = server
        if self._steady is not None:  # its earlier writes are in the bucket
            steady = max(steady, self._at(boot))
        self._steady, self._boot, self._rate = steady, boot, 1.0
        self._ahead = steady - server
        self._point = self._point_at(server)

    def proposal(self) -> SteadyPoint | None:
        """Return the point for the next renewal, corrected while no job is known. Pass it to `follow` once written."""
        if not self.idle or self._steady is None or abs(self._ahead) < _CLOSE_SECONDS:
            return self._point
        boot = self._clock.monotonic()
        right = max(0.0, self._at(boot) - self._ahead)
        return SteadyPoint(steady=right, server=right, boot_id=self._boot_id, boot_seconds=boot)

    def follow(self, written: SteadyPoint | None, *, server: float, asked: float) -> None:
        """Slew towards `server`, the server time of a renewal; `asked` is the boot time of its request."""
        if self._steady is None:
            return
        if written is not None and written is not self._point:
            self._steady, self._boot, self._rate = written.steady, written.boot_seconds, 1.0
        boot = self._clock.monotonic()
        earliest, latest = self._at(asked), self._at(boot)
        # The server's instant is between request and reply; only the excess is a difference.
        self._ahead = max(0.0, earliest - server) - max(0.0, server - latest)
        self._steady, self._boot = latest, boot
        self._rate = 1.0 if abs(self._ahead) < _CLOSE_SECONDS else 1.0 - math.copysign(SLEW, self._ahead)
        self._point = self._point_at(latest - self._ahead)

    def _at(self, boot: float) -> float:
        assert self._steady is not None  # checked by the callers
        return self._steady + (boot - self._boot) * self._rate

    def _point_at(self, server: float) -> SteadyPoint:
        assert self._steady is not None  # checked by the callers
        return SteadyPoint(steady=self._steady, server=max(0.0, server), boot_id=self._boot_id, boot_seconds=self._boot)
