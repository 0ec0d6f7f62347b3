"""Entering a Cloud TPU host: gcloud is a stand-in that runs the host's line here, as ssh would, with a real bash."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from bastion.adapters.host_entry.cloud_tpu import CloudTpuHosts
from bastion.core.bucket.markers import COMMAND_MARKER, command_marker
from bastion.core.errors import Refused
from bastion.ports import RunningHost
from bastion.processes import marked
from tests.support.waiting import until

MARKER = command_marker("abcdefghij-1", 5, "0123456789")
HOST = RunningHost(
    job="job",
    run="abcdefghij-1",
    worker=5,
    marker=MARKER,
    on_bastion=False,
    zone="us-central2-b",
    node="b-abcdefghij-1-1",
    node_worker=1,
)
# ssh gives the line to the login shell; `sudo -n` then runs what follows.
GCLOUD = f"""#!{sys.executable}
import json, os, sys
from pathlib import Path
Path(__file__).with_name("asked").write_text(json.dumps(sys.argv[1:]))
line = next(each for each in sys.argv if each.startswith("--command=")).partition("=")[2]
os.execvp("bash", ["bash", "-c", line])
"""
SUDO = '#!/bin/sh\n[ "$1" = -n ] && shift\nexec "$@"\n'


@pytest.fixture
def asked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The stand-ins on PATH; the file will hold gcloud's arguments."""
    for name, text in (("gcloud", GCLOUD), ("sudo", SUDO)):
        (tmp_path / name).write_text(text)
        (tmp_path / name).chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    return tmp_path / "asked"


@pytest.fixture
def command(tmp_path: Path) -> Iterator[Path]:
    """A job's command with children, in its folder."""
    folder = tmp_path / "work"
    folder.mkdir()
    environment = {"PATH": os.environ["PATH"], COMMAND_MARKER: MARKER, "LINES": "one\ntwo", "-i": "odd", "OF": "shell"}
    options: dict[str, Any] = {"env": environment, "cwd": folder, "start_new_session": True}
    with subprocess.Popen(["bash", "-c", "OF=child sleep 60; true"], **options) as process:
        until(lambda: len(marked(COMMAND_MARKER, MARKER)) == 2)
        yield folder
        os.killpg(process.pid, 9)


def test_gcloud_is_asked_for_the_node_the_zone_and_the_hosts_number_in_its_slice(asked: Path, command: Path) -> None:
    hosts = CloudTpuHosts(flags=["--project=team", "--internal-ip"])
    assert hosts.enter(HOST, ["true"]) == 0
    arguments = json.loads(asked.read_text())
    assert arguments[:-1] == [
        *("compute", "tpus", "tpu-vm", "ssh", "b-abcdefghij-1-1"),
        *("--zone=us-central2-b", "--worker=1", "--project=team", "--internal-ip"),
    ]
    assert "--ssh-flag=-t" in hosts.arguments(HOST, [], terminal=True)


def test_the_command_has_the_jobs_environment_and_folder_and_its_exit_code_comes_back(
    asked: Path, command: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    line = 'pwd; echo "$LINES"; echo $OF; exit 9'
    assert CloudTpuHosts().enter(HOST, ["bash", "-c", line]) == 9
    assert capfd.readouterr().out.splitlines() == [str(command), "one", "two", "shell"]


def test_arguments_arrive_as_they_were_typed(asked: Path, command: Path, capfd: pytest.CaptureFixture[str]) -> None:
    typed = ["a b", "$HOME", "*", "", "'\"\\", "`id`", "--zone=x", "l1\nl2", "ü"]
    assert CloudTpuHosts().enter(HOST, ["printf", "%s|", *typed]) == 0
    assert capfd.readouterr().out == "".join(f"{each}|" for each in typed)


def test_a_host_on_which_the_attempt_does_not_run_is_refused(asked: Path, capfd: pytest.CaptureFixture[str]) -> None:
    assert CloudTpuHosts().enter(HOST, ["echo", "entered"]) == 64
    shown = capfd.readouterr()
    assert (shown.out, "no command of this attempt runs on this host" in shown.err) == ("", True)


@pytest.mark.skipif(os.geteuid() != 0, reason="another user is needed, so root is")
def test_root_there_becomes_the_commands_user(asked: Path, capfd: pytest.CaptureFixture[str]) -> None:
    options: dict[str, Any] = {"user": 65534, "group": 65534, "extra_groups": [65534, 12], "cwd": "/"}
    with subprocess.Popen(["sleep", "60"], env={**os.environ, COMMAND_MARKER: MARKER}, **options) as process:
        until(lambda: len(marked(COMMAND_MARKER, MARKER)) == 1)
        assert CloudTpuHosts().enter(HOST, ["sh", "-c", "id -u; id -g; id -G"]) == 0
        process.kill()
    user, group, *groups = capfd.readouterr().out.split()
    assert (user, group, sorted(groups)) == ("65534", "65534", ["12", "65534"])


def test_without_gcloud_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(Refused, match="install the Google Cloud CLI"):
        CloudTpuHosts().enter(HOST, ["true"])
