"""The JSON API of the storage endpoint on buckets, listings and batches, request by request, without a socket."""

from __future__ import annotations

import base64
import hashlib
from pathlib import Path
from typing import Any
from urllib.parse import quote

import google_crc32c
import pytest

from bastion.net.http1 import Response
from tests.support.gcs_endpoint import HOST, Endpoint, body_of, document, listed, reason


@pytest.fixture
def endpoint(tmp_path: Path) -> Endpoint:
    return Endpoint(tmp_path)


def test_an_object_is_shown_with_everything_that_clients_read(endpoint: Endpoint) -> None:
    data = b"some bytes"

    shown = endpoint.put("a folder/ä+b", data, Content_Type="text/plain")

    address = f"storage/v1/b/lake/o/{quote('a folder/ä+b', safe='')}"
    checksum = google_crc32c.value(data).to_bytes(4, "big")
    assert shown["kind"] == "storage#object"
    assert shown["id"] == f"lake/a folder/ä+b/{shown['generation']}"
    assert shown["selfLink"] == f"http://{HOST}/{address}"
    assert shown["mediaLink"] == f"http://{HOST}/download/{address}?generation={shown['generation']}&alt=media"
    assert (shown["bucket"], shown["name"], shown["size"]) == ("lake", "a folder/ä+b", "10")
    assert (shown["contentType"], shown["storageClass"], shown["metageneration"]) == ("text/plain", "STANDARD", "1")
    assert shown["crc32c"] == base64.b64encode(checksum).decode()
    assert shown["md5Hash"] == base64.b64encode(hashlib.md5(data).digest()).decode()
    assert int(shown["generation"]) > 0
    assert shown["timeCreated"] == shown["updated"] == shown["timeStorageClassUpdated"]
    assert shown["timeCreated"].endswith("Z")
    assert endpoint.get("a folder/ä+b") == shown


def test_addresses_are_of_https_behind_something_that_ends_tls(endpoint: Endpoint) -> None:
    endpoint.put("a")

    shown = document(endpoint.ask("GET", "/storage/v1/b/lake/o/a", X_Forwarded_Proto="https"))

    assert shown["selfLink"] == f"https://{HOST}/storage/v1/b/lake/o/a"


def test_a_slash_in_a_name_is_part_of_it_only_when_encoded(endpoint: Endpoint) -> None:
    endpoint.put("a/b", b"x")

    assert endpoint.ask("GET", "/storage/v1/b/lake/o/a%2Fb").status == 200
    assert endpoint.ask("GET", "/storage/v1/b/lake/o/a/b").status == 501


@pytest.mark.parametrize(
    ("method", "target", "expected"),
    [
        ("GET", "/storage/v1/b/lake/o/none", (404, "notFound")),
        ("GET", "/storage/v1/b/none/o/a", (404, "notFound")),
        ("GET", "/storage/v1/b/none", (404, "notFound")),
        ("DELETE", "/storage/v1/b/lake/o/none", (404, "notFound")),
        ("PATCH", "/storage/v1/b/lake/o/none", (404, "notFound")),
        ("GET", "/storage/v1/b/lake/o/a?generation=7", (404, "notFound")),
        ("GET", "/storage/v1/b/lake/o/a?generation=x", (400, "invalidParameter")),
        ("GET", "/storage/v1/b/lake/o/a?ifGenerationMatch=-1", (400, "invalidParameter")),
        ("GET", "/storage/v1/b/lake/o/a?ifGenerationMatch=7", (412, "conditionNotMet")),
        ("DELETE", "/storage/v1/b/lake/o/a?ifMetagenerationMatch=7", (412, "conditionNotMet")),
        ("GET", "/storage/v1/b/lake/o/%FF", (400, "invalid")),
        ("POST", "/storage/v1/b/lake/o/a", (405, "methodNotAllowed")),
        ("GET", "/storage/v1/b/lake/notificationConfigs", (501, "notImplemented")),
        ("GET", "/storage/v1/b/lake/o?fields=items(name", (400, "invalidParameter")),
        ("GET", "/storage/v1/b/lake/o?maxResults=many", (400, "invalidParameter")),
        ("POST", "/upload/storage/v1/b/lake/o?uploadType=media", (400, "required")),
        ("POST", "/upload/storage/v1/b/lake/o?uploadType=smoke&name=a", (400, "invalid")),
        ("POST", "/upload/storage/v1/b/lake/o?name=a", (400, "required")),
        ("POST", "/upload/storage/v1/b/lake/o?uploadType=&name=a", (400, "required")),
        ("GET", "/storage/v1/b/lake/o?matchGlob=**&delimiter=b", (400, "invalid")),
        ("GET", "/storage/v1/b/lake/o?includeFoldersAsPrefixes=true", (400, "invalid")),
        ("GET", "/storage/v1/b/lake/o?includeFoldersAsPrefixes=true&delimiter=b", (400, "invalid")),
        ("GET", "/storage/v1/b/none/o?softDeleted=true", (404, "notFound")),
        ("GET", "/storage/v1/b/lake/o/a?softDeleted=true", (404, "notFound")),
        ("GET", "/storage/v1/b/lake?softDeleted=true", (404, "notFound")),
        ("POST", "/upload/storage/v1/b/none/o?uploadType=media&name=a", (404, "notFound")),
        ("POST", "/storage/v1/b", (400, "required")),
    ],
)
def test_what_cannot_be_is_refused_in_the_service_s_words(
    endpoint: Endpoint, method: str, target: str, expected: tuple[int, str]
) -> None:
    endpoint.put("a", b"x")

    assert reason(endpoint.ask(method, target)) == expected


