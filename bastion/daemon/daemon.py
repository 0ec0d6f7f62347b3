"""The daemon: one tick after another. Everything it knows is in the bucket; it may be killed at any instant."""

from __future__ import annotations

import contextlib
import threading
import traceback
from collections.abc import Callable

from bastion.core.errors import StoreError
from bastion.daemon.tick import Tick, TickReport

# Interval of checks whether to stop.
_DOZE_SECONDS = 0.5
# Giving the lease back spares a successor its TTL; a bucket that does not answer is not worth a longer wait.
_GIVE_BACK_SECONDS = 5.0


class Daemon(Tick):
    """Ticks until it is told to stop."""

    def run(self, should_stop: Callable[[], bool]) -> None:
        """Tick until `should_stop`, or until there was no job for `idle_exit_seconds`."""
        busy_at = self._clock.monotonic()
        while not should_stop():
            report = self._guarded_tick()
            now = self._clock.monotonic()
            if report.jobs or not report.acted:
                busy_at = now
            idle = self._options.idle_exit_seconds
            if idle and now - busy_at >= idle:
                self._notify(f"no job for {idle:.0f} s: exiting")
                break
            moving = report.acted and (report.outcome.done > 0 or report.pressing)
            self._pause(self._options.busy_tick_seconds if moving else self._options.tick_seconds, should_stop)
        self.close()

    def _guarded_tick(self) -> TickReport:
        """Run one tick. An unforeseen error is logged and counted, and the next tick begins anew from the bucket."""
        try:
            return self.tick()
        except Exception as error:  # noqa: BLE001 - the last guard: nothing that others write may end the daemon
            what, trace = self._failed.note(error), traceback.format_exc()
        self._list_whole = True
        self._notify(f"a tick failed; continuing with the next one: {what}\n{trace}")
        self._log.say(f"a tick failed: {what}")
        with contextlib.suppress(StoreError):
            self._log.flush()
        return TickReport(acted=False, problems=[what])

    def _pause(self, seconds: float, should_stop: Callable[[], bool]) -> None:
        ends = self._clock.monotonic() + seconds
        while (left := ends - self._clock.monotonic()) > 0 and not should_stop():
            self._clock.sleep(min(left, _DOZE_SECONDS))

    def close(self) -> None:
        """Give the lease back, if the bucket answers, and end the threads."""
        giving_back = threading.Thread(target=self._give_back, name="give-back", daemon=True)
        giving_back.start()
        giving_back.join(_GIVE_BACK_SECONDS)
        if giving_back.is_alive():
            self._notify("the lease was not given back: the bucket does not answer; a successor waits for its TTL")
        self._threads.dismiss()
        self._disconnect()

    def _give_back(self) -> None:
        try:
            self._lease.release()
        except StoreError as error:
            self._notify(f"the lease was not given back ({error}); a successor waits for its TTL")
