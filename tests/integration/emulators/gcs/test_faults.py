"""Faults of the storage endpoint: what each does to a request, which requests a rule hits, and how rules are given."""

from __future__ import annotations

import contextlib
import http.client
import json
import os
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from bastion.core.errors import Refused
from bastion.emulators.gcs.fault_rules import FaultRule, parse_flag, parse_json
from bastion.emulators.gcs.faults import FAULTS_PATH, Faults
from bastion.emulators.gcs.write_limit import WriteLimit
from bastion.net.http1 import BytesBody, Disconnect, FileSlice, HttpServer, Request, Response
from bastion.storage_wire.refusals import Refusal

CONTENT = b"0123456789" * 10_000


@dataclass
class Endpoint:
    """A handler behind faults, in a real server, and what happened."""

    rules: list[FaultRule]
    folder: Path
    seed: int = 0
    happened: list[str] = field(default_factory=list)
    waited: list[float] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.faults = Faults(self.rules, seed=self.seed, wait=self.waited.append)
        self.server = HttpServer(self.faults.wrap(self._answer))

    def _answer(self, request: Request) -> Response:
        body = request.body.read()
        self.happened.append(f"{request.method} {request.path} {len(body)}")
        if request.path == "/file":
            (self.folder / "f").write_bytes(CONTENT)
            descriptor = os.open(self.folder / "f", os.O_RDONLY)
            return Response(status=200, body=FileSlice(descriptor=descriptor, start=0, length=len(CONTENT)))
        if request.path == "/chunks":
            return Response(status=200, body=iter([CONTENT[:5], CONTENT[5:]]))
        return Response(status=200, body=CONTENT)

    def ask(self, method: str, path: str, body: bytes = b"") -> tuple[int, bytes]:
        connection = http.client.HTTPConnection("127.0.0.1", self.server.port, timeout=10)
        with contextlib.closing(connection):
            connection.request(method, path, body)
            answer = connection.getresponse()
            return answer.status, answer.read()

    def statuses(self, count: int, method: str = "GET", path: str = "/") -> list[int]:
        return [self.ask(method, path)[0] for _ in range(count)]

    def files_left_open(self) -> list[str]:
        """After the server's end: it closes a file only after the client has seen the answer."""
        self.server.close()
        opened = []
        for descriptor in Path("/proc/self/fd").iterdir():
            # Other descriptors of this process come and go.
            with contextlib.suppress(FileNotFoundError):
                opened.append(descriptor.readlink())
        return [str(path) for path in opened if path.is_relative_to(self.folder)]


@pytest.fixture
def started(tmp_path: Path) -> Iterator[list[Endpoint]]:
    endpoints: list[Endpoint] = []
    yield endpoints
    for endpoint in endpoints:
        endpoint.faults.close()
        endpoint.server.close(0.0)


@pytest.fixture
def endpoint(started: list[Endpoint], tmp_path: Path) -> Endpoint:
    made = Endpoint(rules=[], folder=tmp_path)
    made.server.open()
    started.append(made)
    return made


def _rules(*texts: str) -> list[FaultRule]:
    return [parse_flag(text) for text in texts]


@pytest.mark.parametrize("status", [408, 429, 500, 503])
def test_a_status_is_answered_before_anything_happens(endpoint: Endpoint, status: int) -> None:
    endpoint.faults.replace(_rules(f"{status}"))
    got, body = endpoint.ask("POST", "/upload/storage/v1/b/team/o?name=x", b"content")
    assert (got, endpoint.happened) == (status, [])
    assert json.loads(body)["error"]["code"] == status
    got, body = endpoint.ask("PUT", "/team/x", b"content")
    assert (got, body[:5]) == (status, b"<?xml")


def test_a_lost_reply_is_of_something_that_happened(endpoint: Endpoint) -> None:
    endpoint.faults.replace(_rules("lost-reply"))
    with pytest.raises(http.client.RemoteDisconnected):
        endpoint.ask("PUT", "/file", b"abc")
    assert endpoint.happened == ["PUT /file 3"]
    assert endpoint.files_left_open() == []


