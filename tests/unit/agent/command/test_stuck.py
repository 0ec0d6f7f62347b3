"""When a command counts as silent, whatever the clock does."""

from __future__ import annotations

from pathlib import Path

import pytest

from bastion.agent.command.stuck import SignWatch
from bastion.testing.manual_clock import ManualClock

LIMIT = 100.0
LOOK = 5.0


class Command:
    def __init__(self, folder: Path) -> None:
        self.clock = ManualClock()
        self.checkpoint, self.step = folder / "checkpoint", folder / "step"
        self.written = 0
        self.watch = SignWatch((self.checkpoint, self.step), limit_seconds=LIMIT, clock=self.clock)

    def passes(self, seconds: float) -> bool:
        """Whether it is silent after so long, with a look every few seconds."""
        silent = False
        for _ in range(int(seconds // LOOK)):
            self.clock.advance(LOOK)
            silent = self.watch.look(self.written)
        return silent


@pytest.fixture
def command(tmp_path: Path) -> Command:
    return Command(tmp_path)


def test_a_command_is_silent_after_the_limit_and_not_before(command: Command) -> None:
    assert not command.passes(LIMIT - LOOK)
    assert command.passes(LOOK)
    assert command.passes(10 * LIMIT)


def test_output_ends_the_silence_and_begins_another(command: Command) -> None:
    assert command.passes(LIMIT)
    command.written += 1
    assert not command.passes(LIMIT)
    assert command.passes(LOOK)


@pytest.mark.parametrize("change", ["made", "touched", "replaced", "removed", "a folder"])
def test_every_change_of_a_file_is_a_sign(command: Command, change: str) -> None:
    if change != "made":
        command.step.write_text("7")
        command.passes(LOOK)
    command.passes(LIMIT - LOOK)
    if change == "made":
        command.checkpoint.touch()
    elif change == "touched":
        command.step.write_text("7")
    elif change == "replaced":
        (new := command.step.with_name("new")).write_text("7")
        new.replace(command.step)
    else:
        command.step.unlink()
        if change == "a folder":
            command.step.mkdir()
    assert not command.passes(LIMIT)
    assert command.passes(LOOK)


def test_a_machine_that_was_suspended_for_a_day_was_not_watched(command: Command) -> None:
    command.passes(LIMIT / 2)
    command.clock.advance(86400.0)
    assert not command.watch.look(0)
    assert not command.passes(LIMIT / 4)
    assert command.passes(LIMIT / 2)


def test_a_file_that_exists_before_is_no_sign(tmp_path: Path) -> None:
    (tmp_path / "step").write_text("7")
    assert Command(tmp_path).passes(LIMIT)


@pytest.mark.parametrize("limit", [5.0, 10.0, 20.0])
def test_an_agent_that_was_frozen_does_not_find_the_command_stuck_when_it_wakes(tmp_path: Path, limit: float) -> None:
    clock = ManualClock()
    watch = SignWatch((), limit_seconds=limit, clock=clock)
    clock.advance(3600.0)
    assert not watch.look(0)
    clock.advance(limit / 2 - 1)
    assert not watch.look(0)
    clock.advance(1.0)
    assert watch.look(0)
