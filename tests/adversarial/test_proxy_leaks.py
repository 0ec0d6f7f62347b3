"""Every way that was thought of to bring plaintext past the proxy into a place that is mapped; none may work."""

from __future__ import annotations

import contextlib
import json
import re
import stat
from collections.abc import Iterator
from pathlib import Path

import pytest

from bastion.net.http1 import Headers, Request, Response
from tests.support.attacked_proxy import MARK, TOKEN, AttackedProxy, attacked, http, received, status_of

pytestmark = pytest.mark.e2e

CHUNKS = b"%x\r\n%b\r\n0\r\n\r\n" % (len(MARK), MARK)
JSON = "Content-Type: application/json"
RELATED = "Content-Type: multipart/related; boundary=b"


def related(document: str, body: bytes = MARK) -> bytes:
    head = f"--b\r\nContent-Type: application/json\r\n\r\n{document}\r\n--b\r\nContent-Type: x/y\r\n\r\n"
    return head.encode() + body + b"\r\n--b--\r\n"


@pytest.fixture(scope="module")
def proxy(tmp_path_factory: pytest.TempPathFactory) -> Iterator[AttackedProxy]:
    with attacked(tmp_path_factory.mktemp("leaks")) as proxy:
        yield proxy


@pytest.fixture(autouse=True)
def nothing_seen(proxy: AttackedProxy) -> None:
    proxy.seen.clear()
    # What one test found is not to be found by the next.
    for path in proxy.marked():
        path.unlink(missing_ok=True)


PATHS = [
    "POST /upload/storage/v1/b/vault/o?uploadType=media&name=a",
    "POST /upload/storage/v1/b/vault/o/?uploadType=media&name=a",
    "POST /upload/storage/v1/b/va%75lt/o?uploadType=media&name=a",
    "POST /upload/storage/v1/b/vault%2F/o?uploadType=media&name=a",
    "POST /upload/storage/v1/b/vault%2Fo?uploadType=media&name=a",
    "POST /upload/storage/v1/b/%2Fvault/o?uploadType=media&name=a",
    "POST /upload/storage/v1/b/lake/../vault/o?uploadType=media&name=a",
    "POST /upload/storage/v1/b/lake/%2e%2e/vault/o?uploadType=media&name=a",
    "POST /upload/storage/v1/b//vault/o?uploadType=media&name=a",
    "POST /upload/storage/v1//b/vault/o?uploadType=media&name=a",
    "POST //upload/storage/v1/b/vault/o?uploadType=media&name=a",
    "POST /./upload/storage/v1/b/vault/o?uploadType=media&name=a",
    "POST /%75pload/storage/v1/b/vault/o?uploadType=media&name=a",
    "POST /upload%2Fstorage/v1/b/vault/o?uploadType=media&name=a",
    "POST /upload/storage/v1beta2/b/vault/o?uploadType=media&name=a",
    "POST /resumable/upload/storage/v1/b/vault/o?uploadType=media&name=a",
    "POST /upload/storage/v1/b/vault/o?uploadType=media&uploadType=multipart&name=a",
    "POST /upload/storage/v1/b/vault/o?upload%54ype=media&name=a",
    "POST /upload/storage/v1/b/vault/o?name=a",
    "POST /upload/storage/v1/b/vault/o?uploadType=media&name=a&name=b",
    "POST /upload/storage/v1/b/vault/o?uploadType=media&name=a&upload_id=",
    "POST /upload/storage/v1/b/vault/o?uploadType=media&name=a&upload_id=forged",
    "PUT /upload/storage/v1/b/vault/o?uploadType=resumable&upload_id=forged&upload_id=forged",
    "PATCH /upload/storage/v1/b/vault/o?uploadType=media&name=a",
    "POST /upload/storage/v1/b/attic/o?uploadType=media&name=deep/a",
    "POST /upload/storage/v1/b/attic/o?uploadType=media&name=deep%2Fa",
    "POST /upload/storage/v1/b/attic/o?uploadType=media&name=lower&name=deep/a",
    "POST /upload/storage/v1/b/attic/o?uploadType=media&name=deep/../deep/a",
    "POST /storage/v1/b/vault/o?uploadType=media&name=a",
    "POST /storage/v1/b/vault/o/a/compose",
    "PUT /vault/a",
    "PUT /va%75lt/a",
    "PUT /vault%2Fa",
    "PUT /vault/a%2Fb",
    "PUT //vault/a",
    "PUT /./vault/a",
    "PUT /lake/../vault/a",
    "PUT /lake/%2E./vault/a",
    "PUT vault/a",
    "PUT /vault/a#/../../lake/b",
    "PUT /attic/deep/a",
    "PUT /attic/./deep/a",
    "PUT /attic/deep%2Fa",
    "POST /vault",
    "POST /vault/",
    "POST /",
    "POST /vault/a",
    "PUT /vault/a?upload_id=forged",
    "PUT /vault/a?partNumber=1&uploadId=x",
    "POST /vault/a?uploads",
    "PUT /vault/a?X-Goog-Signature=x",
    "PUT http://storage.googleapis.com/vault/a",
    "PUT https://storage.googleapis.com/vault/a",
    "PUT https://VAULT.storage.googleapis.com/a",
    "DELETE /vault/a",
    "PRI /vault/a",
]


