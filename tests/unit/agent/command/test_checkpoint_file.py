"""What a host makes of the file that its command touches after each save."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from bastion.agent.command.checkpoint_file import CheckpointFile
from bastion.testing.manual_clock import ManualClock


class JumpyClock(ManualClock):
    """Somebody sets the wall clock."""

    def jump(self, seconds: float) -> None:
        self._now += seconds


class Folder:
    """A command's folder at some time, and what its host sees."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / "checkpoint"
        self.clock = JumpyClock()
        self.watched = CheckpointFile(self.path, clock=self.clock)

    def touch(self, *, ahead: float = 0.0) -> float:
        self.path.touch()
        at = self.clock.now() + ahead
        os.utime(self.path, (at, at))
        return at

    def latest(self) -> float | None:
        """Seconds after the command's start."""
        found = self.watched.latest()
        return None if found is None else round(found - self.watched.began_at, 3)


@pytest.fixture
def folder(tmp_path: Path) -> Folder:
    return Folder(tmp_path)


def test_an_untouched_file_is_no_checkpoint(folder: Folder):
    folder.clock.advance(100)
    assert folder.latest() is None


def test_the_checkpoint_is_when_the_file_was_last_touched(folder: Folder):
    folder.clock.advance(100)
    first = folder.touch()
    folder.clock.advance(7)
    assert folder.watched.latest() == pytest.approx(first)
    folder.clock.advance(50)
    assert folder.latest() == 100
    folder.touch()
    assert folder.latest() == 157


@pytest.mark.parametrize(
    ("ahead", "seen"), [pytest.param(5000.0, 100, id="future"), pytest.param(-5000.0, 0, id="before the start")]
)
def test_a_time_that_cannot_be_is_moved_between_the_start_and_now(folder: Folder, ahead: float, seen: int):
    folder.clock.advance(100)
    folder.touch(ahead=ahead)
    assert folder.latest() == seen
    folder.clock.advance(100)
    assert folder.latest() == seen


@pytest.mark.parametrize("jump", [-86400.0, 86400.0])
def test_a_clock_that_jumps_moves_no_checkpoint(folder: Folder, jump: float):
    folder.clock.advance(100)
    folder.touch()
    assert folder.latest() == 100
    folder.clock.jump(jump)
    folder.clock.advance(10)
    assert folder.latest() == 100
    folder.touch()
    folder.clock.advance(3)
    assert folder.latest() == 110


def test_a_file_that_vanishes_leaves_what_was_saved(folder: Folder):
    folder.clock.advance(100)
    folder.touch()
    assert folder.latest() == 100
    folder.path.unlink()
    assert folder.latest() == 100


@pytest.mark.parametrize("make", ["folder", "pipe", "link", "loop"])
def test_what_is_no_plain_file_is_no_checkpoint(folder: Folder, make: str):
    if make == "folder":
        folder.path.mkdir()
    elif make == "pipe":
        os.mkfifo(folder.path)
    else:
        target = folder.path if make == "loop" else folder.path.with_name("elsewhere")
        folder.path.symlink_to(target)
        if make == "link":
            target.touch()
    assert folder.latest() is None
