"""Copies and rewrites through the proxy: the ciphertext is copied by the service, the key is wrapped anew."""

from __future__ import annotations

from typing import Any
from urllib.parse import quote

import pytest

from bastion.core.errors import KmsUnavailable
from bastion.net.http1 import Response
from bastion.proxy.service.upstream import Asked
from tests.support.proxy_objects import content, put_raw, stage, store
from tests.support.proxy_stage import Stage, body_of, crc32c_text, document, reason

__all__ = ["stage"]

MIB = 1024 * 1024


def address(source: str, destination: str, word: str = "copyTo") -> str:
    """Of a copy; both are `BUCKET/NAME`."""
    (source_bucket, _, name), (bucket, _, other) = source.partition("/"), destination.partition("/")
    return f"/storage/v1/b/{source_bucket}/o/{quote(name, safe='')}/{word}/b/{bucket}/o/{quote(other, safe='')}"


def copied(stage: Stage, source: str, destination: str, body: Any = b"", query: str = "") -> dict[str, Any]:
    return document(stage.ask("POST", address(source, destination) + query, body))


def test_a_copy_can_be_read_at_its_new_place_and_only_there(stage: Stage) -> None:
    data = content(600000)
    store(stage, "a", data, encoding="br", metadata={"color": "red"}, cacheControl="no-store", contentType="text/x")
    shown = copied(stage, "vault/a", "vault/b c/d")
    assert (shown["size"], shown["crc32c"]) == ("600000", crc32c_text(data))
    assert (shown["contentEncoding"], shown["cacheControl"], shown["contentType"]) == ("br", "no-store", "text/x")
    assert shown["metadata"] == {"color": "red"}
    assert "md5Hash" not in shown
    assert stage.content("b c/d") == stage.content("a") == data
    assert stage.stored("b c/d")[1] == stage.stored("a")[1]
    first, second = (stage.stored(name)[0]["metadata"] for name in ("a", "b c/d"))
    assert first["gcsproxy-object-key"] != second["gcsproxy-object-key"]


def test_a_copy_takes_two_requests(stage: Stage) -> None:
    raw = store(stage, "a", b"hello")
    stage.forget_asked()
    copied(stage, "vault/a", "vault/b", query="?userProject=p&fields=size")
    assert stage.requests == [
        "GET /storage/v1/b/vault/o/a?userProject=p&alt=json",
        f"POST /storage/v1/b/vault/o/a/copyTo/b/vault/o/b?userProject=p&sourceGeneration={raw['generation']}&alt=json",
    ]


def test_a_copy_from_one_mapped_place_to_another(stage: Stage) -> None:
    store(stage, "a", b"hello")
    copied(stage, "vault/a", "attic/deep/a")
    assert stage.content("deep/a", bucket="attic") == b"hello"
    copied(stage, "attic/deep/a", "vault/b")
    assert stage.content("b") == b"hello"


def test_attributes_that_the_client_gives_replace_those_of_the_source(stage: Stage) -> None:
    store(stage, "a", b"hello", encoding="br", metadata={"color": "red"}, cacheControl="no-store")
    shown = copied(stage, "vault/a", "vault/b", {"metadata": {"shape": "round"}, "contentType": "text/x"})
    assert (shown["metadata"], shown["contentType"]) == ({"shape": "round"}, "text/x")
    assert shown.keys().isdisjoint({"cacheControl", "contentEncoding"})
    assert stage.content("b") == b"hello"


def test_a_storage_class_alone_replaces_nothing_else(stage: Stage) -> None:
    store(stage, "a", b"hello", metadata={"color": "red"}, cacheControl="no-store")
    shown = copied(stage, "vault/a", "vault/b", {"storageClass": "NEARLINE", "name": "b"})
    assert (shown["storageClass"], shown["cacheControl"], shown["metadata"]) == (
        "NEARLINE", "no-store", {"color": "red"},
    )  # fmt: skip


def test_a_content_encoding_that_the_client_gives_goes_into_the_envelope(stage: Stage) -> None:
    store(stage, "a", b"hello")
    shown = copied(stage, "vault/a", "vault/b", {"contentEncoding": "br"})
    assert shown["contentEncoding"] == "br"
    assert "contentEncoding" not in stage.stored("b")[0]


def test_names_of_ours_are_refused_in_a_copy(stage: Stage) -> None:
    store(stage, "a", b"hello")
    body = {"metadata": {"gcsproxy-object-key": "x"}}
    assert reason(stage.ask("POST", address("vault/a", "vault/b"), body)) == (400, "invalid")


