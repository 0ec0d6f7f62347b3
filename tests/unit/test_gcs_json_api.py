"""The JSON API of the storage endpoint on buckets and objects, request by request, without a socket."""

from __future__ import annotations

import base64
import gzip
import hashlib
import json
import os
from pathlib import Path
from typing import Any
from urllib.parse import quote

import google_crc32c
import pytest

from bastion.emulator.gcs.api import handler
from bastion.emulator.gcs.buckets import Buckets
from bastion.emulator.gcs.uploads import Uploads
from bastion.http1 import BytesBody, FileSlice, Headers, Request, Response

HOST = "storage.test:4443"


class Endpoint:
    """Asks the handler as a connection would."""

    def __init__(self, folder: Path) -> None:
        self.buckets = Buckets(folder)
        self.buckets.create("lake")
        self._answer = handler(self.buckets, Uploads(self.buckets))

    def ask(self, method: str, target: str, body: Any = b"", **headers: str) -> Response:
        path, _, query = target.partition("?")
        data = body if isinstance(body, bytes) else json.dumps(body).encode()
        return self._answer(
            Request(
                method=method,
                target=target,
                path=path,
                query=query,
                headers=Headers((name.replace("_", "-"), value) for name, value in headers.items()),
                body=BytesBody(data),
                authority=HOST,
            )
        )

    def put(self, name: str, data: bytes = b"", query: str = "", **headers: str) -> dict[str, Any]:
        target = f"/upload/storage/v1/b/lake/o?uploadType=media&name={quote(name, safe='')}{query}"
        return document(self.ask("POST", target, data, **headers))

    def get(self, name: str, query: str = "") -> dict[str, Any]:
        return document(self.ask("GET", f"/storage/v1/b/lake/o/{quote(name, safe='')}{query}"))


def body_of(response: Response) -> bytes:
    body = response.body
    if isinstance(body, FileSlice):
        try:
            return os.pread(body.descriptor, body.length, body.start)
        finally:
            body.close()
    return body if isinstance(body, bytes) else b"".join(body)


def document(response: Response, status: int = 200) -> dict[str, Any]:
    assert (response.status, status) == (status, status), body_of(response)
    found = json.loads(body_of(response))
    assert isinstance(found, dict)
    return found


def reason(response: Response) -> tuple[int, str]:
    found = json.loads(body_of(response))["error"]
    assert found["code"] == response.status
    assert found["message"] == found["errors"][0]["message"] != ""
    assert found["errors"][0]["domain"] == "global"
    return response.status, found["errors"][0]["reason"]


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


def test_every_permission_asked_for_is_granted(endpoint: Endpoint) -> None:
    answer = document(endpoint.ask("GET", "/storage/v1/b/lake/iam/testPermissions?permissions=a&permissions=b"))

    assert answer["permissions"] == ["a", "b"]


@pytest.mark.parametrize(
    ("header", "status", "expected", "content_range"),
    [
        ("", 200, b"0123456789", ""),
        ("bytes=2-4", 206, b"234", "bytes 2-4/10"),
        ("bytes=7-", 206, b"789", "bytes 7-9/10"),
        ("bytes=7-99", 206, b"789", "bytes 7-9/10"),
        ("bytes=-3", 206, b"789", "bytes 7-9/10"),
        ("bytes=-99", 206, b"0123456789", "bytes 0-9/10"),
        ("bytes=4-2", 200, b"0123456789", ""),
        ("bytes=1-2,4-5", 200, b"0123456789", ""),
        ("lines=1-2", 200, b"0123456789", ""),
        ("bytes=-", 200, b"0123456789", ""),
    ],
)
def test_a_range_is_read_and_an_odd_one_is_no_range(
    endpoint: Endpoint, header: str, status: int, expected: bytes, content_range: str
) -> None:
    endpoint.put("a", b"0123456789")

    response = endpoint.ask("GET", "/storage/v1/b/lake/o/a?alt=media", Range=header)

    assert (response.status, response.headers.get("Content-Range")) == (status, content_range)
    assert body_of(response) == expected


@pytest.mark.parametrize(
    ("data", "header"), [(b"0123456789", "bytes=10-"), (b"0123456789", "bytes=-0"), (b"", "bytes=0-")]
)
def test_a_range_past_the_end_is_416_and_says_how_large_the_object_is(
    endpoint: Endpoint, data: bytes, header: str
) -> None:
    endpoint.put("a", data)

    response = endpoint.ask("GET", "/download/storage/v1/b/lake/o/a?alt=media", Range=header)

    assert (response.status, response.headers.get("Content-Range")) == (416, f"bytes */{len(data)}")


