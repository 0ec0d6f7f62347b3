"""What a command's progress files tell, and how often it is reported."""

from __future__ import annotations

import os
from pathlib import Path
from random import Random

import pytest

from bastion.agent.command.progress import Progress, ProgressFiles
from bastion.core import limits
from bastion.testing.manual_clock import ManualClock

PAUSE = limits.CHECKPOINT_REPORT_SECONDS


class Folder:
    def __init__(self, folder: Path) -> None:
        self.clock = ManualClock()
        self.checkpoint = folder / "checkpoint"
        self.step = folder / "step"
        self.files = ProgressFiles(self.checkpoint, self.step, clock=self.clock, rng=Random(1))

    def save(self) -> None:
        self.checkpoint.touch()
        now = self.clock.now()
        os.utime(self.checkpoint, (now, now))

    def at_step(self, text: str | int) -> None:
        new = self.step.with_name("step.new")
        new.write_text(str(text))
        new.replace(self.step)

    def steps(self) -> tuple[int | None, int | None]:
        found = self.files.latest()
        return found.first_step, found.last_step


@pytest.fixture
def folder(tmp_path: Path) -> Folder:
    return Folder(tmp_path)


def test_nothing_is_told_of_a_command_that_tells_nothing(folder: Folder):
    folder.clock.advance(3 * PAUSE)
    assert folder.files.latest() == Progress()
    assert folder.files.to_report() is None


def test_progress_is_told_at_once_and_more_of_it_only_after_a_pause(folder: Folder):
    folder.clock.advance(100)
    folder.save()
    folder.at_step(7)
    told = folder.files.to_report()
    assert told == Progress(checkpointed_at=folder.files.began_at + 100, first_step=7, last_step=7)
    reports = 0
    for step in range(8, 368):
        folder.clock.advance(10)
        folder.at_step(step)
        reports += folder.files.to_report() is not None
    assert 3600 / (PAUSE * 1.2) - 1 <= reports <= 3600 / (PAUSE * 0.8)
    folder.clock.advance(2 * PAUSE)
    last = folder.files.to_report()
    assert last is not None and last.last_step == 367, "the last one is told though nothing changed since"
    assert folder.files.to_report() is None


def test_the_first_and_the_highest_step_of_a_command_that_goes_back(folder: Folder):
    for step in (40, 41, 55, 42):
        folder.at_step(step)
        folder.files.latest()
    assert folder.steps() == (40, 55)


@pytest.mark.parametrize("text", ["", "x", "-3", "1.5", "7 8", "9" * 16, "0x10", "\x00", " \n", "9" * 5000])
def test_what_is_no_number_is_no_step_and_the_next_number_is_one(folder: Folder, text: str):
    folder.at_step(text)
    assert folder.steps() == (None, None)
    folder.at_step(" 12\n")
    assert folder.steps() == (12, 12)


@pytest.mark.parametrize("make", ["folder", "pipe", "link", "loop"])
def test_what_is_no_plain_file_is_not_read(folder: Folder, make: str):
    if make == "folder":
        folder.step.mkdir()
    elif make == "pipe":
        os.mkfifo(folder.step)
    else:
        target = folder.step if make == "loop" else folder.step.with_name("elsewhere")
        folder.step.symlink_to(target)
        if make == "link":
            target.write_text("5")
    assert folder.steps() == (None, None)


def test_a_file_that_vanishes_leaves_its_steps(folder: Folder):
    folder.at_step(3)
    assert folder.steps() == (3, 3)
    folder.step.unlink()
    assert folder.steps() == (3, 3)
