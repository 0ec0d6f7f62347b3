"""The cloud's notices about this VM: preemption and maintenance.

One thread per watched value of the metadata server waits there for a change.

Invariants:
* A notice once seen stays, with its original deadline.
* A server that does not answer is retried forever; a value that does not exist is not read again.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from dataclasses import dataclass
from random import Random

from bastion.agent.backoff import Backoff
from bastion.agent.metadata_server import MetadataServer
from bastion.core import limits
from bastion.core.bucket import host_errors
from bastion.core.errors import NotFound, StoreUnavailable
from bastion.ports import Clock

_log = logging.getLogger(__name__)

_WAIT_SECONDS = 60.0
# A server without long polls answers at once; wait before the next request.
_SHORTEST_SECONDS = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class VmNotice:
    """A notice that this host goes away.

    Attributes:
        error: One of `bastion.core.bucket.host_errors`.
        deadline: When the command must have ended by itself; monotonic seconds.
    """

    error: str
    message: str
    deadline: float


def preempted(value: str) -> tuple[str, str] | None:
    """The meaning of `instance/preempted`: error and message, or None."""
    if value.strip().upper() != "TRUE":
        return None
    return host_errors.PREEMPTED, "the cloud preempted this host"


def maintenance(value: str) -> tuple[str, str] | None:
    """The meaning of `instance/maintenance-event`: error and message, or None. A live migration only pauses the VM."""
    if not value.strip().upper().startswith("TERMINATE"):
        return None
    return host_errors.MAINTENANCE, f"the cloud stops this host for maintenance ({value.strip()[:80]})"


class Watch:
    def __init__(
        self,
        server: MetadataServer,
        path: str,
        meaning: Callable[[str], tuple[str, str] | None],
        *,
        clock: Clock,
        rng: Random,
        notify: Callable[[str, str], None],
    ) -> None:
        """`notify`: gets error and message when the value becomes meaningful."""
        self._server = server
        self._path = path
        self._meaning = meaning
        self._clock = clock
        self._backoff = Backoff(rng, first_seconds=1.0)
        self._notify = notify
        self._tag = ""

    def look(self) -> float | None:
        """Request once, or wait for a change if there was an answer before.

        Returns the seconds until the next request; None if there is nothing more to ask.
        """
        began, before = self._clock.monotonic(), self._tag
        try:
            value, self._tag = self._server.watch(self._path, tag=self._tag, wait_seconds=_WAIT_SECONDS)
        except NotFound:
            _log.info("the metadata server has no %s; not watching it", self._path)
            return None
        except StoreUnavailable as error:
            delay = self._backoff.next()
            _log.warning("%s; retrying in %.1f s", error, delay)
            return delay
        self._backoff.reset()
        found = self._meaning(value)
        if found is not None:
            self._notify(*found)
            return None
        if self._tag != before:
            return 0.0
        return max(0.0, _SHORTEST_SECONDS - (self._clock.monotonic() - began))


class VmNotices:
    def __init__(self, server: MetadataServer, *, clock: Clock, rng: Random) -> None:
        self._clock = clock
        self._on_change: Callable[[], None] = lambda: None
        self._lock = threading.Lock()
        self._ended = threading.Event()
        self._watches = [
            Watch(server, path, meaning, clock=clock, rng=rng, notify=self._on_notice)
            for path, meaning in (("preempted", preempted), ("maintenance-event", maintenance))
        ]
        self.pending: VmNotice | None = None

    def start(self, on_change: Callable[[], None]) -> None:
        """`on_change`: called from another thread when `pending` is set."""
        self._on_change = on_change
        for watch in self._watches:
            threading.Thread(target=self._work, args=(watch,), name="vm-notices", daemon=True).start()

    def stop(self) -> None:
        """End the threads after their current requests, without waiting."""
        self._ended.set()

    def _work(self, watch: Watch) -> None:
        while not self._ended.is_set():
            delay = watch.look()
            if delay is None:
                return
            self._ended.wait(delay)

    def _on_notice(self, error: str, message: str) -> None:
        with self._lock:
            if self.pending is not None:
                return
            deadline = self._clock.monotonic() + limits.SIGNAL_GRACE_SECONDS
            self.pending = VmNotice(error=error, message=message, deadline=deadline)
        _log.warning("%s", message)
        self._on_change()