def test_the_headers_of_a_download_say_what_the_resource_says(endpoint: Endpoint) -> None:
    shown = endpoint.put("a", b"0123456789", Content_Type="text/x")

    response = endpoint.ask("GET", "/storage/v1/b/lake/o/a?alt=media", Range="bytes=0-0")

    headers = response.headers
    assert headers.get("x-goog-generation") == shown["generation"]
    assert headers.get("x-goog-metageneration") == "1"
    assert headers.get("x-goog-stored-content-length") == "10"
    assert headers.get("x-goog-stored-content-encoding") == "identity"
    assert headers.get("x-goog-hash") == f"crc32c={shown['crc32c']},md5={shown['md5Hash']}"
    assert headers.get("x-goog-storage-class") == "STANDARD"
    assert (headers.get("ETag"), headers.get("Content-Type")) == (shown["etag"], "text/x")
    assert headers.get("Last-Modified").endswith("GMT")
    body_of(response)


def test_a_hostile_attribute_cannot_end_a_header(endpoint: Endpoint) -> None:
    endpoint.put("a", b"x")
    endpoint.ask("PATCH", "/storage/v1/b/lake/o/a", {"contentType": "a\r\nSet-Cookie: b", "contentLanguage": "ü"})

    response = endpoint.ask("GET", "/storage/v1/b/lake/o/a?alt=media")
    body_of(response)

    assert response.headers.get("Content-Type") == "a  Set-Cookie: b"
    assert response.headers.get("Content-Language").encode("latin-1").decode() == "ü"


def test_errors_of_a_download_are_words_without_json(endpoint: Endpoint) -> None:
    response = endpoint.ask("GET", "/storage/v1/b/lake/o/none?alt=media")

    assert response.status == 404
    assert b"none" in body_of(response)
    assert response.headers.get("Content-Type").startswith("text/html")


@pytest.mark.parametrize("alt", ["media", "json"])
def test_an_unchanged_object_is_304_without_a_body(endpoint: Endpoint, alt: str) -> None:
    shown = endpoint.put("a", b"x")
    target = f"/storage/v1/b/lake/o/a?alt={alt}"

    by_generation = endpoint.ask("GET", f"{target}&ifGenerationNotMatch={shown['generation']}")
    by_tag = endpoint.ask("GET", target, If_None_Match=f'"{shown["etag"]}"')

    assert [(response.status, response.body) for response in (by_generation, by_tag)] == [(304, b"")] * 2
    assert endpoint.ask("GET", target, If_Match="other").status == 412


def test_a_gzipped_object_is_served_as_its_content_to_who_does_not_take_gzip(endpoint: Endpoint) -> None:
    stored = gzip.compress(b"what it is") + gzip.compress(b" and more")
    endpoint.put("a", stored, "&contentEncoding=gzip")
    target = "/storage/v1/b/lake/o/a?alt=media"

    plain = endpoint.ask("GET", target, Range="bytes=0-3")
    raw = endpoint.ask("GET", target, Accept_Encoding="gzip, deflate")
    part = endpoint.ask("GET", target, Accept_Encoding="gzip", Range="bytes=0-3")

    assert (plain.status, body_of(plain)) == (200, b"what it is and more")
    assert "Content-Encoding" not in plain.headers
    assert "Content-Length" not in plain.headers
    assert plain.headers.get("x-goog-stored-content-length") == str(len(stored))
    assert (raw.status, body_of(raw), raw.headers.get("Content-Encoding")) == (200, stored, "gzip")
    assert (part.status, body_of(part)) == (206, stored[:4])


def test_a_little_gzip_that_becomes_much_comes_in_small_pieces(endpoint: Endpoint) -> None:
    content = b"a" * 20_000_001
    endpoint.put("a", gzip.compress(content), "&contentEncoding=gzip")

    response = endpoint.ask("GET", "/storage/v1/b/lake/o/a?alt=media")
    assert not isinstance(response.body, bytes | FileSlice)
    pieces = list(response.body)
    response.close()

    assert b"".join(pieces) == content
    assert max(map(len, pieces)) <= 256 * 1024


def test_no_transform_keeps_a_gzipped_object_as_it_is(endpoint: Endpoint) -> None:
    stored = gzip.compress(b"what it is")
    endpoint.put("a", stored, "&contentEncoding=gzip")
    endpoint.ask("PATCH", "/storage/v1/b/lake/o/a", {"cacheControl": "no-transform"})

    response = endpoint.ask("GET", "/storage/v1/b/lake/o/a?alt=media")

    assert (body_of(response), response.headers.get("Content-Encoding")) == (stored, "gzip")


