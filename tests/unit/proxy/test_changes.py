"""Changes of attributes through the proxy: the client's own as it says, the envelope whole in every case."""

from __future__ import annotations

from typing import Any

import pytest

from bastion.proxy.service.upstream import Asked
from tests.support.proxy_objects import put_raw, stage, store
from tests.support.proxy_stage import Stage, body_of, crc32c_text, document, reason

__all__ = ["stage"]

OBJECT = "/storage/v1/b/vault/o/a"


def envelope(stage: Stage) -> dict[str, str]:
    """Our entries as they lie in the bucket."""
    metadata = stage.stored("a")[0].get("metadata", {})
    return {name: value for name, value in metadata.items() if name.startswith("gcsproxy-")}


def once(stage: Stage, method: str, act: Any) -> None:
    """Does something just before the first request of that method goes out."""
    done: list[Asked] = []

    def before(asked: Asked) -> None:
        if asked.method == method and not done:
            done.append(asked)
            act()

    stage.upstream.before = before


def test_a_patch_changes_what_it_names_in_one_request(stage: Stage) -> None:
    raw = store(stage, "a", b"hello", metadata={"color": "red", "shape": "round"})
    stage.forget_asked()
    change = {"metadata": {"color": "blue", "shape": None}, "cacheControl": "no-store"}
    shown = document(stage.ask("PATCH", OBJECT, change))
    assert (shown["metadata"], shown["cacheControl"]) == ({"color": "blue"}, "no-store")
    assert (shown["size"], shown["crc32c"], shown["metageneration"]) == ("5", crc32c_text(b"hello"), "2")
    assert len(stage.requests) == 1
    assert envelope(stage) == {n: v for n, v in raw["metadata"].items() if n.startswith("gcsproxy-")}
    assert stage.content("a") == b"hello"


def test_a_patch_answers_with_the_fields_that_are_asked_for(stage: Stage) -> None:
    store(stage, "a", b"hello")
    assert document(stage.ask("PATCH", f"{OBJECT}?fields=size", {"cacheControl": "x"})) == {"size": "5"}


@pytest.mark.parametrize("method", ["PATCH", "PUT"])
@pytest.mark.parametrize("name", ["gcsproxy-object-key", "GCSProxy-anything", "gcsproxy-"])
@pytest.mark.parametrize("value", ["x", None])
def test_names_of_ours_are_refused(stage: Stage, method: str, name: str, value: str | None) -> None:
    store(stage, "a", b"hello")
    before = stage.stored("a")
    assert reason(stage.ask(method, OBJECT, {"metadata": {name: value}})) == (400, "invalid")
    assert stage.stored("a") == before


@pytest.mark.parametrize("method", ["PATCH", "PUT"])
def test_metadata_that_is_no_object_is_refused(stage: Stage, method: str) -> None:
    store(stage, "a", b"hello")
    assert reason(stage.ask(method, OBJECT, {"metadata": "x"}))[0] == 400


def test_erasing_all_metadata_erases_what_the_client_sees(stage: Stage) -> None:
    store(stage, "a", b"hello", metadata={"color": "red", "shape": "round"})
    kept = envelope(stage)
    shown = document(stage.ask("PATCH", OBJECT, {"metadata": None}))
    assert "metadata" not in shown
    assert stage.stored("a")[0]["metadata"] == kept
    assert stage.content("a") == b"hello"


def test_metadata_that_is_added_while_all_is_erased_is_erased(stage: Stage) -> None:
    store(stage, "a", b"hello", metadata={"color": "red"})
    once(stage, "PATCH", lambda: document(stage.ask_endpoint("PATCH", OBJECT, {"metadata": {"late": "x"}})))
    assert "metadata" not in document(stage.ask("PATCH", OBJECT, {"metadata": None}))


@pytest.mark.parametrize("value", ["br", "gzip", None, ""])
def test_a_changed_content_encoding_goes_into_the_envelope(stage: Stage, value: str | None) -> None:
    store(stage, "a", b"hello", encoding="gzip", metadata={"color": "red"})
    shown = document(stage.ask("PATCH", OBJECT, {"contentEncoding": value, "metadata": {"shape": "round"}}))
    assert shown.get("contentEncoding", "") == (value or "")
    assert shown["metadata"] == {"color": "red", "shape": "round"}
    raw = stage.stored("a")[0]
    assert "contentEncoding" not in raw
    assert raw["metadata"].get("gcsproxy-content-encoding", "") == (value or "")
    response = stage.get("a", headers=[("Accept-Encoding", "gzip")])
    assert response.headers.get("Content-Encoding") == (value or "")
    assert body_of(response) == b"hello"


@pytest.mark.parametrize("method", ["PATCH", "PUT"])
@pytest.mark.parametrize("value", ["x" * 101, "ünreadable", 7], ids=["long", "letters", "number"])
def test_a_content_encoding_that_the_envelope_could_not_hold_is_refused(
    stage: Stage, method: str, value: object
) -> None:
    store(stage, "a", b"hello")
    assert reason(stage.ask(method, OBJECT, {"contentEncoding": value}))[0] == 400
    assert stage.content("a") == b"hello"