@pytest.mark.parametrize("call", PATHS)
def test_however_a_path_is_written_no_plaintext_reaches_a_mapped_place(proxy: AttackedProxy, call: str) -> None:
    method, _, target = call.partition(" ")

    said = proxy.said(http(method, target))

    assert 200 <= status_of(said) < 600
    assert not proxy.in_the_clear()


HOSTS = [
    "storage.googleapis.com",
    "STORAGE.GOOGLEAPIS.COM",
    "storage.googleapis.com.",
    "storage.googleapis.com:443",
    "storage.googleapis.com:8443",
    "vault.storage.googleapis.com",
    "VAULT.STORAGE.googleapis.com",
    "vault.storage.googleapis.com.",
    "www.googleapis.com",
    "content.googleapis.com",
    "content-storage.googleapis.com",
    "commondatastorage.googleapis.com",
    "vault.commondatastorage.googleapis.com",
    "us-central1-storage.googleapis.com",
    "storage.us-central1.rep.googleapis.com",
    "storage.us-central1.p.rep.googleapis.com",
    "storage-psc.p.googleapis.com",
    "storage.mtls.googleapis.com",
    "[::1]",
    "10.0.0.1",
    "storage.googleapis.com@lake.example",
    "lake.example",
    "",
]


@pytest.mark.parametrize("host", HOSTS, ids=lambda host: host or "none")
@pytest.mark.parametrize("target", ["/vault/a", "/upload/storage/v1/b/vault/o?uploadType=media&name=a"])
def test_whatever_host_a_request_names_no_plaintext_reaches_a_mapped_place(
    proxy: AttackedProxy, host: str, target: str
) -> None:
    method = "POST" if "upload" in target else "PUT"
    if host in ("www.googleapis.com", "content.googleapis.com") and method == "PUT":
        target = f"/storage{target}"  # they serve the JSON API alone

    proxy.said(http(method, target, host=host))

    # At a bucket's own host the whole path is the object's name.
    assert not proxy.in_the_clear()


@pytest.mark.parametrize(
    "asked",
    [
        "STORAGE.GOOGLEAPIS.COM.:443",
        "storage.googleapis.com:8443",
        "us-central1-storage.googleapis.com:443",
        "vault.Storage.googleapis.com:443",
        "storage.us-east1.p.rep.googleapis.com:443",
        "content.googleapis.com:443",
    ],
)
def test_no_name_of_the_service_gets_a_tunnel(proxy: AttackedProxy, asked: str) -> None:
    host = asked.rpartition(":")[0].rstrip(".").lower()

    # Only the proxy's own authority vouches for what this client trusts.
    said = proxy.said(http("PUT", "/vault/a"), host, asked=asked)

    assert status_of(said) in (200, 501)
    assert not proxy.in_the_clear()


