"""What the service, the network and the credentials say when they refuse, and what the store makes of it.

The service here is an HTTP server on this machine that gives the answers a test wrote down, with the real client.
"""

from __future__ import annotations

import json
import random
import socket
from collections.abc import Callable, Iterator
from contextlib import closing

import google.auth.credentials
import pytest
from google.auth.exceptions import RefreshError, TransportError
from google.cloud.storage import Client

from bastion.adapters.bucket_requests.retry import Patience
from bastion.adapters.gcs import client as gcs_client
from bastion.adapters.gcs.client import prepared, shared_client
from bastion.adapters.gcs.store import GcsStore
from bastion.core.errors import AccessDenied, NotFound, StoreError, StoreUnavailable
from bastion.net.http1 import Headers, HttpServer, Request, Response
from bastion.testing.manual_clock import ManualClock

ALICE = (
    "alice@example.com does not have {} access to the Google Cloud Storage object. Permission '{}' denied on resource"
)
OBJECT = {
    "name": "k",
    "size": "7",
    "generation": "5",
    "updated": "2026-01-02T03:04:05.006Z",
}
CONTENT = Response(
    status=200,
    headers=Headers(
        [("x-goog-generation", "5"), ("Last-Modified", "Fri, 02 Jan 2026 03:04:05 GMT"), ("Content-Type", "text/plain")]
    ),
    body=b"content",
)


class Service:
    """Gives its answers in turn, the last one for ever, and notes what was asked."""

    def __init__(self) -> None:
        self.answers: list[Response] = []
        self.asked: list[Request] = []
        self.bodies: list[bytes] = []
        self.server = HttpServer(self._answer)
        self.server.open()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server.port}"

    def _answer(self, request: Request) -> Response:
        self.bodies.append(request.body.read())
        self.asked.append(request)
        return self.answers[min(len(self.asked), len(self.answers)) - 1]


def said(status: int, message: str, reason: str = "", *, headers: tuple[tuple[str, str], ...] = ()) -> Response:
    document = {"error": {"code": status, "message": message, "errors": [{"message": message, "reason": reason}]}}
    return Response(
        status=status,
        headers=Headers((("Content-Type", "application/json"), *headers)),
        body=json.dumps(document).encode(),
    )


def text(status: int, message: str) -> Response:
    return Response(status=status, headers=Headers([("Content-Type", "text/html")]), body=message.encode())


def found(**fields: object) -> Response:
    return Response(
        status=200,
        headers=Headers([("Content-Type", "application/json")]),
        body=json.dumps({**OBJECT, **fields}).encode(),
    )


@pytest.fixture
def service() -> Iterator[Service]:
    service = Service()
    yield service
    service.server.close()


@pytest.fixture
def open_store(monkeypatch: pytest.MonkeyPatch) -> Callable[[str], GcsStore]:
    """Opens the bucket `team` at an endpoint."""

    def open_(url: str) -> GcsStore:
        monkeypatch.setenv("STORAGE_EMULATOR_HOST", url)
        return GcsStore("team", clock=ManualClock(), rng=random.Random(1), write_interval_seconds=0)

    return open_


@pytest.fixture
def store(service: Service, open_store: Callable[[str], GcsStore]) -> GcsStore:
    return open_store(service.url)


OPERATIONS: dict[str, Callable[[GcsStore], object]] = {
    "get": lambda store: store.get("k"),
    "head": lambda store: store.head("k"),
    "list": lambda store: list(store.list("")),
    "put": lambda store: store.put("k", b"x", generation=0),
    "append": lambda store: store.append("k", b"x", generation=5),
    "delete": lambda store: store.delete("k", generation=5),
}
every_operation = pytest.mark.parametrize("operation", OPERATIONS)


# Who may not


