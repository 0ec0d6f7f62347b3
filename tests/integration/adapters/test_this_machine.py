"""Which process on this machine counts as a job's command."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Callable, Iterator

import pytest

from bastion.adapters.host_entry.this_machine import ThisMachine
from bastion.core.bucket.markers import COMMAND_MARKER, command_marker
from bastion.core.errors import Refused
from bastion.ports import RunningHost
from bastion.processes import marked
from tests.support.waiting import until

MARKER = command_marker("abcdefghij-1", 0, "0123456789")
HOST = RunningHost(
    job="job", run="abcdefghij-1", worker=0, marker=MARKER, on_bastion=True, zone="", node="b", node_worker=0
)
Start = Callable[..., "subprocess.Popen[bytes]"]


@pytest.fixture
def start() -> Iterator[Start]:
    """Starts processes with the marker."""
    started: list[subprocess.Popen[bytes]] = []

    def start(*program: str, **options: object) -> subprocess.Popen[bytes]:
        environment = {**os.environ, COMMAND_MARKER: MARKER, "WHO": "command"}
        started.append(subprocess.Popen(program, env=environment, **options))  # type: ignore[call-overload]
        return started[-1]

    yield start
    for process in started:
        process.kill()
        process.wait()


def test_without_a_process_of_the_attempt_the_host_is_refused() -> None:
    here = ThisMachine()
    assert not here.has(HOST)
    with pytest.raises(Refused, match="does not run its command on this machine"):
        here.enter(HOST, ["true"])


def test_the_commands_environment_is_entered_and_not_ours(start: Start, capfd: pytest.CaptureFixture[str]) -> None:
    start("sleep", "60", cwd="/usr")
    until(lambda: ThisMachine().has(HOST))
    assert ThisMachine().enter(HOST, ["sh", "-c", 'echo "$WHO"; pwd; exit 3']) == 3
    assert capfd.readouterr().out == "command\n/usr\n"


@pytest.mark.skipif(os.geteuid() != 0, reason="another user is needed, so root is")
def test_a_forger_of_another_user_is_not_entered_by_root() -> None:
    # Its child has the marker, and a parent that is neither root's nor an agent's.
    line = f"{COMMAND_MARKER}={MARKER} sleep 60; true"
    forger = subprocess.Popen(
        ["sh", "-c", line], cwd="/", user=65534, group=65534, extra_groups=[], start_new_session=True
    )
    try:
        until(lambda: marked(COMMAND_MARKER, MARKER) != [])
        assert not ThisMachine().has(HOST)
        assert ThisMachine(agents=[65534]).has(HOST), "the only reason is whose child it is"
    finally:
        os.killpg(forger.pid, signal.SIGKILL)
        forger.wait()


@pytest.mark.skipif(os.geteuid() != 0, reason="another user is needed, so root is")
def test_root_becomes_the_commands_user(start: Start, capfd: pytest.CaptureFixture[str]) -> None:
    start("sleep", "60", cwd="/", user=65534, group=65534, extra_groups=[])
    until(lambda: ThisMachine().has(HOST))
    assert ThisMachine().enter(HOST, ["sh", "-c", "id -u; id -g; id -G; ps -o sid= -p $$ | tr -d ' '; echo $$"]) == 0
    user, group, groups, session, process = capfd.readouterr().out.split()
    assert (user, group, groups) == ("65534", "65534", "65534")
    assert session == process, "it has root's terminal"
