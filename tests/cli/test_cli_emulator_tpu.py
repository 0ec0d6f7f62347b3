"""`bastion emulator tpu` as a program: its words, its knobs, its refusals."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from google.api_core.exceptions import ResourceExhausted
from google.cloud import tpu_v2

BASTION = [sys.executable, "-m", "bastion.cli.main", "emulator", "tpu"]


def environment(home: Path) -> dict[str, str]:
    return {**os.environ, "BASTION_HOME": str(home)}


def test_it_serves_the_unmodified_client_as_it_says_and_keeps_to_its_knobs(tmp_path: Path) -> None:
    folder = tmp_path / "tpu"
    options = [f"--state_dir={folder}", "--no_boot", "--capacity=us-central2-b/v4-8=0", "--fault=hang:1"]
    with (tmp_path / "log").open("wb") as log:
        program = subprocess.Popen([*BASTION, *options], stdout=subprocess.PIPE, stderr=log, env=environment(tmp_path))
    try:
        assert program.stdout is not None
        said: list[str] = []
        while not said or not said[-1].startswith("client.list_nodes"):
            said.append(program.stdout.readline().decode())
        assert said[0].startswith("serving the Cloud TPU API (v2) at 127.0.0.1:")
        token = json.loads((folder / "emulator.json").read_text())["token"]
        assert token not in "".join(said)
        names: dict[str, Any] = {}
        exec("".join(said[1:]), names)
        operation = names["client"].create_node(
            parent="projects/p/locations/us-central2-b",
            node_id="b-x",
            node=tpu_v2.Node(accelerator_type="v4-8", runtime_version="tpu-ubuntu2204-base"),
            timeout=60,
        )
        with pytest.raises(ResourceExhausted, match="no more capacity"):
            operation.result(timeout=60)
        story: list[str] = []
        deadline = time.monotonic() + 60
        while story[-1:] != ["gone"]:
            assert time.monotonic() < deadline
            lines = (folder / "events.jsonl").read_text().splitlines()
            story = [json.loads(line)["event"] for line in lines]
        assert story == ["started", "accepted", "gone"]
        assert "/operations/" in operation.operation.name

        second = subprocess.run(
            [*BASTION, f"--state_dir={folder}"], capture_output=True, text=True, check=False, env=environment(tmp_path)
        )
        assert second.returncode != 0
        assert f"process {program.pid} already serves" in second.stderr
        assert "Traceback" not in second.stderr
        names["channel"].close()
    finally:
        program.send_signal(signal.SIGTERM)
        program.communicate(timeout=60)
    assert program.returncode == 0


@pytest.mark.parametrize(
    ("flag", "words"),
    [
        ("--capacity=v4-8", "ZONE/TYPE=NUMBER"),
        ("--quota=us-central2/v4-9=1", "instance-types"),
        ("--fault=preempt", "KIND:RATE"),
        ("--hosts_max=251", "250"),
    ],
)
def test_a_wrong_flag_is_refused_with_what_to_write_instead(tmp_path: Path, flag: str, words: str) -> None:
    done = subprocess.run(
        [*BASTION, flag], capture_output=True, text=True, timeout=60, check=False, env=environment(tmp_path)
    )
    assert done.returncode != 0
    assert words in done.stderr
    assert "Traceback" not in done.stderr