@pytest.mark.parametrize(
    ("operation", "permission", "role"),
    [
        ("get", "storage.objects.get", "roles/storage.objectViewer"),
        ("head", "storage.objects.get", "roles/storage.objectViewer"),
        ("list", "storage.objects.list", "roles/storage.objectViewer"),
        ("put", "storage.objects.create", "roles/storage.objectUser"),
        ("append", "storage.objects.create", "roles/storage.objectUser"),
        ("delete", "storage.objects.delete", "roles/storage.objectUser"),
    ],
)
def test_a_missing_permission_is_named_with_the_role_that_grants_it_and_not_tried_again(
    store: GcsStore, service: Service, operation: str, permission: str, role: str
) -> None:
    words = ALICE.format(permission, permission)
    service.answers = [text(403, words) if operation == "get" else said(403, words, "forbidden")]
    with pytest.raises(AccessDenied) as refused:
        OPERATIONS[operation](store)
    message = str(refused.value)
    for part in ("alice@example.com", permission, role, "gs://team", "--member=user:alice@example.com"):
        assert part in message
    assert "if it is a bastion's bucket, ask its administrator" in message, "a role on that bucket undoes the inboxes"
    assert len(service.asked) == 1


def test_a_service_account_is_named_as_one_and_nobody_is_told_to_log_in(store: GcsStore, service: Service) -> None:
    who = "bastion@proj.iam.gserviceaccount.com"
    service.answers = [
        said(403, f"{who} does not have storage.objects.list access to the Google Cloud Storage bucket.")
    ]
    with pytest.raises(AccessDenied, match=f"--member=serviceAccount:{who}"):
        list(store.list(""))
    service.answers = [said(403, "Anonymous caller does not have storage.objects.list access to the bucket.")]
    with pytest.raises(AccessDenied, match="gcloud auth application-default login"):
        list(store.list(""))


def test_a_refusal_without_a_permission_tells_the_services_words(store: GcsStore, service: Service) -> None:
    service.answers = [said(403, "Provided scope(s) are not authorized", "forbidden")]
    with pytest.raises(AccessDenied, match=r"scope.s. are not authorized.*cloud-platform"):
        store.head("k")


def test_being_told_to_come_more_seldom_is_no_missing_permission(store: GcsStore, service: Service) -> None:
    service.answers = [said(403, "Rate limit exceeded", "rateLimitExceeded"), found()]
    assert store.head("k") is not None


# What is not there


@every_operation
def test_a_missing_bucket_is_told_from_a_missing_object(store: GcsStore, service: Service, operation: str) -> None:
    words = "The specified bucket does not exist."
    service.answers = [text(404, words) if operation == "get" else said(404, words, "notFound")]
    with pytest.raises(StoreError, match=r"no bucket gs://team at .*bastion emulator gcs --bucket=team`") as missing:
        OPERATIONS[operation](store)
    assert not isinstance(missing.value, (NotFound, StoreUnavailable))
    assert len(service.asked) == 1


