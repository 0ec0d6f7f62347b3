"""What the proxy remembers of objects, and the small pure parts beside it."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any

import pytest

from bastion.core.errors import EnvelopeBroken
from bastion.net.http1 import Headers
from bastion.proxy.objects import Known, KnownObjects
from bastion.proxy.reads.entity_tags import demanded_tags, shown_tag
from bastion.proxy.reads.plain_bodies import PlainBody
from bastion.proxy.sealed.sealing import Sealing
from bastion.proxy.sealed.segments import sealed_range
from bastion.proxy.service.targets import requeried, target
from bastion.proxy.service.upstream import UpstreamUnavailable
from tests.support.proxy_objects import stage, store
from tests.support.proxy_stage import Stage

__all__ = ["stage"]


def known(name: str = "a", generation: int = 5, metageneration: int = 1) -> Known:
    return Known(
        bucket="vault", name=name, generation=generation, metageneration=metageneration, stored_bytes=7, plain_bytes=7,
        cache_control="",
        envelope=None,
    )  # fmt: skip


def test_the_least_recently_used_object_is_forgotten_first() -> None:
    objects = KnownObjects(most=2)
    objects.remember(known("a"))
    objects.remember(known("b"))
    assert objects.get("vault", "a")
    objects.remember(known("c"))
    assert [objects.get("vault", name) is None for name in "abc"] == [False, True, False]


def test_only_something_newer_replaces_what_is_remembered() -> None:
    objects = KnownObjects()
    objects.remember(known(generation=5, metageneration=2))
    for older in (known(generation=4, metageneration=9), known(generation=5, metageneration=1)):
        assert objects.remember(older) == older
        assert objects.get("vault", "a") == known(generation=5, metageneration=2)
    objects.remember(known(generation=6))
    assert objects.get("vault", "a") == known(generation=6)


def test_what_is_forgotten_is_gone_and_may_be_forgotten_again() -> None:
    objects = KnownObjects()
    objects.remember(known())
    objects.forget("vault", "a")
    objects.forget("vault", "a")
    assert objects.get("vault", "a") is None


def test_a_key_that_was_opened_is_kept_as_long_as_the_envelope_is_the_same(stage: Stage) -> None:
    objects, envelopes = KnownObjects(), stage.parts.envelopes
    first = Known.of_resource(store(stage, "a", b"hello"))
    opened = objects.opened(first, envelopes).opened
    assert opened is not None
    changed = replace(first, metageneration=2)
    assert objects.remember(changed).opened is opened
    assert objects.opened(changed, envelopes).opened is opened
    other = Known.of_resource(store(stage, "a", b"hello"))
    assert objects.remember(other).opened is None


def test_many_threads_may_use_it() -> None:
    objects = KnownObjects(most=8)

    def use(number: int) -> None:
        for index in range(300):
            objects.remember(known(str((number + index) % 16), generation=index + 1))
            objects.get("vault", str(index % 16))
            objects.forget("vault", str((index + 3) % 16))

    with ThreadPoolExecutor(4) as threads:
        assert list(threads.map(use, range(4))) == [None] * 4


def test_keys_are_not_in_its_text(stage: Stage) -> None:
    raw = store(stage, "a", b"hello")
    text = repr(Known.of_resource(raw).opening(stage.parts.envelopes))
    assert raw["metadata"]["gcsproxy-object-key"] not in text
    assert "Sealing" not in text


@pytest.mark.parametrize(
    "change",
    [
        {"generation": None},
        {"size": "x"},
        {"metageneration": []},
        {"metadata": 7},
        {"generation": "1.5"},
    ],
    ids=["none", "word", "list", "metadata", "fraction"],
)
def test_a_resource_that_is_none_is_unavailability(stage: Stage, change: dict[str, Any]) -> None:
    raw = {**store(stage, "a", b"hello"), **change}
    with pytest.raises(UpstreamUnavailable):
        Known.of_resource({name: value for name, value in raw.items() if value is not None})


def test_a_resource_without_a_size_is_empty_and_so_not_sealed(stage: Stage) -> None:
    sealed = store(stage, "a", b"hello")
    del sealed["size"]
    with pytest.raises(EnvelopeBroken):
        Known.of_resource(sealed)
    del sealed["metadata"]
    assert Known.of_resource(sealed).plain_bytes == 0


def test_headers_say_what_a_resource_says(stage: Stage) -> None:
    raw = store(stage, "a", b"hello")
    headers = stage.ask_endpoint("HEAD", "/vault/a").headers
    assert Known.of_headers("vault", "a", headers) == Known.of_resource(raw)
    with pytest.raises(UpstreamUnavailable):
        Known.of_headers("vault", "a", Headers())


def test_a_length_that_nothing_sealed_has_is_a_broken_envelope(stage: Stage) -> None:
    with pytest.raises(EnvelopeBroken):
        Known.of_resource({**store(stage, "a", b"hello"), "size": "55"})


@pytest.mark.parametrize(
    ("query", "without", "added", "expected"),
    [
        ("", (), {}, ""),
        ("a=1&b=%2F&&c", (), {}, "a=1&b=%2F&c"),
        ("a=1&b=2&a=3", ("a",), {}, "b=2"),
        ("%61=1&b=2", ("a",), {}, "b=2"),
        ("a=1&b=2", (), {"a": "x/y z"}, "b=2&a=x%2Fy+z"),
        ("a", ("b",), {"c": "1"}, "a&c=1"),
    ],
)
def test_a_query_keeps_what_is_not_named(
    query: str, without: tuple[str, ...], added: dict[str, str], expected: str
) -> None:
    assert requeried(query, without=without, added=added) == expected


def test_a_target_without_a_query_has_no_question_mark() -> None:
    assert (target("/a", ""), target("/a", "b=1")) == ("/a", "/a?b=1")


MD5 = '"5d41402abc4b2a76b9719d911017c592"'


@pytest.mark.parametrize("tag", ['"CKih16GjycICEAE="', "CKih16GjycICEAE=", '"x"', '"-CKicn4fknQIQAQ=="', ""])
def test_a_tag_that_is_no_md5_is_shown_as_it_is(tag: str) -> None:
    assert shown_tag(tag) == tag
    assert demanded_tags(tag) == tag


def test_a_tag_that_is_an_md5_is_shown_as_none_and_demanded_as_it_was() -> None:
    assert shown_tag(MD5) == f'{MD5[:-1]}-1"'
    assert demanded_tags(f'W/"x", {shown_tag(MD5)}, "CKih="') == f'W/"x", {MD5}, "CKih="'


def test_a_body_that_ends_early_without_an_error_is_one_all_the_same() -> None:
    class Short:
        status, reason, headers, length = 200, "", Headers(), None

        def read(self, size: int = -1) -> bytes:
            return b""

        def readinto(self, view: memoryview, /) -> int:
            return len(view) - 1

        def close(self) -> None:
            pass

    with pytest.raises(UpstreamUnavailable):
        PlainBody(Short(), Sealing(bytes(32)), sealed_range(0, 10, 10), length=10, plain=10)
