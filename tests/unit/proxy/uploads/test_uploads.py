"""Uploads through the proxy that come in one request: what is stored, what is refused, what the service is asked."""

from __future__ import annotations

import base64
import hashlib
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs

import google_crc32c
import pytest

from bastion.core.errors import KmsUnavailable
from bastion.net.http1 import BodyTruncated, Headers, Response
from bastion.proxy.sealed.segments import SEGMENT_BYTES, plain_capacity, sealed_size
from bastion.proxy.service.upstream import Asked, UpstreamUnavailable
from bastion.proxy.uploads.storing import SMALL_BYTES
from tests.support.proxy_stage import PieceBody, Stage, body_of, crc32c_text, document, reason
from tests.support.proxy_uploads import INSERT, multipart, noise, unsealed

FIRST = plain_capacity(0)
WHOLE = plain_capacity(1)
MIB = 1024 * 1024
LARGE = SMALL_BYTES + 345_678


def nothing_stored(stage: Stage, name: str = "thing") -> bool:
    return stage.ask_endpoint("GET", f"/storage/v1/b/vault/o/{name}").status == 404


def methods(stage: Stage) -> list[str]:
    return [asked.method for asked, _ in stage.upstream.asked]


@pytest.mark.parametrize(
    "size", [0, 1, FIRST - 1, FIRST, FIRST + 1, FIRST + WHOLE - 1, FIRST + WHOLE, FIRST + WHOLE + 1, 3 * MIB]
)
def test_an_object_of_any_size_is_stored_sealed_and_is_shown_as_it_was_sent(stage: Stage, size: int) -> None:
    data = noise(size)
    shown = stage.put("thing", data)
    assert (shown["size"], shown["crc32c"]) == (str(size), crc32c_text(data))
    assert shown["contentType"] == "application/x-test"
    assert "md5Hash" not in shown and "metadata" not in shown
    resource, sealed = stage.stored("thing")
    assert len(sealed) == sealed_size(size)
    assert unsealed(stage, resource, sealed) == data
    assert stage.content("thing") == data


def test_a_small_upload_is_one_request_to_the_service(stage: Stage) -> None:
    stage.put("thing", noise(SMALL_BYTES))
    assert methods(stage) == ["POST"]


def test_a_small_object_is_stored_with_its_sums_and_nothing_of_the_plaintext_goes_up(stage: Stage) -> None:
    data = b"the quick brown fox " * 1000
    stage.put("thing", data)
    ((_, sent),) = stage.upstream.asked
    assert b"brown fox" not in sent
    assert crc32c_text(data).encode() not in sent
    assert "gcsproxy-sums" in stage.stored("thing")[0]["metadata"]


@pytest.mark.parametrize("known", [True, False], ids=["of known length", "of unknown length"])
def test_a_large_upload_streams_through_a_session_and_its_sums_come_last(stage: Stage, known: bool) -> None:
    data = noise(LARGE)
    pieces = (data[at : at + 100_000] for at in range(0, LARGE, 100_000))
    body = PieceBody(pieces, LARGE if known else None)
    shown = document(stage.ask("POST", f"{INSERT}?uploadType=media&name=thing", body))
    assert methods(stage) == ["POST", "PUT", "PATCH"]
    assert (shown["size"], shown["crc32c"], shown["metageneration"]) == (str(LARGE), crc32c_text(data), "2")
    assert unsealed(stage, *stage.stored("thing")) == data
    assert stage.content("thing") == data


def test_an_upload_of_unknown_length_goes_up_in_pieces_of_16_mib(stage: Stage) -> None:
    data = noise(35 * MIB)
    document(stage.ask("POST", f"{INSERT}?uploadType=media&name=thing", PieceBody(iter([data]), None)))
    ranges = [asked.headers.get("Content-Range") for asked, _ in stage.upstream.asked if asked.method == "PUT"]
    size = sealed_size(len(data))
    assert ranges == [
        f"bytes 0-{16 * MIB - 1}/*",
        f"bytes {16 * MIB}-{32 * MIB - 1}/*",
        f"bytes {32 * MIB}-{size - 1}/{size}",
    ]
    assert unsealed(stage, *stage.stored("thing")) == data


