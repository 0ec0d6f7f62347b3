"""What a request to the storage service is about, by its method, host, path, query and headers."""

from __future__ import annotations

import pytest

from bastion.net.http1 import Headers
from bastion.proxy.routes import Action, Route, route
from bastion.storage_wire.query import Query
from tests.support.proxy_objects import stage, store
from tests.support.proxy_stage import Stage, body_of, reason

__all__ = ["stage"]

JSON, XML, SHARED = "storage.googleapis.com", "storage.googleapis.com", "www.googleapis.com"


def placed(call: str, *, host: str = JSON, **headers: str) -> Route:
    """Where `METHOD TARGET` belongs; headers with underscores for hyphens."""
    method, _, target = call.partition(" ")
    path, _, query = target.partition("?")
    items = Headers((name.replace("_", "-"), value) for name, value in headers.items())
    return route(method, host, path, Query(query), items)


@pytest.mark.parametrize("host", ["storage.googleapis.com", "www.googleapis.com", "storage.googleapis.com:443"])
@pytest.mark.parametrize(
    ("call", "action", "place"),
    [
        ("GET /storage/v1/b/vault/o/a", Action.DESCRIBE, ("vault", "a")),
        ("HEAD /storage/v1/b/vault/o/a", Action.DESCRIBE, ("vault", "a")),
        ("GET /storage/v1/b/va%75lt/o/a%2Fb%20c?alt=json", Action.DESCRIBE, ("vault", "a/b c")),
        ("GET /storage/v1/b/vault/o/a+b", Action.DESCRIBE, ("vault", "a+b")),
        ("GET /storage/v1/b/vault/o/a?alt=media", Action.READ, ("vault", "a")),
        ("GET /download/storage/v1/b/vault/o/a?alt=media", Action.READ, ("vault", "a")),
        ("HEAD /download/storage/v1/b/vault/o/a", Action.READ, ("vault", "a")),
        ("PATCH /storage/v1/b/vault/o/a", Action.CHANGE, ("vault", "a")),
        ("PUT /storage/v1/b/vault/o/a?alt=media", Action.REPLACE, ("vault", "a")),
        ("DELETE /storage/v1/b/vault/o/a", Action.DELETE, ("vault", "a")),
        ("GET /storage/v1/b/vault/o", Action.LIST, ("vault", "")),
        ("GET /storage/v1/b/vault/o/?prefix=x", Action.LIST, ("vault", "")),
        ("POST /storage/v1/b/vault/o?name=a%2Fb", Action.INSERT_EMPTY, ("vault", "a/b")),
        ("POST /upload/storage/v1/b/vault/o?uploadType=media&name=a", Action.UPLOAD, ("vault", "a")),
        ("PUT /upload/storage/v1/b/vault/o?upload_id=x", Action.UPLOAD, ("vault", "")),
        ("DELETE /upload/storage/v1/b/vault/o?upload_id=x", Action.UPLOAD, ("vault", "")),
        ("PUT /resumable/upload/storage/v1/b/vault/o?upload_id=x", Action.UPLOAD, ("vault", "")),
        ("POST /batch/storage/v1", Action.BATCH, ("", "")),
        ("POST /batch", Action.BATCH, ("", "")),
        ("GET /storage/v1/b", Action.PASS, ("", "")),
        ("GET /storage/v1/b/vault", Action.PASS, ("vault", "")),
        ("GET /storage/v1/b/vault/iam", Action.PASS, ("vault", "")),
        ("GET /storage/v1/b/vault/o/a/acl", Action.PASS, ("vault", "a")),
        ("GET /storage/v1/projects/p/serviceAccount", Action.PASS, ("", "")),
    ],
)
def test_a_call_of_the_json_api_is_placed(host: str, call: str, action: Action, place: tuple[str, str]) -> None:
    found = placed(call, host=host)
    assert (found.action, found.bucket, found.name) == (action, *place)


@pytest.mark.parametrize(("word", "action"), [("copyTo", Action.COPY), ("rewriteTo", Action.REWRITE)])
def test_a_copy_names_both_places(word: str, action: Action) -> None:
    found = placed(f"POST /storage/v1/b/vault/o/a%2Fb/{word}/b/attic/o/c%20d")
    assert (found.action, found.source, found.bucket, found.name) == (action, ("vault", "a/b"), "attic", "c d")
    assert found.buckets == ("attic", "vault")


