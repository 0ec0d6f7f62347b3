"""Finding a running emulator by its state folder."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from bastion.emulators.state_folder import write_private
from bastion.emulators.tpu import EmulatorAddress, locate
from bastion.emulators.tpu.address import publish
from bastion.processes import ProcessId


def _me() -> ProcessId:
    me = ProcessId.of(os.getpid())
    assert me is not None
    return me


def test_a_published_emulator_is_found_and_only_its_user_can_read_where(tmp_path: Path) -> None:
    address = EmulatorAddress(endpoint="127.0.0.1:1234", token="secret", process=_me())
    publish(tmp_path, address)
    assert locate(tmp_path) == address
    assert [path.name for path in tmp_path.iterdir()] == ["emulator.json"]
    assert (tmp_path / "emulator.json").stat().st_mode & 0o777 == 0o600


def test_an_emulator_whose_process_is_gone_or_another_is_not_found(tmp_path: Path) -> None:
    stranger = ProcessId(_me().pid, _me().started + 1)
    publish(tmp_path, EmulatorAddress(endpoint="127.0.0.1:1234", token="secret", process=stranger))
    assert locate(tmp_path) is None


@pytest.mark.parametrize(
    "content", [b"", b"{", b"[]", b"{}", b'{"address": "a", "token": "t", "pid": "x", "started": 1}']
)
def test_a_file_that_is_no_address_is_no_emulator(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "emulator.json").write_bytes(content)
    assert locate(tmp_path) is None
    assert locate(tmp_path / "missing") is None


def test_a_private_file_is_replaced_whole_and_a_leftover_draft_does_no_harm(tmp_path: Path) -> None:
    target = tmp_path / "a"
    (tmp_path / f".a.{os.getpid()}").write_bytes(b"left by a crash")
    write_private(target, b"one")
    write_private(target, b"two")
    assert target.read_bytes() == b"two"
    assert list(tmp_path.iterdir()) == [target]


@pytest.mark.parametrize("module", ["bastion.emulators.tpu", "bastion.emulators.tpu.vm"])
def test_finding_an_emulator_and_being_a_host_of_one_import_nothing_heavy(module: str) -> None:
    code = f"import sys, {module}; print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60)
    loaded = set(done.stdout.split())
    assert module in loaded
    assert not loaded & {"grpc", "google.cloud", "google.api_core", "pydantic", "jax", "tenacity"}