HEADERS = [
    ("POST", "/upload/storage/v1/b/vault/o?uploadType=media&name=a", ("X-HTTP-Method-Override: PUT",), MARK),
    ("GET", "/vault/a", ("X-HTTP-Method-Override: PUT",), MARK),
    ("PUT", "/vault/a", ("Transfer-Encoding: chunked", "Content-Length: 3"), CHUNKS),
    ("PUT", "/vault/a", ("Transfer-Encoding: identity",), MARK),
    ("PUT", "/vault/a", ("Transfer-Encoding: identity, chunked",), CHUNKS),
    ("PUT", "/vault/a", ("Transfer-Encoding: gzip, chunked",), CHUNKS),
    ("PUT", "/vault/a", ("Content-Encoding: gzip",), MARK),
    ("PUT", "/vault/a", ("Expect: 100-continue",), MARK),
    ("PUT", "/vault/a", ("x-goog-resumable: start",), MARK),
    ("PUT", "/vault/a", ("x-goog-copy-source: /lake/b",), MARK),
    ("PUT", "/vault/a", ("Content-Type: application/grpc",), MARK),
    ("PUT", "/vault/a", ("x-goog-meta-gcsproxy-version: 1",), MARK),
    ("PUT", "/vault/a", ("X-Forwarded-Host: lake.storage.googleapis.com", "Forwarded: host=lake"), MARK),
    ("PUT", "/vault/a", ("Connection: content-length, x-goog-hash",), MARK),
    ("POST", "/upload/storage/v1/b/vault/o?name=a", ("X-Goog-Upload-Protocol: raw",), MARK),
    ("POST", "/upload/storage/v1/b/vault/o?uploadType=multipart", (RELATED,), related('{"name": "a"}')),
    ("POST", "/upload/storage/v1/b/attic/o?uploadType=multipart", (RELATED,), related('{"name": "deep/a"}')),
    ("POST", "/upload/storage/v1/b/attic/o?uploadType=multipart&name=low", (RELATED,), related('{"name": "deep/a"}')),
    ("POST", "/upload/storage/v1/b/attic/o?uploadType=multipart&name=deep/a", (RELATED,), related('{"name": "low"}')),
    (
        "POST",
        "/upload/storage/v1/b/attic/o?uploadType=multipart",
        (RELATED,),
        related('{"name": "low", "name": "deep/a"}'),
    ),
    ("POST", "/upload/storage/v1/b/vault/o?uploadType=multipart", (RELATED,), b"--b\r\n" + MARK),
    ("POST", "/storage/v1/b/vault/o", (JSON,), json.dumps({"name": "a", "media": MARK.decode()}).encode()),
]


@pytest.mark.parametrize(("method", "target", "headers", "body"), HEADERS, ids=[str(n) for n in range(len(HEADERS))])
def test_whatever_headers_say_no_plaintext_reaches_a_mapped_place(
    proxy: AttackedProxy, method: str, target: str, headers: tuple[str, ...], body: bytes
) -> None:
    said = proxy.said(http(method, target, *headers, body=body))

    assert said.startswith(b"HTTP/1.1 ")
    if target != "/storage/v1/b/vault/o":  # what is in the resource is no content
        assert not proxy.in_the_clear()


def test_http_1_0_is_encrypted_too(proxy: AttackedProxy) -> None:
    head = f"PUT /vault/old HTTP/1.0\r\nHost: storage.googleapis.com\r\nContent-Length: {len(MARK)}\r\n\r\n"

    assert status_of(proxy.said(head.encode() + MARK)) == 200
    assert not proxy.in_the_clear()
    assert proxy.requests().get("https://storage.googleapis.com/vault/old", timeout=20).content == MARK