def test_a_reset_comes_before_anything_happens(endpoint: Endpoint) -> None:
    endpoint.faults.replace(_rules("reset"))
    with pytest.raises(ConnectionError):
        endpoint.ask("PUT", "/x", b"abc")
    assert endpoint.happened == []


@pytest.mark.parametrize("path", ["/bytes", "/file", "/chunks"])
def test_a_body_is_reset_half_way(endpoint: Endpoint, path: str) -> None:
    endpoint.faults.replace(_rules("reset-body,after=1000"))
    with pytest.raises((ConnectionResetError, http.client.IncompleteRead)):
        endpoint.ask("GET", path)
    assert endpoint.happened == [f"GET {path} 0"]
    assert endpoint.files_left_open() == []


def test_a_reset_body_lets_as_much_through_as_it_says(tmp_path: Path) -> None:
    for rule, expected in (("reset-body,after=1000", 1000), ("reset-body", len(CONTENT) // 2)):
        answer = Faults(_rules(rule)).wrap(lambda _: Response(status=200, body=CONTENT))
        response = answer(Request(method="GET", target="/", path="/"))
        assert response.length == len(CONTENT)
        sent = b""
        assert not isinstance(response.body, (bytes, FileSlice))
        with pytest.raises(Disconnect) as caught:
            for piece in response.body:
                sent += piece
        assert (caught.value.reset, sent) == (True, CONTENT[:expected])


def test_a_stall_waits_and_then_goes_on_or_drops(endpoint: Endpoint) -> None:
    endpoint.faults.replace(_rules("stall,seconds=7,nth=1", "stall,seconds=8,then=drop"))
    assert endpoint.ask("GET", "/")[0] == 200
    assert endpoint.waited == [7]
    with pytest.raises(http.client.RemoteDisconnected):
        endpoint.ask("GET", "/")
    assert endpoint.waited == [7, 8]
    assert len(endpoint.happened) == 1


@pytest.mark.parametrize("path", ["/bytes", "/file", "/chunks"])
def test_slow_bodies_take_as_long_as_their_rate_says_both_ways(endpoint: Endpoint, path: str) -> None:
    endpoint.faults.replace(_rules("slow,rate=50000"))
    assert endpoint.ask("PUT", path, b"x" * 25_000) == (200, CONTENT)
    assert sum(endpoint.waited) == pytest.approx(25_000 / 50_000 + len(CONTENT) / 50_000)
    assert max(endpoint.waited) <= 0.1
    assert endpoint.ask("HEAD", path) == (200, b"")
    assert endpoint.files_left_open() == []


def test_closing_ends_a_stall_at_once(tmp_path: Path) -> None:
    faults = Faults(_rules("stall,seconds=3600"))
    faults.close()
    answer = faults.wrap(lambda _: Response(status=200))
    assert answer(Request(method="GET", target="/", path="/")).status == 200


def test_a_rule_hits_by_method_path_and_number(endpoint: Endpoint) -> None:
    endpoint.faults.replace(
        _rules("503,method=POST", "500,path=/o/a,b\\?x=1$", "429,path=^/n$,nth=2-3", "408,path=^/t,times=1")
    )
    assert endpoint.statuses(1, "POST", "/n") == [503]
    assert endpoint.statuses(1, "GET", "/b/o/a,b?x=1") == [500]
    assert endpoint.statuses(1, "GET", "/b/o/a,b?x=11") == [200]
    assert endpoint.statuses(5, "GET", "/n") == [200, 429, 429, 200, 200]
    assert endpoint.statuses(3, "GET", "/t") == [408, 200, 200]


def test_the_first_rule_that_hits_decides_and_the_next_is_there_for_the_rest(endpoint: Endpoint) -> None:
    endpoint.faults.replace(_rules("503,nth=1", "500,nth=1", "429"))
    assert endpoint.statuses(4) == [503, 500, 429, 429]


def _hits(seed: int, *texts: str, count: int = 200) -> list[int]:
    answer = Faults(_rules(*texts), seed=seed).wrap(lambda _: Response(status=200))
    return [answer(Request(method="GET", target="/", path="/")).status for _ in range(count)]


def test_what_percents_hit_follows_from_the_seed() -> None:
    assert _hits(1, "503,percent=20") == _hits(1, "503,percent=20")
    assert _hits(1, "503,percent=20") != _hits(2, "503,percent=20")
    assert _hits(1, "503,percent=20", "500,percent=20") != _hits(1, "500,percent=20", "503,percent=20")
    assert 20 <= _hits(1, "503,percent=20").count(503) <= 60


def test_a_narrower_rule_hits_a_part_of_what_the_wider_one_hits() -> None:
    wide, narrow = _hits(1, "503,percent=20"), _hits(1, "503,percent=20,nth=50-100")
    assert narrow[49:100] == wide[49:100]
    assert set(narrow[:49] + narrow[100:]) == {200}
    assert _hits(1, "503,percent=20,times=5").count(503) == 5


def test_rules_are_shown_replaced_and_removed_while_the_endpoint_runs(endpoint: Endpoint) -> None:
    rules = [{"fault": 503, "method": "GET", "times": 1}, {"fault": "stall", "seconds": 0.5, "nth": "9"}]
    assert endpoint.ask("PUT", FAULTS_PATH, json.dumps(rules).encode())[0] == 200
    assert endpoint.statuses(2) == [503, 200]
    shown = json.loads(endpoint.ask("GET", FAULTS_PATH)[1])["rules"]
    assert shown == [
        {"fault": "503", "method": "GET", "times": 1, "matched": 2, "hit": 1},
        {"fault": "stall", "seconds": 0.5, "nth": "9", "matched": 1, "hit": 0},
    ]
    endpoint.faults.replace(_rules("reset"))
    assert endpoint.ask("DELETE", FAULTS_PATH) == (200, b'{"rules": []}')
    assert endpoint.statuses(1) == [200]
    assert endpoint.ask("PATCH", FAULTS_PATH)[0] == 405


def test_a_bad_list_of_rules_is_refused_and_changes_nothing(endpoint: Endpoint) -> None:
    endpoint.faults.replace(_rules("503"))
    status, body = endpoint.ask("PUT", FAULTS_PATH, b'[{"fault": "418"}]')
    assert status == 400
    assert "fault" in json.loads(body)["error"]["message"]
    assert endpoint.statuses(1) == [503]


def test_a_flag_and_json_say_the_same() -> None:
    flag = parse_flag("stall,method=PUT,path=/o/a,b,percent=2.5,nth=3-9,times=4,seconds=1.5,then=drop")
    document = {
        "fault": "stall", "method": "PUT", "path": "/o/a,b", "percent": 2.5, "nth": "3-9", "times": 4, "seconds": 1.5,
        "then": "drop",
    }  # fmt: skip
    assert [flag] == parse_json(json.dumps([document]).encode())


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ("", "fault"),
        ("404", "fault"),
        ("503,percent=0", "percent"),
        ("503,percent=x", "percent"),
        ("503,path=(", "regular expression"),
        ("503,nth=0", "nth"),
        ("503,nth=5-3", "nth"),
        ("503,times=0", "times"),
        ("stall,seconds=-1", "seconds"),
        ("stall,seconds=nan", "seconds"),
        ("slow,rate=0", "rate"),
        ("stall,then=explode", "then"),
        ("503,color=red", "'color=red' is not FIELD=VALUE; the fields are method, path"),
        ("504", "503"),
    ],
)
def test_a_flag_that_says_nothing_possible_is_refused_with_what_is_wrong(text: str, named: str) -> None:
    with pytest.raises(Refused, match=named):
        parse_flag(text)


def test_an_object_is_written_as_often_as_the_limit_allows() -> None:
    now = [100.0]
    limit = WriteLimit(1.0, monotonic=lambda: now[0])
    limit("team", "a")
    limit("team", "b")
    limit("other", "a")
    now[0] += 0.9
    with pytest.raises(Refusal) as caught:
        limit("team", "a")
    assert caught.value.status == 429
    now[0] += 0.2
    limit("team", "a")


def test_a_request_of_a_batch_or_test_has_a_body_too() -> None:
    body = BytesBody(b"abcdef")
    assert (body.read(2), body.finished, [*body.pieces(3)], body.finished) == (b"ab", False, [b"cde", b"f"], True)
