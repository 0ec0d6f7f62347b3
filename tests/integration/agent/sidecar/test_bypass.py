"""Connections that lead around the storage proxy: real sockets of real processes."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from collections.abc import Iterator

import pytest

from bastion.agent.sidecar import bypass as proxy_bypass
from bastion.agent.sidecar.bypass import BypassWatch
from bastion.processes import ProcessId

CLIENT = """
import socket, sys
connection = socket.create_connection((sys.argv[1], int(sys.argv[2])))
print("connected", flush=True)
sys.stdin.read()
"""


@pytest.fixture(params=["127.0.0.1", "::1"], ids=["v4", "v6"])
def service(request: pytest.FixtureRequest) -> Iterator[socket.socket]:
    try:
        family = socket.AF_INET6 if ":" in request.param else socket.AF_INET
        listener = socket.create_server((request.param, 0), family=family)
    except OSError:
        pytest.skip("this machine has no such address")
    with listener:
        yield listener


@pytest.fixture
def client(service: socket.socket) -> Iterator[ProcessId]:
    """A process with a connection to the service."""
    host, port = service.getsockname()[:2]
    with subprocess.Popen(
        [sys.executable, "-c", CLIENT, host, str(port)], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"connected\n"
        identity = ProcessId.of(process.pid)
        assert identity is not None
        yield identity
        process.kill()


def watch(service: socket.socket, told: list[str]) -> BypassWatch:
    host, port = service.getsockname()[:2]
    shown = f"[{host}]" if ":" in host else host
    return BypassWatch(upstream=f"http://{shown}:{port}", period_seconds=3600.0, notify=told.append)


def test_a_process_that_goes_around_the_proxy_is_told_of_once(service: socket.socket, client: ProcessId) -> None:
    told: list[str] = []
    looking = watch(service, told)
    looking.look()
    assert told == []  # there is no command
    looking.of(lambda: [client])
    looking.look()
    looking.look()
    (line,) = told
    assert line.startswith(f"process {client.pid} (python")
    assert f"connected to {service.getsockname()[0]} directly" in line
    assert "$https_proxy" in line


def test_a_process_without_such_a_connection_or_without_life_is_not(service: socket.socket, client: ProcessId) -> None:
    told: list[str] = []
    looking = watch(service, told)
    me = ProcessId.of(os.getpid())
    assert me is not None
    looking.of(lambda: [me, ProcessId(2**22 + 1, 1)])
    looking.look()
    assert told == []


def test_a_listener_is_no_client(service: socket.socket) -> None:
    me = ProcessId.of(os.getpid())
    assert me is not None
    assert proxy_bypass.find([me], {service.getsockname()[:2]}) == []


@pytest.mark.parametrize("upstream", ["http://", "http://[", "http://host:99999"])
def test_an_upstream_that_is_none_is_looked_for_nowhere(upstream: str) -> None:
    assert proxy_bypass.storage_endpoints(upstream) == set()


def test_children_that_inherit_a_connection_are_not_told_of_as_well(service: socket.socket) -> None:
    host, port = service.getsockname()[:2]
    program = (
        "import socket, subprocess, sys\n"
        "connection = socket.create_connection((sys.argv[1], int(sys.argv[2])))\n"
        "child = subprocess.Popen(['sleep', '60'], pass_fds=[connection.fileno()])\n"
        "print(child.pid, flush=True)\nsys.stdin.read()\nchild.kill()\n"
    )
    with subprocess.Popen(
        [sys.executable, "-c", program, host, str(port)], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as parent:
        assert parent.stdout is not None
        child = ProcessId.of(int(parent.stdout.readline()))
        first = ProcessId.of(parent.pid)
        assert child is not None
        assert first is not None

        found = proxy_bypass.find([first, child], {(host, port)})

        assert [bypass.process for bypass in found] == [first]
