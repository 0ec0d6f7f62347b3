"""Where the time of a job went: waiting, restarting, productive, lost. Pure.

The four add up to the job's whole time, exactly. Work is lost from the last save to the end of a run that did not
succeed: the next one does it again. What a running job has not saved yet counts as productive.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """One run of the command, a try of an attempt; instants are seconds since the epoch.

    Attributes:
        held_at: When its machines were there, or its wait for them began, if they never came.
        running_since: When the command ran on all hosts; None: never.
        stopped_at: When the command ended or was told to; None: it runs.
        freed_at: When its machines were gone, or the next try began; None: it holds them.
        saved_at: Its last checkpoint; None: none known.
        succeeded: Whether its work is done, saved or not.
        first_step, last_step: The first and the highest step that it reported.
    """

    held_at: float
    running_since: float | None = None
    stopped_at: float | None = None
    freed_at: float | None = None
    saved_at: float | None = None
    succeeded: bool = False
    first_step: int | None = None
    last_step: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Goodput:
    """Seconds by what became of them.

    Attributes:
        waiting: Without machines: in the queue, between attempts, and for capacity.
        restarting: With machines, without the command: start-up, set-up, and the time to stop.
        productive: The command ran, and its work was not lost.
        lost: The command ran, and its work was lost.
        lost_steps: Steps done again: how far each run began below the highest step before it. None: no step is known.
    """

    waiting: float = 0.0
    restarting: float = 0.0
    productive: float = 0.0
    lost: float = 0.0
    lost_steps: int | None = None

    @property
    def total(self) -> float:
        return self.waiting + self.restarting + self.productive + self.lost

    @property
    def fraction(self) -> float | None:
        """The productive part of the time with machines; None before there was any."""
        held = self.restarting + self.productive + self.lost
        return self.productive / held if held > 0 else None


def account(queued_at: float, runs: Iterable[Run], until: float) -> Goodput:
    """Account for a job's time from `queued_at` to `until`, its end or now.

    Runs ascend. Instants of several clocks may overlap by a little; each is taken as not before the one it follows.
    """
    at = queued_at
    spent = {"waiting": 0.0, "restarting": 0.0, "productive": 0.0, "lost": 0.0}

    def pass_to(instant: float | None, what: str) -> None:
        nonlocal at
        to = min(until, max(at, until if instant is None else instant))
        spent[what] += to - at
        at = to

    highest: int | None = None
    lost_steps = 0
    for run in runs:
        pass_to(run.held_at, "waiting")
        if run.running_since is not None:
            pass_to(run.running_since, "restarting")
            if not run.succeeded and run.stopped_at is not None:
                saved_at = at if run.saved_at is None else min(max(at, run.saved_at), run.stopped_at)
                pass_to(saved_at, "productive")
                pass_to(run.stopped_at, "lost")
            else:
                pass_to(run.stopped_at, "productive")
        pass_to(run.freed_at, "restarting")
        if run.first_step is not None and highest is not None:
            lost_steps += max(0, highest - run.first_step)
        highest = max((step for step in (highest, run.last_step) if step is not None), default=None)
    pass_to(until, "waiting")
    return Goodput(**spent, lost_steps=None if highest is None else lost_steps)
