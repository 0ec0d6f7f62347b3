"""Bodies that end too early, are not what was said of them, or look like others; hosts that are hardly names."""

from __future__ import annotations

import signal
import socket
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.attacked_proxy import HOST, MARK, AttackedProxy, attacked, http, received, status_of
from tests.support.waiting import until

pytestmark = pytest.mark.e2e

MIB = 1024 * 1024
MEDIA = "/upload/storage/v1/b/vault/o?uploadType=media&name=cut"
MULTIPART = "/upload/storage/v1/b/vault/o?uploadType=multipart"
RELATED = "Content-Type: multipart/related; boundary=b"
HEAD = b'--b\r\nContent-Type: application/json\r\n\r\n{"name": "cut"}\r\n--b\r\nContent-Type: x/y\r\n\r\n'


@pytest.fixture(scope="module")
def proxy(tmp_path_factory: pytest.TempPathFactory) -> Iterator[AttackedProxy]:
    with attacked(tmp_path_factory.mktemp("bodies")) as proxy:
        yield proxy


def status(proxy: AttackedProxy, name: str = "cut") -> int:
    return proxy.requests().get(f"https://{HOST}/vault/{name}", timeout=20).status_code


CUT = [
    http("POST", MEDIA, "Content-Length: 100000", body=MARK * 1000),
    http("POST", MEDIA, "Content-Length: 20000000", body=MARK * 500_000),
    http("POST", MEDIA, "Transfer-Encoding: chunked", body=b"13\r\n" + MARK),
    http("POST", MEDIA, "Transfer-Encoding: chunked", body=b"13\r\n" + MARK + b"\r\n"),
    http("POST", MEDIA, "Transfer-Encoding: chunked", body=b"13\r\n" + MARK + b"\r\n0"),
    http("POST", MEDIA, "Transfer-Encoding: chunked", body=b"13\r\n" + MARK + b"\r\n0\r\n"),
    http("POST", MEDIA, "Transfer-Encoding: chunked", body=b"-13\r\n" + MARK + b"\r\n0\r\n\r\n"),
    http("POST", MEDIA, "Transfer-Encoding: chunked", body=b"12\r\n" + MARK + b"\r\n0\r\n\r\n"),
    http("POST", MEDIA, "Transfer-Encoding: chunked", body=b"%x\r\n" % (12 * MIB) + MARK * 600_000),
    http("POST", MULTIPART, RELATED, body=HEAD + MARK),
    http("POST", MULTIPART, RELATED, body=HEAD + MARK + b"\r\n--b"),
    http("POST", MULTIPART, RELATED, body=HEAD + MARK + b"\r\n--b-"),
    http("POST", MULTIPART, RELATED, body=HEAD + MARK + b"\r\n--b\r\nContent-Type: x/y\r\n\r\n" + MARK + b"\r\n--b--"),
    http("POST", MULTIPART, RELATED, "Content-Length: 100000", body=HEAD + MARK + b"\r\n--b--\r\n"),
    http("PUT", "/vault/cut", "Content-Length: 20", body=MARK),
    http("PUT", "/vault/cut", "x-goog-hash: crc32c=AAAAAA==", body=MARK),
    http("PUT", "/vault/cut", "Content-MD5: AAAAAAAAAAAAAAAAAAAAAA==", body=MARK),
]


@pytest.mark.parametrize("data", CUT, ids=[str(number) for number in range(len(CUT))])
@pytest.mark.parametrize("reset", [False, True], ids=["end", "reset"])
def test_a_body_that_ends_too_early_or_is_not_what_was_declared_is_never_stored(
    proxy: AttackedProxy, data: bytes, reset: bool
) -> None:
    with proxy.connect() as connection:
        connection.settimeout(20)
        try:
            connection.sendall(data)
            if reset:
                connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
            else:
                socket.socket.shutdown(connection, socket.SHUT_WR)
                assert status_of(received(connection)) in (0, 400)
        except ConnectionError:
            pass

    assert status(proxy) == 404
    assert not proxy.in_the_clear()