@pytest.mark.parametrize("size", [5, LARGE])
def test_a_multipart_upload_keeps_the_metadata_of_its_first_part(stage: Stage, size: int) -> None:
    data = noise(size)
    resource = {
        "name": "thing",
        "metadata": {"colour": "blue"},
        "cacheControl": "no-store",
        "contentEncoding": "gzip",
        "crc32c": crc32c_text(data),
        "md5Hash": base64.b64encode(hashlib.md5(data).digest()).decode(),
    }
    headers, body = multipart(resource, data, content_type="application/x-part")
    shown = document(stage.ask("POST", f"{INSERT}?uploadType=multipart", body, headers=headers))
    assert shown["metadata"] == {"colour": "blue"}
    assert (shown["cacheControl"], shown["contentEncoding"]) == ("no-store", "gzip")
    assert (shown["contentType"], shown["md5Hash"]) == ("application/x-part", resource["md5Hash"])
    stored, sealed = stage.stored("thing")
    assert stored["metadata"]["colour"] == "blue"
    assert "contentEncoding" not in stored
    assert unsealed(stage, stored, sealed) == data


def test_every_query_parameter_is_kept(stage: Stage) -> None:
    query = "uploadType=media&name=thing&ifGenerationMatch=0&userProject=p%2Fq&predefinedAcl=private&contentEncoding=br"
    document(stage.ask("POST", f"{INSERT}?{query}", b"data"))
    ((asked, _),) = stage.upstream.asked
    assert parse_qs(asked.target.partition("?")[2]) == {
        "uploadType": ["multipart"],
        "name": ["thing"],
        "ifGenerationMatch": ["0"],
        "userProject": ["p/q"],
        "predefinedAcl": ["private"],
    }


@pytest.mark.parametrize("size", [4, LARGE])
def test_a_condition_that_does_not_hold_refuses_the_upload_as_the_service_does(stage: Stage, size: int) -> None:
    stage.put("thing", b"first")
    target = f"{INSERT}?uploadType=media&name=thing&ifGenerationMatch=0"
    assert reason(stage.ask("POST", target, noise(size))) == (412, "conditionNotMet")
    assert stage.content("thing") == b"first"


def test_the_clients_selection_of_fields_is_made_here(stage: Stage) -> None:
    shown = document(stage.ask("POST", f"{INSERT}?uploadType=media&name=thing&fields=size,metadata", b"data"))
    assert shown == {"size": "4"}
    assert "fields" not in stage.requests[0]


def test_the_clients_hashes_are_never_forwarded_and_other_headers_are(stage: Stage) -> None:
    data = noise(LARGE)
    headers = [
        ("X-Goog-Hash", f"crc32c={crc32c_text(data)}"),
        ("Content-MD5", base64.b64encode(hashlib.md5(data).digest()).decode()),
        ("X-Goog-User-Project", "payer"),
        ("Authorization", "Bearer secret"),
    ]
    document(stage.ask("POST", f"{INSERT}?uploadType=media&name=thing", data, headers=headers))
    for asked, _ in stage.upstream.asked:
        assert "x-goog-hash" not in asked.headers and "content-md5" not in asked.headers
        assert asked.headers.get("x-goog-user-project") == "payer"
        assert asked.headers.get("authorization") == "Bearer secret"


WRONG_CRC32C = ("x-goog-hash", f"crc32c={crc32c_text(b'other')}")
WRONG_MD5 = ("Content-MD5", base64.b64encode(hashlib.md5(b"other").digest()).decode())


