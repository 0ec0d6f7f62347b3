"""A real command whose time is over, and no daemon: it ends by the host's clock, with its grace."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from bastion.core import limits
from bastion.core.bucket import host_errors
from bastion.core.bucket.protocol import HostPhase, TimeLeft
from tests.support.waiting import until
from tests.support.worker_stage import Stage


@pytest.fixture(autouse=True)
def without_slack(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "OVERTIME_HOST_SLACK_SECONDS", 0.0)


def left(seconds: float, *, grace: float = 20.0, from_order: bool = False) -> TimeLeft:
    return TimeLeft(seconds=seconds, grace_seconds=grace, from_order=from_order)


def test_a_command_is_asked_to_end_and_its_last_words_are_kept(stage: Stage) -> None:
    began = time.monotonic()
    stage.run("trap 'cat $BASTION_PREEMPT_FILE; exit 9' TERM; while :; do sleep 0.05; done", time_left=left(0.5))
    report = stage.final()
    assert 0.5 <= time.monotonic() - began < 5
    assert (report.phase, report.error, report.exit_code) == (HostPhase.STOPPED, host_errors.OVERTIME, 9)
    assert "stdout F the job's time is over (--max_run)" in stage.log()


def test_one_that_does_not_listen_is_killed_after_its_grace(stage: Stage) -> None:
    began = time.monotonic()
    stage.run("trap '' TERM; while :; do sleep 0.05; done", time_left=left(0.3, grace=0.5))
    assert stage.final().exit_code == 137
    assert 0.8 <= time.monotonic() - began < 5


def test_setup_counts_and_no_try_follows(stage: Stage, tmp_path: Path) -> None:
    host = stage.host(on_vm=True, power_off=None, leave_when_done=True)
    stage.run(f"touch {tmp_path}/ran", host=host, setup="sleep 60", most=3, time_left=left(0.5))
    report = stage.final()
    assert (report.phase, report.error) == (HostPhase.STOPPED, host_errors.OVERTIME)
    assert not (tmp_path / "ran").exists()


def test_a_command_that_ended_in_time_keeps_its_end_while_its_output_is_stored(stage: Stage) -> None:
    stage.run("exit 3", time_left=left(1.0))
    assert (stage.final().phase, stage.final().exit_code) == (HostPhase.EXITED, 3)


def test_a_later_order_tells_the_rest(stage: Stage) -> None:
    began = time.monotonic()
    stage.run("sleep 60", time_left=left(50.0))
    until(lambda: stage.phase() is HostPhase.RUNNING)
    stage.order("sleep 60", time_left=left(0.5, from_order=True))
    assert stage.final().error == host_errors.OVERTIME
    assert time.monotonic() - began < 10
