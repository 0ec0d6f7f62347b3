"""A host whose command gives no sign: it says so in its report, and shows stacks when it is told to end it."""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path

import pytest

from bastion.agent.command import stacks
from bastion.agent.command.process import Command
from bastion.core import limits
from bastion.core.bucket import host_errors
from bastion.core.bucket.protocol import HostPhase
from tests.support.waiting import until
from tests.support.worker_stage import Stage, command_processes

# Longer than a look of the host, which is 0.03 s.
QUIET = 1
HANGS = f"{sys.executable} -c 'import os, time\ndef the_hang(): os.write(1, b\"1\\n\"); time.sleep(60)\nthe_hang()'"


def says_stuck(stage: Stage) -> bool:
    report = stage.report()
    return report is not None and report.phase is HostPhase.RUNNING and report.stuck is True


def test_a_silent_command_is_told_and_a_sign_takes_it_back(stage: Stage, tmp_path: Path) -> None:
    sign = tmp_path / "sign"
    stage.run(
        f'while [ ! -e "{sign}" ]; do sleep 0.05; done; echo sign; while [ ! -e "{sign}2" ]; do sleep 0.05; done',
        stuck_after=QUIET,
        host=stage.host(on_vm=True),
    )
    until(lambda: says_stuck(stage))
    report = stage.report()
    assert report is not None and report.started_at
    sign.touch()
    until(lambda: (report := stage.report()) is not None and report.stuck is False)
    until(lambda: says_stuck(stage))
    Path(f"{sign}2").touch()
    final = stage.final()
    assert (final.phase, final.exit_code, final.stuck) == (HostPhase.EXITED, 0, None)


@pytest.mark.parametrize("what", ["printf .", 'touch "$BASTION_CHECKPOINT_FILE"'])
def test_each_kind_of_sign_counts(stage: Stage, what: str, tmp_path: Path) -> None:
    end = tmp_path / "end"
    quiet = 2 * QUIET  # a busy machine may let the command wait for a second
    stage.run(f'while [ ! -e "{end}" ]; do {what}; sleep 0.2; done', stuck_after=quiet, host=stage.host(on_vm=True))
    until(lambda: stage.phase() is HostPhase.RUNNING)
    deadline = time.monotonic() + 1.5 * quiet
    while time.monotonic() < deadline:
        assert not says_stuck(stage)
        time.sleep(0.05)
    end.touch()
    assert stage.final().exit_code == 0


def test_a_job_without_the_option_says_nothing(stage: Stage) -> None:
    stage.run("sleep 1.5", host=stage.host(on_vm=True))
    assert stage.final().stuck is None


def test_the_stacks_of_all_its_pythons_are_in_the_log_before_the_next_try(stage: Stage) -> None:
    stage.run(
        f"({HANGS}) & {HANGS}; wait", stuck_after=QUIET, host=stage.host(on_vm=True), env={"PATH": "/usr/bin:/bin"}
    )
    until(lambda: stage.log().count("stdout F 1") == 2)
    stage.order(restart="stuck", number=2, most=2, stuck_after=QUIET, dump_stacks=True)
    until(lambda: stage.waits_for(2))
    assert command_processes() == []
    stage.order("true", number=2, most=2, stuck_after=QUIET)
    stage.order(stop="done", number=2, most=2)
    stage.final(number=2)
    log = stage.log()
    assert sum(" in the_hang" in line for line in log) == 2
    asked = [
        number for number, line in enumerate(log) if "is asked for its stacks; it writes them to its stderr:" in line
    ]
    shown = [number for number, line in enumerate(log) if "most recent call first" in line]
    assert len(asked) == len(shown) == 2
    assert asked[0] < shown[0] < asked[1] < shown[1]


def test_of_very_many_processes_only_some_are_shown(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "STACKS_PROCESSES_MAX", 1)
    stage.run(f"({HANGS}) & {HANGS}; wait", stuck_after=QUIET, host=stage.host(on_vm=True))
    until(lambda: stage.log().count("stdout F 1") == 2)
    stage.order(stop="stuck: no sign", grace=0.1, stuck_after=QUIET, dump_stacks=True)
    stage.final()
    log = stage.log()
    assert sum(" in the_hang" in line for line in log) == 1
    assert "stderr F bastion: the stacks of 1 more processes are not shown" in log