def test_pipelined_requests_are_each_encrypted_and_answered_in_order(proxy: AttackedProxy) -> None:
    puts = b"".join(http("PUT", f"/vault/{n}").replace(b"Connection: close\r\n", b"") for n in range(5))

    said = proxy.said(puts + http("GET", "/vault/4", body=b""))

    assert said.count(b"HTTP/1.1 200") == 6
    assert said.endswith(MARK)
    assert not proxy.in_the_clear()


SMUGGLED = b"PUT /vault/smuggled HTTP/1.1\r\nHost: storage.googleapis.com\r\nContent-Length: 19\r\n\r\n" + MARK


@pytest.mark.parametrize(
    "data",
    [
        http("PUT", "/lake/a", "Content-Length: 5", "Transfer-Encoding: chunked", body=b"0\r\n\r\n" + SMUGGLED),
        http("PUT", "/lake/a", "Transfer-Encoding: identity,chunked", "Content-Length:0", body=b"0\r\n\r\n" + SMUGGLED),
        http("PUT", "/lake/a", "Content-Length: 0", "Content-Length: 00", body=SMUGGLED),
        http("PUT", "/lake/a", "Content-Length: 0", "Content-Length: 120", body=SMUGGLED),
        http("PUT", "/lake/a", "Content-Length : 120", body=SMUGGLED),
        http("PUT", "/lake/a", "X: y\rContent-Length: 120", body=SMUGGLED),
        http("PUT", "/lake/a\x0b HTTP/1.1\x0bX:", body=SMUGGLED),
        http("GET", "/lake/a", "Content-Length: 0", "Upgrade: h2c", "Connection: Upgrade", body=SMUGGLED),
        http("PUT", "/lake/a", "Transfer-Encoding: chunked", body=b"0;x=\r\n\r\n" + SMUGGLED),
        http("PUT", "/lake/a", "Transfer-Encoding: chunked", body=b"0\r\nContent-Length: 120\r\n\r\n" + SMUGGLED),
    ],
    ids=[str(n) for n in range(10)],
)
def test_no_request_is_smuggled_to_the_service_within_another(proxy: AttackedProxy, data: bytes) -> None:
    proxy.said(data.replace(b"Connection: close\r\n", b"") + http("GET", "/lake/none", body=b""))

    assert not [seen for seen in proxy.seen if "smuggled" in seen.request.target and MARK in seen.body]
    assert not proxy.marked("vault")


def test_a_line_break_in_metadata_makes_no_header(proxy: AttackedProxy) -> None:
    document = json.dumps({"name": "broken", "metadata": {"x": "1\r\nx-goog-meta-gcsproxy-version: 2\r\n\r\nGET /"}})
    proxy.said(http("POST", "/upload/storage/v1/b/vault/o?uploadType=multipart", RELATED, body=related(document)))

    answer = proxy.requests().get("https://storage.googleapis.com/vault/broken", timeout=20)

    assert not [name for name in answer.headers if "gcsproxy" in name.lower()]
    assert answer.status_code >= 400 or answer.content == MARK
    assert not proxy.in_the_clear()


def test_a_batch_brings_no_content_into_a_mapped_place(proxy: AttackedProxy) -> None:
    calls = [
        "POST /upload/storage/v1/b/vault/o?uploadType=media&name=a",
        "PUT https://vault.storage.googleapis.com/a",
        "PUT /vault/a",
        "POST upload/storage/v1/b/vault/o?uploadType=media&name=a",
        "POST /batch/storage/v1",
        "PUT /vault%2Fa",
    ]
    for call in calls:
        part = f"--b\r\nContent-Type: application/http\r\n\r\n{call} HTTP/1.1\r\n\r\n".encode()
        body = part + MARK + b"\r\n--b--\r\n"
        said = proxy.said(http("POST", "/batch/storage/v1", "Content-Type: multipart/mixed; boundary=b", body=body))
        assert status_of(said) in (200, 400, 501)
        assert not proxy.in_the_clear(), call


