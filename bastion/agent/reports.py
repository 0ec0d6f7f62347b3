"""The reports of one host."""

from __future__ import annotations

from collections.abc import Callable

from bastion.agent.command.progress import Progress
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
        progress: Progress | None = None,
        stuck: bool | None = None,
        inputs: tuple[int, int] | None = None,
    ) -> Report:
        """Times are seconds since the epoch; `inputs`: the bytes that are there, and those of all inputs."""
        known = progress or Progress()
        return Report(
            run=self._identity.arguments.run,
            host=self._identity.host,
            boot_id=self._boot_id,
            address=self._identity.address if self._identity.gpus else None,
            phase=phase,
            exit_code=exit_code,
            error=error,
            message=message,
            started_at=_text(started_at),
            ended_at=_text(ended_at),
            checkpointed_at=_text(known.checkpointed_at),
            first_step=known.first_step,
            last_step=known.last_step,
            stuck=stuck,
            fetched_bytes=inputs[0] if inputs else None,
            input_bytes=inputs[1] if inputs else None,
            try_number=self.try_number,
        )

    def publish(
        self,
        phase: HostPhase,
        *,
        message: str = "",
        started_at: float | None = None,
        progress: Progress | None = None,
        stuck: bool | None = None,
        inputs: tuple[int, int] | None = None,
    ) -> None:
        self._publish(
            self.make(phase, message=message, started_at=started_at, progress=progress, stuck=stuck, inputs=inputs)
        )


def _text(instant: float | None) -> str:
    return "" if instant is None else instants.to_rfc3339(instant)