def test_a_host_that_is_shut_down_meanwhile_does_not_wait_for_stacks(stage: Stage, tmp_path: Path) -> None:
    """py-spy hangs; the signal to shut down arrives while it does."""
    spy, called = tmp_path / "py-spy", tmp_path / "called"
    spy.write_text(f"#!/bin/sh\ntouch {called}\nsleep 60\n")
    spy.chmod(0o755)
    host = stage.host(on_vm=True)
    stage.run(HANGS, stuck_after=QUIET, host=host, env={"PATH": f"{tmp_path}:{os.environ['PATH']}"})
    until(lambda: "stdout F 1" in stage.log())
    stage.order(restart="stuck: no sign", number=2, most=2, grace=0.1, stuck_after=QUIET, dump_stacks=True)
    until(called.exists)
    began = time.monotonic()
    host.shut_down()
    assert stage.final().error == host_errors.HOST_SHUT_DOWN
    assert time.monotonic() - began < stacks._PY_SPY_SECONDS


def test_py_spy_is_used_where_it_is(stage: Stage, tmp_path: Path) -> None:
    tools = tmp_path / "tools"
    tools.mkdir()
    spy = tools / "py-spy"
    spy.write_text(
        '#!/bin/sh\necho "Process $3: python a"\necho "--key=hunter2"\necho "Python v3.11.7"\n'
        'echo "    the_hang (train.py:7)"\n'
    )
    spy.chmod(0o755)
    stage.run(HANGS, stuck_after=QUIET, host=stage.host(on_vm=True), env={"PATH": f"{tools}:{os.environ['PATH']}"})
    until(lambda: "stdout F 1" in stage.log())
    stage.order(stop="stuck: no sign", grace=0.1, stuck_after=QUIET, dump_stacks=True)
    stage.final()
    log = stage.log()
    assert "stderr F bastion:     the_hang (train.py:7)" in log
    assert any(line.endswith("is here, says py-spy:") for line in log)
    assert not any("hunter2" in line for line in log)


@pytest.mark.parametrize("how", ["exit 3", "sleep 60", "kill -9 $$"])
def test_a_py_spy_that_fails_or_hangs_is_followed_by_the_signal(
    stage: Stage, tmp_path: Path, how: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stacks, "_PY_SPY_SECONDS", 0.5)
    spy = tmp_path / "py-spy"
    spy.write_text(f"#!/bin/sh\n{how}\n")
    spy.chmod(0o755)
    stage.run(HANGS, stuck_after=QUIET, host=stage.host(on_vm=True), env={"PATH": f"{tmp_path}:{os.environ['PATH']}"})
    until(lambda: "stdout F 1" in stage.log())
    stage.order(stop="stuck: no sign", grace=0.1, stuck_after=QUIET, dump_stacks=True)
    stage.final()
    assert any(" in the_hang" in line for line in stage.log())


def test_a_process_without_a_handler_is_never_signalled(stage: Stage, tmp_path: Path) -> None:
    """-I leaves the hook out: the signal would end this process before its TERM handler writes."""
    marks = tmp_path / "mark"
    code = (
        "import signal, time, pathlib, sys\n"
        f'signal.signal(15, lambda *_: (pathlib.Path("{marks}").touch(), sys.exit(0)))\n'
        "print(1, flush=True)\ntime.sleep(60)"
    )
    stage.run(f"{sys.executable} -I -c '{code}'", stuck_after=QUIET, host=stage.host(on_vm=True))
    until(lambda: "stdout F 1" in stage.log())
    stage.order(stop="stuck: no sign", grace=10, stuck_after=QUIET, dump_stacks=True)
    stage.final()
    assert marks.exists()
    assert any("does not show its stacks: it has no handler of Bastion's" in line for line in stage.log())