def test_in_the_cloud_a_missing_bucket_is_made_by_gcloud(
    store: GcsStore, service: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    service.answers = [said(404, "The specified bucket does not exist.", "notFound")]
    monkeypatch.delenv("STORAGE_EMULATOR_HOST")
    with pytest.raises(StoreError, match=r"no bucket gs://team; .*gcloud storage buckets create gs://team`"):
        store.head("k")


def test_a_missing_object_whose_name_speaks_of_buckets_is_a_missing_object(store: GcsStore, service: Service) -> None:
    words = "No such object: team/the specified bucket does not exist."
    service.answers = [text(404, words)]
    with pytest.raises(NotFound):
        store.get("the specified bucket does not exist.")
    service.answers = [said(404, words, "notFound")]
    assert store.head("the specified bucket does not exist.") is None


@every_operation
def test_what_the_service_calls_wrong_is_told_and_not_tried_again(
    store: GcsStore, service: Service, operation: str
) -> None:
    service.answers = [said(400, "The bucket is in a bad mood.", "invalid")]
    with pytest.raises(StoreError, match=r"400: The bucket is in a bad mood") as refused:
        OPERATIONS[operation](store)
    assert not isinstance(refused.value, StoreUnavailable)
    assert len(service.asked) == 1


# What passes


@pytest.mark.parametrize("status", [408, 429, 500, 502, 503, 504])
def test_a_failure_of_the_service_is_tried_again(store: GcsStore, service: Service, status: int) -> None:
    service.answers = [said(status, "Try again."), said(status, "Try again."), found()]
    assert store.head("k") is not None
    service.asked.clear()
    service.answers = [text(status, "Try again."), CONTENT]
    assert store.get("k").data == b"content"
    assert len(service.asked) == 2


@every_operation
def test_a_service_that_stays_away_is_unavailable_and_the_message_says_how_it_failed(
    store: GcsStore, service: Service, operation: str
) -> None:
    service.answers = [said(503, "Backend Error", "backendError")]
    with pytest.raises(StoreUnavailable, match=r"gs://team.* 503 Backend Error \(after \d+ tries\)"):
        OPERATIONS[operation](store)


@every_operation
def test_nobody_listens(open_store: Callable[[str], GcsStore], operation: str) -> None:
    with closing(socket.create_server(("127.0.0.1", 0))) as free:
        port = free.getsockname()[1]
    with pytest.raises(StoreUnavailable, match="refused"):
        OPERATIONS[operation](open_store(f"http://127.0.0.1:{port}"))


def test_a_request_that_was_never_sent_leaves_no_doubt_and_nothing_is_asked_about_it(
    open_store: Callable[[str], GcsStore],
) -> None:
    with closing(socket.create_server(("127.0.0.1", 0))) as free:
        port = free.getsockname()[1]
    with pytest.raises(StoreUnavailable, match="was not written"):
        open_store(f"http://127.0.0.1:{port}").put("k", b"x", generation=0)


def test_bytes_that_the_service_received_damaged_are_sent_again(store: GcsStore, service: Service) -> None:
    service.answers = [said(400, 'Provided CRC32C "AAAAAA==" doesn\'t match calculated CRC32C.', "invalid"), found()]
    store.put("k", b"content", generation=0)
    assert len(service.bodies) == 2
    assert all(b'"crc32c": "Ya91Mw=="' in body for body in service.bodies)


# Downloads


def with_(response: Response, body: object, **headers: str) -> Response:
    changed = Headers(response.headers.items())
    for name, value in headers.items():
        changed.set(name.replace("_", "-"), value)
    return Response(status=response.status, headers=changed, body=body)  # type: ignore[arg-type]


def test_bytes_that_are_not_those_of_the_checksum_are_fetched_again(store: GcsStore, service: Service) -> None:
    service.answers = [with_(CONTENT, b"c0ntent", x_goog_hash="crc32c=AAAAAA==,md5=x"), CONTENT]
    assert store.get("k").data == b"content"
    assert len(service.asked) == 2


def test_bytes_that_stay_damaged_are_never_returned(store: GcsStore, service: Service) -> None:
    service.answers = [with_(CONTENT, b"content", x_goog_hash="crc32c=AAAAAA==")]
    with pytest.raises(StoreUnavailable, match="CRC32C"):
        store.get("k")


def test_a_download_that_breaks_off_is_fetched_again(store: GcsStore, service: Service) -> None:
    def half() -> Iterator[bytes]:
        yield b"con"

    service.answers = [with_(CONTENT, half(), Content_Length="7"), CONTENT]
    assert store.get("k").data == b"content"
    assert len(service.asked) == 2


def test_an_object_stored_compressed_is_read_as_it_is_stored(store: GcsStore, service: Service) -> None:
    packed = b"\x1f\x8b\x08 not really"
    service.answers = [with_(CONTENT, packed, Content_Encoding="gzip", x_goog_stored_content_encoding="gzip")]
    assert store.get("k").data == packed
    assert "gzip" in service.asked[0].headers.get("Accept-Encoding")


def test_an_endpoint_without_generations_is_refused(store: GcsStore, service: Service) -> None:
    service.answers = [text(200, "content")]
    with pytest.raises(StoreError, match="x-goog-generation"):
        store.get("k")


def test_a_range_that_the_server_ignores_is_cut_here(store: GcsStore, service: Service) -> None:
    service.answers = [CONTENT]
    stored = store.get("k", start=3)
    assert (stored.data, stored.meta.size) == (b"tent", 7)


def test_an_object_that_grows_between_two_looks_is_read_again(store: GcsStore, service: Service) -> None:
    grown = with_(CONTENT, b"!", Content_Range="bytes 7-7/8")
    grown.status = 206
    service.answers = [text(416, "The requested range cannot be satisfied."), found(size="8"), grown]
    stored = store.get("k", start=7)
    assert (stored.data, stored.meta.size) == (b"!", 8)


# Credentials


class Unwilling(google.auth.credentials.Credentials):  # type: ignore[misc]
    """Credentials whose token cannot be had."""

    def __init__(self, *failures: Exception) -> None:
        super().__init__()
        self.failures = list(failures)

    def refresh(self, request: object) -> None:
        if self.failures:
            raise self.failures.pop(0)
        self.token = "a token"


def store_of(service: Service, credentials: Unwilling) -> GcsStore:
    client = Client(project=None, credentials=credentials, client_options={"api_endpoint": service.url})
    return GcsStore("team", client=prepared(client), clock=ManualClock(), rng=random.Random(1))


def test_credentials_that_expired_say_how_to_log_in(service: Service) -> None:
    store = store_of(service, Unwilling(*[RefreshError("invalid_grant: Token has been expired or revoked.")] * 9))
    with pytest.raises(AccessDenied, match=r"expired or revoked.*gcloud auth application-default login"):
        store.head("k")
    assert service.asked == []


def test_a_token_server_that_cannot_be_reached_is_asked_again(service: Service) -> None:
    unreachable = RefreshError("no token")
    unreachable.__cause__ = TransportError("connection refused")
    service.answers = [found()]
    flaky = Unwilling(TransportError("timed out"), unreachable, RefreshError("busy", retryable=True))
    assert store_of(service, flaky).head("k") is not None
    assert service.asked[0].headers.get("Authorization") == "Bearer a token"


def test_a_token_that_is_no_longer_taken_is_renewed_and_the_request_repeated(service: Service) -> None:
    service.answers = [found(), said(401, "Invalid Credentials"), said(401, "Invalid Credentials"), found()]
    store = store_of(service, Unwilling())
    assert store.put("k", b"content", generation=0).generation == 5
    assert store.put("k", b"content", generation=5).generation == 5
    assert {request.headers.get("Authorization") for request in service.asked} == {"Bearer a token"}
    assert [request.method for request in service.asked] == ["POST"] * 4
    assert b"content" in service.bodies[-1]


def test_without_credentials_the_message_says_how_to_get_some(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("STORAGE_EMULATOR_HOST", "GOOGLE_APPLICATION_CREDENTIALS"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("GOOGLE_APPLICATION_CREDENTIALS", "/does/not/exist.json")
    with pytest.raises(AccessDenied, match=r"no credentials.*gcloud auth application-default login"):
        GcsStore("team")


def test_an_emulators_address_must_be_a_url(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("STORAGE_EMULATOR_HOST", "localhost:4443")
    with pytest.raises(StoreError, match="http://localhost:4443"):
        GcsStore("team")


def test_an_emulators_address_may_end_in_a_slash(monkeypatch: pytest.MonkeyPatch, service: Service) -> None:
    monkeypatch.setenv("STORAGE_EMULATOR_HOST", service.url + "/")
    service.answers = [found()]
    store = GcsStore("team")
    assert store.head("k") is not None
    assert store.put("k", b"content", generation=0).generation == 5
    assert [request.path for request in service.asked] == ["/storage/v1/b/team/o/k", "/upload/storage/v1/b/team/o"]


def test_all_buckets_of_a_process_share_one_client_with_a_connection_for_each_of_64_threads(
    monkeypatch: pytest.MonkeyPatch, service: Service
) -> None:
    monkeypatch.setenv("STORAGE_EMULATOR_HOST", service.url)
    client = shared_client()
    assert shared_client() is client
    assert client._http.get_adapter(service.url)._pool_maxsize == 64
    monkeypatch.setattr(gcs_client.os, "getpid", lambda: -1)
    assert shared_client() is not client  # a forked child


def test_no_try_of_ours_is_multiplied_by_the_library(store: GcsStore, service: Service) -> None:
    impatient = GcsStore("team", clock=ManualClock(), patience=Patience(spare_retries=0, retries_per_request=0))
    service.answers = [said(503, "Backend Error")]
    for name in ("head", "get", "list"):
        service.asked.clear()
        with pytest.raises(StoreUnavailable):
            OPERATIONS[name](impatient)
        assert len(service.asked) == 1
    for name in ("put", "delete"):
        service.asked.clear()
        with pytest.raises(StoreUnavailable):
            OPERATIONS[name](impatient)
        # The second one asks what came of the first.
        assert [request.method for request in service.asked] == ["POST" if name == "put" else "DELETE", "GET"]
