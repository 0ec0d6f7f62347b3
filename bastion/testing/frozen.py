"""Machines that freeze during a request and resume much later, like a paused VM.

A frozen call has its own thread; at most one thread runs at any time, so seeded histories stay deterministic.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence

from bastion.core.model.gangs import GangRef, GangRequest, GangStatus
from bastion.ports import Clock, Provisioner
from bastion.testing.slow_bucket import Moment


class Killed(BaseException):
    """The process is dead: its own handlers must not catch this."""


class SteppedClock:
    """A machine's clock whose wall clock is wrong by `offset` seconds."""

    def __init__(self, true: Clock) -> None:
        self._true = true
        self.offset = 0.0

    def now(self) -> float:
        return self._true.now() + self.offset

    def monotonic(self) -> float:
        return self._true.monotonic()

    def sleep(self, seconds: float) -> None:
        self._true.sleep(seconds)


class WatchedProvisioner:
    """A provisioner that calls `moment` right before and after each call."""

    def __init__(self, provisioner: Provisioner, moment: Moment) -> None:
        self._provisioner = provisioner
        self._moment = moment

    def create(self, request: GangRequest) -> None:
        self._moment("create", request.ref.name)
        self._provisioner.create(request)
        self._moment("create", request.ref.name)

    def failure(self, ref: GangRef) -> Exception | None:
        return self._provisioner.failure(ref)

    def get(self, ref: GangRef) -> GangStatus | None:
        self._moment("lookup", ref.name)
        return self._provisioner.get(ref)

    def list(self, zone: str = "") -> Sequence[GangStatus]:
        found = self._provisioner.list(zone)
        self._moment("list", zone)
        return found

    def delete(self, ref: GangRef) -> None:
        self._moment("destroy", ref.name)
        self._provisioner.delete(ref)
        self._moment("destroy", ref.name)


class Frozen:
    """A call that can freeze, in its own thread.

    Args:
        when: `(method, key)`: whether this moment counts.
        moments: Which of the counted moments freezes it, from 1.

    Attributes:
        at: Method and key of the frozen request; None: not frozen.
        over: Whether the call has ended.
    """

    def __init__(self, call: Callable[[], object], when: Callable[[str, str], bool], moments: int) -> None:
        self._call = call
        self._when = when
        self._left = moments
        self._parked = threading.Event()
        self._go = threading.Event()
        self._killed = False
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._run, daemon=True)
        self.at: tuple[str, str] | None = None
        self.over = False

    def start(self) -> None:
        """Run the call until it is frozen or over."""
        self._thread.start()
        self._wait()

    def moment(self, method: str, key: str) -> None:
        if threading.current_thread() is not self._thread:
            return
        self._left -= self._when(method, key)
        if self._left == 0 and self.at is None:
            self._left -= 1
            self.at = method, key
            self._parked.set()
            self._go.wait()
            self._go.clear()
            self.at = None
        if self._killed:
            raise Killed

    def revive(self) -> None:
        """Let a frozen call run to its end."""
        self._go.set()
        self._wait()

    def kill(self) -> None:
        """End a frozen call without further effects."""
        self._killed = True
        self.revive()

    def _wait(self) -> None:
        self._parked.wait()
        self._parked.clear()
        if self.over:
            self._thread.join()
        if self._error is not None:
            raise self._error

    def _run(self) -> None:
        try:
            self._call()
        except Killed:
            pass
        except BaseException as error:  # noqa: BLE001 - raised again in the waiting thread
            self._error = error
        self.over = True
        self._parked.set()
