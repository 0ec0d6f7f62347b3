"""The endpoint's certificate, and HTTP over TLS with it."""

from __future__ import annotations

import contextlib
import datetime
import os
import socket
import ssl
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest

from bastion.emulators.gcs import certificate
from bastion.net.http1 import FileSlice, HttpServer, Request, Response

NOW = datetime.datetime.now(datetime.timezone.utc)
SIZE = 3_000_000


def _answer(request: Request) -> Response:
    assert request.secure
    if request.method == "PUT":
        return Response(status=200, body=b"%d" % sum(len(piece) for piece in request.body.pieces()))
    if request.path == "/unread":
        return Response(status=403, body=b"no")
    descriptor = os.open(request.path, os.O_RDONLY)
    return Response(status=200, body=FileSlice(descriptor=descriptor, start=1, length=SIZE - 2))


@pytest.fixture
def identity(tmp_path: Path) -> certificate.ServerIdentity:
    return certificate.ensure(tmp_path, now=NOW)


@pytest.fixture
def server(identity: certificate.ServerIdentity) -> Iterator[HttpServer]:
    server = HttpServer(_answer, tls=identity.context())
    server.open()
    yield server
    server.close(0.0)


def _client(identity: certificate.ServerIdentity, server: HttpServer, name: str) -> ssl.SSLSocket:
    context = ssl.create_default_context(cafile=identity.ca_file)
    # What newer Python versions ask of a certificate by default.
    context.verify_flags |= ssl.VERIFY_X509_STRICT
    return context.wrap_socket(socket.create_connection(("127.0.0.1", server.port), 10), server_hostname=name)


@pytest.mark.parametrize("name", ["127.0.0.1", "localhost", "storage.googleapis.com", "bucket.storage.googleapis.com"])
def test_who_trusts_the_authority_trusts_the_endpoint_under_every_name_it_is_called(
    identity: certificate.ServerIdentity, server: HttpServer, name: str
) -> None:
    with _client(identity, server, name) as client:
        client.sendall(b"PUT / HTTP/1.1\r\nContent-Length: 3\r\n\r\nabc")
        assert client.recv(1000).startswith(b"HTTP/1.1 200 OK\r\n")


def test_another_name_and_another_authority_are_not_trusted(
    identity: certificate.ServerIdentity, server: HttpServer, tmp_path: Path
) -> None:
    with pytest.raises(ssl.SSLCertVerificationError):
        _client(identity, server, "example.com")
    (tmp_path / "other").mkdir()
    other = certificate.ensure(tmp_path / "other", now=NOW)
    with pytest.raises(ssl.SSLCertVerificationError):
        _client(other, server, "localhost")


def test_files_and_large_bodies_pass_through_tls(
    identity: certificate.ServerIdentity, server: HttpServer, tmp_path: Path
) -> None:
    content = os.urandom(SIZE)
    (tmp_path / "f").write_bytes(content)
    context = ssl.create_default_context(cafile=identity.ca_file)
    url = f"https://localhost:{server.port}"
    with urllib.request.urlopen(f"{url}{tmp_path}/f", timeout=10, context=context) as answer:
        assert answer.read() == content[1:-1]
    upload = urllib.request.Request(f"{url}/x", data=content, method="PUT")
    with urllib.request.urlopen(upload, timeout=10, context=context) as answer:
        assert int(answer.read()) == SIZE


def test_the_refusal_of_a_large_body_arrives_over_tls_too(
    identity: certificate.ServerIdentity, server: HttpServer
) -> None:
    with _client(identity, server, "localhost") as client:
        client.sendall(b"POST /unread HTTP/1.1\r\nContent-Length: 5000000\r\n\r\n" + b"x" * 5_000_000)
        assert client.recv(1000).startswith(b"HTTP/1.1 403 ")


def test_plain_http_on_the_tls_port_harms_nobody_else(identity: certificate.ServerIdentity, server: HttpServer) -> None:
    with socket.create_connection(("127.0.0.1", server.port), 10) as stranger:
        stranger.sendall(b"GET / HTTP/1.1\r\n\r\n")
        with contextlib.suppress(ConnectionResetError):
            while stranger.recv(1000):
                pass
    with _client(identity, server, "localhost") as client:
        client.sendall(b"PUT / HTTP/1.1\r\nContent-Length: 0\r\n\r\n")
        assert client.recv(1000).startswith(b"HTTP/1.1 200 OK\r\n")


def test_the_identity_lasts_until_shortly_before_it_expires(tmp_path: Path) -> None:
    first = certificate.ensure(tmp_path, now=NOW)
    before = first.ca_file.read_bytes()
    certificate.ensure(tmp_path, now=NOW + datetime.timedelta(days=700))
    assert first.ca_file.read_bytes() == before
    certificate.ensure(tmp_path, now=NOW + datetime.timedelta(days=780))
    assert first.ca_file.read_bytes() != before


@pytest.mark.parametrize("name", ["ca.pem", "server.pem"])
@pytest.mark.parametrize("content", [None, b"", b"-----BEGIN CERTIFICATE-----\nnone\n-----END CERTIFICATE-----\n"])
def test_what_is_missing_or_broken_is_made_anew(tmp_path: Path, name: str, content: bytes | None) -> None:
    identity = certificate.ensure(tmp_path, now=NOW)
    if content is None:
        (tmp_path / name).unlink()
    else:
        (tmp_path / name).write_bytes(content)
    certificate.ensure(tmp_path, now=NOW)
    ssl.create_default_context(cafile=identity.ca_file)
    identity.context()


def test_only_this_user_can_read_the_key(identity: certificate.ServerIdentity) -> None:
    assert identity.server_file.stat().st_mode & 0o777 == 0o600
    assert b"PRIVATE" not in identity.ca_file.read_bytes()
