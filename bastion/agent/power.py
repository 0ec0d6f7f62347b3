"""Power off a node that is idle while no daemon is alive: forgotten nodes cost money.

In a pod powering off is leaving: the agent shuts itself down.

Invariants:
* Nothing is powered off while a command runs or is prepared, however long the daemon is dead.
* The daemon is alive if its lease changed between two polls; no other clock counts, nor does an unreachable bucket.
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
    """Measures how long a node has been idle without a sign of the daemon, from its creation on."""

    def __init__(
        self,
        store: ObjectStore,
        *,
        limit_seconds: float,
        clock: Clock,
        rng: Random,
        power_off: Callable[[], None],
    ) -> None:
        """`power_off`: called in the watch's thread, and again later if this host is still up."""
        self._store = store
        self._limit = limit_seconds
        self._period = min(_LOOK_SECONDS, limit_seconds / 3)
        self._clock = clock
        self._rng = rng
        self._power_off = power_off
        self._generation: int | None = None
        self._lock = threading.Lock()  # of the next check: a command may begin during a look
        self._since: float | None = clock.monotonic()
        self._look_at = clock.monotonic()
        self._ended = threading.Event()

    def start(self) -> None:
        threading.Thread(target=self._work, name="idle-watch", daemon=True).start()

    def stop(self) -> None:
        """End the thread after its current store operation, without waiting."""
        self._ended.set()

    def busy(self) -> None:
        with self._lock:
            self._since = None

    def idle(self) -> None:
        with self._lock:
            self._since = self._clock.monotonic()

    def step(self) -> float:
        """Do what is due, without waiting; return the seconds until the next duty."""
        now = self._clock.monotonic()
        if now >= self._look_at:
            self._look_at = now + jittered(self._period, self._rng)
            if self._since is not None and self._alive():
                self._restart()
        if self._restart(after_seconds=self._limit):
            _log.warning("idle, and no sign of the daemon for %.0f s: powering off", self._limit)
            self._power_off()
        return max(0.0, self._look_at - now)

    def _restart(self, *, after_seconds: float = 0.0) -> bool:
        """Restart the measurement if it has reached `after_seconds`; return whether it had."""
        with self._lock:
            now = self._clock.monotonic()
            if self._since is None or now - self._since < after_seconds:
                return False
            self._since = now
            return True

    def _alive(self) -> bool:
        try:
            meta = self._store.head(keys.LEASE)
        except StoreError as error:
            _log.warning("the daemon's lease could not be read: %s", error)
            return False
        before, self._generation = self._generation, 0 if meta is None else meta.generation
        return before is not None and before != self._generation

    def _work(self) -> None:
        while not self._ended.is_set():
            self._ended.wait(self.step())


def power_off(environ: Mapping[str, str]) -> None:
    """End this VM. On an emulated one end its first process, which ends all others."""
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