def test_a_bucket_is_made_listed_and_deleted_only_when_empty(endpoint: Endpoint) -> None:
    made = document(endpoint.ask("POST", "/storage/v1/b?project=any", {"name": "pond", "location": "EU"}))

    assert (made["kind"], made["name"]) == ("storage#bucket", "pond")
    assert reason(endpoint.ask("POST", "/storage/v1/b", {"name": "pond"})) == (409, "conflict")
    names = [item["name"] for item in document(endpoint.ask("GET", "/storage/v1/b?project=any"))["items"]]
    assert names == ["lake", "pond"]
    assert endpoint.ask("DELETE", "/storage/v1/b/pond").status == 204
    endpoint.put("a", b"x")
    assert reason(endpoint.ask("DELETE", "/storage/v1/b/lake")) == (409, "conflict")


def test_buckets_are_listed_page_by_page(endpoint: Endpoint) -> None:
    endpoint.ask("POST", "/storage/v1/b", {"name": "pond"})
    endpoint.ask("POST", "/storage/v1/b", {"name": "pool"})

    first = document(endpoint.ask("GET", "/storage/v1/b?maxResults=2"))
    second = document(endpoint.ask("GET", f"/storage/v1/b?maxResults=2&pageToken={first['nextPageToken']}"))

    assert [item["name"] for item in first["items"]] == ["lake", "pond"]
    assert [item["name"] for item in second["items"]] == ["pool"]
    assert "nextPageToken" not in second


@pytest.mark.parametrize(
    ("method", "part", "body", "key"),
    [
        ("GET", "", b"", "iamConfiguration"),
        ("PATCH", "", {"labels": {"team": "x"}}, "name"),
        ("GET", "/storageLayout", b"", "hierarchicalNamespace"),
        ("GET", "/iam", b"", "bindings"),
        ("PUT", "/iam", {"bindings": []}, "etag"),
        ("GET", "/iam/testPermissions?permissions=a&permissions=b", b"", "permissions"),
    ],
)
def test_what_clients_ask_of_a_bucket_beside_its_objects_has_an_answer(
    endpoint: Endpoint, method: str, part: str, body: Any, key: str
) -> None:
    assert key in document(endpoint.ask(method, f"/storage/v1/b/lake{part}", body))


@pytest.mark.parametrize(
    ("key", "value"), [("iamConfiguration", True), ("defaultEventBasedHold", {}), ("lifecycle", "x")]
)
def test_a_setting_of_the_wrong_type_is_refused_and_makes_no_bucket(endpoint: Endpoint, key: str, value: Any) -> None:
    assert endpoint.ask("POST", "/storage/v1/b", {"name": "pond", key: value}).status == 400
    assert endpoint.ask("GET", "/storage/v1/b/pond").status == 404
    assert endpoint.ask("PATCH", "/storage/v1/b/lake", {key: value}).status == 400
    assert document(endpoint.ask("GET", "/storage/v1/b"))["items"][0]["name"] == "lake"


