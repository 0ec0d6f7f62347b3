"""What an agent that died had not stored yet: its successor stores it before it reports the end."""

from __future__ import annotations

import logging
from collections.abc import Callable

from bastion.agent.command.one_try import SHUTDOWN_FLUSH_SECONDS
from bastion.agent.environment import own_variables
from bastion.agent.host_parts import HostParts
from bastion.agent.logs.host_log import HostLog
from bastion.agent.outputs import host_outputs
from bastion.agent.results import host_results
from bastion.agent.waits import Waits
from bastion.core import limits

_log = logging.getLogger(__name__)


class LeftToStore:
    """The log, outputs and results that an earlier agent left on this host."""

    def __init__(self, parts: HostParts, waits: Waits, *, open_proxy_log: Callable[[], HostLog]) -> None:
        self._parts = parts
        self._waits = waits
        self._open_proxy_log = open_proxy_log

    def store_log(self, *, gap: bool = False) -> None:
        """Upload what is in the spools; give up only at shutdown.

        `gap`: unread output may be lost; the log then says so.
        """
        if self._parts.state.proxy_spool_dir.is_dir():
            self._store(self._open_proxy_log(), gap=False)
        self._store(self._parts.open_log(), gap=gap)

    def _store(self, log: HostLog, *, gap: bool) -> None:
        try:
            log.open()
        except OSError as error:
            _log.warning("the log spool cannot be read; the remaining output is lost: %s", error)
            return
        if not gap and log.is_empty:
            return
        self._waits.until_answered(log.go_on)
        if gap:
            log.gap("the agent of this host was restarted")
        log.close()
        log.start()
        if not self._waits.until(lambda: log.done, at_most_seconds_if_shut_down=SHUTDOWN_FLUSH_SECONDS):
            log.abandon()

    def store_outputs(self) -> None:
        parts = self._parts
        if not parts.state.prepared:
            return
        order = self._waits.until_answered(lambda: host_outputs.order_of(parts))
        folder = None if order is None else host_outputs.folder_of(parts, order)
        if order is None or folder is None:
            return
        with parts.state.files():
            if not folder.is_dir():
                return
        sync = self._waits.until_answered(lambda: host_outputs.begin(parts, order, folder))
        if sync is None:
            return
        sync.finish()
        deadline = parts.clock.monotonic() + limits.OUTPUT_FINAL_SECONDS
        while not (sync.done or parts.reasons.urgent) and parts.clock.monotonic() < deadline:
            parts.wakeup.wait(parts.identity.arguments.poll_seconds)
        if not sync.done:
            sync.abandon()
            _log.warning("%s", host_outputs.describe_missing(sync))

    def store_results(self, number: int, exit_code: int | None) -> None:
        """Store what the command of that try measured, as far as an agent knows it that did not start it."""
        parts = self._parts
        order = self._waits.until_answered(lambda: host_outputs.order_of(parts)) if parts.state.has_results else None
        if order is None:
            return
        variables = own_variables(parts.environ) | order.env
        upload = host_results.begin(parts, order, variables=variables, try_number=number, exit_code=exit_code)
        if upload is not None:
            self._waits.until(lambda: upload.done, at_most_seconds=limits.OUTPUT_FINAL_SECONDS)
            upload.abandon()
            if upload.stored:
                parts.state.remove_results()
