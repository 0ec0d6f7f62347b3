"""What a host says while a bucket of the job's does not answer: in the job's log, and by its report in `why`."""

from __future__ import annotations

from bastion.agent.host_parts import HostParts
from bastion.agent.logs.host_log import HostLog
from bastion.core import limits
from bastion.core.bucket.protocol import HostPhase

_PERIOD_SECONDS = 60.0
_SILENT_SECONDS = 5.0


class WaitNotes:
    """Tells why a download waits: the first time at once, then once a minute.

    Args:
        doing: What is told after some seconds, before it is known what it waits for; empty: nothing.
    """

    def __init__(self, parts: HostParts, log: HostLog, doing: str = "") -> None:
        self._parts = parts
        self._log = log
        self._doing = doing
        self._doing_due = parts.clock.monotonic() + _SILENT_SECONDS
        self._due = 0.0

    def poll(self, why: str, *, inputs: tuple[int, int] | None = None) -> None:
        """`why`: empty if it does not wait; `inputs`: as in a report."""
        now = self._parts.clock.monotonic()
        if self._doing and now >= self._doing_due:
            self._log.note(self._doing)
            self._doing = ""
        if not why or now < self._due:
            return
        self._due = now + _PERIOD_SECONDS
        text = f"waiting for an answer: {why}"
        self._log.note(text)
        self._parts.reporter.publish(HostPhase.PREPARING, inputs=inputs, message=text[: limits.MESSAGE_MAX_CHARS])