def test_every_permission_asked_for_is_granted(endpoint: Endpoint) -> None:
    answer = document(endpoint.ask("GET", "/storage/v1/b/lake/iam/testPermissions?permissions=a&permissions=b"))

    assert answer["permissions"] == ["a", "b"]


@pytest.mark.parametrize(
    ("query", "names", "prefixes"),
    [
        ("", ["a", "b/", "b/c", "b/d/e", "f"], []),
        ("prefix=b", ["b/", "b/c", "b/d/e"], []),
        ("delimiter=/", ["a", "f"], ["b/"]),
        ("prefix=b/&delimiter=/", ["b/", "b/c"], ["b/d/"]),
        ("delimiter=/&includeTrailingDelimiter=true", ["a", "b/", "f"], ["b/"]),
        ("startOffset=b/c&endOffset=f", ["b/c", "b/d/e"], []),
        ("matchGlob=b/*", ["b/", "b/c"], []),
        ("matchGlob=*&delimiter=/", ["a", "f"], ["b/"]),
        # gcloud storage spells it so.
        ("includeFoldersAsPrefixes=True&delimiter=/", ["a", "f"], ["b/"]),
        ("softDeleted=true", [], []),
        ("softDeleted=true&prefix=b/&delimiter=/", [], []),
        ("softDeleted=false&prefix=b/c", ["b/c"], []),
        ("versions=true&projection=full&unknown=1&prettyPrint=false&key=k", ["a", "b/", "b/c", "b/d/e", "f"], []),
        ("prefix=nothing", [], []),
    ],
)
def test_a_listing_holds_what_was_asked_for(
    endpoint: Endpoint, query: str, names: list[str], prefixes: list[str]
) -> None:
    for name in ("f", "b/d/e", "b/c", "b/", "a"):
        endpoint.put(name)

    assert listed(endpoint, query) == (names, prefixes)


def test_a_listing_in_pages_is_the_listing(endpoint: Endpoint) -> None:
    for name in ("a", "b/1", "b/2", "c", "d/1", "e"):
        endpoint.put(name)
    found: list[str] = []
    token = ""
    while True:
        page = document(endpoint.ask("GET", f"/storage/v1/b/lake/o?delimiter=/&maxResults=2&pageToken={quote(token)}"))
        pieces = [item["name"] for item in page.get("items", ())] + page.get("prefixes", [])
        assert 1 <= len(pieces) <= 2
        found += pieces
        token = page.get("nextPageToken", "")
        if not token:
            break

    assert sorted(found) == ["a", "b/", "c", "d/", "e"]


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ("items/name,nextPageToken", {"items": [{"name": "a"}], "nextPageToken": None}),
        ("items(name,size),kind", {"items": [{"name": "a", "size": "1"}], "kind": "storage#objects"}),
        ("items/name,items/size", {"items": [{"name": "a", "size": "1"}]}),
        ("items(metadata/k,contentType)", {"items": [{"metadata": {"k": "1"}, "contentType": "text/x"}]}),
        ("prefixes", {}),
    ],
)
def test_the_fields_parameter_leaves_out_all_else(endpoint: Endpoint, fields: str, expected: dict[str, Any]) -> None:
    endpoint.put("a", b"x", Content_Type="text/x")
    endpoint.put("b", b"x")
    endpoint.ask("PATCH", "/storage/v1/b/lake/o/a", {"metadata": {"k": "1", "l": "2"}})

    found = document(endpoint.ask("GET", f"/storage/v1/b/lake/o?maxResults=1&fields={quote(fields)}"))

    if "nextPageToken" in expected:
        expected["nextPageToken"] = found["nextPageToken"]
    assert found == expected


def test_the_star_of_the_fields_parameter_is_everything(endpoint: Endpoint) -> None:
    endpoint.put("a", b"x")

    everything = endpoint.get("a")

    assert endpoint.get("a", "?fields=*") == everything
    listing = document(endpoint.ask("GET", "/storage/v1/b/lake/o?fields=items(*)"))
    assert listing == {"items": [everything]}


def test_a_folder_that_cannot_be_used_is_the_endpoint_s_fault(endpoint: Endpoint, tmp_path: Path) -> None:
    (tmp_path / "lake" / ".objects").write_text("in the way")

    response = endpoint.ask("POST", "/upload/storage/v1/b/lake/o?uploadType=media&name=a", b"x")

    assert reason(response) == (500, "internalError")