def test_bytes_that_only_claim_to_be_gzip_are_served_as_they_are(endpoint: Endpoint) -> None:
    endpoint.put("a", b"not gzip", "&contentEncoding=gzip")

    assert body_of(endpoint.ask("GET", "/storage/v1/b/lake/o/a?alt=media")) == b"not gzip"


def test_a_patch_changes_what_it_names_and_null_unsets(endpoint: Endpoint) -> None:
    endpoint.put("a", b"x", Content_Type="text/plain")
    address = "/storage/v1/b/lake/o/a"

    first = document(endpoint.ask("PATCH", address, {"cacheControl": "no-store", "metadata": {"k": "1", "l": "2"}}))
    second = document(endpoint.ask("PATCH", address, {"contentType": None, "metadata": {"k": None, "m": 3}}))
    third = document(endpoint.ask("PATCH", address, {"metadata": None}))

    assert (first["contentType"], first["cacheControl"], first["metadata"]) == (
        "text/plain",
        "no-store",
        {"k": "1", "l": "2"},
    )
    assert ("contentType" in second, second["cacheControl"], second["metadata"]) == (
        False,
        "no-store",
        {"l": "2", "m": "3"},
    )
    assert "metadata" not in third
    assert [shown["metageneration"] for shown in (first, second, third)] == ["2", "3", "4"]
    assert first["generation"] == third["generation"]
    assert first["etag"] != second["etag"]


def test_an_update_replaces_all_that_can_be_set(endpoint: Endpoint) -> None:
    endpoint.put("a", b"x", Content_Type="text/plain")

    shown = document(endpoint.ask("PUT", "/storage/v1/b/lake/o/a", {"metadata": {"k": "1"}}))

    assert ("contentType" in shown, shown["metadata"]) == (False, {"k": "1"})


@pytest.mark.parametrize("body", [b"[1]", b"{", b'{"metadata": 1}', b'{"contentType": 1}', b"[" * 100_000])
def test_a_patch_that_is_no_resource_changes_nothing(endpoint: Endpoint, body: bytes) -> None:
    before = endpoint.put("a", b"x")

    assert endpoint.ask("PATCH", "/storage/v1/b/lake/o/a", body).status == 400
    assert endpoint.get("a") == before


def test_a_method_can_be_named_in_a_header(endpoint: Endpoint) -> None:
    endpoint.put("a", b"x")

    response = endpoint.ask("POST", "/storage/v1/b/lake/o/a", {"metadata": {"k": "1"}}, X_HTTP_Method_Override="PATCH")

    assert document(response)["metadata"] == {"k": "1"}


def listed(endpoint: Endpoint, query: str) -> tuple[list[str], list[str]]:
    found = document(endpoint.ask("GET", f"/storage/v1/b/lake/o?{query}"))
    assert found["kind"] == "storage#objects"
    return [item["name"] for item in found.get("items", ())], found.get("prefixes", [])


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


def test_composing_keeps_order_and_has_no_md5(endpoint: Endpoint) -> None:
    first = endpoint.put("a", b"one ")
    endpoint.put("b", b"two")
    sources = [{"name": "a", "generation": first["generation"]}, {"name": "b"}, {"name": "a"}]

    shown = document(
        endpoint.ask(
            "POST",
            "/storage/v1/b/lake/o/whole/compose?ifGenerationMatch=0",
            {"sourceObjects": sources, "destination": {"contentType": "text/x", "metadata": {"k": "1"}}},
        )
    )

    assert body_of(endpoint.ask("GET", "/storage/v1/b/lake/o/whole?alt=media")) == b"one twoone "
    assert (shown["componentCount"], "md5Hash" in shown) == (3, False)
    assert (shown["contentType"], shown["metadata"]) == ("text/x", {"k": "1"})


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        ({}, (400, "required")),
        ({"sourceObjects": [{}]}, (400, "required")),
        ({"sourceObjects": [{"name": "a"}] * 33}, (400, "invalid")),
        ({"sourceObjects": [{"name": "none"}]}, (404, "notFound")),
        (
            {"sourceObjects": [{"name": "a", "objectPreconditions": {"ifGenerationMatch": "7"}}]},
            (412, "conditionNotMet"),
        ),
    ],
)
def test_a_composition_that_cannot_be_makes_nothing(endpoint: Endpoint, body: Any, expected: tuple[int, str]) -> None:
    endpoint.put("a", b"x")

    assert reason(endpoint.ask("POST", "/storage/v1/b/lake/o/whole/compose", body)) == expected
    assert listed(endpoint, "") == (["a"], [])