@pytest.mark.parametrize("wrong", [WRONG_CRC32C, WRONG_MD5], ids=["crc32c", "md5"])
@pytest.mark.parametrize("known", [True, False], ids=["of known length", "of unknown length"])
@pytest.mark.parametrize("size", [0, 5, LARGE])
def test_bytes_that_are_not_the_declared_ones_are_refused_and_nothing_is_stored(
    stage: Stage, size: int, known: bool, wrong: tuple[str, str]
) -> None:
    body = PieceBody(iter([noise(size)]), size if known else None)
    answer = stage.ask("POST", f"{INSERT}?uploadType=media&name=thing", body, headers=[wrong])
    assert reason(answer) == (400, "invalid")
    assert nothing_stored(stage)
    assert methods(stage) in ([], ["POST", "DELETE"], ["POST", "PUT", "DELETE"])


def test_the_last_segment_of_a_streamed_upload_waits_until_the_plaintext_is_verified(stage: Stage) -> None:
    stage.ask("POST", f"{INSERT}?uploadType=media&name=thing", noise(LARGE), headers=[WRONG_CRC32C])
    (sent,) = (body for asked, body in stage.upstream.asked if asked.method == "PUT")
    assert len(sent) == LARGE // SEGMENT_BYTES * SEGMENT_BYTES


def test_a_hash_in_the_resource_is_verified_too(stage: Stage) -> None:
    headers, body = multipart({"name": "thing", "crc32c": crc32c_text(b"other")}, b"data")
    assert reason(stage.ask("POST", f"{INSERT}?uploadType=multipart", body, headers=headers)) == (400, "invalid")
    assert stage.requests == []


@pytest.mark.parametrize("size", [1000, LARGE])
def test_of_a_body_that_breaks_off_nothing_is_stored(stage: Stage, size: int) -> None:
    body = PieceBody(iter([noise(size - 1)]), size)
    with pytest.raises(BodyTruncated):
        stage.ask("POST", f"{INSERT}?uploadType=media&name=thing", body)
    assert nothing_stored(stage)
    assert methods(stage) == ([] if size < SMALL_BYTES else ["POST", "PUT", "DELETE"])


def test_a_boundary_in_single_quotes_is_understood_and_a_missing_upload_type_is_refused(stage: Stage) -> None:
    headers, body = multipart({"name": "thing"}, b"data")
    quoted = [(name, value.replace('"', "'")) for name, value in headers]
    assert document(stage.ask("POST", f"{INSERT}?uploadType=multipart", body, headers=quoted))["size"] == "4"
    stored, sealed = stage.stored("thing")
    assert unsealed(stage, stored, sealed) == b"data"

    assert reason(stage.ask("POST", f"{INSERT}?name=other", b"data")) == (400, "required")


@pytest.mark.parametrize("size", [1000, LARGE])
def test_of_a_multipart_body_without_its_end_nothing_is_stored(stage: Stage, size: int) -> None:
    headers, body = multipart({"name": "thing"}, noise(size))
    answer = stage.ask("POST", f"{INSERT}?uploadType=multipart", body[:-10], headers=headers)
    assert reason(answer) == (400, "invalid")
    assert nothing_stored(stage)


def test_metadata_of_the_proxys_own_names_is_refused(stage: Stage) -> None:
    headers, body = multipart({"name": "thing", "metadata": {"GCSProxy-Version": "1"}}, b"data")
    assert reason(stage.ask("POST", f"{INSERT}?uploadType=multipart", body, headers=headers)) == (400, "invalid")
    assert stage.requests == []


