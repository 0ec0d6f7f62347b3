"""The XML API of the storage endpoint, request by request, without a socket."""

from __future__ import annotations

import gzip
import hashlib
import os
from pathlib import Path
from urllib.parse import quote
from xml.etree import ElementTree

import pytest

from bastion.net.http1 import Response
from tests.support.gcs_endpoint import HOST, Endpoint, body_of, crc32c

QUANTUM = 256 * 1024
PART = 5 * 1024 * 1024


def tree(response: Response) -> ElementTree.Element:
    assert response.status == 200, response.body
    found = ElementTree.fromstring(body_of(response))
    for element in found.iter():
        element.tag = element.tag.rpartition("}")[2]
    return found


def texts(found: ElementTree.Element, path: str) -> list[str]:
    return [element.text or "" for element in found.findall(path)]


def code(response: Response) -> tuple[int, str]:
    found = ElementTree.fromstring(body_of(response))
    assert found.tag == "Error"
    assert found.findtext("Message")
    return response.status, found.findtext("Code", "")


@pytest.fixture
def endpoint(tmp_path: Path) -> Endpoint:
    return Endpoint(tmp_path)


def test_what_is_put_is_got_with_its_attributes_in_headers(endpoint: Endpoint) -> None:
    put = endpoint.ask(
        "PUT",
        "/lake/a/b%20c",
        b"data",
        Content_Type="text/x",
        Cache_Control="no-store",
        x_goog_meta_Owner="\xc3\xa4",
        x_goog_hash=f"crc32c={crc32c(b'data')}",
    )

    got = endpoint.ask("GET", "/lake/a/b%20c")
    head = endpoint.ask("HEAD", "/lake/a/b%20c")

    assert put.status == 200
    tag = f'"{hashlib.md5(b"data").hexdigest()}"'
    assert (got.status, body_of(got)) == (200, b"data")
    for response in (got, head):
        headers = response.headers
        assert (headers.get("Content-Type"), headers.get("Cache-Control")) == ("text/x", "no-store")
        assert (headers.get("ETag"), headers.get("x-goog-generation")) == (tag, put.headers.get("x-goog-generation"))
        assert headers.get("x-goog-meta-owner") == "\xc3\xa4"
        assert headers.get("x-goog-stored-content-length") == "4"
        assert headers.get("x-goog-hash").startswith(f"crc32c={crc32c(b'data')}")
    assert head.headers.get("Content-Length") == "4"
    assert put.headers.get("ETag") == tag


def test_the_bucket_may_be_named_by_the_host(endpoint: Endpoint) -> None:
    endpoint.ask("PUT", "/a/b", b"data", host="lake.storage.googleapis.com")

    assert endpoint.content("/lake/a/b") == b"data"
    assert texts(tree(endpoint.ask("GET", "/", host="lake.storage.googleapis.com:443")), "Contents/Key") == ["a/b"]


@pytest.mark.parametrize(
    ("method", "target", "headers", "expected"),
    [
        ("GET", "/lake/none", {}, (404, "NoSuchKey")),
        ("GET", "/none/a", {}, (404, "NoSuchBucket")),
        ("GET", "/none", {}, (404, "NoSuchBucket")),
        ("DELETE", "/lake/none", {}, (404, "NoSuchKey")),
        ("GET", "/lake/a", {"Range": "bytes=9-"}, (416, "InvalidRange")),
        ("GET", "/lake/a", {"x_goog_if_generation_match": "7"}, (412, "PreconditionFailed")),
        ("PUT", "/lake/a", {"x_goog_if_generation_match": "0"}, (412, "PreconditionFailed")),
        ("PUT", "/lake/a", {"x_goog_if_generation_match": "x"}, (400, "InvalidArgument")),
        ("DELETE", "/lake/a", {"x_goog_if_metageneration_match": "7"}, (412, "PreconditionFailed")),
        ("PUT", "/lake/b", {"Content_MD5": "AAAAAAAAAAAAAAAAAAAAAA=="}, (400, "BadDigest")),
        ("PUT", "/lake/b", {"Content_MD5": "short"}, (400, "InvalidDigest")),
        ("PUT", "/lake", {}, (409, "BucketAlreadyOwnedByYou")),
        ("DELETE", "/lake", {}, (409, "BucketNotEmpty")),
        ("GET", "/lake/a?acl", {}, (501, "NotImplemented")),
        ("POST", "/lake/a", {}, (501, "NotImplemented")),
        ("PATCH", "/lake/a", {}, (405, "MethodNotAllowed")),
        ("PUT", "/lake/a?partNumber=1&uploadId=none", {}, (404, "NoSuchUpload")),
        ("PUT", "/lake/a?upload_id=none", {}, (404, "NoSuchUpload")),
        ("PUT", "/", {}, (405, "MethodNotAllowed")),
    ],
)
def test_what_cannot_be_is_refused_in_the_service_s_words(
    endpoint: Endpoint, method: str, target: str, headers: dict[str, str], expected: tuple[int, str]
) -> None:
    endpoint.ask("PUT", "/lake/a", b"data")

    assert code(endpoint.ask(method, target, b"", **headers)) == expected
    assert endpoint.content("/lake/a") == b"data"


