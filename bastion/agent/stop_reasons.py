"""Why a host stops: it is shut down, the cloud takes it away, its order says so, its order is lost, or the job's time
is over. Does no I/O.

Invariant: nothing else ends a running command. An unreachable bucket or a dead daemon is no reason, unless another
machine may start the command again (`order_lost_seconds`).
"""

from __future__ import annotations

from dataclasses import dataclass

from bastion.agent.bucket_link import BucketLink
from bastion.agent.identity import HostIdentity
from bastion.agent.time_limit import TimeLimit
from bastion.agent.vm_notices import VmNotices
from bastion.core import limits
from bastion.core.bucket import host_errors
from bastion.core.bucket.protocol import HostPhase, Order, OrderAction
from bastion.ports import Clock

# The first seconds of a VM's shutdown are for the command.
SHUTDOWN_GRACE_SECONDS = 3.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Stop:
    """Why to stop, and when the command must have ended by itself.

    Attributes:
        phase: The host's phase afterwards: STOPPED, FAILED, or WAITING for the next try.
        error: One of `bastion.core.bucket.host_errors`, or empty.
        deadline: Monotonic seconds.
        stuck: The command's stacks must be shown before it is ended.
    """

    phase: HostPhase
    error: str
    message: str
    deadline: float
    stuck: bool = False


class StopReasons:
    """The stop reasons of one host. A signal handler calls `begin_shutdown` when the host shuts down."""

    def __init__(
        self,
        identity: HostIdentity,
        link: BucketLink,
        notices: VmNotices | None,
        *,
        clock: Clock,
        time_limit: TimeLimit | None = None,
    ) -> None:
        self._order_lost_seconds = identity.arguments.order_lost_seconds
        self._link = link
        self._notices = notices
        self._clock = clock
        self._time_limit = time_limit
        self._shutdown_seconds = identity.arguments.shutdown_seconds
        self._shut_down_at = 0.0
        self.shut_down = False

    def begin_shutdown(self) -> None:
        """The host shuts down. Safe in a signal handler; only the first call counts."""
        if not self.shut_down:
            self._shut_down_at = self._clock.monotonic()
            self.shut_down = True

    @property
    def spare_seconds(self) -> float:
        """What the command has left of its time on a host that shuts down, for storing its output. 0 on a VM."""
        if not (self.shut_down and self._shutdown_seconds):
            return 0.0
        return max(0.0, self._shut_down_at + self._shutdown_seconds - self._clock.monotonic())

    @property
    def has_shutdown_limit(self) -> bool:
        """Whether this host shuts down and is killed after `shutdown_seconds` and the 10 s that follow."""
        return self.shut_down and self._shutdown_seconds > 0

    def of_try(self, number: int) -> Stop | None:
        """Why this host must not begin or continue a try."""
        return self.after_end(number) or self._of_time()

    def after_end(self, number: int) -> Stop | None:
        """Why this host must not take long to store what a command left that has ended."""
        return self.of_host() or self._of_order(number)

    def next_look(self, at_most_seconds: float) -> float:
        """Seconds after which a reason may have come that wakes nobody."""
        left = None if self._time_limit is None else self._time_limit.seconds_left
        return at_most_seconds if left is None or left <= 0 else min(at_most_seconds, left)

    def of_host(self) -> Stop | None:
        """Why this host goes away."""
        notice = self._notices.pending if self._notices is not None else None
        if self.shut_down:
            # A cloud that takes the host away may say why at the same moment.
            return Stop(
                phase=HostPhase.STOPPED,
                error=notice.error if notice else host_errors.HOST_SHUT_DOWN,
                message=notice.message if notice else "the host shut down",
                deadline=(
                    self._shut_down_at + self._shutdown_seconds
                    if self._shutdown_seconds
                    else self._clock.monotonic() + SHUTDOWN_GRACE_SECONDS
                ),
            )
        if notice is not None:
            return Stop(phase=HostPhase.STOPPED, error=notice.error, message=notice.message, deadline=notice.deadline)
        return None

    def superseded(self, number: int) -> bool:
        order = self._link.order
        return order is not None and order.action is not OrderAction.STOP and order.try_number > number

    @property
    def urgent(self) -> bool:
        """Whether the host goes away within seconds."""
        return self.of_host() is not None

    def _of_order(self, number: int) -> Stop | None:
        order = self._link.order
        if order is not None and order.action is OrderAction.STOP:
            return self._ordered(order, HostPhase.STOPPED)
        if order is not None and order.try_number > number:
            return self._ordered(order, HostPhase.WAITING)
        if 0 < self._order_lost_seconds <= self._link.seconds_without_order:
            return Stop(
                phase=HostPhase.FAILED,
                error=host_errors.ORDER_LOST,
                message=(
                    f"the order could not be read for {self._order_lost_seconds:.0f} s; stopping, "
                    "because another machine may start the job again"
                ),
                deadline=self._clock.monotonic() + limits.EVICTION_GRACE_SECONDS,
            )
        return None

    def _of_time(self) -> Stop | None:
        limit = self._time_limit
        left = None if limit is None else limit.seconds_left
        if limit is None or left is None or left > 0:
            return None
        return Stop(
            phase=HostPhase.STOPPED,
            error=host_errors.OVERTIME,
            message="the job's time is over (--max_run)",
            deadline=self._clock.monotonic() + limit.grace_seconds,
        )

    def _ordered(self, order: Order, phase: HostPhase) -> Stop:
        message = order.reason
        if phase is HostPhase.WAITING:
            message = message or f"try {order.try_number} begins on all hosts"
        deadline = self._clock.monotonic() + order.grace_seconds
        return Stop(phase=phase, error="", message=message, deadline=deadline, stuck=order.dump_stacks)
