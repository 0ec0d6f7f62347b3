"""What a user sees whose storage endpoint is missing, busy or pointed at wrongly: the real programs on this machine."""

from __future__ import annotations

import logging
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from bastion.cli.admin.daemon import _Repeats
from bastion.cli.connect import problem_of_endpoint
from bastion.net import peers
from bastion.net.http1 import HttpServer, Response
from bastion.net.peers import Address
from bastion.wiring.roots import parse_root

BASTION = [sys.executable, "-m", "bastion.cli.main"]
ROOT = "gs://team/alice-bastion"


@pytest.fixture
def unused_port() -> Iterator[int]:
    """A port that refuses connections: bound, so that nobody else takes it, and not listening."""
    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))
        yield bound.getsockname()[1]


def run(home: Path, *arguments: str, emulator: str = "") -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "BASTION_HOME": str(home), "STORAGE_EMULATOR_HOST": emulator}
    return subprocess.run(
        [*BASTION, *arguments], capture_output=True, text=True, timeout=60, check=False, env=environment
    )


def test_an_endpoint_that_was_not_started_is_told_within_seconds(tmp_path: Path, unused_port: int) -> None:
    began = time.monotonic()
    done = run(tmp_path, "list", f"--root={ROOT}", emulator=f"http://127.0.0.1:{unused_port}")
    assert time.monotonic() - began < 20
    assert done.returncode == 75
    assert f"nothing listens at http://127.0.0.1:{unused_port}" in done.stderr
    assert f"bastion emulator gcs --port={unused_port}" in done.stderr
    assert "Traceback" not in done.stderr


def test_only_a_bucket_behind_an_endpoint_is_looked_for_there(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, unused_port: int
) -> None:
    cloud, folder = parse_root(ROOT), parse_root(str(tmp_path / "alice-bastion"))
    monkeypatch.setenv("STORAGE_EMULATOR_HOST", f"http://127.0.0.1:{unused_port}")
    assert problem_of_endpoint(folder, patience_seconds=0.0) == ""
    assert "nothing listens" in problem_of_endpoint(cloud, patience_seconds=0.0)
    # What is no URL is the store's to explain, which knows what one looks like.
    for url in ("", "127.0.0.1:9000", "http://127.0.0.1:port"):
        monkeypatch.setenv("STORAGE_EMULATOR_HOST", url)
        assert problem_of_endpoint(cloud, patience_seconds=0.0) == ""
    with socket.create_server(("127.0.0.1", 0)) as listening:
        monkeypatch.setenv("STORAGE_EMULATOR_HOST", f"http://127.0.0.1:{listening.getsockname()[1]}")
        assert problem_of_endpoint(cloud, patience_seconds=0.0) == ""


def test_looking_whether_an_endpoint_listens_lets_it_see_whose_connection_that_is(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    told: list[bool] = []

    def is_ours(client: Address, server: Address) -> bool:
        # As late as on a busy machine.
        time.sleep(0.05)
        told.append(peers.is_ours(client, server))
        return told[-1]

    server = HttpServer(lambda _request: Response(status=404), admit=is_ours)
    server.open()
    try:
        monkeypatch.setenv("STORAGE_EMULATOR_HOST", f"http://127.0.0.1:{server.port}")
        assert problem_of_endpoint(parse_root(ROOT), patience_seconds=0.0) == ""
    finally:
        server.close()
    assert told == [True]


def test_a_second_endpoint_on_a_folder_names_the_first_one_and_a_missing_bucket_how_to_make_it(tmp_path: Path) -> None:
    buckets = tmp_path / "buckets"
    first = subprocess.Popen(
        [*BASTION, "emulator", "gcs", f"--dir={buckets}"], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    )
    try:
        assert first.stdout is not None
        url = next(line for line in first.stdout if "STORAGE_EMULATOR_HOST=" in line).strip().partition("=")[2]
        second = run(tmp_path, "emulator", "gcs", f"--dir={buckets}")
        listed = run(tmp_path, "list", "--root=gs://missing/alice-bastion", emulator=url)
    finally:
        first.send_signal(signal.SIGTERM)
        first.communicate(timeout=60)
    assert second.returncode != 0
    assert f"process {first.pid}" in second.stderr
    assert f"STORAGE_EMULATOR_HOST={url}" in second.stderr
    assert listed.returncode != 0
    assert "bastion emulator gcs --bucket=missing" in listed.stderr
    assert "gcloud" not in listed.stderr


def test_a_folder_that_cannot_hold_buckets_is_refused_with_the_flag_that_chooses_another(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    done = run(tmp_path, "emulator", "gcs", f"--dir={tmp_path / 'file'}")
    assert done.returncode == 64
    assert "cannot hold buckets" in done.stderr
    assert "--dir" in done.stderr


def test_a_missing_table_of_identities_is_refused_with_its_flag(tmp_path: Path) -> None:
    done = run(tmp_path, "emulator", "gcs", f"--dir={tmp_path / 'buckets'}", f"--identities={tmp_path / 'none.toml'}")
    assert done.returncode != 0
    assert "cannot read the identities in" in done.stderr
    assert "check --identities" in done.stderr


def test_a_daemon_says_the_same_thing_again_only_after_a_while() -> None:
    said: list[str] = []
    now = [0.0]
    notify = _Repeats(said.append, lambda: now[0])
    for now[0] in range(61):
        notify("there is no bucket")
    assert said == ["there is no bucket"] * 2
    notify("here it is")
    notify("there is no bucket")
    assert said[2:] == ["here it is", "there is no bucket"]


def test_a_user_sees_what_an_adapter_waits_for(run, bastion, capsys: pytest.CaptureFixture[str]) -> None:
    for _ in range(2):  # told once
        run("list")
    capsys.readouterr()
    logging.getLogger("bastion.adapters.bucket_requests.retry").info("the bucket has not answered so far (503)")
    assert capsys.readouterr().err == "bastion: the bucket has not answered so far (503)\n"