@pytest.mark.parametrize("kind", ["media", "multipart", "resumable"])
def test_while_the_key_service_is_down_nothing_is_sent_to_the_storage_service(
    stage: Stage, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def down(*_: object, **__: object) -> None:
        raise KmsUnavailable("the key service is down")

    monkeypatch.setattr(stage.kms, "wrap", down)
    headers, body = multipart({"name": "thing"}, b"data") if kind == "multipart" else ([], b"{}")
    answer = stage.ask("POST", f"{INSERT}?uploadType={kind}&name=thing", body, headers=headers)
    assert reason(answer) == (503, "backendError")
    assert stage.requests == []


def damaging(stage: Stage, **fields: str) -> None:
    """Lets the service say something else of what it stored."""

    def after(asked: Asked, answer: Any) -> None:
        if asked.method in ("POST", "PUT") and answer.status == 200 and answer.content:
            answer.replace(json.dumps({**json.loads(answer.content), **fields}).encode())

    stage.upstream.after = after


@pytest.mark.parametrize("size", [1000, LARGE])
@pytest.mark.parametrize("field", ["crc32c", "size"])
def test_what_the_service_stored_is_compared_and_deleted_if_it_differs(stage: Stage, field: str, size: int) -> None:
    damaging(stage, **{field: "AAAAAA==" if field == "crc32c" else "7"})
    answer = stage.ask("POST", f"{INSERT}?uploadType=media&name=thing", noise(size))
    assert reason(answer) == (502, "backendError")
    assert methods(stage)[-1] == "DELETE"
    assert "generation=" in stage.requests[-1]
    assert nothing_stored(stage)


def test_a_client_that_may_not_change_objects_can_still_store_large_ones(stage: Stage) -> None:
    refusal = Response(status=403, headers=Headers(), body=b'{"error": {"message": "no storage.objects.update"}}')
    stage.upstream.before = lambda asked: refusal if asked.method == "PATCH" else None
    data = noise(LARGE)
    shown = stage.put("thing", data)
    # We know it, so the client may compare; later answers lack it.
    assert shown["crc32c"] == crc32c_text(data)
    assert stage.content("thing") == data
    stage.restart()
    assert "crc32c" not in document(stage.ask("GET", "/storage/v1/b/vault/o/thing"))


def test_the_sums_of_a_large_object_are_added_to_that_generation_only(stage: Stage) -> None:
    stage.put("thing", noise(LARGE))
    parameters = parse_qs(stage.requests[-1].partition("?")[2])
    generation = stage.stored("thing")[0]["generation"]
    assert parameters["generation"] == parameters["ifGenerationMatch"] == [generation]
    assert parameters["ifMetagenerationMatch"] == ["1"]


def test_a_lost_answer_to_the_last_byte_is_asked_for_again(stage: Stage) -> None:
    lost: list[str] = []

    def after(asked: Asked, answer: Any) -> None:
        if asked.method == "PUT" and not lost:
            lost.append(asked.target)
            raise UpstreamUnavailable("the connection broke")

    stage.upstream.after = after
    data = noise(LARGE)
    assert stage.put("thing", data)["crc32c"] == crc32c_text(data)
    assert methods(stage) == ["POST", "PUT", "PUT", "PATCH"]


def test_a_connection_that_breaks_in_the_middle_of_a_large_upload_ends_it(stage: Stage) -> None:
    stage.upstream.cut = lambda asked: 3 * MIB if asked.method == "PUT" else None
    answer = stage.ask("POST", f"{INSERT}?uploadType=media&name=thing", noise(LARGE))
    assert reason(answer) == (503, "backendError")
    assert methods(stage) == ["POST", "PUT", "DELETE"]
    assert nothing_stored(stage)


def test_a_body_that_was_packed_for_its_way_is_not_understood(stage: Stage) -> None:
    headers = [("Content-Encoding", "gzip")]
    answer = stage.ask("POST", f"{INSERT}?uploadType=media&name=thing", b"data", headers=headers)
    assert reason(answer) == (501, "notImplemented")
    assert stage.requests == []


@pytest.mark.parametrize(
    ("method", "target"),
    [
        ("POST", f"{INSERT}?uploadType=media"),
        ("POST", f"{INSERT}?uploadType=media&name=thing&name=other"),
        ("POST", f"{INSERT}?uploadType=strange&name=thing"),
    ],
    ids=["without a name", "with two names", "of another type"],
)
def test_an_upload_that_cannot_be_placed_is_refused(stage: Stage, method: str, target: str) -> None:
    assert stage.ask(method, target, b"data").status == 400
    assert stage.requests == []


def test_an_insert_without_media_makes_an_empty_object_that_is_sealed(stage: Stage) -> None:
    body = {"name": "thing", "metadata": {"colour": "blue"}}
    shown = document(stage.ask("POST", "/storage/v1/b/vault/o", body))
    assert (shown["size"], shown["metadata"]) == ("0", {"colour": "blue"})
    assert unsealed(stage, *stage.stored("thing")) == b""


@pytest.mark.parametrize("place", ["in the query", "in the resource"])
def test_what_lies_outside_of_the_mapped_prefix_passes_as_it_is(stage: Stage, place: str) -> None:
    data = noise(300_000)
    name = "&name=open/thing" if place == "in the query" else ""
    resource = {"metadata": {"colour": "blue"}, "crc32c": crc32c_text(data), **({} if name else {"name": "open/thing"})}
    headers, body = multipart(resource, data, content_type="application/x-part")
    shown = document(
        stage.ask("POST", f"/upload/storage/v1/b/attic/o?uploadType=multipart{name}", body, headers=headers)
    )
    assert shown["crc32c"] == crc32c_text(data)
    stored, content = stage.stored("open/thing", bucket="attic")
    assert content == data
    assert (stored["metadata"], stored["contentType"]) == ({"colour": "blue"}, "application/x-part")


def test_media_outside_of_the_mapped_prefix_pass_as_they_are(stage: Stage) -> None:
    stage.put("open/thing", b"data", bucket="attic")
    assert stage.stored("open/thing", bucket="attic")[1] == b"data"


def test_what_lies_below_the_mapped_prefix_is_sealed(stage: Stage) -> None:
    headers, body = multipart({"name": "deep/thing"}, b"data")
    document(stage.ask("POST", "/upload/storage/v1/b/attic/o?uploadType=multipart", body, headers=headers))
    stored, sealed = stage.stored("deep/thing", bucket="attic")
    assert unsealed(stage, stored, sealed) == b"data"


def test_with_encryption_off_uploads_pass_as_they_are(tmp_path: Path) -> None:
    stage = Stage(tmp_path, encrypt=False)
    stage.put("thing", b"data")
    assert stage.stored("thing")[1] == b"data"


def test_two_uploads_of_the_same_bytes_have_nothing_in_common(stage: Stage) -> None:
    stage.put("one", b"data" * 100)
    stage.put("two", b"data" * 100)
    one, two = stage.stored("one")[1], stage.stored("two")[1]
    assert one[:40] != two[:40]
    assert one[40:] != two[40:]


def test_no_message_or_log_line_of_a_failed_upload_names_a_secret(
    stage: Stage, caplog: pytest.LogCaptureFixture
) -> None:
    stage.upstream.cut = lambda asked: MIB if asked.method == "PUT" else None
    caplog.set_level("DEBUG")
    headers = [("Authorization", "Bearer top-secret-token")]
    answer = stage.ask("POST", f"{INSERT}?uploadType=media&name=thing", noise(LARGE), headers=headers)
    said = body_of(answer).decode() + caplog.text
    (upload_id,) = parse_qs(stage.requests[1].partition("?")[2])["upload_id"]
    assert "top-secret-token" not in said
    assert upload_id not in said


@pytest.mark.parametrize("host", ["storage.googleapis.com", "vault.storage.googleapis.com"])
def test_a_put_through_the_xml_api_is_sealed(stage: Stage, host: str) -> None:
    data = noise(400_000)
    headers = [
        ("Content-Type", "application/x-test"),
        ("Content-Encoding", "br"),
        ("Cache-Control", "no-store"),
        ("x-goog-meta-Colour", "blue"),
        ("x-goog-acl", "public-read"),
        ("x-goog-hash", f"crc32c={crc32c_text(data)}"),
        ("Authorization", "Bearer secret"),
    ]
    path = "/a%20thing" if host.startswith("vault") else "/vault/a%20thing"
    answer = stage.ask("PUT", path, data, host=host, headers=headers)
    assert (answer.status, body_of(answer)) == (200, b"")
    stored, sealed = stage.stored("a thing")
    assert unsealed(stage, stored, sealed) == data
    assert (stored["contentType"], stored["cacheControl"]) == ("application/x-test", "no-store")
    assert stored["metadata"]["colour"] == "blue" and "contentEncoding" not in stored
    assert answer.headers.get("x-goog-hash") == f"crc32c={crc32c_text(data)}"
    assert answer.headers.get("x-goog-stored-content-length") == "400000"
    assert answer.headers.get("x-goog-stored-content-encoding") == "br"
    assert answer.headers.get("x-goog-generation") == stored["generation"]
    assert answer.headers.get("ETag") == f'"{stored["etag"]}"'
    ((asked, _),) = stage.upstream.asked
    assert asked.authority == "storage.googleapis.com"
    assert asked.headers.get("Authorization") == "Bearer secret"
    assert parse_qs(asked.target.partition("?")[2])["predefinedAcl"] == ["publicRead"]


def test_a_condition_of_the_xml_api_is_kept(stage: Stage) -> None:
    stage.put("thing", b"first")
    headers = [("x-goog-if-generation-match", "0")]
    answer = stage.ask("PUT", "/vault/thing", b"second", headers=headers)
    assert answer.status == 412
    assert b"<Code>PreconditionFailed</Code>" in body_of(answer)
    assert stage.content("thing") == b"first"


def test_a_wrong_hash_in_the_xml_api_stores_nothing(stage: Stage) -> None:
    answer = stage.ask("PUT", "/vault/thing", b"data", headers=[WRONG_MD5])
    assert answer.status == 400
    assert b"<Code>BadDigest</Code>" in body_of(answer)
    assert nothing_stored(stage)


@pytest.mark.parametrize(
    ("query", "header"),
    [
        ("", ("x-goog-object-lock-mode", "COMPLIANCE")),
        ("", ("x-amz-server-side-encryption", "AES256")),
        ("", ("x-goog-acl", "public-read-write")),
        ("", ("If-None-Match", "*")),
        ("?strange=1", ("Accept", "*/*")),
    ],
    ids=["lock", "encryption", "acl", "condition", "parameter"],
)
def test_what_the_xml_api_says_and_is_not_understood_is_refused(
    stage: Stage, query: str, header: tuple[str, str]
) -> None:
    answer = stage.ask("PUT", f"/vault/thing{query}", b"data", headers=[header])
    assert answer.status == 501
    assert b"<Code>NotImplemented</Code>" in body_of(answer)
    assert stage.requests == []


def test_the_memory_that_a_streamed_upload_takes_does_not_grow_with_it(stage: Stage) -> None:
    import tracemalloc

    size = 96 * MIB
    piece = noise(MIB)
    swallowed = [0]

    def before(asked: Asked) -> Response | None:
        if asked.method != "PUT":
            return None
        crc32c = 0
        for sealed in asked.body:
            assert not isinstance(sealed, int)
            crc32c = google_crc32c.extend(crc32c, bytes(sealed))
            swallowed[0] += len(sealed)
        said = {
            "bucket": "vault", "name": "thing", "generation": "7", "metageneration": "1", "size": str(swallowed[0]),
            "crc32c": base64.b64encode(crc32c.to_bytes(4, "big")).decode(), "metadata": begun["metadata"],
        }  # fmt: skip
        return Response(status=200, body=json.dumps(said).encode())

    begun: dict[str, Any] = {}

    def after(asked: Asked, answer: Any) -> None:
        if asked.method == "POST" and isinstance(asked.body, bytes):
            begun.update(json.loads(asked.body))

    def pieces() -> Iterator[bytes]:
        for _ in range(size // MIB):
            yield piece

    stage.upstream.before, stage.upstream.after = before, after
    tracemalloc.start()
    try:
        answer = stage.ask("POST", f"{INSERT}?uploadType=media&name=thing", PieceBody(pieces(), size))
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert document(answer)["size"] == str(size)
    assert swallowed[0] == sealed_size(size)
    assert peak < 8 * MIB
