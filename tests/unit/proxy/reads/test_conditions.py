"""Reads of encrypted objects that change, and of conditions that clients put: with the object known and unknown."""

from __future__ import annotations

import pytest

from bastion.proxy.service.upstream import Asked
from tests.support.proxy_objects import stage, store
from tests.support.proxy_stage import InProcessAnswer, Stage, body_of, document

__all__ = ["stage"]

OBJECT = "/storage/v1/b/vault/o/a"
MEDIA = f"{OBJECT}?alt=media"


def test_a_replaced_object_is_never_read_stale(stage: Stage) -> None:
    for text in (b"one", b"the second", b"3"):
        store(stage, "a", text)
        assert stage.content("a") == text
        assert stage.content("a") == text


def test_a_deleted_object_is_not_found_although_it_was_known(stage: Stage) -> None:
    store(stage, "a", b"hello")
    stage.content("a")
    body_of(stage.ask("DELETE", OBJECT))
    response = stage.get("a")
    assert response.status == 404
    body_of(response)


@pytest.mark.parametrize("known", [False, True])
@pytest.mark.parametrize(
    ("condition", "status"),
    [
        ("generation={generation}", 200),
        ("generation=1", 404),
        ("ifGenerationMatch={generation}", 200),
        ("ifGenerationMatch=1", 412),
        ("ifGenerationMatch=0", 412),
        ("ifGenerationNotMatch={generation}", 304),
        ("ifGenerationNotMatch=1", 200),
        ("ifMetagenerationMatch=1", 200),
        ("ifMetagenerationMatch=2", 412),
        ("ifMetagenerationNotMatch=1", 304),
        ("ifMetagenerationNotMatch=2", 200),
        ("ifGenerationMatch=x", 400),
    ],
)
def test_the_clients_conditions_hold_whether_or_not_the_object_is_known(
    stage: Stage, condition: str, status: int, known: bool
) -> None:
    resource = store(stage, "a", b"hello")
    if known:
        stage.content("a")
    response = stage.ask("GET", f"{MEDIA}&{condition.format(generation=resource['generation'])}")
    assert response.status == status
    body = body_of(response)
    assert (body == b"hello") == (status == 200)


@pytest.mark.parametrize("known", [False, True])
@pytest.mark.parametrize(
    ("header", "value", "status"),
    [
        ("If-None-Match", "{etag}", 304),
        ("If-None-Match", "x", 200),
        ("If-Match", "{etag}", 200),
        ("If-Match", "x", 412),
    ],
)
def test_entity_tags_hold_whether_or_not_the_object_is_known(
    stage: Stage, header: str, value: str, status: int, known: bool
) -> None:
    resource = store(stage, "a", b"hello")
    if known:
        stage.content("a")
    response = stage.get("a", headers=[(header, value.format(etag=resource["etag"]))])
    assert response.status == status
    body_of(response)


def test_an_object_that_is_replaced_between_the_two_requests_is_described_again(stage: Stage) -> None:
    store(stage, "a", b"old")
    stage.restart()
    replaced: list[int] = []

    def replace(asked: Asked) -> None:
        if "alt=media" in asked.target and not replaced:
            replaced.append(1)
            store(stage, "a", b"the new one")

    stage.upstream.before = replace
    assert stage.content("a") == b"the new one"


def test_an_object_that_is_always_replaced_in_between_is_an_error_that_clients_retry(stage: Stage) -> None:
    store(stage, "a", b"old")

    def replace(asked: Asked) -> None:
        if "alt=media" in asked.target:
            store(stage, "a", b"new")

    stage.upstream.before = replace
    response = stage.get("a")
    assert response.status == 503
    body_of(response)


def test_attributes_that_changed_since_the_object_was_known_are_looked_up(stage: Stage) -> None:
    store(stage, "a", b"hello")
    stage.content("a")
    changed = {"metadata": {"gcsproxy-content-encoding": "br"}}
    document(stage.ask_endpoint("PATCH", OBJECT, changed))
    response = stage.get("a")
    assert response.headers.get("Content-Encoding") == "br"
    assert response.headers.get("x-goog-metageneration") == "2"
    assert body_of(response) == b"hello"


@pytest.mark.parametrize("header", ["x-goog-generation", "x-goog-metageneration"])
@pytest.mark.parametrize("known", [False, True])
def test_an_answer_of_another_generation_is_never_taken(stage: Stage, header: str, known: bool) -> None:
    store(stage, "a", b"hello")
    if known:
        stage.content("a")

    def other(asked: Asked, answer: InProcessAnswer) -> None:
        if "alt=media" in asked.target:
            answer.headers.set(header, "7")

    stage.upstream.after = other
    response = stage.get("a")
    assert response.status == 503
    body_of(response)


@pytest.mark.parametrize("known", [False, True])
def test_conditions_that_were_held_against_the_description_do_not_go_along_again(stage: Stage, known: bool) -> None:
    raw = store(stage, "a", b"hello")
    if known:
        stage.content("a")
    stage.forget_asked()
    tags = [("If-Match", raw["etag"]), ("If-None-Match", "x")]
    target = f"{MEDIA}&ifGenerationNotMatch=1&ifMetagenerationMatch=1"
    assert body_of(stage.ask("GET", target, headers=tags)) == b"hello"
    assert stage.requests == [
        f"GET {OBJECT}?ifGenerationNotMatch=1&ifMetagenerationMatch=1&alt=json",
        f"GET {OBJECT}?alt=media&generation={raw['generation']}",
    ]
    (first, _), (second, _) = stage.upstream.asked
    assert [name in asked.headers for asked in (first, second) for name in ("If-Match", "If-None-Match")] == [
        True, True, False, False,
    ]  # fmt: skip
