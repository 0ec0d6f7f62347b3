"""Random operations on a bucket, and random listings of it, against a model that is a plain dictionary."""

from __future__ import annotations

import os
import re
import tempfile
import time
from dataclasses import dataclass, replace
from pathlib import Path

import google_crc32c
import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from bastion.emulators.gcs.buckets import Bucket, Buckets, Source
from bastion.emulators.gcs.globs import compiled
from bastion.emulators.gcs.resources import (
    Attributes,
    ConditionFailed,
    InvalidRequest,
    NoSuchObject,
    ObjectResource,
    Preconditions,
)

# Some bar each other's path, some cannot be one, some sort around `/`.
NAMES = ["a", "a/b", "a/b/c", "a.b", "a//b", "a/", "/", ".objects/x", "ä", "b-c", "b-/d", "\U0010ffff"]
names = st.sampled_from(NAMES)
contents = st.binary(max_size=20)
attributes = st.builds(
    Attributes,
    content_type=st.sampled_from(["", "text/plain"]),
    metadata=st.dictionaries(st.sampled_from("kl"), st.text(max_size=3), max_size=2),
)
# Relative to the live object: what is demanded is None, its own number, or another one.
demands = st.tuples(*[st.sampled_from([None, None, None, 0, 1, -1])] * 4)


@dataclass(frozen=True)
class Stored:
    data: bytes
    resource: ObjectResource


class Store(RuleBasedStateMachine):
    @initialize()
    def begin(self) -> None:
        self.folder = tempfile.TemporaryDirectory()
        self.bucket = Buckets(Path(self.folder.name)).create("lake")
        self.model: dict[str, Stored] = {}
        self.highest: dict[str, int] = {}

    def teardown(self) -> None:
        if hasattr(self, "folder"):
            self.folder.cleanup()

    def demanded(self, name: str, demand: tuple[int | None, ...]) -> tuple[Preconditions, bool]:
        """Preconditions, and whether they hold."""
        live = self.model.get(name)
        generation, metageneration = (
            (0, 0) if live is None else (live.resource.generation, live.resource.metageneration)
        )

        def number(own: int, choice: int | None) -> int | None:
            return None if choice is None else max(0, own + choice)

        match, not_match, meta_match, meta_not_match = (
            number(own, choice)
            for own, choice in zip((generation, generation, metageneration, metageneration), demand, strict=True)
        )
        holds = (
            match in (None, generation)
            and (not_match is None or (live is not None and not_match != generation))
            and (meta_match is None or (live is not None and meta_match == metageneration))
            and (meta_not_match is None or live is None or meta_not_match != metageneration)
        )
        preconditions = Preconditions(
            generation_match=match,
            generation_not_match=not_match,
            metageneration_match=meta_match,
            metageneration_not_match=meta_not_match,
        )
        return preconditions, holds

    def stored(self, name: str, data: bytes, resource: ObjectResource, expected: Attributes) -> None:
        assert resource.generation > self.highest.get(name, 0)
        assert (resource.name, resource.metageneration, resource.attributes) == (name, 1, expected)
        assert (resource.size, resource.crc32c) == (len(data), google_crc32c.value(data))
        self.highest[name] = resource.generation
        self.model[name] = Stored(data, resource)

    @rule(name=names, data=contents, given=attributes, demand=demands)
    def commit(self, name: str, data: bytes, given: Attributes, demand: tuple[int | None, ...]) -> None:
        preconditions, holds = self.demanded(name, demand)
        with self.bucket.stage() as staging:
            staging.write(data)
            try:
                resource = self.bucket.commit(name, staging, given, preconditions)
            except ConditionFailed:
                assert not holds
                return
        assert holds
        self.stored(name, data, resource, given)

    @rule(name=names, sources=st.lists(names, min_size=1, max_size=3), given=attributes, demand=demands)
    def compose(self, name: str, sources: list[str], given: Attributes, demand: tuple[int | None, ...]) -> None:
        preconditions, holds = self.demanded(name, demand)
        try:
            resource = self.bucket.compose(name, [Source(name=source) for source in sources], given, preconditions)
        except NoSuchObject:
            assert not set(sources) <= self.model.keys()
            return
        except ConditionFailed:
            assert not holds
            return
        assert holds
        data = b"".join(self.model[source].data for source in sources)
        count = sum(self.model[source].resource.component_count or 1 for source in sources)
        assert (resource.md5, resource.component_count) == (None, count)
        self.stored(name, data, resource, given)

    @rule(name=names, source=names, given=st.none() | attributes, demand=demands)
    def copy(self, name: str, source: str, given: Attributes | None, demand: tuple[int | None, ...]) -> None:
        preconditions, holds = self.demanded(name, demand)
        try:
            resource = self.bucket.copy(self.bucket, source, name, given, preconditions)
        except NoSuchObject:
            assert source not in self.model
            return
        except ConditionFailed:
            assert not holds
            return
        assert holds
        former = self.model[source]
        self.stored(name, former.data, resource, former.resource.attributes if given is None else given)

    @rule(name=names, given=attributes, demand=demands)
    def patch(self, name: str, given: Attributes, demand: tuple[int | None, ...]) -> None:
        preconditions, holds = self.demanded(name, demand)
        try:
            resource = self.bucket.patch(name, lambda _: given, preconditions)
        except NoSuchObject:
            assert name not in self.model
            return
        except ConditionFailed:
            assert not holds
            return
        assert holds
        former = self.model[name]
        expected = replace(
            former.resource,
            metageneration=former.resource.metageneration + 1,
            attributes=given,
            updated=resource.updated,
        )
        assert resource == expected
        self.model[name] = Stored(former.data, resource)

    @rule(name=names, demand=demands)
    def delete(self, name: str, demand: tuple[int | None, ...]) -> None:
        preconditions, holds = self.demanded(name, demand)
        try:
            self.bucket.delete(name, preconditions)
        except NoSuchObject:
            assert name not in self.model
            return
        except ConditionFailed:
            assert not holds
            return
        assert holds
        del self.model[name]

    @invariant()
    def everything_is_as_in_the_model(self) -> None:
        if not hasattr(self, "model"):
            return
        listed = self.bucket.list().items
        assert listed == tuple(self.model[name].resource for name in sorted(self.model))
        for name, stored in self.model.items():
            with self.bucket.open(name) as opened:
                assert opened.resource == stored.resource == self.bucket.stat(name)
                assert os.pread(opened.fileno(), 100, 0) == stored.data


