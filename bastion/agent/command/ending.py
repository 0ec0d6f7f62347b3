"""How a process that ran on this host ended."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from bastion.agent.command.progress import Progress
from bastion.agent.stop_reasons import Stop
from bastion.core.bucket import host_errors
from bastion.core.bucket.protocol import HostPhase


@dataclass(frozen=True, slots=True, kw_only=True)
class Ending:
    """How a try ended on this host. Times are seconds since the epoch.

    Attributes:
        phase: A final one, or WAITING if the next try has been ordered.
        started_at: The command's start; None if it did not start.
        gone: Whether all processes of the command have ended.
    """

    phase: HostPhase
    ended_at: float
    started_at: float | None = None
    exit_code: int | None = None
    error: str = ""
    message: str = ""
    progress: Progress = field(default_factory=Progress)
    gone: bool = True

    @property
    def may_be_followed(self) -> bool:
        return may_be_followed(self.phase, self.error)

    def with_remark(self, remark: str) -> Ending:
        """Return the ending with something else that users should know; `remark` has no full stop."""
        if not self.message:
            return replace(self, message=f"{remark}.")
        joint = "" if self.message.endswith(".") else ";"
        return replace(self, message=f"{self.message}{joint} {remark}.")


def may_be_followed(phase: HostPhase, error: str) -> bool:
    """Whether another try may follow on this host: the ending is the command's own doing."""
    return phase in (HostPhase.EXITED, HostPhase.WAITING) or error in host_errors.OF_THE_USER


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessEnd:
    """How a command line and all of its processes ended.

    Attributes:
        exit_code: As a shell gives it.
        stop: Why it was stopped; None if it ended by itself.
        ended_at: Seconds since the epoch.
        gone: Whether all of its processes have ended.
    """

    exit_code: int | None
    stop: Stop | None
    ended_at: float
    gone: bool

    @property
    def remark(self) -> str:
        """A sentence for users; empty if all is well."""
        return "" if self.gone else " Some processes could not be ended."
