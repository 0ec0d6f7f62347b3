"""A command with a user of its own: who it is, what it sees, what it cannot do to its agent."""

from __future__ import annotations

import json
import os
import stat
import subprocess
import sys
import time
from pathlib import Path

import pytest

from bastion.agent.command_user import CommandUser
from bastion.core.bucket import host_errors
from bastion.core.bucket.protocol import HostPhase
from bastion.job_user import JobUser
from tests.support.waiting import until
from tests.support.worker_stage import RUN, Stage

STAND_IN = (sys.executable, str(Path(__file__).parents[3] / "support" / "proxy_stand_in.py"))


def said(stage: Stage) -> list[str]:
    """What the command printed."""
    return [line.removeprefix("stdout F ") for line in stage.log() if line.startswith("stdout F ")]


def test_setup_and_command_run_as_the_user_in_folders_of_its_own(shared: Stage, user: JobUser) -> None:
    shared.run('id -u; echo "$HOME $TMPDIR $USER"; touch ~/a "$TMPDIR/b" c; cat ~/setup', setup="id -u > ~/setup")
    assert shared.final().exit_code == 0, shared.log()
    folder = shared.state_dir / f"{RUN}.0" / "job"
    assert said(shared) == [str(user.uid), f"{folder}/home {folder}/tmp {user.name}", str(user.uid)]
    found = folder.stat()
    assert (found.st_uid, stat.S_IMODE(found.st_mode)) == (user.uid, 0o700)


@pytest.mark.parametrize(
    "attempt",
    [
        "cat /proc/{agent}/environ",
        "ls -l /proc/{agent}/fd/",
        "kill -0 {agent}",
        "kill -9 {agent}",
        "touch ../../started-2",
        "echo {{}} > ../../outcome",
        "mv ../../outcome ../../gone",
        "ls ../..",
        "cat ../../started-1",
        "ls ../../spool",
        "touch ../../over-disk-limit",
        "mv .. ../../job2",
        "cat {secret}",
    ],
)
def test_the_agent_is_out_of_its_commands_reach(shared: Stage, secret: Path, attempt: str) -> None:
    line = attempt.format(agent=os.getpid(), secret=secret)
    shared.run(f"id -u; if {line}; then echo done; else echo refused; fi")
    assert shared.final().exit_code == 0
    assert said(shared)[1:] == ["refused"], shared.log()


@pytest.mark.parametrize(
    "line",
    [
        "env -i setsid sleep 600 & exec true",
        "env -i setsid bash -c 'trap \"\" TERM; sleep 600 & sleep 600' &",
        "(env -i setsid python3 -c 'import ctypes, time; ctypes.CDLL(None).prctl(4, 0); time.sleep(600)' &) &",
    ],
)
def test_no_process_of_the_user_outlives_the_command(shared: Stage, user: JobUser, line: str) -> None:
    shared.run(line)
    assert shared.final().exit_code == 0
    assert not user.processes()


def test_a_stop_ends_what_hides_from_its_agent(shared: Stage, user: JobUser) -> None:
    shared.run("env -i setsid python3 -c 'import ctypes, time; ctypes.CDLL(None).prctl(4, 0); time.sleep(600)' & wait")
    until(lambda: len(user.processes()) > 1)
    shared.order(stop="cancelled", grace=0.2)
    assert shared.final().phase is HostPhase.STOPPED
    assert not user.processes()


# A process that is found in no list: each has forked and ended before it can be looked at. It ends after some seconds.
RUNAWAY = """
import os
os.setsid()
file = os.open("forks", os.O_WRONLY | os.O_APPEND | os.O_CREAT)
for _ in range(4000):
    if os.fork():
        os._exit(0)
    os.write(file, b".")
"""


