"""What a command tells about its progress through two files, and when to report it."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from random import Random

from bastion.agent.backoff import jittered
from bastion.agent.command.checkpoint_file import CheckpointFile
from bastion.agent.command.step_file import StepFile
from bastion.core import limits
from bastion.ports import Clock


@dataclass(frozen=True, slots=True, kw_only=True)
class Progress:
    """`checkpointed_at` is in seconds since the epoch; None is unknown."""

    checkpointed_at: float | None = None
    first_step: int | None = None
    last_step: int | None = None


class ProgressFiles:
    """The files of one try, which starts at `began_at` (seconds since the epoch)."""

    def __init__(
        self,
        checkpoint_file: Path,
        step_file: Path,
        *,
        clock: Clock,
        rng: Random,
        files: Callable[[], AbstractContextManager[None]] = nullcontext,
    ) -> None:
        """`files`: gives a thread the rights to look at them."""
        self._files = files
        self._checkpoints = CheckpointFile(checkpoint_file, clock=clock)
        self._steps = StepFile(step_file)
        self._clock = clock
        self._rng = rng
        self.began_at = self._checkpoints.began_at
        self._reported = Progress()
        self._quiet_until = clock.monotonic()

    def latest(self) -> Progress:
        with self._files():
            self._steps.look()
            saved_at = self._checkpoints.latest()
        return Progress(checkpointed_at=saved_at, first_step=self._steps.first, last_step=self._steps.highest)

    def to_report(self) -> Progress | None:
        """Return progress to report now. None: there is none, or the last report is too recent."""
        latest, now = self.latest(), self._clock.monotonic()
        if latest == self._reported or now < self._quiet_until:
            return None
        self._reported = latest
        self._quiet_until = now + jittered(limits.CHECKPOINT_REPORT_SECONDS, self._rng)
        return latest
