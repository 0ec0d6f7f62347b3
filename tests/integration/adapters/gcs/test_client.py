"""What the environment says about the way to Cloud Storage: proxies, exceptions from them, authorities, passwords.

The proxies here are sockets on this machine, with the real client.
"""

from __future__ import annotations

import contextlib
import random
import select
import socket
import socketserver
import threading
from collections.abc import Iterator
from pathlib import Path

import google.auth.credentials
import pytest
from google.auth.credentials import AnonymousCredentials
from google.cloud.storage import Client

from bastion.adapters.gcs.client import prepared
from bastion.adapters.gcs.store import GcsStore
from bastion.core.errors import StoreError
from bastion.emulators.gcs.server import StorageEndpoint
from bastion.net.http1 import Headers, HttpServer, Request, Response
from bastion.testing.manual_clock import ManualClock

NOWHERE = "http://storage.invalid:9"
FOUND = b'{"name": "k", "size": "7", "generation": "5", "updated": "2026-01-02T03:04:05.006Z"}'
VARIABLES = ("http_proxy", "https_proxy", "all_proxy", "no_proxy", "NETRC", "REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE")


class Answering:
    """A server that finds every object; as a proxy it is asked with whole addresses."""

    def __init__(self) -> None:
        self.asked: list[Request] = []
        self.server = HttpServer(self._answer)
        self.server.open()
        self.url = f"http://127.0.0.1:{self.server.port}"

    def _answer(self, request: Request) -> Response:
        request.body.read()
        self.asked.append(request)
        return Response(status=200, headers=Headers([("Content-Type", "application/json")]), body=FOUND)


@pytest.fixture
def answering() -> Iterator[Answering]:
    answering = Answering()
    yield answering
    answering.server.close()


@pytest.fixture
def proxy() -> Iterator[Answering]:
    proxy = Answering()
    yield proxy
    proxy.server.close()


class Tunnel(socketserver.ThreadingTCPServer):
    """A proxy for HTTPS: it connects two sockets, and notes which server was asked for."""

    daemon_threads = True

    def __init__(self) -> None:
        self.asked: list[str] = []
        super().__init__(("127.0.0.1", 0), _Tunnelled)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}"


class _Tunnelled(socketserver.StreamRequestHandler):
    server: Tunnel

    def handle(self) -> None:
        method, target, _ = self.rfile.readline().decode().split()
        while self.rfile.readline().strip():
            pass
        self.server.asked.append(f"{method} {target}")
        host, _, port = target.partition(":")
        with socket.create_connection((host, int(port))) as there:
            self.wfile.write(b"HTTP/1.1 200 OK\r\n\r\n")
            sockets = {there: self.connection, self.connection: there}
            while True:
                for ready in select.select(list(sockets), [], [])[0]:
                    data = ready.recv(65536)
                    if not data:
                        return
                    sockets[ready].sendall(data)