def test_a_command_without_python_says_which_processes_it_has(stage: Stage) -> None:
    stage.run("echo up; sleep 60; true", stuck_after=QUIET, host=stage.host(on_vm=True))
    until(lambda: "stdout F up" in stage.log())
    stage.order(stop="stuck: no sign", grace=0.1, stuck_after=QUIET, dump_stacks=True)
    stage.final()
    assert any("no process can show its stacks (processes: bash, sleep)" in line for line in stage.log())


def test_a_host_that_exited_well_stays_for_a_peer_that_gets_stuck(stage: Stage) -> None:
    stage.run("true", stuck_after=QUIET, host=stage.host(on_vm=True, leave_when_done=True))
    assert stage.final().exit_code == 0
    stage.order(restart="stuck", number=2, most=2, stuck_after=QUIET, dump_stacks=True)
    until(lambda: stage.waits_for(2))
    stage.order("echo again", number=2, most=2, stuck_after=QUIET)
    assert stage.final(number=2).exit_code == 0
    stage.order(stop="succeeded", number=2, most=2, stuck_after=QUIET)


def test_a_cancel_does_not_wait_for_stacks(stage: Stage, tmp_path: Path) -> None:
    """py-spy hangs when the order to stop comes; the time of the grace period is for the command."""
    spy, called = tmp_path / "py-spy", tmp_path / "called"
    spy.write_text(f"#!/bin/sh\ntouch {called}\nsleep 60\n")
    spy.chmod(0o755)
    stage.run(HANGS, stuck_after=QUIET, host=stage.host(on_vm=True), env={"PATH": f"{tmp_path}:{os.environ['PATH']}"})
    until(lambda: "stdout F 1" in stage.log())
    stage.order(restart="stuck: no sign", number=2, most=2, grace=0.1, stuck_after=QUIET, dump_stacks=True)
    until(called.exists)
    began = time.monotonic()
    stage.order(stop="cancelled", number=2, most=2, grace=0.1, stuck_after=QUIET)
    assert stage.final().phase is HostPhase.STOPPED
    assert time.monotonic() - began < stacks._PY_SPY_SECONDS / 2


def test_stacks_take_no_longer_than_the_daemon_expects(
    stage: Stage, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "STACKS_SECONDS", 1.0)
    spy = tmp_path / "py-spy"
    spy.write_text("#!/bin/sh\nsleep 60\n")
    spy.chmod(0o755)
    stage.run(HANGS, stuck_after=QUIET, host=stage.host(on_vm=True), env={"PATH": f"{tmp_path}:{os.environ['PATH']}"})
    until(lambda: "stdout F 1" in stage.log())
    began = time.monotonic()
    stage.order(stop="stuck: no sign", grace=0.1, stuck_after=QUIET, dump_stacks=True)
    stage.final()
    assert time.monotonic() - began < stacks._PY_SPY_SECONDS / 2


def test_no_try_begins_beside_processes_of_the_last_one_that_cannot_be_ended(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They hang in a driver: the attempt must end, so that the job gets other machines."""
    end = Command.end
    monkeypatch.setattr(Command, "end", lambda command, **how: end(command, **how) and False)
    stage.run("echo up; sleep 60; true", stuck_after=QUIET, host=stage.host(on_vm=True))
    until(lambda: "stdout F up" in stage.log())
    stage.order(restart="stuck: no sign", number=2, most=2, grace=0.1, stuck_after=QUIET, dump_stacks=True)
    report = stage.final()
    assert (report.phase, report.error) == (HostPhase.FAILED, host_errors.HOST_FAILED)
    assert "processes of the last try could not be ended" in report.message
    assert any("no process can show its stacks" in line for line in stage.log())


def test_nor_after_a_try_that_ended_by_itself(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    end = Command.end
    monkeypatch.setattr(Command, "end", lambda command, **how: end(command, **how) and False)
    stage.run("true", most=2, host=stage.host(on_vm=True))
    assert stage.final().exit_code == 0
    stage.order(restart="try 1 of 2 failed on another host", number=2, most=2)
    report = stage.final(number=2)
    assert (report.phase, report.error) == (HostPhase.FAILED, host_errors.HOST_FAILED)