def test_a_copy_has_the_source_s_attributes_unless_it_brings_its_own(endpoint: Endpoint) -> None:
    endpoint.put("a", b"data", Content_Type="text/x")
    endpoint.ask("PATCH", "/storage/v1/b/lake/o/a", {"metadata": {"k": "1"}})
    endpoint.ask("POST", "/storage/v1/b", {"name": "pond"})

    same = document(endpoint.ask("POST", "/storage/v1/b/lake/o/a/copyTo/b/pond/o/c", {"name": "c"}))
    other = document(endpoint.ask("POST", "/storage/v1/b/lake/o/a/copyTo/b/pond/o/d", {"contentType": "text/y"}))

    assert (same["bucket"], same["name"], same["contentType"], same["metadata"]) == ("pond", "c", "text/x", {"k": "1"})
    assert (other["contentType"], "metadata" in other) == ("text/y", False)
    assert body_of(endpoint.ask("GET", "/storage/v1/b/pond/o/d?alt=media")) == b"data"


def test_a_copy_holds_the_conditions_of_both_ends(endpoint: Endpoint) -> None:
    endpoint.put("a", b"data")
    endpoint.put("b", b"there")
    address = "/storage/v1/b/lake/o/a/rewriteTo/b/lake/o/b"

    assert reason(endpoint.ask("POST", f"{address}?ifGenerationMatch=0")) == (412, "conditionNotMet")
    assert reason(endpoint.ask("POST", f"{address}?ifSourceGenerationMatch=7")) == (412, "conditionNotMet")
    assert reason(endpoint.ask("POST", f"{address}?sourceGeneration=7")) == (404, "notFound")
    assert body_of(endpoint.ask("GET", "/storage/v1/b/lake/o/b?alt=media")) == b"there"


def test_a_rewrite_in_steps_says_how_far_it_is_and_copies_at_the_end(endpoint: Endpoint) -> None:
    data = os.urandom(2 * 1024 * 1024 + 5)
    endpoint.put("a", data)
    address = f"/storage/v1/b/lake/o/a/rewriteTo/b/lake/o/b?maxBytesRewrittenPerCall={1024 * 1024}"
    answers = [document(endpoint.ask("POST", address))]
    while not answers[-1]["done"]:
        answers.append(document(endpoint.ask("POST", f"{address}&rewriteToken={quote(answers[-1]['rewriteToken'])}")))

    assert [answer["totalBytesRewritten"] for answer in answers] == ["1048576", "2097152", "2097157"]
    assert {answer["objectSize"] for answer in answers} == {"2097157"}
    assert answers[-1]["resource"]["size"] == "2097157"
    assert body_of(endpoint.ask("GET", "/storage/v1/b/lake/o/b?alt=media")) == data


def test_a_rewrite_token_ends_with_the_generation_that_it_is_about(endpoint: Endpoint) -> None:
    endpoint.put("a", b"x" * (1024 * 1024 + 1))
    address = f"/storage/v1/b/lake/o/a/rewriteTo/b/lake/o/b?maxBytesRewrittenPerCall={1024 * 1024}"
    token = quote(document(endpoint.ask("POST", address))["rewriteToken"])
    endpoint.put("a", b"y")

    assert reason(endpoint.ask("POST", f"{address}&rewriteToken={token}")) == (400, "invalid")
    for strange in (b"7", b"{}", b"[1]", b"[" * 20_000, b"\xff"):
        token = quote(base64.urlsafe_b64encode(strange).decode())
        assert reason(endpoint.ask("POST", f"{address}&rewriteToken={token}")) == (400, "invalid")


def test_a_move_is_a_copy_without_the_source(endpoint: Endpoint) -> None:
    endpoint.put("a", b"data", Content_Type="text/x")
    address = "/storage/v1/b/lake/o/a/moveTo/o"

    assert reason(endpoint.ask("POST", f"{address}/a")) == (400, "invalid")
    assert reason(endpoint.ask("POST", f"{address}/b?ifSourceGenerationMatch=7")) == (412, "conditionNotMet")
    moved = document(endpoint.ask("POST", f"{address}/b%2Fc?ifGenerationMatch=0"))
    assert reason(endpoint.ask("POST", f"{address}/d")) == (404, "notFound")

    assert (moved["name"], moved["contentType"]) == ("b/c", "text/x")
    assert listed(endpoint, "") == (["b/c"], [])


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
    monkeypatch.setattr("bastion.emulator.gcs.batch._ANSWERS_MAX_BYTES", 10_000)
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
