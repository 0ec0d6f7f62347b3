"""Changes of objects through the JSON API of the storage endpoint: patch, update, compose, copy, rewrite, move."""

from __future__ import annotations

import base64
import os
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest

from tests.support.gcs_endpoint import UPLOAD, Endpoint, body_of, document, listed, reason


@pytest.fixture
def endpoint(tmp_path: Path) -> Endpoint:
    return Endpoint(tmp_path)


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


@pytest.mark.parametrize(
    ("method", "target"),
    [
        ("POST", f"{UPLOAD}?uploadType=media&name=a&ifGenerationNotMatch={{generation}}"),
        ("POST", f"{UPLOAD}?uploadType=media&name=a&ifMetagenerationNotMatch=1"),
        ("POST", f"{UPLOAD}?uploadType=media&name=none&ifGenerationNotMatch=0"),
        ("PATCH", "/storage/v1/b/lake/o/a?ifGenerationNotMatch={generation}"),
        ("PUT", "/storage/v1/b/lake/o/a?ifMetagenerationNotMatch=1"),
        ("DELETE", "/storage/v1/b/lake/o/a?ifGenerationNotMatch={generation}"),
        ("POST", "/storage/v1/b/lake/o/b/copyTo/b/lake/o/a?ifGenerationNotMatch={generation}"),
        ("POST", "/storage/v1/b/lake/o/a/rewriteTo/b/lake/o/b?ifSourceGenerationNotMatch={generation}"),
    ],
)
def test_a_change_of_a_version_that_its_condition_excludes_is_304_and_changes_nothing(
    endpoint: Endpoint, method: str, target: str
) -> None:
    endpoint.put("b", b"b")
    before = endpoint.put("a", b"a")

    response = endpoint.ask(method, target.format(generation=before["generation"]), {})

    assert (response.status, body_of(response)) == (304, b"")
    assert (endpoint.get("a"), endpoint.content("/storage/v1/b/lake/o/b?alt=media")) == (before, b"b")
    assert not endpoint.exists("none")


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
