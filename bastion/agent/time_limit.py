"""The job's own time limit (`--max_run`) on one host, by the host's monotonic clock. The daemon enforces it first.

A host knows nothing of the daemon's clock. Before the daemon has seen the attempt run, the order tells what is left
from the gate on; later, what was left when the order was written (`BucketLink.order_written_at`).
"""

from __future__ import annotations

from bastion.agent.bucket_link import BucketLink
from bastion.agent.host_state import HostState
from bastion.core import limits
from bastion.ports import Clock


class TimeLimit:
    def __init__(self, link: BucketLink, state: HostState, *, boot_id: str, clock: Clock) -> None:
        """`state`: of an agent that may have passed the gate before in this boot."""
        self._link = link
        self._state = state
        self._boot_id = boot_id
        self._clock = clock
        self._passed_at: float | None = None
        self._deadline: float | None = None
        self.grace_seconds = 0.0

    def passed_gate(self) -> None:
        """The attempt runs; only the first time counts, also of an earlier agent."""
        if self._passed_at is None:
            self._passed_at = self._state.passed_gate(self._boot_id, self._clock.monotonic())

    @property
    def seconds_left(self) -> float | None:
        """Seconds until the host ends the try by itself; None: no limit, or it does not count yet."""
        order = self._link.order
        if order is None or order.time_left is None:
            return None
        left = order.time_left
        self.grace_seconds = left.grace_seconds
        since = self._link.order_written_at if left.from_order else self._passed_at
        if since is not None:
            deadline = since + left.seconds + limits.OVERTIME_HOST_SLACK_SECONDS
            self._deadline = deadline if self._deadline is None else min(self._deadline, deadline)
        return None if self._deadline is None else self._deadline - self._clock.monotonic()