@pytest.mark.parametrize("word", ["copyTo", "rewriteTo"])
def test_plaintext_into_a_mapped_place_is_refused(stage: Stage, word: str) -> None:
    put_raw(stage, {"name": "a"}, b"plain", bucket="lake")
    put_raw(stage, {"name": "shallow"}, b"plain", bucket="attic")
    for source, destination in (("lake/a", "vault/b"), ("attic/shallow", "attic/deep/b")):
        status, why = reason(stage.ask("POST", address(source, destination, word)))
        assert (status, why) == (501, "notImplemented")
    stage.restart(allow_plaintext=True)
    assert reason(stage.ask("POST", address("lake/a", "vault/b", word)))[0] == 501
    assert reason(stage.ask("GET", "/storage/v1/b/vault/o/b"))[0] == 404


@pytest.mark.parametrize("word", ["copyTo", "rewriteTo"])
def test_ciphertext_into_an_unmapped_place_is_refused(stage: Stage, word: str) -> None:
    store(stage, "a", b"hello")
    store(stage, "deep/a", b"hello", bucket="attic")
    for source, destination in (("vault/a", "lake/b"), ("attic/deep/a", "attic/shallow"), ("vault/a", "attic/x")):
        response = stage.ask("POST", address(source, destination, word))
        assert response.status == 501
        assert b"through the proxy" in body_of(response)


def test_plaintext_passes_into_a_mapped_place_if_encryption_is_disabled(stage: Stage) -> None:
    stage.restart(encrypt=False)
    put_raw(stage, {"name": "a", "metadata": {"color": "red"}}, b"plain")
    shown = copied(stage, "vault/a", "vault/b")
    assert (shown["size"], shown["metadata"]) == ("5", {"color": "red"})
    assert stage.stored("b")[1] == b"plain"
    answer = document(stage.ask("POST", address("vault/a", "vault/c", "rewriteTo")))
    assert (answer["done"], answer["objectSize"]) == (True, "5")


def test_plaintext_in_a_mapped_place_is_copied_out_only_where_it_may_be_read(stage: Stage) -> None:
    put_raw(stage, {"name": "a"}, b"plain")
    assert reason(stage.ask("POST", address("vault/a", "lake/b"))) == (403, "forbidden")
    stage.restart(allow_plaintext=True)
    copied(stage, "vault/a", "lake/b")
    assert stage.stored("b", bucket="lake")[1] == b"plain"


def test_copies_beside_mapped_prefixes_pass(stage: Stage) -> None:
    put_raw(stage, {"name": "a"}, b"plain", bucket="attic")
    copied(stage, "attic/a", "attic/b")
    assert stage.stored("b", bucket="attic")[1] == b"plain"


@pytest.mark.parametrize("word", ["copyTo", "rewriteTo"])
@pytest.mark.parametrize(
    ("condition", "status"),
    [
        ("sourceGeneration={}", 200),
        ("sourceGeneration=1", 404),
        ("ifSourceGenerationMatch={}", 200),
        ("ifSourceGenerationMatch=1", 412),
        ("ifSourceGenerationNotMatch={}", 304),
        ("ifSourceMetagenerationMatch=2", 412),
        ("ifSourceMetagenerationNotMatch=1", 304),
        ("ifGenerationMatch=0", 200),
        ("ifGenerationMatch=1", 412),
        ("ifGenerationNotMatch=0", 304),
    ],
)
def test_conditions_on_both_sides_of_a_copy_are_honoured(stage: Stage, word: str, condition: str, status: int) -> None:
    raw = store(stage, "a", b"hello")
    response = stage.ask("POST", address("vault/a", "vault/b", word) + "?" + condition.format(raw["generation"]))
    assert response.status == status
    body_of(response)


def test_a_copy_of_what_is_not_there_is_not_found(stage: Stage) -> None:
    assert reason(stage.ask("POST", address("vault/a", "vault/b"))) == (404, "notFound")
    assert reason(stage.ask("POST", address("nowhere/a", "vault/b"))) == (404, "notFound")


def test_a_copy_to_nowhere_is_not_found(stage: Stage) -> None:
    store(stage, "a", b"hello")
    stage.upstream.before = lambda asked: Response(status=404, body=b"no bucket") if asked.method == "POST" else None
    response = stage.ask("POST", address("vault/a", "vault/b"))
    assert (response.status, body_of(response)) == (404, b"no bucket")


def test_a_source_that_is_replaced_in_between_is_copied_as_it_is_then(stage: Stage) -> None:
    store(stage, "a", b"hello")
    done: list[Asked] = []

    def before(asked: Asked) -> None:
        if asked.method == "POST" and not done:
            done.append(asked)
            store(stage, "a", b"another")

    stage.upstream.before = before
    assert copied(stage, "vault/a", "vault/b")["size"] == "7"
    assert stage.content("b") == b"another"


def test_an_object_rewritten_onto_itself_stays_readable(stage: Stage) -> None:
    store(stage, "a", b"hello")
    answer = document(stage.ask("POST", address("vault/a", "vault/a", "rewriteTo"), {"storageClass": "COLDLINE"}))
    assert answer["resource"]["storageClass"] == "COLDLINE"
    assert stage.content("a") == b"hello"


