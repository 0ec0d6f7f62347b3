"""A host whose job holds too much of the disk: it ends the command, gives the room back, and says so."""

from __future__ import annotations

from pathlib import Path

import pytest

from bastion.agent.host_state import HostState
from bastion.core.bucket import host_errors
from bastion.core.bucket.protocol import HostPhase
from bastion.core.disk_limit import NOTICE_NAME, DiskNotice
from tests.support.waiting import until
from tests.support.worker_stage import RUN, Stage

MIB = 1024 * 1024
NOTICE = DiskNotice(held=30 * MIB, limit=0, free=0, total=200 * MIB)


def notify(state: HostState) -> None:
    (state.folder / NOTICE_NAME).symlink_to(NOTICE.to_text())


def test_a_command_that_fills_the_disk_ends_as_the_users_failure_and_its_files_go(stage: Stage) -> None:
    state = HostState(stage.state_dir, run=RUN, host=0)
    stage.run("head -c 1000000 /dev/zero > data; echo written; sleep 600")
    until(lambda: (state.work_dir / "data").exists() and stage.phase() is HostPhase.RUNNING)
    notify(state)
    report = stage.final()
    assert (report.phase, report.error) == (HostPhase.FAILED, host_errors.DISK_LIMIT)
    assert report.exit_code == 143
    assert report.message == (
        "no space left on device: 0 B of 200 MiB is free, and this job's files use the most, 30.0 MiB"
    )
    assert "stdout F written" in stage.log()
    until(lambda: not list(state.folder.rglob("data")))


def test_a_setup_that_fills_the_disk_ends_so_too(stage: Stage) -> None:
    state = HostState(stage.state_dir, run=RUN, host=0)
    stage.run("echo never", setup="sleep 600")
    until(lambda: stage.phase() is HostPhase.PREPARING)
    notify(state)
    report = stage.final()
    assert (report.phase, report.error) == (HostPhase.FAILED, host_errors.DISK_LIMIT)


def test_a_command_that_sees_the_full_disk_first_is_told_of_it_in_its_result(stage: Stage) -> None:
    state = HostState(stage.state_dir, run=RUN, host=0)
    # The notice comes while the command is at its end.
    stage.run(f"ln -s {NOTICE.to_text()} ../../{NOTICE_NAME}; exit 28")
    report = stage.final()
    assert (report.error, report.exit_code) == (host_errors.DISK_LIMIT, 28)
    until(lambda: not state.work_dir.exists())


def test_a_job_without_a_slice_leaves_no_files_at_its_end(stage: Stage) -> None:
    state = HostState(stage.state_dir, run=RUN, host=0)
    stage.run("echo kept > data")
    assert stage.final().exit_code == 0
    until(lambda: not list(state.folder.rglob("data")))


def test_a_try_that_is_followed_by_another_keeps_its_files(stage: Stage) -> None:
    stage.run("ls data 2>/dev/null; echo kept > data; exit 3", most=2, host=stage.host(on_vm=True))
    assert stage.final().exit_code == 3
    stage.order("ls data 2>/dev/null; echo kept > data; exit 3", number=2, most=2)
    until(lambda: stage.report().try_number == 2 and stage.report().phase.final)
    assert "stdout F data" in stage.log()


def test_an_agent_whose_disk_is_full_can_still_note_that_it_has_reported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    state = HostState(tmp_path, run=RUN, host=0)
    assert state.open()

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("bastion.agent.host_state._write_durably", full)
    state.mark_reported()
    state.mark_reported()
    assert state.reported
    state.close()
