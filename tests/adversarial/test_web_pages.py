"""What a web page in the user's browser can make a local endpoint do: the requests that browsers send, byte by byte."""

from __future__ import annotations

import http.client
import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from bastion.emulators.gcs.server import StorageEndpoint

JOB = "alice-bastion/jobs/active/evil"
# Each of these is a "simple" request: a page on any site may send it without asking first (Fetch, 3.2.2).
UPLOAD = f"/upload/storage/v1/b/team/o?uploadType=media&name={JOB}&ifGenerationMatch=0"
WRITES = [("POST", UPLOAD), ("PUT", f"/team/{JOB}"), ("DELETE", "/team/kept"), ("PUT", "/_emulator/faults")]
ELSEWHERE = [
    {"Origin": "https://evil.example"},
    {"Origin": "null"},
    {"Origin": "http://localhost:3000"},
    {"Origin": "http://127.0.0.1"},
    {"Sec-Fetch-Site": "cross-site"},
    {"Sec-Fetch-Site": "same-site"},
]


@pytest.fixture
def endpoint(tmp_path: Path) -> Iterator[StorageEndpoint]:
    with StorageEndpoint(tmp_path, buckets=["team"], allowed_hosts=["Storage.Corp.example"]) as opened:
        (tmp_path / "team" / "kept").write_bytes(b"<script>1</script>")
        yield opened


def ask(
    endpoint: StorageEndpoint, method: str, path: str, *, host: str = "", body: bytes = b"", **headers: str
) -> tuple[int, http.client.HTTPMessage, bytes]:
    port = int(endpoint.url.rpartition(":")[2])
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=30)
    try:
        connection.putrequest(method, path, skip_host=True, skip_accept_encoding=True)
        connection.putheader("Host", host.replace("PORT", str(port)) or f"127.0.0.1:{port}")
        for name, value in headers.items():
            connection.putheader(name.replace("_", "-"), value)
        connection.putheader("Content-Length", str(len(body)))
        connection.endheaders(body)
        response = connection.getresponse()
        return response.status, response.headers, response.read()
    finally:
        connection.close()


@pytest.mark.parametrize(("method", "path"), WRITES)
@pytest.mark.parametrize("headers", ELSEWHERE, ids=lambda headers: "-".join(headers.values()))
def test_a_page_of_another_site_changes_nothing(
    endpoint: StorageEndpoint, method: str, path: str, headers: dict[str, str]
) -> None:
    status, answered, _ = ask(endpoint, method, path, body=b"{}", Content_Type="text/plain", **headers)
    assert status == 403
    assert "Access-Control-Allow-Origin" not in answered
    assert not (endpoint.folder / "team" / "alice-bastion").exists()
    assert (endpoint.folder / "team" / "kept").exists()


@pytest.mark.parametrize(("method", "path"), [*WRITES, ("GET", "/team/kept"), ("GET", "/storage/v1/b/team/o")])
@pytest.mark.parametrize("host", ["evil.example:PORT", "evil.example", "localhost.evil.example:PORT", "0.0.0.0:PORT"])
def test_a_page_whose_name_resolves_to_loopback_reads_and_changes_nothing(
    endpoint: StorageEndpoint, method: str, path: str, host: str
) -> None:
    """To the browser, such a page and the endpoint have one origin: reads send no Origin, and any header is allowed."""
    status, _, body = ask(endpoint, method, path, host=host, body=b"{}", X_Any="1")
    assert status == 403
    assert b"script" not in body
    assert ask(endpoint, method, f"http://{host.replace(':PORT', '')}{path}", body=b"{}")[0] == 403
    assert not (endpoint.folder / "team" / "alice-bastion").exists()
    assert (endpoint.folder / "team" / "kept").exists()


def test_a_preflight_grants_nothing(endpoint: StorageEndpoint) -> None:
    status, answered, _ = ask(
        endpoint, "OPTIONS", UPLOAD, Origin="https://evil.example", Access_Control_Request_Method="PUT"
    )
    assert status == 403
    assert not [name for name in answered if name.lower().startswith("access-control")]


@pytest.mark.parametrize(
    "host",
    [
        "127.0.0.1:PORT",
        "127.0.0.1",
        "localhost:PORT",
        "LOCALHOST:PORT",
        "localhost:8080",
        "[::1]:PORT",
        "storage.googleapis.com",
        "www.googleapis.com:443",
        "us-central1-storage.googleapis.com",
        "storage.corp.example:PORT",
    ],
)
def test_programs_are_served_under_every_name_that_is_the_endpoints_own(endpoint: StorageEndpoint, host: str) -> None:
    assert ask(endpoint, "GET", "/storage/v1/b/team/o", host=host)[0] == 200
    assert ask(endpoint, "PUT", "/team/new", host=host, body=b"x")[0] == 200


def test_a_bucket_in_the_host_name_is_served(endpoint: StorageEndpoint) -> None:
    assert ask(endpoint, "GET", "/kept", host="team.storage.googleapis.com")[2] == b"<script>1</script>"


def test_what_a_user_opens_in_a_browser_is_shown_but_cannot_act(endpoint: StorageEndpoint) -> None:
    """A page that a job stored would have the endpoint's own origin; the sandbox takes that away."""
    status, answered, body = ask(endpoint, "GET", "/team/kept", Sec_Fetch_Site="none", Sec_Fetch_Mode="navigate")
    assert (status, body) == (200, b"<script>1</script>")
    assert answered["Content-Security-Policy"] == "sandbox"


def test_a_refusal_says_why_to_the_client_that_it_hits(endpoint: StorageEndpoint) -> None:
    _, _, body = ask(endpoint, "GET", "/storage/v1/b/team/o", host="my-machine.example:PORT")
    message = json.loads(body)["error"]["message"]
    assert "'my-machine.example:" in message
    assert "--allowed_host" in message
