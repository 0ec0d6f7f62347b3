"""`--wait` and `logs --follow`: show a job's events until it ends. Ctrl-C detaches and never affects the job."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from bastion.cli.jobs.log_printer import LogPrinter
from bastion.cli.output import plain, say
from bastion.cli.phrases import backlog, ending, progress
from bastion.cli.progress_line import ProgressLine
from bastion.client import (
    CaughtUp,
    Client,
    Ended,
    Event,
    FollowOptions,
    Logged,
    Noted,
    Progressed,
    Quiet,
    StartedAttempt,
    follow,
)
from bastion.core.errors import EXIT_DETACHED, EXIT_INFRASTRUCTURE
from bastion.ports import Clock
from bastion.user_config.target import Target


@dataclass(frozen=True, slots=True, kw_only=True)
class Waited:
    """How the waiting ended; `ended` is None after Ctrl-C."""

    exit_code: int
    ended: Ended | None


def next_steps(name: str, target: Target) -> str:
    """Commands for a job that was just submitted."""
    return (
        f"  bastion logs -f {name}{target.suffix}    show its output\n"
        f"  bastion why {name}{target.suffix}        show why it waits\n"
        f"  bastion cancel {name}{target.suffix}     cancel it"
    )


def wait_for(
    client: Client,
    target: Target,
    name: str,
    uid: str,
    *,
    generation: int = 0,
    what: FollowOptions,
    printer: LogPrinter | None,
    hint: bool = True,
) -> Waited:
    """Show progress and output until the job has ended.

    Args:
        printer: Shows the output; None: do not show it.
        hint: After Ctrl-C, print how to continue.
    """
    line = ProgressLine(printer.interrupt if printer is not None else lambda: None)
    shown = _Shown(line, printer, client.clock)
    try:
        for event in follow(client, name, uid, generation=generation, what=what):
            shown.show(event)
    except KeyboardInterrupt:
        line.clear()
        shown.interrupt()
        if hint:
            say(
                f"detached; the job {name} keeps running\n"
                f"  bastion logs -f {name}{target.suffix}    follow it again\n"
                f"  bastion cancel {name}{target.suffix}     cancel it"
            )
        return Waited(exit_code=EXIT_DETACHED, ended=None)
    finally:
        line.clear()
    ended = shown.ended
    assert ended is not None  # the last event of `follow`
    return Waited(exit_code=ended.exit_code, ended=ended)


def tell_end(name: str, ended: Ended, tell: Callable[[str], None] = say) -> None:
    """Print how the job ended, in one line."""
    if ended.result is None:
        tell(f"{name}: {plain(ended.message)}")
        return
    outcome = ended.result.outcome
    code = ended.exit_code
    text = ending(outcome, ended.message)
    attempts = ended.result.attempts
    # The command itself may exit with 75, too.
    if code == EXIT_INFRASTRUCTURE and attempts and attempts[-1].cause == "infrastructure":
        text = f"{plain(outcome)} because of an infrastructure failure, not its command: {plain(ended.message)}"
    tell(f"{name} {text}" + (f" (exit code {code})" if outcome == "failed" else ""))


class _Shown:
    """Shows events and remembers the last one."""

    def __init__(self, line: ProgressLine, printer: LogPrinter | None, clock: Clock) -> None:
        self._line = line
        self._clock = clock
        self._printer = printer
        self.ended: Ended | None = None

    def show(self, event: Event) -> None:
        match event:
            case Progressed(entry=entry, again=again, kept_out=kept_out):
                if kept_out is not None:
                    self._line.clear()
                    say(f"bastion: {backlog(kept_out)}")
                self._line.update(progress(entry, self._clock.now(), kept_out=bool(kept_out)), again=again)
            case StartedAttempt(run=run, hosts=hosts, slices=slices):
                self._line.clear()
                if self._printer is not None:
                    self._printer.begin(run.attempt, hosts, slices)
            case Logged(pieces=pieces):
                self._line.clear()
                if self._printer is not None:
                    self._printer.show(pieces)
            case CaughtUp():
                self._line.clear()
                if self._printer is not None:
                    self._printer.caught_up()
            case Quiet():
                pass
            case Noted(text=text):
                self._line.clear()
                self.interrupt()
                say(f"bastion: {plain(text)}")
            case Ended():
                self._line.clear()
                if self._printer is not None:
                    self._printer.finish()
                self.ended = event
        if self._printer is not None and self.ended is None and isinstance(event, (Logged, Quiet)):
            self._printer.show_unfinished(self._clock.monotonic())

    def interrupt(self) -> None:
        """Prepare for a line of ours."""
        if self._printer is not None:
            self._printer.interrupt()
