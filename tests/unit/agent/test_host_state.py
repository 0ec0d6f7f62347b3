"""What a host remembers on its own disk."""

from pathlib import Path

import pytest

from bastion.agent.host_state import HostState
from bastion.core.bucket.protocol import HostPhase, Report

RUN = "abcdefghij-1"


def state(tmp_path: Path, host: int = 0) -> HostState:
    return HostState(tmp_path, run=RUN, host=host)


def test_a_command_can_be_marked_as_started_once(tmp_path: Path):
    first = state(tmp_path)
    assert first.open()
    assert not first.started
    first.mark_started("boot", 1)
    first.close()
    again = state(tmp_path)
    assert again.open()
    assert again.started
    with pytest.raises(FileExistsError):
        again.mark_started("boot", 1)


def test_hosts_that_share_a_state_dir_do_not_share_a_mark(tmp_path: Path):
    first, second = state(tmp_path, 0), state(tmp_path, 1)
    assert first.open()
    assert second.open()
    first.mark_started("boot", 1)
    assert not second.started


def test_a_second_agent_of_the_same_host_is_kept_out_while_the_first_lives(tmp_path: Path):
    first = state(tmp_path)
    assert first.open()
    assert not state(tmp_path).open()
    first.close()
    assert state(tmp_path).open()


def test_the_outcome_survives_the_agent_and_half_of_one_does_not_count(tmp_path: Path):
    report = Report(run=RUN, host=0, token="t", phase=HostPhase.EXITED, exit_code=7)
    first = state(tmp_path)
    assert first.open()
    assert first.outcome() is None
    first.keep_outcome(report)
    assert first.outcome() == report
    (first.folder / "outcome").write_bytes(report.to_bytes()[:20])
    assert first.outcome() is None


def test_the_preempt_file_holds_the_reason(tmp_path: Path):
    host = state(tmp_path)
    assert host.open()
    host.make_job_dir(None)
    host.ask_to_stop("preempted: for vision")
    assert host.preempt_file.read_text() == "preempted: for vision\n"


def test_each_try_is_marked_once_and_finds_no_files_of_the_one_before(tmp_path: Path):
    host = state(tmp_path)
    assert host.open()
    host.make_job_dir(None)
    assert host.started == 0
    host.mark_started("boot", 1)
    host.ask_to_stop("again")
    host.checkpoint_file.mkdir()
    host.mark_started("boot", 2)
    assert not host.preempt_file.exists()
    assert not host.checkpoint_file.exists()
    host.checkpoint_file.touch()
    host.mark_started("boot", 10)
    assert not host.checkpoint_file.exists()
    assert host.started == 10
    with pytest.raises(FileExistsError):
        host.mark_started("boot", 2)