def test_conditions_that_hold_let_through(endpoint: Endpoint) -> None:
    first = endpoint.ask("PUT", "/lake/a", b"1", x_goog_if_generation_match="0").headers
    generation = first.get("x-goog-generation")

    assert endpoint.ask("GET", "/lake/a", If_None_Match=first.get("ETag")).status == 304
    assert endpoint.ask("HEAD", "/lake/a", If_Match='"other"').status == 412
    assert endpoint.ask("PUT", "/lake/a", b"2", x_goog_if_generation_match=generation).status == 200
    assert endpoint.content("/lake/a") == b"2"
    assert endpoint.ask("DELETE", "/lake/a").status == 204


def test_ranges_and_transcoding_are_those_of_the_other_api(endpoint: Endpoint) -> None:
    stored = gzip.compress(b"what it is")
    endpoint.ask("PUT", "/lake/a", stored, Content_Encoding="gzip")

    part = endpoint.ask("GET", "/lake/a", Range="bytes=-4", Accept_Encoding="gzip")
    plain = endpoint.ask("GET", "/lake/a")

    assert (part.status, body_of(part)) == (206, stored[-4:])
    assert body_of(plain) == b"what it is"


def fill(endpoint: Endpoint) -> None:
    for name in ("a", "b/1", "b/2", "c d", "e/1", "f&<\x01"):
        endpoint.ask("PUT", f"/lake/{quote(name)}", b"x")


def test_a_listing_has_objects_and_folded_prefixes(endpoint: Endpoint) -> None:
    fill(endpoint)

    found = tree(endpoint.ask("GET", "/lake?delimiter=/&prefix=&encoding-type=url"))

    assert texts(found, "Contents/Key") == ["a", "c%20d", "f%26%3C%01"]
    assert texts(found, "CommonPrefixes/Prefix") == ["b/", "e/"]
    assert texts(found, "IsTruncated") == ["false"]
    assert texts(found, "Contents/Size") == ["1", "1", "1"]
    assert texts(tree(endpoint.ask("GET", "/lake?prefix=b/")), "Contents/Key") == ["b/1", "b/2"]


@pytest.mark.parametrize("size", [1, 2, 3, 100])
@pytest.mark.parametrize(("form", "after", "next_name"), [("", "marker", "NextMarker"), ("2", "", "")])
def test_a_listing_in_pages_is_the_listing(
    endpoint: Endpoint, size: int, form: str, after: str, next_name: str
) -> None:
    fill(endpoint)
    parameter, field = (after, next_name) if after else ("continuation-token", "NextContinuationToken")
    found: list[str] = []
    token = ""
    while True:
        page = tree(
            endpoint.ask(
                "GET",
                f"/lake?delimiter=/&max-keys={size}&list-type={form}&encoding-type=url&{parameter}={quote(token)}",
            )
        )
        pieces = texts(page, "Contents/Key") + texts(page, "CommonPrefixes/Prefix")
        assert 1 <= len(pieces) <= size
        found += pieces
        token = "".join(texts(page, field)).replace("%20", " ")
        if texts(page, "IsTruncated") == ["false"]:
            break

    assert sorted(found) == sorted(["a", "b/", "c%20d", "e/", "f%26%3C%01"])


def test_a_listing_begins_after_a_name(endpoint: Endpoint) -> None:
    fill(endpoint)

    first = tree(endpoint.ask("GET", "/lake?marker=b/1&encoding-type=url"))
    second = tree(endpoint.ask("GET", "/lake?list-type=2&start-after=b/1&encoding-type=url"))

    assert texts(first, "Contents/Key") == texts(second, "Contents/Key") == ["b/2", "c%20d", "e/1", "f%26%3C%01"]
    assert texts(second, "KeyCount") == ["4"]
    assert texts(tree(endpoint.ask("GET", "/lake?max-keys=0")), "Contents/Key") == []


