"""Ending processes by their marker."""

from __future__ import annotations

import os
import subprocess
import sys
import time
import uuid
from pathlib import Path

from bastion import processes


def _start(script: str, value: str) -> subprocess.Popen[bytes]:
    environment = {**os.environ, "TEST_MARK": value}
    return subprocess.Popen(["bash", "-c", script], env=environment, start_new_session=True)


def _wait_for(path: Path) -> None:
    deadline = time.monotonic() + 20
    while not path.exists():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_what_a_process_starts_in_answer_to_sigterm_has_the_grace_period_too(tmp_path: Path) -> None:
    value = uuid.uuid4().hex
    up, saved = tmp_path / "up", tmp_path / "saved"
    child = _start(
        f"trap 'bash -c \"sleep 0.3; touch {saved}\"; exit' TERM; touch {up}; while :; do sleep 0.02; done", value
    )
    _wait_for(up)
    assert processes.end_marked("TEST_MARK", value, grace_seconds=20)
    assert saved.exists()
    assert child.wait(timeout=20) == 0


def test_what_ignores_sigterm_is_killed_after_the_grace_period(tmp_path: Path) -> None:
    value = uuid.uuid4().hex
    up = tmp_path / "up"
    child = _start(f"trap '' TERM; touch {up}; while :; do sleep 0.02; done", value)
    _wait_for(up)
    assert processes.end_marked("TEST_MARK", value, grace_seconds=0.2)
    assert child.wait(timeout=20) == -9
    assert processes.marked("TEST_MARK", value) == []


def test_a_child_without_the_mark_is_ended_with_its_marked_parent(tmp_path: Path) -> None:
    value = uuid.uuid4().hex
    note = tmp_path / "note"
    hidden = f"env -i setsid bash -c 'echo $$ > {note}.new; mv {note}.new {note}; exec sleep 300'"
    child = _start(f"{hidden} & wait", value)
    _wait_for(note)
    process = processes.ProcessId.of(int(note.read_text()))
    assert process is not None
    assert process not in processes.marked("TEST_MARK", value)
    assert processes.end_marked("TEST_MARK", value, grace_seconds=20)
    assert not process.alive
    child.wait(timeout=20)


def test_a_process_whose_main_thread_has_ended_is_alive_and_ended(tmp_path: Path) -> None:
    """It shows as a zombie, without variables of its own."""
    value = uuid.uuid4().hex
    up = tmp_path / "up"
    code = (
        "import ctypes, pathlib, threading, time\n"
        f"threading.Thread(target=lambda: (pathlib.Path('{up}').touch(), time.sleep(300))).start()\n"
        "ctypes.CDLL(None).pthread_exit(None)"
    )
    child = _start(f'exec {sys.executable} -c "{code}"', value)
    _wait_for(up)
    deadline = time.monotonic() + 20
    while Path(f"/proc/{child.pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z":
        assert time.monotonic() < deadline
        time.sleep(0.01)
    process = processes.ProcessId.of(child.pid)
    assert process is not None
    assert processes.marked("TEST_MARK", value) == [process]
    assert processes.in_group(child.pid) == [process]
    assert processes.end_marked("TEST_MARK", value, grace_seconds=0)
    assert child.wait(timeout=20) == -9
    assert not process.alive
