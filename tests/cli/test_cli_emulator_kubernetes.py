"""`bastion emulator kubernetes` as a program: what it prints, its options, its refusals."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from bastion.emulators.kubernetes.address import KUBECONFIG_FILE, locate
from bastion.emulators.kubernetes.client import ApiClient

BASTION = [sys.executable, "-m", "bastion.cli.main", "emulator", "kubernetes"]


def run(home: Path, *options: str) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "BASTION_HOME": str(home)}
    return subprocess.run([*BASTION, *options], capture_output=True, text=True, check=False, env=environment)


def test_it_prints_how_to_use_it_and_refuses_a_second_one(tmp_path: Path) -> None:
    folder = tmp_path / "emulator-kubernetes"
    environment = {**os.environ, "BASTION_HOME": str(tmp_path)}
    with (tmp_path / "log").open("wb") as log:
        program = subprocess.Popen(
            [*BASTION, "--pool=v5litepod-8=1:spot", "--kueue"], stdout=subprocess.PIPE, stderr=log, env=environment
        )
    try:
        assert program.stdout is not None
        said: list[str] = []
        while not said or said[-1] != "kubectl get nodes":
            line = program.stdout.readline().decode()
            assert line
            said.append(line.rstrip("\n"))
        address = locate(folder)
        assert address is not None
        assert said[0] == f"serving the Kubernetes API at {address.server}, state in {folder}"
        assert f"export KUBECONFIG={folder / KUBECONFIG_FILE}" in said
        assert address.token not in "".join(said)
        assert ApiClient.connect(address).get("/api/v1/namespaces/default")["kind"] == "Namespace"
        assert ApiClient.connect(address).get("/apis/kueue.x-k8s.io/v1beta2/workloads")["items"] == []
        second = run(tmp_path)
        assert second.returncode != 0
        assert f"process {program.pid} already serves {folder} at {address.server}" in second.stderr
        program.send_signal(signal.SIGTERM)
        assert program.wait(timeout=60) == 0
    finally:
        program.kill()
        program.wait()


@pytest.mark.parametrize(
    ("option", "words"),
    [("--pool=a100=1", "is not a valid node pool"), ("--fault=x:1", "KIND one of preempt, node-lost")],
)
def test_invalid_options_are_refused(tmp_path: Path, option: str, words: str) -> None:
    refused = run(tmp_path, option)
    assert refused.returncode != 0
    assert words in refused.stderr
    assert "Traceback" not in refused.stderr
