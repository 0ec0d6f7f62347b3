"""What the JSON API says of encrypted objects, one by one and in lists: what their owner stored."""

from __future__ import annotations

import base64
import json
import logging

import pytest

from bastion.core.errors import KmsUnavailable
from bastion.net.http1 import Headers, Response
from bastion.proxy.service.upstream import Asked
from tests.support.proxy_objects import INNER, content, put_raw, stage, store
from tests.support.proxy_stage import InProcessAnswer, Stage, body_of, crc32c_text, document, reason

__all__ = ["stage"]

OBJECT = "/storage/v1/b/vault/o/a"
LIST = "/storage/v1/b/vault/o"


def kms_is_down(stage: Stage) -> list[str]:
    """From now on; the list is of the keys that were asked for."""
    asked: list[str] = []

    def unavailable(key: str, *_: object, **__: object) -> bytes:
        asked.append(key)
        raise KmsUnavailable("the key service does not answer")

    stage.kms.wrap = stage.kms.unwrap = unavailable  # type: ignore[method-assign,assignment]
    return asked


def test_a_resource_shows_what_its_owner_stored(stage: Stage) -> None:
    raw = store(stage, "a", b"hello", metadata={"color": "red"}, encoding="br", cacheControl="no-store")
    shown = document(stage.ask("GET", OBJECT))
    assert shown["size"] == "5"
    assert shown["crc32c"] == crc32c_text(b"hello")
    assert shown["metadata"] == {"color": "red"}
    assert shown["contentEncoding"] == "br"
    assert "md5Hash" not in shown
    same = {"size", "crc32c", "metadata", "contentEncoding", "md5Hash"}
    assert {name: value for name, value in shown.items() if name not in same} == {
        name: value for name, value in raw.items() if name not in same
    }


def test_metadata_that_is_only_ours_is_not_there(stage: Stage) -> None:
    store(stage, "a", b"hello")
    shown = document(stage.ask("GET", OBJECT))
    assert "metadata" not in shown
    assert "gcsproxy" not in json.dumps(shown)


def test_a_checksum_that_is_not_known_is_left_out(stage: Stage) -> None:
    store(stage, "a", b"hello", sums=False)
    assert document(stage.ask("GET", OBJECT)).keys().isdisjoint({"crc32c", "md5Hash"})


def test_an_encoding_that_the_provider_added_is_not_shown(stage: Stage) -> None:
    store(stage, "a", b"hello")
    document(stage.ask_endpoint("PATCH", OBJECT, {"contentEncoding": "gzip"}))
    assert "contentEncoding" not in document(stage.ask("GET", OBJECT))
    response = stage.get("a")
    assert "Content-Encoding" not in response.headers
    assert body_of(response) == b"hello"


@pytest.mark.parametrize(
    ("fields", "shown"),
    [
        ("size", {"size": "5"}),
        ("name,size", {"name": "a", "size": "5"}),
        ("crc32c", {"crc32c": crc32c_text(b"hello")}),
        ("md5Hash", {}),
        ("metadata", {"metadata": {"color": "red"}}),
        ("metadata/gcsproxy-object-key,name", {"name": "a", "metadata": {}}),
        ("name", {"name": "a"}),
    ],
)
def test_a_selection_of_fields_is_made_of_what_is_shown(stage: Stage, fields: str, shown: dict[str, object]) -> None:
    store(stage, "a", b"hello", metadata={"color": "red"})
    assert document(stage.ask("GET", f"{OBJECT}?fields={fields}")) == shown


def test_a_selection_without_checksums_takes_no_key(stage: Stage) -> None:
    store(stage, "a", b"hello")
    stage.restart()
    asked = kms_is_down(stage)
    assert document(stage.ask("GET", f"{OBJECT}?fields=size")) == {"size": "5"}
    assert asked == []


def test_plaintext_is_described_as_it_is(stage: Stage) -> None:
    raw = put_raw(stage, {"name": "a", "metadata": {"color": "red"}}, b"plain")
    assert document(stage.ask("GET", OBJECT)) == raw


def test_head_has_the_length_of_what_get_brings(stage: Stage) -> None:
    store(stage, "a", b"hello")
    whole = stage.ask("GET", OBJECT)
    head = stage.ask("HEAD", OBJECT)
    assert (head.status, head.length) == (200, whole.length)