@pytest.fixture
def tunnel() -> Iterator[Tunnel]:
    with Tunnel() as tunnel:
        thread = threading.Thread(target=tunnel.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield tunnel
        tunnel.shutdown()
        thread.join()


@pytest.fixture
def environment(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    """An environment that says nothing yet."""
    for name in VARIABLES:
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.upper(), raising=False)
    return monkeypatch


@contextlib.contextmanager
def store_at(
    url: str, *, bucket: str = "team", credentials: google.auth.credentials.Credentials | None = None
) -> Iterator[GcsStore]:
    client = Client(
        project=None, credentials=credentials or AnonymousCredentials(), client_options={"api_endpoint": url}
    )
    with contextlib.closing(client):
        yield GcsStore(bucket, client=prepared(client), clock=ManualClock(), rng=random.Random(1))


@pytest.mark.parametrize("name", ["http_proxy", "HTTP_PROXY", "all_proxy"])
def test_every_kind_of_request_goes_through_the_proxy_that_the_environment_names(
    environment: pytest.MonkeyPatch, proxy: Answering, name: str
) -> None:
    environment.setenv(name, proxy.url)
    with store_at(NOWHERE) as store:
        store.head("k")
        store.put("k", b"content", generation=0)
        store.append("k", b"content", generation=5)
        store.delete("k", generation=5)
    asked = [(request.method, request.target.partition("?")[0].removeprefix(NOWHERE)) for request in proxy.asked]
    assert asked[0] == ("GET", "/storage/v1/b/team/o/k")
    assert asked[1] == ("POST", "/upload/storage/v1/b/team/o")
    assert [method for method, _ in asked] == ["GET", "POST", "POST", "POST", "DELETE", "DELETE"]
    assert all(request.target.startswith(NOWHERE) for request in proxy.asked)


@pytest.mark.parametrize("exception", ["127.0.0.1", "elsewhere.invalid,127.0.0.1", "127.0.0.0/8", "*"])
def test_a_server_that_no_proxy_names_is_asked_itself(
    environment: pytest.MonkeyPatch, proxy: Answering, answering: Answering, exception: str
) -> None:
    environment.setenv("http_proxy", proxy.url)
    environment.setenv("no_proxy", exception)
    with store_at(answering.url) as store:
        assert store.head("k") is not None
    assert [request.target.partition("?")[0] for request in answering.asked] == ["/storage/v1/b/team/o/k"]
    assert proxy.asked == []


def test_a_server_that_no_proxy_does_not_name_is_asked_through_the_proxy(
    environment: pytest.MonkeyPatch, proxy: Answering, answering: Answering
) -> None:
    environment.setenv("http_proxy", proxy.url)
    environment.setenv("no_proxy", "127.0.0.2,elsewhere.invalid")
    with store_at(answering.url) as store:
        assert store.head("k") is not None
    assert (len(proxy.asked), answering.asked) == (1, [])


def test_the_environment_is_read_once(environment: pytest.MonkeyPatch, proxy: Answering, answering: Answering) -> None:
    with store_at(answering.url) as store:
        environment.setenv("http_proxy", proxy.url)
        assert store.head("k") is not None
    assert (len(answering.asked), proxy.asked) == (1, [])


def test_https_goes_through_a_tunnel_of_the_proxy_and_the_authority_is_that_of_the_environment(
    environment: pytest.MonkeyPatch, tmp_path: Path, tunnel: Tunnel
) -> None:
    with StorageEndpoint(tmp_path, https_port=0, buckets=["lake"]) as endpoint:
        url = endpoint.address.https_url
        with store_at(url, bucket="lake") as untrusting, pytest.raises(StoreError, match="REQUESTS_CA_BUNDLE"):
            untrusting.head("k")
        environment.setenv("CURL_CA_BUNDLE", endpoint.address.ca_file)
        with store_at(url, bucket="lake") as direct:
            generation = direct.put("k", b"one", generation=0).generation
        assert tunnel.asked == []
        environment.setenv("https_proxy", tunnel.url)
        environment.setenv("REQUESTS_CA_BUNDLE", endpoint.address.ca_file)
        environment.setenv("CURL_CA_BUNDLE", str(tmp_path / "missing"))
        with store_at(url, bucket="lake") as store:
            store.append("k", b" two", generation=generation)
            assert store.get("k").data == b"one two"
        assert set(tunnel.asked) == {f"CONNECT {url.removeprefix('https://')}"}


class Token(google.auth.credentials.Credentials):  # type: ignore[misc]
    """Credentials whose tokens are counted."""

    def __init__(self) -> None:
        super().__init__()
        self.given = 0

    def refresh(self, request: object) -> None:
        self.given += 1
        self.token = f"token {self.given}"


def test_a_password_in_netrc_does_not_take_the_place_of_the_token(
    environment: pytest.MonkeyPatch, answering: Answering, tmp_path: Path
) -> None:
    (tmp_path / "netrc").write_text("default login somebody password secret\n")
    environment.setenv("NETRC", str(tmp_path / "netrc"))
    with store_at(answering.url, credentials=Token()) as store:
        store.head("k")
        store.delete("k", generation=5)
    assert [request.headers.get("Authorization") for request in answering.asked] == ["Bearer token 1"] * 2
