"""The fence between epochs: which starts count, and when a daemon may hand out capacity.

A write without a reply may land late, even after its daemon lost the lease, and compare-and-swap on one job's state
does not protect the pool that all jobs share. So:

1. Each attempt has the epoch of the daemon that started it.
2. A successor first adopts every attempt it finds: it writes its own epoch into the state. All of them count.
3. Then it marks its epoch as fenced in the lease, and starts jobs.
4. A later attempt of an older epoch landed after the fence. It holds nothing and is ended. Its hosts never run, because
   its daemon creates nothing without the lease.
"""

from __future__ import annotations

from collections.abc import Mapping

from bastion.core import limits
from bastion.core.errors import StoreError
from bastion.core.model.job_record import JobRecord
from bastion.core.model.world import JobView
from bastion.daemon.lease import Lease
from bastion.ports import Clock

# A takeover takes a few ticks; report a longer one.
_TAKEOVER_SECONDS = 30.0


class Fence:
    """One daemon's view of the fence.

    A job whose state cannot be read or written must not block all others. After a while the fence is set without it,
    and the lease names it: until a daemon adopts its attempt, the attempt counts, and all it may hold is charged.
    """

    def __init__(self, lease: Lease, clock: Clock) -> None:
        self._lease = lease
        self._clock = clock
        self._epoch = 0
        self._since: dict[str, float] = {}
        self._blocked_since: float | None = None
        self._blocked = ""

    @property
    def closed(self) -> bool:
        """Whether every attempt that counts has this epoch."""
        return self._lease.epoch > 0 and self._lease.fenced_epoch == self._lease.epoch

    @property
    def alarm(self) -> str:
        """Why no job starts, if that lasts longer than a takeover; otherwise empty."""
        since = self._blocked_since
        if since is None or self._clock.monotonic() - since < _TAKEOVER_SECONDS:
            return ""
        return f"not starting or evicting jobs: {self._blocked}"

    def late(self, record: JobRecord) -> bool:
        attempt = record.attempt
        if attempt is None or attempt.epoch == self._lease.epoch or record.name in self._lease.exempt:
            return False
        if attempt.running_since is not None:  # its state was written after its start, so that was not late
            return False
        return self.closed or attempt.epoch < self._lease.fenced_epoch

    def no_room(self, views: Mapping[str, JobView], *, whole: bool) -> str:
        """Return why no capacity may be handed out now; empty if allowed. Sets the fence after everything is adopted.

        `whole`: whether this tick listed everything.
        """
        if self._epoch != self._lease.epoch:
            self._epoch = self._lease.epoch
            self._since.clear()
        self._blocked = self._obstacle(views, whole=whole)
        if not self._blocked:
            self._blocked_since = None
        elif self._blocked_since is None:
            self._blocked_since = self._clock.monotonic()
        return self._blocked

    def _obstacle(self, views: Mapping[str, JobView], *, whole: bool) -> str:
        now, closed = self._clock.monotonic(), self.closed
        # Nearly every job ends here once the fence is set.
        obstacles = {
            name: text
            for name, view in views.items()
            if (view.unread or not closed) and (text := self._keeps_waiting(view))
        }
        self._since = {name: self._since.get(name, now) for name in obstacles}
        for name, since in self._since.items():
            if now - since < limits.UNREAD_STATE_SECONDS:
                return obstacles[name]
        if closed:
            return ""
        if not whole:
            return "not everything was listed"
        exempt = [name for name, view in views.items() if not view.current or name in obstacles]
        if len(exempt) > limits.FENCE_EXEMPT_MAX:
            return f"the states of {len(exempt)} jobs cannot be read or written, among them {exempt[0]}"
        try:
            fenced = self._lease.fence(exempt)
        except StoreError as error:
            return f"the lease could not be written: {error}"
        return "" if fenced else "another daemon took the lease"

    def _keeps_waiting(self, view: JobView) -> str:
        """Return why this job blocks handing out capacity; empty if it does not."""
        if view.unread:
            return f"the state of {view.name} could not be read, so its usage is unknown"
        attempt = view.record.attempt if view.record is not None else None
        adoptable = view.current and not view.late and attempt is not None and attempt.epoch != self._lease.epoch
        if adoptable and not self.closed:
            return f"the attempt of {view.name} is not adopted yet: its state could not be written"
        return ""