def test_a_replacement_keeps_the_envelope_and_nothing_else(stage: Stage) -> None:
    store(stage, "a", b"hello", encoding="br", metadata={"color": "red"}, cacheControl="no-store")
    kept = {name: value for name, value in envelope(stage).items() if "encoding" not in name}
    shown = document(stage.ask("PUT", OBJECT, {"contentType": "text/x", "metadata": {"shape": "round"}}))
    assert (shown["contentType"], shown["metadata"]) == ("text/x", {"shape": "round"})
    assert shown.keys().isdisjoint({"contentEncoding", "cacheControl", "md5Hash"})
    assert envelope(stage) == kept
    assert stage.content("a") == b"hello"


def test_a_replacement_with_what_the_client_was_shown_changes_nothing(stage: Stage) -> None:
    store(stage, "a", b"hello", encoding="br", metadata={"color": "red"}, cacheControl="no-store")
    shown = document(stage.ask("GET", OBJECT))
    again = document(stage.ask("PUT", OBJECT, shown))
    moving = {"metageneration", "etag", "updated"}
    assert {n: v for n, v in again.items() if n not in moving} == {n: v for n, v in shown.items() if n not in moving}


def test_a_replacement_that_loses_a_race_is_made_again(stage: Stage) -> None:
    store(stage, "a", b"hello")
    once(stage, "PUT", lambda: store(stage, "a", b"another"))
    document(stage.ask("PUT", OBJECT, {"metadata": {"shape": "round"}}))
    assert stage.content("a") == b"another"
    assert stage.stored("a")[0]["metadata"]["shape"] == "round"


def test_plaintext_that_becomes_ciphertext_in_a_race_keeps_its_envelope(stage: Stage) -> None:
    put_raw(stage, {"name": "a"}, b"plain")
    once(stage, "PUT", lambda: store(stage, "a", b"sealed"))
    document(stage.ask("PUT", OBJECT, {"cacheControl": "no-store"}))
    assert stage.content("a") == b"sealed"


def test_a_replacement_that_always_loses_gives_up(stage: Stage) -> None:
    store(stage, "a", b"hello")

    def before(asked: Asked) -> None:
        if asked.method == "PUT":
            store(stage, "a", b"another")

    stage.upstream.before = before
    assert reason(stage.ask("PUT", OBJECT, {})) == (503, "backendError")


@pytest.mark.parametrize("method", ["PUT", "PATCH"])
@pytest.mark.parametrize(
    ("condition", "status"),
    [
        ("ifGenerationMatch={}", 200),
        ("ifGenerationMatch=1", 412),
        ("ifGenerationNotMatch={}", 304),
        ("ifGenerationNotMatch=1", 200),
        ("ifMetagenerationMatch=1", 200),
        ("ifMetagenerationMatch=2", 412),
        ("ifMetagenerationNotMatch=1", 304),
        ("generation={}", 200),
        ("generation=1", 404),
        ("generation={}&ifMetagenerationMatch=1", 200),
    ],
)
def test_the_clients_conditions_on_a_change_are_honoured(
    stage: Stage, method: str, condition: str, status: int
) -> None:
    raw = store(stage, "a", b"hello", metadata={"color": "red"})
    response = stage.ask(method, f"{OBJECT}?{condition.format(raw['generation'])}", {"metadata": None})
    assert response.status == status
    body_of(response)
    assert ("color" in stage.stored("a")[0]["metadata"]) == (status != 200)


def test_a_change_under_a_condition_that_fails_in_a_race_fails(stage: Stage) -> None:
    raw = store(stage, "a", b"hello")
    once(stage, "PUT", lambda: store(stage, "a", b"another"))
    assert reason(stage.ask("PUT", f"{OBJECT}?ifGenerationMatch={raw['generation']}", {})) == (412, "conditionNotMet")


def test_changes_of_plaintext_pass(stage: Stage) -> None:
    put_raw(stage, {"name": "a", "metadata": {"color": "red"}}, b"plain")
    shown = document(stage.ask("PATCH", OBJECT, {"metadata": None, "contentEncoding": "br"}))
    assert (shown.get("metadata"), shown["contentEncoding"], "md5Hash" in shown) == (None, "br", True)
    shown = document(stage.ask("PUT", OBJECT, {"metadata": {"shape": "round"}}))
    assert (shown["metadata"], shown.get("contentEncoding")) == ({"shape": "round"}, None)


@pytest.mark.parametrize("method", ["PUT", "PATCH"])
def test_a_change_of_what_is_not_there_is_not_found(stage: Stage, method: str) -> None:
    for body in ({"metadata": None}, {"cacheControl": "x"}):
        assert reason(stage.ask(method, OBJECT, body)) == (404, "notFound")


def test_sums_that_a_client_sends_back_are_not_sent_on(stage: Stage) -> None:
    store(stage, "a", b"hello")
    stage.forget_asked()
    document(stage.ask("PATCH", OBJECT, {"crc32c": crc32c_text(b"hello"), "size": "5", "cacheControl": "x"}))
    assert [body for _, body in stage.upstream.asked] == [b'{"cacheControl":"x"}']


def test_a_broken_envelope_is_not_replaced(stage: Stage) -> None:
    store(stage, "a", b"hello")
    document(stage.ask_endpoint("PATCH", OBJECT, {"metadata": {"gcsproxy-header": "x"}}))
    before = stage.stored("a")
    assert reason(stage.ask("PUT", OBJECT, {})) == (400, "ciphertextInvalid")
    assert stage.stored("a") == before