def batch(endpoint: Endpoint, calls: list[str], newline: str = "\r\n") -> tuple[Response, list[str]]:
    body = "".join(
        f"--x=y{newline}Content-Type: application/http{newline}Content-ID: <id+{number}>{newline * 2}{call}{newline}"
        for number, call in enumerate(calls)
    )
    response = endpoint.ask(
        "POST",
        "/batch/storage/v1",
        f"{body}--x=y--{newline}".encode(),
        Content_Type='multipart/mixed; boundary="x=y"',
    )
    marker = response.headers.get("Content-Type").partition("boundary=")[2]
    return response, body_of(response).decode().split(f"--{marker}")[1:-1]


@pytest.mark.parametrize("newline", ["\r\n", "\n"])
def test_the_calls_of_a_batch_succeed_and_fail_one_by_one(endpoint: Endpoint, newline: str) -> None:
    endpoint.put("a", b"x")
    endpoint.put("b", b"y")
    patch = '{"metadata": {"k": "1"}}'
    address = "/storage/v1/b/lake/o/a"

    response, answers = batch(
        endpoint,
        [
            f"PATCH http://{HOST}{address} HTTP/1.1{newline}Content-Length: {len(patch)}{newline * 2}{patch}",
            f"DELETE /storage/v1/b/lake/o/none HTTP/1.1{newline}accept: */*{newline}",
            f"DELETE /storage/v1/b/lake/o/a HTTP/1.1{newline}",
            f"GET /storage/v1/b/lake/o/b?alt=media HTTP/1.1{newline}",
            f"GET /storage/v1/b/lake/o/b?alt=%6dedia HTTP/1.1{newline}",
            f"GET http://{HOST} HTTP/1.1{newline}",
        ],
        newline,
    )

    assert response.status == 200
    assert ["HTTP/1.1 200 OK" in answers[0], '"metadata":{"k":"1"}' in answers[0]] == [True, True]
    assert ["HTTP/1.1 404 Not Found" in answers[1], "notFound" in answers[1]] == [True, True]
    assert "HTTP/1.1 204 No Content" in answers[2]
    assert ["HTTP/1.1 501" in answer for answer in answers[3:]] == [True, True, True]
    assert ["<response-id+2>" in answers[2], len(answers)] == [True, 6]
    assert listed(endpoint, "") == (["b"], [])


def test_a_batch_that_would_fill_the_memory_ends_with_calls_to_be_made_again(
    endpoint: Endpoint, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("bastion.storage_wire.batch._ANSWERS_MAX_BYTES", 10_000)
    for number in range(10):
        endpoint.put(f"{number}")

    _, answers = batch(
        endpoint, ["GET /storage/v1/b/lake/o HTTP/1.1\r\n"] * 9 + ["DELETE /storage/v1/b/lake/o/1 HTTP/1.1\r\n"]
    )

    statuses = [answer.partition("HTTP/1.1 ")[2][:3] for answer in answers]
    assert [statuses[0], statuses[-1], sorted(statuses)] == ["200", "503", statuses]
    assert endpoint.get("1")["name"] == "1"


@pytest.mark.parametrize(
    ("body", "content_type"),
    [
        (b"--x\r\n\r\nDELETE /a HTTP/1.1\r\n", "multipart/mixed; boundary=x"),
        (b"nothing", "multipart/mixed; boundary=x"),
        (b"--x--", "multipart/mixed"),
        (b"--x\r\n\r\nDELETE\r\n--x--", "multipart/mixed; boundary=x"),
        (b"--x\n\nDELETE /a HTTP/1.1\n" * 1001 + b"--x--", "multipart/mixed; boundary=x"),
        (b"--x\r\n\r\nGET http://[::1/a HTTP/1.1\r\n--x--", "multipart/mixed; boundary=x"),
        (b"--x\n" + b"a:b\n" * 2_000_000 + b"\nDELETE /a HTTP/1.1\n--x--", "multipart/mixed; boundary=x"),
    ],
)
def test_a_batch_that_cannot_be_read_does_nothing(endpoint: Endpoint, body: bytes, content_type: str) -> None:
    assert endpoint.ask("POST", "/batch/storage/v1", body, Content_Type=content_type).status == 400
