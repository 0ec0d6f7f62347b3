"""The reports of one host."""

from __future__ import annotations

from collections.abc import Callable

from bastion.agent.identity import HostIdentity
from bastion.core import instants
from bastion.core.bucket.protocol import HostPhase, Report


class Reporter:
    """Makes the reports of one host about the try `try_number`."""

    def __init__(self, identity: HostIdentity, *, boot_id: str, publish: Callable[[Report], None]) -> None:
        """`publish`: makes a report the host's report, without blocking."""
        self._identity = identity
        self._boot_id = boot_id
        self._publish = publish
        self.try_number = 1

    def make(
        self,
        phase: HostPhase,
        *,
        exit_code: int | None = None,
        error: str = "",
        message: str = "",
        started_at: float | None = None,
        ended_at: float | None = None,
        checkpointed_at: float | None = None,
    ) -> Report:
        """Times are seconds since the epoch."""
        return Report(
            run=self._identity.arguments.run,
            host=self._identity.host,
            token=self._identity.arguments.token,
            boot_id=self._boot_id,
            phase=phase,
            exit_code=exit_code,
            error=error,
            message=message,
            started_at=_text(started_at),
            ended_at=_text(ended_at),
            checkpointed_at=_text(checkpointed_at),
            try_number=self.try_number,
        )

    def publish(
        self, phase: HostPhase, *, started_at: float | None = None, checkpointed_at: float | None = None
    ) -> None:
        self._publish(self.make(phase, started_at=started_at, checkpointed_at=checkpointed_at))


def _text(instant: float | None) -> str:
    return "" if instant is None else instants.to_rfc3339(instant)