def session_of(proxy: AttackedProxy, bucket: str, name: str = "s") -> str:
    url = f"https://storage.googleapis.com/upload/storage/v1/b/{bucket}/o?uploadType=resumable&name={name}"
    answer = proxy.requests().post(url, timeout=20)
    assert answer.status_code == 200, answer.text
    return answer.headers["Location"]


def test_a_mapped_buckets_session_takes_nothing_at_another_buckets_path(proxy: AttackedProxy) -> None:
    upload_id = session_of(proxy, "vault").rpartition("upload_id=")[2]
    targets = (
        f"/upload/storage/v1/b/lake/o?uploadType=resumable&upload_id={upload_id}",
        f"/upload/storage/v1/b/attic/o?uploadType=resumable&upload_id={upload_id}",
        f"/upload/storage/v1/b/lake/o?uploadType=resumable&upload%5Fid={upload_id}",
        f"/upload/storage/v1/b/lake/o?upload_id={upload_id}&upload_id=x",
        f"/upload/storage/v1/b/lake/o?upload_id=x&upload_id={upload_id}",
        f"/lake/s?upload_id={upload_id}",
        f"/upload/storage/v1/b/lake/o/more?upload_id={upload_id}",
    )
    for target in targets:
        assert status_of(proxy.said(http("PUT", target))) in (400, 410), target
        assert not proxy.in_the_clear(), target


def test_another_buckets_session_takes_nothing_at_a_mapped_buckets_path(proxy: AttackedProxy) -> None:
    for bucket, path in (("lake", "vault"), ("attic", "vault")):
        upload_id = session_of(proxy, bucket).rpartition("upload_id=")[2]
        target = f"/upload/storage/v1/b/{path}/o?uploadType=resumable&upload_id={upload_id}"
        assert status_of(proxy.said(http("PUT", target))) in (400, 410)
        assert not proxy.in_the_clear()


def test_a_session_that_was_begun_past_the_proxy_takes_nothing(proxy: AttackedProxy) -> None:
    begun = proxy.ask_endpoint("POST", "/upload/storage/v1/b/vault/o?uploadType=resumable&name=s")
    target = begun.headers["Location"].removeprefix(proxy.endpoint)

    assert status_of(proxy.said(http("PUT", target))) == 410
    assert not proxy.in_the_clear()


@pytest.mark.parametrize("name", ["deep", "deep/", "deep%2F", "dee", "Deep/a", "/deep/a", "deep%252Fa", "de%65p/a"])
def test_at_the_edge_of_a_prefix_what_is_below_it_is_encrypted_and_nothing_else(
    proxy: AttackedProxy, name: str
) -> None:
    mapped = name in ("deep/", "deep%2F", "de%65p/a")
    answer = proxy.said(http("POST", f"/upload/storage/v1/b/attic/o?uploadType=media&name={name}"))

    assert status_of(answer) == 200
    assert bool(proxy.in_the_clear()) == (not mapped)
    for path in proxy.buckets.rglob("*"):
        with contextlib.suppress(OSError):
            path.unlink()


def answering(proxy: AttackedProxy, method: str, status: int, *headers: tuple[str, str]) -> None:
    """Lets the service answer so, once it has read the request."""

    def wrapped(answer: object) -> object:
        def given(request: Request) -> Response:
            if request.method != method:
                return proxy.endpoint_handler(request)
            request.body.read()
            return Response(status=status, headers=Headers(headers), body=b"{}")

        return given

    proxy.wrap = wrapped  # type: ignore[assignment]


@pytest.fixture
def honest_again(proxy: AttackedProxy) -> Iterator[None]:
    yield
    proxy.wrap = lambda answer: answer


ELSEWHERE = "https://elsewhere.example/upload?upload_id=x"


