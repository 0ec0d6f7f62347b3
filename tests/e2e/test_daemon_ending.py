"""`bastion daemon run` ends soon after SIGTERM, whatever the bucket does."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.e2e.conftest import StorageProcess, wait_for

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(60)]

# Less patient, so that the test is quick.
HASTY = (
    "import bastion.cli.daemon as daemon, bastion.daemon.daemon as loop; "
    "daemon._LEAVE_SECONDS = 2.0; loop._GIVE_BACK_SECONDS = 0.5; "
    "from bastion.cli.main import main; import sys; sys.exit(main())"
)


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


def daemon_of(url: str, folder: Path) -> subprocess.Popen[bytes]:
    command = [
        sys.executable, "-c", HASTY, "daemon", "run", "--root=gs://team/end-bastion", "--slices=none",
        "--tick_seconds=30",
    ]  # fmt: skip
    environment = {**os.environ, "STORAGE_EMULATOR_HOST": url, "BASTION_HOME": str(folder / "home")}
    with (folder / "daemon.log").open("ab") as log:
        return subprocess.Popen(command, env=environment, stdout=log, stderr=log)


def seconds_to_end(daemon: subprocess.Popen[bytes]) -> float:
    began = time.monotonic()
    daemon.send_signal(signal.SIGTERM)
    assert daemon.wait(30) == 0
    return time.monotonic() - began


def test_a_daemon_that_waits_for_a_silent_bucket_ends(tmp_path: Path, started: list[subprocess.Popen[bytes]]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        silent.settimeout(20)
        started.append(daemon_of(f"http://127.0.0.1:{silent.getsockname()[1]}", tmp_path))
        connection, _ = silent.accept()
        while not connection.recv(1):  # it only looked whether anybody is there
            connection.close()
            connection, _ = silent.accept()
        with connection:  # it asks, and is never answered
            assert seconds_to_end(started[0]) < 8
    assert "in the middle of a tick" in (tmp_path / "daemon.log").read_text()


def test_a_daemon_between_two_ticks_gives_the_lease_back_and_ends(
    tmp_path: Path, storage: StorageProcess, started: list[subprocess.Popen[bytes]]
) -> None:
    started.append(daemon_of(storage.url, tmp_path))
    folder = tmp_path / "buckets" / "team" / "end-bastion"
    wait_for((folder / "logs" / "end-bastion").exists, 20)  # the last thing that a tick writes
    assert seconds_to_end(started[0]) < 8  # and not the 30 s until the next tick
    assert '"released":true' in (folder / "lease").read_text()
    assert "middle of a tick" not in (tmp_path / "daemon.log").read_text()


def test_a_daemon_whose_bucket_falls_silent_between_two_ticks_ends(
    tmp_path: Path, storage: StorageProcess, started: list[subprocess.Popen[bytes]]
) -> None:
    started.append(daemon_of(storage.url, tmp_path))
    folder = tmp_path / "buckets" / "team" / "end-bastion"
    wait_for((folder / "logs" / "end-bastion").exists, 20)
    time.sleep(0.5)  # it has read the answer by then
    storage.pause()
    assert seconds_to_end(started[0]) < 8
    assert "the lease was not given back" in (tmp_path / "daemon.log").read_text()
