"""What the cloud says about this VM's near future: it is pre-empted, or taken away for maintenance.

Layer: worker; a thread for each value of the metadata server that is watched, which waits there for a change. `look` is
one request, for tests to drive.

Invariants:

* A signal once seen stays: whoever looks later finds it, with the deadline of when it came.
* A server that does not answer is asked again for ever; a value that it does not have is not asked for again.
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
# A server that cannot wait answers the same at once; it is not asked in a circle.
_SHORTEST_SECONDS = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Signal:
    """That this host goes away.

    Attributes:
        error: Its name, of `bastion.core.bucket.host_errors`.
        deadline: Until when the command may end by itself; monotonic seconds.
    """

    error: str
    message: str
    deadline: float


def preempted(value: str) -> tuple[str, str] | None:
    """What `instance/preempted` means: error and message, or None if nothing is to be done."""
    if value.strip().upper() != "TRUE":
        return None
    return host_errors.PREEMPTED, "the cloud pre-empted this host"


def maintenance(value: str) -> tuple[str, str] | None:
    """The same of `instance/maintenance-event`. A VM that is moved while it runs (MIGRATE_...) notices a pause."""
    if not value.strip().upper().startswith("TERMINATE"):
        return None
    return host_errors.MAINTENANCE, f"the cloud takes this host away to maintain it ({value.strip()[:80]})"


class Watch:
    """One value of the metadata server."""

    def __init__(
        self,
        server: MetadataServer,
        path: str,
        meaning: Callable[[str], tuple[str, str] | None],
        *,
        clock: Clock,
        rng: Random,
        tell: Callable[[str, str], None],
    ) -> None:
        """`tell` gets error and message when the value becomes one that means something."""
        self._server = server
        self._path = path
        self._meaning = meaning
        self._clock = clock
        self._backoff = Backoff(rng, first_seconds=1.0)
        self._tell = tell
        self._tag = ""

    def look(self) -> float | None:
        """Asks once, and waits for a change if there was an answer before.

        Returns:
            Seconds until to ask again; None: there is nothing more to ask.
        """
        began, before = self._clock.monotonic(), self._tag
        try:
            value, self._tag = self._server.watch(self._path, tag=self._tag, wait_seconds=_WAIT_SECONDS)
        except NotFound:
            _log.info("the metadata server has no %s; it is not watched", self._path)
            return None
        except StoreUnavailable as error:
            delay = self._backoff.next()
            _log.warning("%s, again in %.1f s", error, delay)
            return delay
        self._backoff.reset()
        found = self._meaning(value)
        if found is not None:
            self._tell(*found)
            return None
        if self._tag != before:
            return 0.0
        return max(0.0, _SHORTEST_SECONDS - (self._clock.monotonic() - began))


class HostSignals:
    """All that is watched on one VM; `start` begins it."""

    def __init__(self, server: MetadataServer, *, clock: Clock, rng: Random) -> None:
        self._clock = clock
        self._on_change: Callable[[], None] = lambda: None
        self._lock = threading.Lock()
        self._ended = threading.Event()
        self._watches = [
            Watch(server, path, meaning, clock=clock, rng=rng, tell=self._told)
            for path, meaning in (("preempted", preempted), ("maintenance-event", maintenance))
        ]
        self.pending: Signal | None = None

    def start(self, on_change: Callable[[], None]) -> None:
        """`on_change` is called, from another thread, when `pending` was set."""
        self._on_change = on_change
        for watch in self._watches:
            threading.Thread(target=self._work, args=(watch,), name="host-signals", daemon=True).start()

    def stop(self) -> None:
        """Ends the threads after the requests they are in; does not wait for it."""
        self._ended.set()

    def _work(self, watch: Watch) -> None:
        while not self._ended.is_set():
            delay = watch.look()
            if delay is None:
                return
            self._ended.wait(delay)

    def _told(self, error: str, message: str) -> None:
        with self._lock:
            if self.pending is not None:
                return
            deadline = self._clock.monotonic() + limits.SIGNAL_GRACE_SECONDS
            self.pending = Signal(error=error, message=message, deadline=deadline)
        _log.warning("%s", message)
        self._on_change()