@pytest.mark.parametrize(
    "call",
    [
        "POST /storage/v1/b/vault/o/a",
        "POST /storage/v1/b/vault/o/a/compose",
        "POST /storage/v1/b/vault/o/a/moveTo/o/b",
        "POST /storage/v1/b/vault/o/a/restore",
        "POST /storage/v1/b/vault/o/a/anything",
        "POST /storage/v1/b/vault/o/bulkRestore",
        "DELETE /storage/v1/b/vault/o",
        "POST /storage/v1/b/vault/folders/a/renameTo/folders/b",
        "GET /upload/storage/v1/b/vault/o",
        "POST /upload/storage/v1/b/vault/o/a",
        "PUT /download/storage/v1/b/vault/o/a",
        "GET /vault",
        "GET /vault/",
        "POST /vault",
        "POST /vault/a",
        "PUT /vault/a?partNumber=1&uploadId=x",
        "POST /vault/a?uploads",
        "PUT /vault/a?acl",
        "GET /vault/a?tagging",
        "POST /vault?delete",
        "GET /storage/v1/b/vault/o/a?alt=media&X-Goog-Signature=x",
        "PUT /vault/a?GoogleAccessId=x&Expires=1&Signature=x",
    ],
)
def test_what_is_not_understood_names_its_bucket_and_says_why(call: str) -> None:
    found = placed(call)
    assert (found.action, found.bucket) == (Action.NOT_UNDERSTOOD, "vault")
    assert found.why


@pytest.mark.parametrize(
    "call",
    [
        "PUT /storage/v1//b/vault/o/a",
        "PUT /storage/v1/b//vault/o/a",
        "PUT /storage/v1/b/vault//o/a",
        "PUT /storage/v1/b/vault/o%2Fa",
        "PUT /storage/v1/b%2Fvault/o/a",
        "PUT /storage/v2/b/vault/o/a",
        "POST /upload/storage/v1//b/vault/o",
        "POST /upload/storage/v2/b/vault/o",
        "PUT //vault/a",
        "PUT /./vault/a",
        "PUT /lake/../vault/a",
        "PUT /lake/%2e%2E/vault/a",
        "PUT /storage/v1/b/lake/o/../../vault/o/a",
        "PUT /storage/v1/b/lake/o/.%2e/a",
        "PUT /vault%FF/a",
        "PUT /%75pload/storage/v1/b/vault/o",
        "PUT storage/v1/b/vault/o/a/b/c/d",
    ],
)
def test_a_path_that_others_may_read_otherwise_is_not_understood_whatever_it_names(call: str) -> None:
    found = placed(call)
    assert (found.action, found.buckets) == (Action.NOT_UNDERSTOOD, ())


@pytest.mark.parametrize("call", ["POST /storage%2Fv1/b/vault/o", "GET /x/b/vault/o/a", "GET /Storage/v1/b/vault/o/a"])
def test_a_path_of_the_shared_host_that_resembles_storage_is_not_understood(call: str) -> None:
    assert placed(call, host=SHARED).action is Action.NOT_UNDERSTOOD


@pytest.mark.parametrize("call", ["GET /discovery/v1/apis", "POST /oauth2/v4/token", "GET /"])
def test_other_services_of_the_shared_host_pass(call: str) -> None:
    assert placed(call, host=SHARED).action is Action.PASS


@pytest.mark.parametrize(
    ("host", "call"),
    [
        ("storage.googleapis.com", "{} /vault/a%2Fb"),
        ("storage.googleapis.com", "{} /vault/a/b"),
        ("vault.storage.googleapis.com", "{} /a/b"),
        ("VAULT.Storage.GoogleAPIs.com.:443", "{} /a%2Fb"),
        ("commondatastorage.googleapis.com", "{} /vault/a/b"),
    ],
)
@pytest.mark.parametrize(
    ("method", "action"),
    [("GET", Action.XML_READ), ("HEAD", Action.XML_READ), ("PUT", Action.XML_UPLOAD), ("DELETE", Action.XML_DELETE)],
)
def test_a_call_of_the_xml_api_is_placed(host: str, call: str, method: str, action: Action) -> None:
    found = placed(call.format(method), host=host)
    assert (found.action, found.bucket, found.name, found.is_xml) == (action, "vault", "a/b", True)


def test_a_bucket_with_dots_has_its_own_host() -> None:
    assert placed("GET /a", host="my.own.vault.storage.googleapis.com").bucket == "my.own.vault"


@pytest.mark.parametrize("call", ["PUT /storage/v1/b/lake/o/a", "POST /upload/storage/v1/b/lake/o", "POST /batch"])
def test_a_path_of_the_json_api_at_a_buckets_own_host_concerns_both_buckets(call: str) -> None:
    found = placed(call, host="vault.storage.googleapis.com")
    assert found.action is Action.NOT_UNDERSTOOD
    assert "vault" in found.buckets


@pytest.mark.parametrize("call", ["PUT /lake/a", "PUT /lake/a?partNumber=1&uploadId=x"])
@pytest.mark.parametrize("header", ["x_goog_copy_source", "x_amz_copy_source"])
def test_a_copy_through_the_xml_api_names_its_source(header: str, call: str) -> None:
    found = placed(call, **{header: "/vault/b%20c"})
    assert (found.action, found.buckets, found.source) == (Action.NOT_UNDERSTOOD, ("lake", "vault"), ("vault", "b c"))