Store.TestCase.settings = settings(max_examples=40, stateful_step_count=25, deadline=None)
TestStore = Store.TestCase


# Listings

letters = st.text("a/-", min_size=1, max_size=4)
bounds = st.just("") | letters


def put(bucket: Bucket, name: str) -> None:
    with bucket.stage() as staging:
        staging.write(name.encode())
        bucket.commit(name, staging, Attributes(), Preconditions())


@settings(max_examples=120, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@example({"a/", "a/a", "b"}, "", "/", "", "", True, 2)
@example({"a-a/a", "a-b/b", "a-c", "a."}, "", "-", "", "", True, 2)
@example({"a\U0010ffff\U0010ffff", "b", "c"}, "", "", "b", "", False, 5)
@given(
    present=st.sets(letters, max_size=16),
    prefix=bounds,
    delimiter=st.sampled_from(["", "/", "/", "-", "b/", "//"]),
    start=bounds,
    end=bounds,
    trailing=st.booleans(),
    page_size=st.integers(1, 5),
)
def test_pages_make_up_the_listing(
    present: set[str], prefix: str, delimiter: str, start: str, end: str, trailing: bool, page_size: int
) -> None:
    items, prefixes = [], []
    for name in sorted(present):
        if not name.startswith(prefix) or name < start or (end and name >= end):
            continue
        position = name.find(delimiter, len(prefix)) if delimiter else -1
        folded = "" if position < 0 else name[: position + len(delimiter)]
        if folded and folded not in prefixes:
            prefixes.append(folded)
        if not folded or (trailing and folded == name):
            items.append(name)

    with tempfile.TemporaryDirectory() as folder:
        bucket = Buckets(Path(folder)).create("lake")
        for name in present:
            put(bucket, name)
        found_items: list[str] = []
        found_prefixes: list[str] = []
        token = ""
        while True:
            page = bucket.list(
                prefix=prefix,
                delimiter=delimiter,
                start_offset=start,
                end_offset=end,
                page_token=token,
                page_size=page_size,
                include_trailing_delimiter=trailing,
            )
            # An object that is a prefix, too, stays on the page of its prefix.
            assert len(page.items) + len(page.prefixes) <= max(page_size, 2 if trailing else 1)
            found_items += [item.name for item in page.items]
            found_prefixes += page.prefixes
            token = page.next_page_token
            if not token:
                break
            assert page.items or page.prefixes
    assert (found_items, found_prefixes) == (items, prefixes)


@pytest.mark.parametrize(
    ("glob", "matching", "others"),
    [
        ("*.txt", ["a.txt", ".txt"], ["a/b.txt", "a.txt.gz", "xtxt"]),
        ("**.txt", ["a.txt", "a/b.txt"], ["a.tx"]),
        ("a/*/c", ["a/b/c", "a//c"], ["a/b/b/c"]),
        ("a?c", ["abc", "aäc"], ["a/c", "ac"]),
        ("[a-c]x", ["ax", "cx"], ["dx", "-x"]),
        ("[!a-c]x", ["dx"], ["ax", "/x"]),
        ("[^a]x", ["bx"], ["ax"]),
        ("[]^]", ["]", "^"], ["a"]),
        ("{a,b*/{c,d}}/x", ["a/x", "b1/c/x", "b/d/x"], ["c/x", "b/x", "a,b/x"]),
        (r"\*", ["*"], ["a"]),
        ("a.b+", ["a.b+"], ["aXb+", "a.bb"]),
        ("a,}", ["a,}"], ["a"]),
    ],
)
def test_a_glob_matches_whole_names(glob: str, matching: list[str], others: list[str]) -> None:
    pattern = compiled(glob)
    assert [name for name in matching if not pattern.fullmatch(name)] == []
    assert [name for name in others if pattern.fullmatch(name)] == []


@pytest.mark.parametrize("glob", ["[a", "{a,b", "[b-a]", "x" * 1025, "["])
def test_what_is_no_glob_is_refused(tmp_path: Path, glob: str) -> None:
    bucket = Buckets(tmp_path).create("lake")
    with pytest.raises(InvalidRequest):
        bucket.list(match_glob=glob)


@settings(max_examples=200, deadline=None)
@given(glob=st.text("ab*?[]!^-{},/\\.&~|(", max_size=8), name=st.text("ab/,", max_size=6))
def test_every_glob_is_compiled_or_refused(glob: str, name: str) -> None:
    try:
        pattern = compiled(glob)
    except InvalidRequest:
        return
    assert pattern.fullmatch(name) == re_fullmatch(glob, name)


def re_fullmatch(glob: str, name: str) -> bool:
    """The same by a regular expression, for globs of a few characters."""
    expression, depth, position = "", 0, 0
    while position < len(glob):
        rest = glob[position:]
        if rest.startswith("**"):
            expression, position = f"{expression}.*", position + 2
            continue
        if rest[0] == "[":
            negated = rest[1] in "!^"
            end = rest.index("]", 2 + negated)
            members = re.sub(r"[\\\[\]^&~|]", r"\\\g<0>", rest[1 + negated : end])
            expression, position = f"{expression}[{'^/' if negated else ''}{members}]", position + end + 1
            continue
        if rest[0] == "\\" and len(rest) > 1:
            expression, position = expression + re.escape(rest[1]), position + 2
            continue
        meant = {"*": "[^/]*", "?": "[^/]", "{": "(?:"}
        if depth:
            meant |= {"}": ")", ",": "|"}
        depth += {"{": 1, "}": -1 if depth else 0}.get(rest[0], 0)
        expression, position = expression + meant.get(rest[0], re.escape(rest[0])), position + 1
    return re.fullmatch(expression, name, re.DOTALL) is not None


@pytest.mark.parametrize(
    "glob", ["**a" * 300 + "b", "{a,*}" * 150 + "b", "{" * 500 + "a" + "}" * 500, "{{*,*},{*,*}}" * 70 + "b"]
)
def test_no_glob_takes_long(glob: str) -> None:
    pattern = compiled(glob)
    began = time.process_time()
    for length in (1000, 1001):
        assert not pattern.fullmatch("a" * length)
    assert time.process_time() - began < 5.0


def test_a_listing_gives_what_matches_the_glob_and_pages_count_only_that(tmp_path: Path) -> None:
    bucket = Buckets(tmp_path).create("lake")
    for name in ("a/1.txt", "a/2.gz", "a/3.txt", "b/4.txt", "c.txt"):
        put(bucket, name)

    first = bucket.list(match_glob="**.txt", page_size=3)
    second = bucket.list(match_glob="**.txt", page_size=3, page_token=first.next_page_token)
    folded = bucket.list(match_glob="[ac]*", delimiter="/")

    assert [item.name for item in first.items] == ["a/1.txt", "a/3.txt", "b/4.txt"]
    assert ([item.name for item in second.items], second.next_page_token) == (["c.txt"], "")
    assert (folded.prefixes, [item.name for item in folded.items]) == (("a/",), ["c.txt"])


@pytest.mark.parametrize("token", ["x", "bg==", "!!!!", "YQ==", "bn", "\xe4"])
def test_a_token_that_no_page_ended_with_is_refused(tmp_path: Path, token: str) -> None:
    bucket = Buckets(tmp_path).create("lake")
    with pytest.raises(InvalidRequest):
        bucket.list(page_token=token)


def test_a_folder_that_is_folded_is_not_read_through(tmp_path: Path) -> None:
    bucket = Buckets(tmp_path).create("lake")
    put(bucket, "a/b/c")
    for number in range(300):
        (Path(bucket.path) / "a" / "b" / f"{number:03}").touch()
    (Path(bucket.path) / "empty" / "er").mkdir(parents=True)

    page = bucket.list(delimiter="/", page_size=10)

    assert (page.prefixes, page.items, page.next_page_token) == (("a/",), (), "")


def test_an_object_just_past_a_folded_prefix_is_on_the_next_page(tmp_path: Path) -> None:
    bucket = Buckets(tmp_path).create("lake")
    for name in ("a/\U0010ffff\U0010ffff", "a/b", "a0"):
        put(bucket, name)
    first = bucket.list(delimiter="/", page_size=1)
    second = bucket.list(delimiter="/", page_size=1, page_token=first.next_page_token)
    assert (first.prefixes, first.items) == (("a/",), ())
    assert (second.prefixes, [item.name for item in second.items]) == ((), ["a0"])
    assert second.next_page_token == ""