def test_buckets_are_made_listed_and_deleted(endpoint: Endpoint) -> None:
    assert endpoint.ask("PUT", "/pond").status == 200
    assert texts(tree(endpoint.ask("GET", "/")), "Buckets/Bucket/Name") == ["lake", "pond"]
    assert endpoint.ask("HEAD", "/pond").status == 200
    assert tree(endpoint.ask("GET", "/pond?location")).text == "US"
    assert endpoint.ask("DELETE", "/pond").status == 204
    assert endpoint.ask("HEAD", "/pond").status == 404


def test_many_objects_are_deleted_in_one_request(endpoint: Endpoint) -> None:
    fill(endpoint)
    keys = "".join(f"<Object><Key>{name}</Key></Object>" for name in ("a", "b/1", "none"))

    found = tree(endpoint.ask("POST", "/lake?delete", f"<Delete>{keys}</Delete>".encode()))

    assert texts(found, "Deleted/Key") == ["a", "b/1", "none"]
    assert texts(tree(endpoint.ask("GET", "/lake?prefix=b/")), "Contents/Key") == ["b/2"]


def test_a_copy_keeps_or_replaces_the_attributes(endpoint: Endpoint) -> None:
    endpoint.ask("PUT", "/lake/a%20b", b"data", Content_Type="text/x", x_goog_meta_k="1")

    same = endpoint.ask("PUT", "/lake/c", x_goog_copy_source="/lake/a%20b", Content_Type="text/y")
    other = endpoint.ask(
        "PUT",
        "/lake/d",
        x_goog_copy_source="lake/a%20b",
        x_goog_metadata_directive="REPLACE",
        Content_Type="text/y",
    )
    refused = endpoint.ask(
        "PUT", "/lake/e", x_goog_copy_source="lake/a%20b", x_goog_copy_source_if_generation_match="7"
    )

    assert texts(tree(same), "ETag") == [f'"{hashlib.md5(b"data").hexdigest()}"']
    kept, replaced = endpoint.ask("HEAD", "/lake/c").headers, endpoint.ask("HEAD", "/lake/d").headers
    assert (kept.get("Content-Type"), kept.get("x-goog-meta-k")) == ("text/x", "1")
    assert (replaced.get("Content-Type"), "x-goog-meta-k" in replaced) == ("text/y", False)
    assert (other.status, refused.status) == (200, 412)
    assert endpoint.content("/lake/d") == b"data"


def test_a_resumable_session_goes_as_in_the_other_api(endpoint: Endpoint) -> None:
    data = os.urandom(QUANTUM + 5)
    begun = endpoint.ask("POST", "/lake/a%20b", x_goog_resumable="start", Content_Type="text/x", x_goog_meta_k="1")
    location = begun.headers.get("Location")
    address = location.removeprefix(f"http://{HOST}")

    first = endpoint.ask("PUT", address, data[:QUANTUM], Content_Range=f"bytes 0-{QUANTUM - 1}/*")
    last = endpoint.ask("PUT", address, data[QUANTUM:], Content_Range=f"bytes {QUANTUM}-{QUANTUM + 4}/{QUANTUM + 5}")

    assert (begun.status, location.startswith(f"http://{HOST}/lake/a%20b?upload_id=")) == (201, True)
    assert (first.status, first.headers.get("Range")) == (308, f"bytes=0-{QUANTUM - 1}")
    assert (last.status, last.headers.get("x-goog-hash").split(",")[0]) == (200, f"crc32c={crc32c(data)}")
    assert endpoint.content("/lake/a%20b") == data
    head = endpoint.ask("HEAD", "/lake/a%20b").headers
    assert (head.get("Content-Type"), head.get("x-goog-meta-k")) == ("text/x", "1")


def test_a_resumable_session_can_be_cancelled(endpoint: Endpoint) -> None:
    begun = endpoint.ask("POST", "/lake/a", x_goog_resumable="start")
    address = begun.headers.get("Location").removeprefix(f"http://{HOST}")

    assert endpoint.ask("DELETE", address).status == 499
    assert endpoint.ask("PUT", address, b"data").status in (404, 410)
    assert endpoint.ask("HEAD", "/lake/a").status == 404


def begin_multipart(endpoint: Endpoint, **headers: str) -> str:
    (upload_id,) = texts(tree(endpoint.ask("POST", "/lake/a?uploads", **headers)), "UploadId")
    return upload_id


