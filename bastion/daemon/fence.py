"""The fence between epochs: which starts count, and when a daemon may give room away.

Layer: daemon. A write that got no answer may land late, also that of a daemon which has lost the lease since, and no
compare-and-swap on one job's state protects the room that all jobs share. So:

1. Each attempt carries the epoch of the daemon that started it.
2. A successor first adopts every attempt that it finds: it writes its own epoch into the state. Nothing was given away
   in its epoch yet, so all of them count.
3. Then it marks its epoch as fenced in the lease, and starts jobs from then on.
4. An attempt of an older epoch than that landed after the fence. It holds no room and is ended; its hosts never run,
   because the daemon that decided it creates nothing without the lease.
"""

from __future__ import annotations

from collections.abc import Mapping

from bastion.core import limits
from bastion.core.errors import StoreError
from bastion.core.job_record import JobRecord
from bastion.core.world import JobView
from bastion.daemon.lease import Lease
from bastion.ports import Clock


class Fence:
    """One daemon's view of the fence.

    States that could not be read when the fence was set are exempt until they are read: what they may hold is charged
    all the while.
    """

    def __init__(self, lease: Lease, clock: Clock) -> None:
        self._lease = lease
        self._clock = clock
        self._epoch = 0
        self._exempt: set[str] = set()
        self._unread_since: dict[str, float] = {}

    @property
    def closed(self) -> bool:
        """Whether every attempt that counts is one of this epoch."""
        return self._lease.epoch > 0 and self._lease.fenced_epoch == self._lease.epoch

    def late(self, record: JobRecord) -> bool:
        """Whether the record's attempt never counted."""
        attempt = record.attempt
        if attempt is None or attempt.epoch == self._lease.epoch or record.name in self._exempt:
            return False
        return self.closed or attempt.epoch < self._lease.fenced_epoch

    def no_room(self, views: Mapping[str, JobView], *, whole: bool) -> str:
        """Why no room may be given away now; empty if it may. Sets the fence once everything is adopted.

        Args:
            views: Of this tick.
            whole: Whether everything was listed in this tick.
        """
        if self._epoch != self._lease.epoch:
            self._epoch = self._lease.epoch
            self._exempt.clear()
            self._unread_since.clear()
        now = self._clock.monotonic()
        unread = [name for name, view in views.items() if view.unread]
        self._unread_since = {name: self._unread_since.get(name, now) for name in unread}
        for name, since in self._unread_since.items():
            if now - since < limits.UNREAD_STATE_SECONDS:
                return f"the state of {name} could not be read, and may hold any part of the pool"
        if self.closed:
            self._exempt = {name for name in self._exempt if name in views and self._is_open(views[name])}
            return ""
        for name, view in views.items():
            if view.current and not view.late and self._is_open(view):
                return f"the attempt of {name} is still that of an earlier daemon"
        if not whole:
            return "not everything was listed"
        try:
            fenced = self._lease.fence()
        except StoreError as error:
            return f"the lease could not be written: {error}"
        if not fenced:
            return "another daemon took the lease"
        self._exempt = {name for name, view in views.items() if not view.current}
        return ""

    def _is_open(self, view: JobView) -> bool:
        """Whether the job's attempt, if it has one, is not known to be one of this epoch."""
        if not view.current:
            return True
        attempt = view.record.attempt if view.record is not None else None
        return attempt is not None and attempt.epoch != self._lease.epoch