def test_a_rewrite_counts_in_bytes_of_plaintext_until_it_is_done(stage: Stage) -> None:
    data = content(2 * MIB + MIB // 2)
    store(stage, "a", data, metadata={"color": "red"})
    target = address("vault/a", "vault/b", "rewriteTo") + f"?maxBytesRewrittenPerCall={MIB}"
    answer = document(stage.ask("POST", target))
    counts, sent = [], []
    while not answer["done"]:
        assert answer["objectSize"] == str(len(data))
        counts.append(int(answer["totalBytesRewritten"]))
        stage.restart()
        stage.forget_asked()
        answer = document(stage.ask("POST", f"{target}&rewriteToken={quote(answer['rewriteToken'])}"))
        sent.append(next(body for asked, body in stage.upstream.asked if asked.method == "POST"))
    assert counts == [MIB, 2 * MIB]
    assert len(set(sent)) == 1, "all calls of a rewrite send the same resource"
    assert answer["totalBytesRewritten"] == answer["objectSize"] == str(len(data))
    assert (answer["resource"]["size"], answer["resource"]["crc32c"]) == (str(len(data)), crc32c_text(data))
    assert answer["resource"]["metadata"] == {"color": "red"}
    assert stage.content("b") == data


def token(stage: Stage, source: str) -> str:
    """Of a rewrite of that object that has begun."""
    target = address(f"vault/{source}", "vault/z", "rewriteTo") + f"?maxBytesRewrittenPerCall={MIB}"
    return str(document(stage.ask("POST", target))["rewriteToken"])


@pytest.mark.parametrize("text", ["gcsproxy.", "gcsproxy.x", "gcsproxy.W10=", "gcsproxy.WyJ4Iix7fV0="])
def test_a_rewrite_token_that_is_none_is_refused(stage: Stage, text: str) -> None:
    store(stage, "a", b"hello")
    target = address("vault/a", "vault/z", "rewriteTo") + f"?rewriteToken={quote(text)}"
    assert reason(stage.ask("POST", target)) == (400, "invalid")


def test_a_rewrite_token_of_another_rewrite_is_refused(stage: Stage) -> None:
    for name in ("a", "b"):
        store(stage, name, content(2 * MIB))
    put_raw(stage, {"name": "plain"}, content(2 * MIB), bucket="lake")
    begun = quote(token(stage, "a"))
    for source, destination, status in (
        ("vault/b", "vault/z", 400),
        ("vault/a", "vault/y", 400),
        ("lake/plain", "vault/z", 501),
        ("vault/a", "lake/z", 501),
    ):
        target = address(source, destination, "rewriteTo") + f"?rewriteToken={begun}"
        stage.forget_asked()
        assert reason(stage.ask("POST", target))[0] == status
        assert [asked.method for asked, _ in stage.upstream.asked] == ["GET"]
    stage.clock.advance(1000)
    store(stage, "a", content(2 * MIB))
    target = address("vault/a", "vault/z", "rewriteTo") + f"?rewriteToken={begun}"
    assert reason(stage.ask("POST", target))[0] == 400


def test_a_rewrite_answers_with_the_fields_that_are_asked_for(stage: Stage) -> None:
    store(stage, "a", b"hello")
    target = address("vault/a", "vault/b", "rewriteTo") + "?fields=done,resource(size)"
    assert document(stage.ask("POST", target)) == {"done": True, "resource": {"size": "5"}}


def test_a_copy_without_the_key_service_is_unavailable_and_nothing_is_copied(stage: Stage) -> None:
    store(stage, "a", b"hello")
    stage.restart()

    def unavailable(*_: object, **__: object) -> bytes:
        raise KmsUnavailable("the key service does not answer")

    stage.kms.wrap = stage.kms.unwrap = unavailable  # type: ignore[method-assign,assignment]
    stage.forget_asked()
    assert reason(stage.ask("POST", address("vault/a", "vault/b"))) == (503, "backendError")
    assert [asked.method for asked, _ in stage.upstream.asked] == ["GET"]


def test_a_description_of_another_source_is_not_copied(stage: Stage) -> None:
    store(stage, "a", b"hello")
    store(stage, "b", b"another")
    stage.forget_asked()
    stage.upstream.before = lambda asked: (
        stage.ask_endpoint("GET", asked.target.replace("/o/a", "/o/b")) if asked.method == "GET" else None
    )
    assert reason(stage.ask("POST", address("vault/a", "vault/c"))) == (503, "backendError")
    assert [asked.method for asked, _ in stage.upstream.asked] == ["GET"]


def test_a_swapped_source_is_not_copied(stage: Stage) -> None:
    raw = store(stage, "b", b"another")
    put_raw(stage, {"name": "a", "metadata": raw["metadata"]}, stage.stored("b")[1])
    assert reason(stage.ask("POST", address("vault/a", "vault/c"))) == (400, "ciphertextInvalid")
