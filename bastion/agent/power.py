"""A node that nobody needs any more and nobody deletes powers itself off: a dead bastion must not burn money.

Layer: worker; a thread of its own looks at the daemon's lease now and then. `step` is one look, for tests to drive.

Invariants:

* While a command runs, or is prepared, nothing is powered off, however long the daemon is dead.
* Life of the daemon is a lease that was renewed between two looks of this host: no instant of another clock counts. A
  bucket that does not answer shows no life.
"""

from __future__ import annotations

import logging
import os
import signal
import subprocess
import threading
from collections.abc import Callable, Mapping
from random import Random

from bastion import processes
from bastion.agent.backoff import jittered
from bastion.agent.environment import EMULATED_TPU, VM_MARKER
from bastion.core.bucket import keys
from bastion.core.errors import StoreError
from bastion.ports import Clock, ObjectStore

_log = logging.getLogger(__name__)

_LOOK_SECONDS = 600.0
_POWER_OFF_TIMEOUT_SECONDS = 60.0


class IdleWatch:
    """Counts for how long a node has had nothing to do and seen no life of the daemon; from its creation on."""

    def __init__(
        self,
        store: ObjectStore,
        *,
        limit_seconds: float,
        clock: Clock,
        rng: Random,
        power_off: Callable[[], None],
    ) -> None:
        """`power_off` is called in the watch's thread, again after some time if this host still lives then."""
        self._store = store
        self._limit = limit_seconds
        self._period = min(_LOOK_SECONDS, limit_seconds / 3)
        self._clock = clock
        self._rng = rng
        self._power_off = power_off
        self._generation: int | None = None
        self._lock = threading.Lock()  # of the next: a command begins while a look is under way
        self._since: float | None = clock.monotonic()
        self._look_at = clock.monotonic()
        self._ended = threading.Event()

    def start(self) -> None:
        threading.Thread(target=self._work, name="idle-watch", daemon=True).start()

    def stop(self) -> None:
        """Ends the thread after the store operation it is in; does not wait for it."""
        self._ended.set()

    def busy(self) -> None:
        """The node has something to do."""
        with self._lock:
            self._since = None

    def idle(self) -> None:
        """From now on it has not."""
        with self._lock:
            self._since = self._clock.monotonic()

    def step(self) -> float:
        """Does what is due; returns the seconds until something is due again."""
        now = self._clock.monotonic()
        if now >= self._look_at:
            self._look_at = now + jittered(self._period, self._rng)
            if self._since is not None and self._alive():
                self._restart()
        if self._restart(after_seconds=self._limit):
            _log.warning("nothing to do here, and no life of the daemon for %.0f s: powering off", self._limit)
            self._power_off()
        return max(0.0, self._look_at - now)

    def _restart(self, *, after_seconds: float = 0.0) -> bool:
        """Counts from now on, if that many seconds have been counted; returns whether they have."""
        with self._lock:
            now = self._clock.monotonic()
            if self._since is None or now - self._since < after_seconds:
                return False
            self._since = now
            return True

    def _alive(self) -> bool:
        """Whether the lease is not what it was at the last look."""
        try:
            meta = self._store.head(keys.LEASE)
        except StoreError as error:
            _log.warning("the daemon's lease could not be looked at: %s", error)
            return False
        before, self._generation = self._generation, 0 if meta is None else meta.generation
        return before is not None and before != self._generation

    def _work(self) -> None:
        while not self._ended.is_set():
            self._ended.wait(self.step())


def power_off(environ: Mapping[str, str]) -> None:
    """Ends this VM. Of an emulated one the first process ends, which takes all others with it."""
    if environ.get(EMULATED_TPU) == "1":
        marker = environ.get(VM_MARKER, "")
        others = processes.marked(VM_MARKER, marker) if marker else []
        if others:
            min(others, key=lambda process: (process.started, process.pid)).signal(signal.SIGTERM)
        return
    try:
        subprocess.run(
            ["systemctl", "poweroff"],
            stdin=subprocess.DEVNULL,
            env={"PATH": os.defpath},
            check=True,
            timeout=_POWER_OFF_TIMEOUT_SECONDS,
        )
    except (OSError, subprocess.SubprocessError) as error:
        _log.warning("this VM could not be powered off: %s", error)