@pytest.mark.usefixtures("honest_again")
@pytest.mark.parametrize(
    "location",
    [
        ELSEWHERE,
        "http://storage.googleapis.com.elsewhere.example/upload/storage/v1/b/vault/o?upload_id=x",
        "https://storage.googleapis.com/upload/storage/v1/b/lake/o?uploadType=resumable&upload_id=x",
        "https://storage.googleapis.com/lake/a?upload_id=x",
        "//elsewhere.example/upload/storage/v1/b/vault/o?upload_id=x",
        "https://elsewhere.example/upload/storage/v1/b/vault/o?upload_id=x&upload_id=y",
    ],
)
def test_a_session_is_never_sent_elsewhere_by_the_service(proxy: AttackedProxy, location: str) -> None:
    answering(proxy, "POST", 200, ("Location", location))

    said = proxy.said(http("POST", "/upload/storage/v1/b/vault/o?uploadType=resumable&name=a", body=b""))

    found = re.search(rb"Location: (\S+)", said)
    if status_of(said) == 200:
        assert found is not None
        assert found[1].startswith(b"https://storage.googleapis.com/upload/storage/v1/b/vault/o?")
    else:
        assert status_of(said) == 502
        assert found is None


@pytest.mark.usefixtures("honest_again")
@pytest.mark.parametrize("status", [301, 302, 303, 307, 308])
@pytest.mark.parametrize(
    ("method", "target"),
    [
        ("POST", "/upload/storage/v1/b/vault/o?uploadType=media&name=a"),
        ("POST", "/upload/storage/v1/b/vault/o?uploadType=resumable&name=a"),
        ("PUT", "/vault/a"),
        ("GET", "/vault/a"),
        ("GET", "/storage/v1/b/vault/o/a?alt=media"),
        ("GET", "/storage/v1/b/vault/o/a"),
        ("GET", "/storage/v1/b/vault/o"),
    ],
)
def test_no_client_is_sent_elsewhere_with_its_plaintext_or_for_another(
    proxy: AttackedProxy, status: int, method: str, target: str
) -> None:
    for asked in ("HEAD", "GET", "POST", "PUT"):
        answering(proxy, asked, status, ("Location", ELSEWHERE))
        body = b"" if method == "GET" or "resumable" in target else MARK
        said = proxy.said(http(method, target, body=body))
        assert b"elsewhere.example" not in said
        assert status_of(said) not in (301, 302, 303, 307, 308)


def test_nothing_secret_is_in_the_log_and_the_state_is_private(proxy: AttackedProxy) -> None:
    upload_id = session_of(proxy, "vault").rpartition("upload_id=")[2]
    signed = "X-Goog-Signature=aabbccdd"
    proxy.said(http("PUT", f"/vault/a?{signed}", f"Authorization: Bearer {TOKEN}"))
    assert "aabbccdd" not in proxy.log.read_text()
    proxy.check_log()
    for path in Path(proxy.folder / "state").rglob("*"):
        assert stat.S_IMODE(path.stat().st_mode) & 0o077 == 0, path
    notes = [path.read_bytes() for path in (proxy.folder / "state" / "uploads").iterdir()]
    assert notes
    for note in notes:
        assert upload_id.encode() not in note
        assert MARK not in note
        assert not [key for key in proxy.secrets if key.encode() in note]
    for process in proxy.processes:
        told = Path(f"/proc/{process}/cmdline").read_bytes()
        told += Path(f"/proc/{process}/environ").read_bytes()
        assert not [key for key in proxy.secrets if key.encode() in told]
        limits = Path(f"/proc/{process}/limits").read_text()
        assert re.search(r"Max core file size +0 +0 ", limits)


def test_a_connect_to_the_proxy_itself_is_no_way_around(proxy: AttackedProxy) -> None:
    with proxy.connect(asked="storage.googleapis.com:80") as connection:
        connection.sendall(http("PUT", "/vault/a"))
        assert status_of(received(connection)) == 200
    assert not proxy.in_the_clear()