def put_part(endpoint: Endpoint, upload_id: str, number: int, data: bytes, **headers: str) -> str:
    response = endpoint.ask("PUT", f"/lake/a?partNumber={number}&uploadId={upload_id}", data, **headers)
    assert response.status == 200
    return response.headers.get("ETag")


def complete(endpoint: Endpoint, upload_id: str, parts: list[tuple[int, str]], **headers: str) -> Response:
    inner = "".join(f"<Part><PartNumber>{number}</PartNumber><ETag>{tag}</ETag></Part>" for number, tag in parts)
    return endpoint.ask(
        "POST",
        f"/lake/a?uploadId={upload_id}",
        f"<CompleteMultipartUpload>{inner}</CompleteMultipartUpload>".encode(),
        **headers,
    )


def test_parts_make_an_object_in_the_order_of_their_numbers(endpoint: Endpoint) -> None:
    upload_id = begin_multipart(endpoint, Content_Type="text/x", x_goog_meta_k="1")
    last = put_part(endpoint, upload_id, 7, b"the end")
    put_part(endpoint, upload_id, 2, b"replaced")
    first = put_part(endpoint, upload_id, 2, b"x" * PART, x_goog_hash=f"crc32c={crc32c(b'x' * PART)}")
    listed = tree(endpoint.ask("GET", f"/lake/a?uploadId={upload_id}"))
    under_way = tree(endpoint.ask("GET", "/lake?uploads"))
    assert endpoint.ask("HEAD", "/lake/a").status == 404

    found = tree(complete(endpoint, upload_id, [(2, first), (7, last)]))

    assert texts(found, "Key") == ["a"]
    assert texts(listed, "Part/PartNumber") == ["2", "7"]
    assert texts(under_way, "Upload/UploadId") == [upload_id]
    assert endpoint.content("/lake/a") == b"x" * PART + b"the end"
    head = endpoint.ask("HEAD", "/lake/a").headers
    assert (head.get("Content-Type"), head.get("x-goog-meta-k")) == ("text/x", "1")
    assert code(complete(endpoint, upload_id, [(2, first), (7, last)])) == (404, "NoSuchUpload")


def test_parts_that_do_not_fit_make_nothing_and_are_kept(endpoint: Endpoint) -> None:
    upload_id = begin_multipart(endpoint)
    one, two = (put_part(endpoint, upload_id, number, b"small") for number in (1, 2))

    assert code(complete(endpoint, upload_id, [(1, one), (2, two)])) == (400, "EntityTooSmall")
    assert code(complete(endpoint, upload_id, [(2, two), (1, one)])) == (400, "InvalidPartOrder")
    assert code(complete(endpoint, upload_id, [(3, one)])) == (400, "InvalidPart")
    assert code(complete(endpoint, upload_id, [(1, '"other"')])) == (400, "InvalidPart")
    assert code(complete(endpoint, upload_id, [])) == (400, "MalformedXML")
    assert code(endpoint.ask("POST", f"/lake/a?uploadId={upload_id}", b"<!DOCTYPE a><a/>")) == (400, "MalformedXML")
    assert code(complete(endpoint, upload_id, [(1, one)], x_goog_hash="crc32c=AAAAAA==")) == (400, "BadDigest")
    assert endpoint.ask("HEAD", "/lake/a").status == 404
    assert complete(endpoint, upload_id, [(1, one)]).status == 200
    assert endpoint.content("/lake/a") == b"small"


def test_a_part_is_held_to_its_checksum_and_number(endpoint: Endpoint) -> None:
    upload_id = begin_multipart(endpoint)
    target = f"/lake/a?uploadId={upload_id}&partNumber="

    assert code(endpoint.ask("PUT", f"{target}1", b"data", x_goog_hash="crc32c=AAAAAA==")) == (400, "BadDigest")
    assert code(endpoint.ask("PUT", f"{target}0", b"data")) == (400, "InvalidArgument")
    assert code(endpoint.ask("PUT", f"{target}10001", b"data")) == (400, "InvalidArgument")
    assert texts(tree(endpoint.ask("GET", f"/lake/a?uploadId={upload_id}")), "Part/PartNumber") == []


def test_an_aborted_multipart_upload_is_over(endpoint: Endpoint) -> None:
    upload_id = begin_multipart(endpoint)
    tag = put_part(endpoint, upload_id, 1, b"data")

    assert endpoint.ask("DELETE", f"/lake/a?uploadId={upload_id}").status == 204
    assert code(complete(endpoint, upload_id, [(1, tag)])) == (404, "NoSuchUpload")
    assert texts(tree(endpoint.ask("GET", "/lake?uploads")), "Upload/UploadId") == []