def test_processes_that_only_fork_do_not_escape(shared: Stage) -> None:
    shared.run('env -i python3 -c "$RUNAWAY" & until [ -s forks ]; do sleep 0.01; done', env={"RUNAWAY": RUNAWAY})
    assert shared.final().exit_code == 0
    forks = shared.state_dir / f"{RUN}.0" / "job" / "work" / "forks"
    ended = forks.stat().st_size
    time.sleep(0.1)
    assert forks.stat().st_size == ended < 4000


def test_an_agent_ends_the_processes_that_a_dead_one_left(shared: Stage, user: JobUser) -> None:
    (shared.state_dir / f"{RUN}.0").mkdir(parents=True)
    (shared.state_dir / f"{RUN}.0" / "started-1").write_text("boot")
    left = subprocess.Popen(["sleep", "600"], env={}, cwd="/", **user.popen_arguments())
    shared.run("echo again")
    assert shared.final().error == host_errors.HOST_RESTARTED
    assert left.wait(10) != 0
    assert not user.processes()


def test_root_is_a_wish_of_the_order_and_said_in_the_log(shared: Stage) -> None:
    shared.run("id -u", root=True)
    assert shared.final().exit_code == 0
    assert said(shared) == ["0"]
    assert "stderr F bastion: setup and command run as root (--root_user)" in shared.log()


def test_without_the_user_nothing_runs(stage: Stage) -> None:
    problem = "this host has no user 'bastion-job' to run commands as"
    stage.run("echo ran", host=stage.host(on_vm=True, command_user=CommandUser(problem=problem)))
    report = stage.final()
    assert (report.phase, report.error, report.message) == (HostPhase.FAILED, host_errors.HOST_FAILED, problem)
    assert not stage.log()


def test_a_state_folder_that_the_user_cannot_reach_is_told(shared: Stage, public: Path) -> None:
    public.chmod(0o700)
    shared.run("echo ran")
    report = shared.final()
    assert report.error == host_errors.HOST_FAILED
    assert "cannot reach" in report.message
    assert "chmod o+x" in report.message


def test_a_pod_that_is_not_root_runs_the_command_as_itself_and_says_so(stage: Stage) -> None:
    note = "the container does not run as root: the command runs as its user, 1000"
    stage.run("echo ran", host=stage.host(on_vm=True, command_user=CommandUser(note=note)))
    assert stage.final().exit_code == 0
    assert stage.log() == [f"stderr F bastion: {note}", "stdout F ran"]


def test_the_next_try_has_the_same_user_and_finds_what_the_last_one_left(shared: Stage, user: JobUser) -> None:
    shared.run("id -u; touch here; exit 3", most=2)
    until(lambda: shared.phase() is HostPhase.EXITED)
    shared.order("id -u; ls", number=2, most=2)
    assert shared.final(number=2).exit_code == 0
    assert said(shared) == [str(user.uid), str(user.uid), "here"]


def test_a_proxys_keys_are_not_the_commands_and_its_certificate_is(shared: Stage, user: JobUser) -> None:
    folder = shared.state_dir / f"{RUN}.0"
    shared.order(
        f"stat -c %a {folder}/proxy; ls {folder}/proxy || echo refused; cat {folder}/proxy/starts || echo refused; "
        f"ls {folder}/proxy-certificates; pid=$(pgrep -f proxy_stand_in | head -1); "
        "cat /proc/$pid/environ || echo refused",
        proxy="lake:projects/p/locations/global/keyRings/r/cryptoKeys/k",
        env={"GCS_PROXY_STAND_IN": "ready"},
    )
    shared.start(shared.host(on_vm=True, proxy_program=STAND_IN, command_user=CommandUser(user=user)))
    assert shared.final().exit_code == 0, shared.log()
    assert said(shared) == ["700", "refused", "refused", "mitmproxy-ca-cert.pem", "refused"]
    (start,) = [json.loads(line) for line in (folder / "proxy" / "starts").read_text().splitlines()]
    assert start["env"]["GCS_PROXY_USERS"] == str(user.uid)
