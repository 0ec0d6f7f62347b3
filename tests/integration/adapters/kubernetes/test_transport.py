"""What a server can do to a connection: silence, drips, cuts, redirects; each ends in time, in words."""

from __future__ import annotations

import json
import socket
import threading
import time

import pytest

from bastion.adapters.kubernetes.api import KubernetesApi
from bastion.adapters.system_clock import SystemClock
from bastion.core.errors import ProvisionerUnavailable
from bastion.core.model.clusters import ClusterSettings
from tests.support.cluster_api import PODS
from tests.support.scripted_server import Script, answering, read_head, serving
from tests.support.waiting import until

pytest.importorskip("kubernetes.config", reason="the extra `kubernetes` is not installed")

CHUNKED = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nTransfer-Encoding: chunked\r\n\r\n"


def _api(port: int, *, request_seconds: float = 10.0) -> KubernetesApi:
    settings = ClusterSettings(name="west", server=f"http://127.0.0.1:{port}")
    return KubernetesApi(settings, clock=SystemClock(), request_seconds=request_seconds)


def _answer(document: object, code: int = 200, *headers: str) -> bytes:
    body = document if isinstance(document, bytes) else json.dumps(document).encode()
    head = "".join(f"{line}\r\n" for line in (f"HTTP/1.1 {code} X", f"Content-Length: {len(body)}", *headers))
    return head.encode() + b"\r\n" + body


def _chunk(data: bytes) -> bytes:
    return b"%x\r\n%s\r\n" % (len(data), data)


def _event(version: int) -> bytes:
    event = {"type": "ADDED", "object": {"metadata": {"name": "a", "resourceVersion": str(version)}}}
    return json.dumps(event).encode() + b"\n"


EMPTY = {"kind": "PodList", "metadata": {"resourceVersion": "7"}, "items": []}


def _silent(connection: socket.socket) -> None:
    connection.recv(1 << 16)
    connection.recv(1)


def test_a_server_that_accepts_and_says_nothing_costs_the_limit_and_no_more() -> None:
    with serving(_silent) as port:
        begun = time.monotonic()
        with pytest.raises(ProvisionerUnavailable, match="did not answer within"):
            _api(port, request_seconds=0.3).list(PODS)
        assert time.monotonic() - begun < 2.0


def test_a_server_that_drips_bytes_costs_no_more_either() -> None:
    stopped = threading.Event()

    def drip(connection: socket.socket) -> None:
        read_head(connection)
        connection.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 10000\r\n\r\n")
        while not stopped.wait(0.05):
            connection.sendall(b" ")

    with serving(drip) as port:
        begun = time.monotonic()
        with pytest.raises(ProvisionerUnavailable, match="did not answer within"):
            _api(port, request_seconds=0.3).list(PODS)
        stopped.set()
        assert time.monotonic() - begun < 2.0


def test_several_requests_together_cost_no_more_than_their_own_limit() -> None:
    with serving(_silent) as port:
        api = _api(port)
        begun = time.monotonic()
        with api.within(0.3):
            with pytest.raises(ProvisionerUnavailable, match="did not answer within 0 s"):
                api.get(f"{PODS}/a")
            with pytest.raises(ProvisionerUnavailable, match=r"not sent|did not answer"):
                api.list(PODS)
        assert time.monotonic() - begun < 2.0


def test_a_connection_that_the_server_closed_meanwhile_is_no_error() -> None:
    closed = threading.Event()

    def once(connection: socket.socket) -> None:
        read_head(connection)
        connection.sendall(_answer(EMPTY))
        connection.shutdown(socket.SHUT_RDWR)
        closed.set()

    with serving(once, answering(_answer(EMPTY))) as port:
        api = _api(port)
        assert api.list(PODS).resource_version == "7"
        assert closed.wait(5)
        assert api.list(PODS).resource_version == "7"


def test_one_connection_serves_one_request_after_the_other() -> None:
    with serving(answering(_answer(EMPTY), _answer(EMPTY))) as port:
        api = _api(port)
        assert [api.list(PODS).resource_version for _ in range(2)] == ["7", "7"]


