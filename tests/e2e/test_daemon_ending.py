"""`bastion daemon run` ends soon after SIGTERM, whatever the bucket does."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.storage_process import StorageProcess
from tests.support.waiting import until

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(180)]

# Less patient, so that the test is quick; and it says when a tick is over, in a file beside its log.
HASTY = """
import os, pathlib, sys
import bastion.cli.admin.daemon as daemon, bastion.daemon.daemon as loop
from bastion.cli.main import main
daemon._LEAVE_SECONDS, loop._GIVE_BACK_SECONDS = float(os.environ["LEAVE_SECONDS"]), 0.5
pause = loop.Daemon._pause
def pause_and_say_so(*arguments):
    pathlib.Path(os.environ["BETWEEN_TICKS"]).touch()
    pause(*arguments)
loop.Daemon._pause = pause_and_say_so
sys.exit(main())
"""
# Between two ticks. Nobody waits for so long: a daemon that ends before does so because it was told to.
TICK_SECONDS = 600.0
# For an end that takes two seconds at most, on a machine that is busy.
ENDS_WITHIN_SECONDS = 40.0


@pytest.fixture
def started(tmp_path: Path) -> Iterator[list[subprocess.Popen[bytes]]]:
    processes: list[subprocess.Popen[bytes]] = []
    yield processes
    for process in processes:
        process.kill()
        process.wait(10)


@pytest.fixture
def storage(tmp_path: Path) -> Iterator[StorageProcess]:
    """It serves the bucket `team`, until the test is over."""
    process = StorageProcess(tmp_path / "buckets", bucket="team")
    try:
        process.start()
        yield process
    finally:
        process.stop()


def daemon_of(url: str, folder: Path, *, leave_seconds: float) -> subprocess.Popen[bytes]:
    """`leave_seconds`: for how long it waits for the end of a tick."""
    command = [
        sys.executable, "-c", HASTY, "daemon", "run", "--root=gs://team/end-bastion", "--slices=none",
        f"--tick_seconds={TICK_SECONDS}", "--bastion_host_jobs=as-daemon",
    ]  # fmt: skip
    environment = {
        **os.environ,
        "STORAGE_EMULATOR_HOST": url,
        "BASTION_HOME": str(folder / "home"),
        "BETWEEN_TICKS": str(folder / "between-ticks"),
        "LEAVE_SECONDS": str(leave_seconds),
    }
    with (folder / "daemon.log").open("ab") as log:
        return subprocess.Popen(command, env=environment, stdout=log, stderr=log)


def check_it_ends(daemon: subprocess.Popen[bytes]) -> None:
    daemon.send_signal(signal.SIGTERM)
    assert daemon.wait(ENDS_WITHIN_SECONDS) == 0


def test_a_daemon_that_waits_for_a_silent_bucket_ends(tmp_path: Path, started: list[subprocess.Popen[bytes]]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        silent.settimeout(60)
        started.append(daemon_of(f"http://127.0.0.1:{silent.getsockname()[1]}", tmp_path, leave_seconds=2.0))
        connection, _ = silent.accept()
        while not connection.recv(1):  # it only looked whether anybody is there
            connection.close()
            connection, _ = silent.accept()
        with connection:  # it asks, and is never answered
            check_it_ends(started[0])
    assert "exited during a tick" in (tmp_path / "daemon.log").read_text()


def test_a_daemon_between_two_ticks_gives_the_lease_back_and_ends(
    tmp_path: Path, storage: StorageProcess, started: list[subprocess.Popen[bytes]]
) -> None:
    started.append(daemon_of(storage.url, tmp_path, leave_seconds=30.0))
    folder = tmp_path / "buckets" / "team" / "end-bastion"
    until((tmp_path / "between-ticks").exists)
    check_it_ends(started[0])
    assert '"released":true' in (folder / "lease").read_text()
    assert "middle of a tick" not in (tmp_path / "daemon.log").read_text()


def test_a_daemon_whose_bucket_falls_silent_between_two_ticks_ends(
    tmp_path: Path, storage: StorageProcess, started: list[subprocess.Popen[bytes]]
) -> None:
    started.append(daemon_of(storage.url, tmp_path, leave_seconds=30.0))
    until((tmp_path / "between-ticks").exists)
    storage.pause()
    check_it_ends(started[0])
    assert "the lease was not given back" in (tmp_path / "daemon.log").read_text()