@pytest.mark.parametrize(
    ("query", "status"),
    [
        ("ifGenerationMatch=1", 412),
        ("ifMetagenerationNotMatch=1", 304),
        ("generation=1", 404),
        ("ifGenerationMatch={}", 200),
        ("generation={}", 200),
    ],
)
def test_conditions_of_a_description_are_the_services_to_judge(stage: Stage, query: str, status: int) -> None:
    raw = store(stage, "a", b"hello")
    response = stage.ask("GET", f"{OBJECT}?{query.format(raw['generation'])}")
    assert response.status == status
    body_of(response)


def test_an_entity_tag_of_a_description_is_honoured(stage: Stage) -> None:
    raw = store(stage, "a", b"hello")
    response = stage.ask("GET", OBJECT, headers=[("If-None-Match", raw["etag"])])
    assert (response.status, body_of(response)) == (304, b"")


def test_a_broken_envelope_is_an_error_of_a_description(stage: Stage) -> None:
    store(stage, "a", b"hello")
    document(stage.ask_endpoint("PATCH", OBJECT, {"metadata": {"gcsproxy-header": "x"}}))
    assert reason(stage.ask("GET", OBJECT)) == (400, "ciphertextInvalid")


def test_a_length_that_nothing_sealed_has_is_an_error_of_a_description(stage: Stage) -> None:
    raw = store(stage, "a", b"hello")
    put_raw(stage, {"name": "a", "metadata": raw["metadata"]}, b"x" * 55)
    assert reason(stage.ask("GET", OBJECT)) == (400, "ciphertextInvalid")


@pytest.mark.parametrize("body", [b"", b"[]", b"{", b'{"name": "a"}'], ids=["empty", "list", "half", "bare"])
def test_an_answer_that_is_no_resource_is_unavailability(stage: Stage, body: bytes) -> None:
    stage.upstream.before = lambda _: Response(status=200, headers=Headers(), body=body)
    assert reason(stage.ask("GET", OBJECT)) == (503, "backendError")


def test_what_the_client_accepts_does_not_pack_the_answer(stage: Stage) -> None:
    store(stage, "a", b"hello")
    stage.forget_asked()
    document(stage.ask("GET", OBJECT, headers=[("Accept-Encoding", "gzip"), ("Authorization", "Bearer t")]))
    [(asked, _)] = stage.upstream.asked
    assert asked.headers.get_all("Accept-Encoding") == ["identity"]
    assert asked.headers.get("Authorization") == "Bearer t"


def test_what_concerns_the_services_own_connections_stays_behind(stage: Stage) -> None:
    store(stage, "a", b"hello")
    put_raw(stage, {"name": "p"}, b"plain", bucket="lake")

    def add(asked: Asked, answer: InProcessAnswer) -> None:
        for name in ("Alt-Svc", "Date", "Connection", "X-GUploader-UploadID"):
            answer.headers.set(name, "x")

    stage.upstream.after = add
    for target in (OBJECT, f"{OBJECT}?alt=media", LIST, "/storage/v1/b/lake/o/p", "/storage/v1/b/lake/o/p?alt=media"):
        response = stage.ask("GET", target)
        body_of(response)
        names = {name.lower() for name, _ in response.headers.items()}
        assert names.isdisjoint({"alt-svc", "date", "connection"})
        assert "x-guploader-uploadid" in names


def test_a_list_shows_every_object_as_its_owner_stored_it(stage: Stage) -> None:
    store(stage, "a", b"hello", metadata={"color": "red"})
    store(stage, "b", content(3 * INNER), encoding="br")
    raw = put_raw(stage, {"name": "c", "metadata": {"gcs": "x"}}, b"plain")
    first, second, third = document(stage.ask("GET", LIST))["items"]
    assert (first["size"], first["crc32c"], first["metadata"]) == ("5", crc32c_text(b"hello"), {"color": "red"})
    assert (second["size"], second["contentEncoding"]) == (str(3 * INNER), "br")
    assert "metadata" not in second
    assert "md5Hash" not in {**first, **second}
    assert third == raw


def test_a_list_of_a_bucket_with_a_mapped_prefix_goes_by_the_envelope(stage: Stage) -> None:
    store(stage, "deep/a", b"hello", bucket="attic")
    put_raw(stage, {"name": "shallow"}, b"plain", bucket="attic")
    deep, shallow = document(stage.ask("GET", "/storage/v1/b/attic/o"))["items"]
    assert (deep["size"], shallow["size"]) == ("5", "5")
    assert "md5Hash" not in deep
    assert "md5Hash" in shallow