@pytest.mark.parametrize(
    "headers",
    [
        {"Content_Type": "application/grpc+proto"},
        {"X_HTTP_Method_Override": "PUT"},
        {"x_goog_resumable": "start"},
        {"Authorization": "AWS4-HMAC-SHA256 Credential=x"},
        {"Authorization": "GOOG1 x:y"},
    ],
    ids=["grpc", "override", "resumable", "aws", "goog"],
)
def test_headers_that_make_another_call_of_it_are_not_understood(headers: dict[str, str]) -> None:
    assert placed("PUT /vault/a", **headers).action is Action.NOT_UNDERSTOOD


@pytest.mark.parametrize(
    "call",
    [
        "POST /storage/v1/b/vault/o/b/compose",
        "POST /vault/a?uploads",
        "PUT /lake/../vault/a",
        "GET /vault",
        "GET /storage/v1/b/vault/o/a?alt=media&X-Goog-Signature=secret",
    ],
)
def test_what_is_not_understood_is_refused_before_anything_is_asked(stage: Stage, call: str) -> None:
    store(stage, "a", b"hello")
    stage.forget_asked()
    method, _, target = call.partition(" ")
    response = stage.ask(method, target, b"a body")
    assert response.status == 501
    assert b"secret" not in body_of(response)
    assert stage.requests == []


def test_what_is_not_understood_of_the_xml_api_is_refused_in_xml(stage: Stage) -> None:
    assert b"<Code>NotImplemented</Code>" in body_of(stage.ask("POST", "/vault/a?uploads"))


def test_what_is_not_understood_of_an_unmapped_bucket_passes(stage: Stage) -> None:
    stage.forget_asked()
    assert reason(stage.ask("POST", "/storage/v1/b/lake/o/a/restore"))[0] == 501
    assert stage.requests == ["POST /storage/v1/b/lake/o/a/restore"]


@pytest.mark.parametrize(
    "host",
    [
        "www.googleapis.com",
        "content.googleapis.com",
        "private.googleapis.com",
        "WWW.GoogleAPIs.com.:443",
        "lake.storage.googleapis.com",
        "lake.us-central1-storage.googleapis.com",
        "lake.storage.us-central1.rep.googleapis.com",
        "cellar.commondatastorage.googleapis.com",
    ],
)
@pytest.mark.parametrize("call", ["PUT {}/a", "POST {}/a", "DELETE {}/a", "PUT {}/a?uploadId=x", "PATCH {}/a"])
@pytest.mark.parametrize("name", ["/vault", "//vault", "/%76ault", "/%2576ault", "/vault%2F", "/Vault", "/\\vault"])
def test_nothing_that_could_change_a_mapped_bucket_passes_at_another_host(
    stage: Stage, host: str, call: str, name: str
) -> None:
    stage.forget_asked()
    method, _, target = call.format(name).partition(" ")
    response = stage.ask(method, target, b"a body", host=host)
    assert response.status == 501, body_of(response)
    assert stage.requests == []


def test_outside_of_a_mapped_prefix_a_path_may_not_name_another_mapped_bucket_either(stage: Stage) -> None:
    stage.forget_asked()
    assert stage.ask("PUT", "/vault/a", b"a body", host="attic.storage.googleapis.com").status == 501
    assert stage.requests == []


@pytest.mark.parametrize("host", ["www.googleapis.com", "lake.storage.googleapis.com", "attic.storage.googleapis.com"])
def test_what_names_no_mapped_bucket_or_changes_nothing_passes_at_another_host(stage: Stage, host: str) -> None:
    stage.forget_asked()
    for call in ("PUT /cellar/a", "GET /vault/a", "HEAD /vault/a", "PUT /a/vault"):
        method, _, target = call.partition(" ")
        stage.ask(method, target, b"a body", host=host).close()
    assert stage.requests == ["PUT /cellar/a", "GET /vault/a", "HEAD /vault/a", "PUT /a/vault"]


def test_a_call_of_firebase_may_change_any_bucket(stage: Stage) -> None:
    stage.forget_asked()
    assert stage.ask("POST", "/v0/b/vault/o?name=a", b"a body", host="firebasestorage.googleapis.com").status == 501
    assert stage.requests == []


def test_a_path_at_another_host_is_looked_at_in_a_batch_too(stage: Stage) -> None:
    part = b"--edge\r\nContent-Type: application/http\r\n\r\nPUT /vault/a HTTP/1.1\r\nContent-Length: 2\r\n\r\nhi"
    headers = [("Content-Type", "multipart/mixed; boundary=edge")]
    stage.forget_asked()
    response = stage.ask(
        "POST", "/batch/storage/v1", part + b"\r\n--edge--\r\n", host="www.googleapis.com", headers=headers
    )
    assert response.status == 200
    assert b"501" in body_of(response)
    assert stage.requests == []
