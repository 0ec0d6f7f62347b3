"""Ending all processes of a job's user, who does what he can to prevent it."""

from __future__ import annotations

import os
import subprocess
import time
from pathlib import Path

import pytest

from bastion.adapters import bastion_host_users
from bastion.job_user import JobUser
from tests.integration.agent.job_user.conftest import NUMBER
from tests.support.waiting import until

OTHER = NUMBER + 1
TASKS = Path("/proc/self/task")


@pytest.mark.parametrize("signal", ["STOP", "KILL"])
def test_who_signals_all_of_its_user_without_pause_neither_stops_nor_kills_the_one_who_ends_it(
    user: JobUser, signal: str
) -> None:
    other = subprocess.Popen(["sleep", "60"], user=OTHER)
    attacker = subprocess.Popen(["sh", "-c", f"while :; do kill -{signal} -1; done"], cwd="/", **user.popen_arguments())
    try:
        time.sleep(0.1)
        for _ in range(3):
            begun = time.monotonic()
            user.kill_all()
            assert time.monotonic() - begun < 3
        assert attacker.wait(10) == -9
        assert (other.poll(), user.processes()) == (None, [])
    finally:
        for each in (attacker, other):
            each.kill()
            each.wait()


def test_nor_the_one_who_removes_what_it_left(user: JobUser, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bastion_host_users, "PLACES", ("/dev/shm",))
    attacker = subprocess.Popen(["sh", "-c", "while :; do kill -STOP -1; done"], cwd="/", **user.popen_arguments())
    try:
        time.sleep(0.1)
        assert bastion_host_users.clear(user) == ""
        assert attacker.wait(10) == -9
    finally:
        attacker.kill()
        attacker.wait()


def test_the_thread_that_does_it_takes_no_right_from_the_others(user: JobUser) -> None:
    before = os.getresuid()
    threads = len([*TASKS.iterdir()])
    user.kill_all()
    until(lambda: len([*TASKS.iterdir()]) <= threads)
    assert os.getresuid() == before
    with user.files():
        pass