def test_pages_and_prefixes_of_a_list_stay(stage: Stage) -> None:
    for name in ("a", "b/1", "c"):
        store(stage, name, b"hello")
    page = document(stage.ask("GET", f"{LIST}?maxResults=2&delimiter=/"))
    assert ([item["name"] for item in page["items"]], page["prefixes"]) == (["a"], ["b/"])
    rest = document(stage.ask("GET", f"{LIST}?delimiter=/&pageToken={page['nextPageToken']}"))
    assert [item["size"] for item in rest["items"]] == ["5"]
    assert document(stage.ask("GET", f"{LIST}?prefix=none")) == {"kind": "storage#objects"}


@pytest.mark.parametrize(
    ("fields", "shown"),
    [
        ("items(name,size)", {"items": [{"name": "a", "size": "5"}]}),
        ("items/size,nextPageToken", {"items": [{"size": "5"}]}),
        ("kind,items(metadata)", {"kind": "storage#objects", "items": [{}]}),
    ],
)
def test_a_selection_of_a_list_is_made_of_what_is_shown(stage: Stage, fields: str, shown: dict[str, object]) -> None:
    store(stage, "a", b"hello")
    assert document(stage.ask("GET", f"{LIST}?fields={fields}")) == shown


@pytest.mark.parametrize("fields", ["items(name,generation)", "items/name,nextPageToken", "prefixes"])
def test_a_list_in_which_encryption_changes_nothing_passes_untouched(stage: Stage, fields: str) -> None:
    store(stage, "a", b"hello")
    stage.restart()
    asked = kms_is_down(stage)
    stage.forget_asked()
    document(stage.ask("GET", f"{LIST}?fields={fields}"))
    assert stage.requests == [f"GET {LIST}?fields={fields}"]
    assert asked == []


def test_a_list_without_the_key_service_leaves_checksums_out_and_asks_once(stage: Stage) -> None:
    for index in range(5):
        store(stage, f"a{index}", b"hello")
        stage.clock.advance(1000)
    stage.restart()
    asked = kms_is_down(stage)
    items = document(stage.ask("GET", LIST))["items"]
    assert [item["size"] for item in items] == ["5"] * 5
    assert not any("crc32c" in item or "md5Hash" in item for item in items)
    assert len(asked) == 1


def test_a_list_takes_one_call_to_the_key_service_for_what_was_stored_in_one_session(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    for index in range(5):
        store(stage, f"a{index}", b"hello")
    stage.restart()
    unwrap = stage.kms.unwrap
    calls: list[str] = []

    def counted(key: str, version: str, data: bytes, *, associated: bytes) -> bytes:
        calls.append(key)
        return unwrap(key, version, data, associated=associated)

    monkeypatch.setattr(stage.kms, "unwrap", counted)
    assert all(item["crc32c"] == crc32c_text(b"hello") for item in document(stage.ask("GET", LIST))["items"])
    assert len(calls) == 1


@pytest.mark.parametrize("entry", ["header", "object-key", "version"])
def test_one_broken_object_does_not_hide_the_others(stage: Stage, entry: str, caplog: pytest.LogCaptureFixture) -> None:
    store(stage, "a", b"hello")
    store(stage, "b", b"other")
    broken = base64.b64encode(bytes(60)).decode()
    document(stage.ask_endpoint("PATCH", OBJECT, {"metadata": {f"gcsproxy-{entry}": broken}}))
    with caplog.at_level(logging.WARNING):
        first, second = document(stage.ask("GET", LIST))["items"]
    assert second["crc32c"] == crc32c_text(b"other")
    assert first["name"] == "a"
    assert first["size"]
    assert first.keys().isdisjoint({"crc32c", "md5Hash", "metadata"})
    assert "'a' in vault" in caplog.text


def test_a_list_that_is_none_is_unavailability(stage: Stage) -> None:
    stage.upstream.before = lambda _: Response(status=200, headers=Headers(), body=b'{"items": [1]}')
    assert reason(stage.ask("GET", LIST)) == (503, "backendError")


def test_a_refused_list_comes_as_it_is(stage: Stage) -> None:
    stage.upstream.before = lambda _: Response(status=401, headers=Headers(), body=b"no")
    response = stage.ask("GET", LIST)
    assert (response.status, body_of(response)) == (401, b"no")


def test_fields_that_cannot_be_read_are_refused(stage: Stage) -> None:
    assert reason(stage.ask("GET", f"{LIST}?fields=a(b"))[0] == 400