@pytest.mark.parametrize(
    "data", [b"x\r\n--bb\r\ny", b"--b", b"\r\n--", b"\r\n-", b"\r\n", b"\r\n--b-\r\n", b"", b"\n--b--\n"]
)
def test_what_resembles_the_boundary_is_content(proxy: AttackedProxy, data: bytes) -> None:
    body = HEAD.replace(b"cut", b"like") + data + b"\r\n--b--\r\n"

    said = proxy.said(http("POST", MULTIPART, RELATED, body=body))

    got = proxy.requests().get(f"https://{HOST}/vault/like", timeout=20)
    # Who cannot tell refuses; but what was accepted is all of it.
    assert status_of(said) == 400 or got.content == data


LIES = [
    ("bytes 0-18/19", MARK, 200),
    ("bytes 0-18/18", MARK, 400),
    ("bytes 0-17/18", MARK, 400),
    ("bytes 0-19/20", MARK, 400),
    ("bytes 5-23/24", MARK, 400),
    ("bytes 0-18/*", MARK, 308),
    ("bytes */19", MARK, 308),
    ("bytes 18-0/19", MARK, 400),
    ("bytes 0-18/99999999999999999999", MARK, 400),
    ("lines 0-18/19", MARK, 400),
]


@pytest.mark.parametrize(("text", "data", "expected"), LIES, ids=[text for text, _, _ in LIES])
def test_a_content_range_that_lies_stores_nothing(proxy: AttackedProxy, text: str, data: bytes, expected: int) -> None:
    name = f"range-{LIES.index((text, data, expected))}"
    url = f"https://{HOST}/upload/storage/v1/b/vault/o?uploadType=resumable&name={name}"
    location = proxy.requests().post(url, timeout=20).headers["Location"]

    said = proxy.said(http("PUT", location.removeprefix(f"https://{HOST}"), f"Content-Range: {text}", body=data))

    assert status_of(said) == expected, said
    assert status(proxy, name) == (200 if expected == 200 else 404)
    assert not proxy.in_the_clear()


@pytest.mark.parametrize(
    "asked",
    [
        f"{'a' * 300}.{HOST}:443",
        f"{'a.' * 200}{HOST}:443",
        f"..{HOST}:443",
        f"a..{HOST}:443",
        f"-.{HOST}:443",
        f"_.{HOST}:443",
        f".{HOST}:443",
    ],
    ids=["long label", "long name", "dots", "two dots", "hyphen", "underscore", "leading dot"],
)
def test_a_host_that_is_hardly_a_name_gets_no_tunnel_and_harms_nobody(proxy: AttackedProxy, asked: str) -> None:
    with socket.create_connection(("127.0.0.1", proxy.port), 20) as plain:
        plain.sendall(f"CONNECT {asked} HTTP/1.1\r\nHost: x\r\n\r\n".encode())
        plain.settimeout(20)
        said = plain.recv(4096)
    # To be told 200 is to be told to begin TLS with the proxy itself.
    assert status_of(said) in (200, 400, 502)
    assert b"tunnel to" not in proxy.log.read_bytes()
    assert status_of(proxy.said(http("PUT", "/vault/x"))) == 200


def test_told_to_end_in_the_middle_of_an_upload_it_stores_all_or_nothing(tmp_path: Path) -> None:
    with attacked(tmp_path) as proxy:
        assert proxy.process is not None
        process = proxy.process
        data = MARK * (10 * MIB // len(MARK))
        answers: list[bytes] = []
        with proxy.connect() as connection:
            connection.settimeout(30)
            connection.sendall(http("POST", MEDIA, f"Content-Length: {len(data)}", body=data[: 4 * MIB]))
            # Sent is not yet taken: some of it has come out at the other end.
            until(lambda: any(seen.body for seen in proxy.seen if seen.request.method == "PUT"))
            process.send_signal(signal.SIGTERM)
            reader = threading.Thread(target=lambda: answers.append(received(connection)))
            reader.start()
            connection.sendall(data[4 * MIB :])
            reader.join(30)
        assert process.wait(60) == 0
        proxy.start()
        assert status_of(answers[0]) == 200
        assert proxy.requests().get(f"https://{HOST}/vault/cut", timeout=30).content == data
        assert not proxy.in_the_clear()