@pytest.mark.parametrize("script", [lambda connection: None, answering(b"HTTP/1.1 201 Created\r\nContent-Le")])
def test_a_write_that_was_cut_is_sent_once(script: Script) -> None:
    with serving(script) as port, pytest.raises(ProvisionerUnavailable, match="cannot create pods/a"):
        _api(port).create(PODS, {"metadata": {"name": "a"}})


@pytest.mark.parametrize(
    ("answer", "words"),
    [
        (_answer(b"", 302, "Location: http://127.0.0.1:1/"), "302"),
        (_answer(b"<html>ok</html>"), "not JSON"),
        (_answer([]), "not JSON"),
        (_answer({"kind": "Pod"}), "not a list"),
        (_answer({"metadata": None, "items": []}), "not a list"),
        (_answer({"metadata": {"resourceVersion": "1"}, "items": 3}), "not a list"),
        (_answer(b"<html>Bad gateway</html>", 502), "502"),
        (b"SSH-2.0-OpenSSH_9.6\r\n", "cannot be reached"),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\n{", "cannot be reached"),
        (CHUNKED + b"zz\r\n", "cannot be reached"),
    ],
)
def test_what_is_no_answer_of_an_api_server_is_an_error_in_words(answer: bytes, words: str) -> None:
    # A read whose connection broke before its answer is repeated.
    connections = 2 if answer.startswith(b"SSH") else 1
    with serving(*[answering(answer)] * connections) as port, pytest.raises(ProvisionerUnavailable, match=words):
        _api(port).list(PODS)


def _watch_script(*parts: bytes, then: Script = lambda connection: None) -> Script:
    def script(connection: socket.socket) -> None:
        read_head(connection)
        connection.sendall(CHUNKED + b"".join(_chunk(part) for part in parts))
        then(connection)

    return script


def test_events_are_read_over_whatever_pieces_they_come_in() -> None:
    line = _event(8) + _event(9)
    pieces = [line[start : start + 7] for start in range(0, len(line), 7)]
    with serving(_watch_script(*pieces, b"\n", then=lambda connection: connection.sendall(b"0\r\n\r\n"))) as port:
        watch = _api(port).watch(PODS, resource_version="7")
        assert [event["object"]["metadata"]["resourceVersion"] for event in watch] == ["8", "9"]


def test_the_lines_before_a_cut_are_delivered() -> None:
    versions = []
    with serving(_watch_script(_event(8), _event(9)[:20])) as port:
        watch = _api(port).watch(PODS, resource_version="7")
        with pytest.raises(ProvisionerUnavailable, match="cannot watch pods"):
            for event in watch:
                versions.append(event["object"]["metadata"]["resourceVersion"])  # noqa: PERF401 - raises midway
    assert versions == ["8"]


def test_a_watch_that_falls_silent_ends_with_its_own_limit() -> None:
    with serving(_watch_script(_event(8), then=lambda connection: connection.recv(1))) as port:
        # The request's limit is over before: it must not end the watch.
        watch = iter(_api(port, request_seconds=0.1).watch(PODS, resource_version="7", read_seconds=0.4))
        assert next(watch)["type"] == "ADDED"
        begun = time.monotonic()
        with pytest.raises(ProvisionerUnavailable, match="fell silent"):
            next(watch)
        assert 0.3 < time.monotonic() - begun < 2.0


def test_a_watch_line_without_an_end_is_not_kept_in_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("bastion.adapters.kubernetes.transport.LINE_MAX_BYTES", 1000)
    script = _watch_script(b"x" * 5000, then=lambda connection: connection.recv(1))
    with serving(script) as port, pytest.raises(ProvisionerUnavailable, match="exceeds 1000 bytes"):
        list(_api(port).watch(PODS, resource_version="7"))


def test_closing_ends_a_watch_that_another_thread_waits_for() -> None:
    with serving(_watch_script(_event(8), then=lambda connection: connection.recv(1))) as port:
        watch = _api(port).watch(PODS, resource_version="7", read_seconds=60.0)
        seen: list[object] = []
        thread = threading.Thread(target=lambda: seen.extend(watch), daemon=True)
        thread.start()
        until(lambda: seen or thread.is_alive(), 5.0)
        watch.close()
        thread.join(5.0)
        assert not thread.is_alive()
