"""Calls that may run a credential plugin: one at a time, and waited for with a limit.

The library waits for a plugin forever. A plugin that hangs keeps one thread and one process, however many ask.
"""

from __future__ import annotations

import concurrent.futures
import math
import threading
from collections.abc import Callable
from typing import Generic, TypeVar

from bastion.adapters.kubernetes.api_errors import NoAnswer

_T = TypeVar("_T")


class PluginCalls(Generic[_T]):
    """Runs calls in a thread; whoever asks while one runs gets its outcome.

    Args:
        cluster: Name in messages.
        plugin: Name in messages.
        seconds: How long each caller waits.
    """

    def __init__(self, *, cluster: str, plugin: str, seconds: float) -> None:
        self._cluster = cluster
        self._plugin = plugin
        self._seconds = seconds
        self._lock = threading.Lock()
        self._running: concurrent.futures.Future[_T] | None = None

    def run(self, call: Callable[[], _T], *, seconds: float = math.inf) -> _T:
        """Return what the call returns, or raise what it raises; NoAnswer after the limit, or `seconds` if less."""
        with self._lock:
            if self._running is None or self._running.done():
                self._running = concurrent.futures.Future()
                threading.Thread(
                    target=_settle, args=(self._running, call), name=f"credentials-{self._cluster}", daemon=True
                ).start()
            running = self._running
        try:
            return running.result(min(self._seconds, seconds))
        except concurrent.futures.TimeoutError:
            if running.done():
                raise
            raise NoAnswer(
                f"cluster {self._cluster}: the credential plugin {self._plugin!r} did not answer within "
                f"{min(self._seconds, seconds):.0f} s; run it by hand as the bastion's user"
            ) from None


def _settle(future: concurrent.futures.Future[_T], call: Callable[[], _T]) -> None:
    try:
        result = call()
    except BaseException as error:  # noqa: BLE001 - raised in the callers' threads
        future.set_exception(error)
    else:
        future.set_result(result)
