"""Objects of the storage endpoint: preconditions, reading, changing, composing, copying, and many clients at once."""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import google_crc32c
import pytest

from bastion.core.errors import StoreUnavailable
from bastion.emulators.gcs.buckets import Bucket, Buckets, Source
from bastion.emulators.gcs.checksums import crc32c_combined
from bastion.emulators.gcs.resources import (
    Attributes,
    ConditionFailed,
    InvalidRequest,
    NoSuchObject,
    ObjectResource,
    Preconditions,
)
from tests.support.gcs_objects import ANY, NONE, TEXT, put, read

# Preconditions


def test_generation_zero_demands_that_there_is_no_object(bucket: Bucket) -> None:
    absent = Preconditions(generation_match=0)
    put(bucket, "a", b"1", preconditions=absent)
    with pytest.raises(ConditionFailed):
        put(bucket, "a", b"2", preconditions=absent)
    assert read(bucket, "a") == b"1"


def test_preconditions_compare_generation_and_metageneration(bucket: Bucket) -> None:
    present = put(bucket, "a", b"1")
    present = bucket.patch("a", lambda _: TEXT, ANY)
    generation = present.generation
    failing = [
        Preconditions(generation_match=generation + 1),
        Preconditions(generation_match=0),
        Preconditions(generation_not_match=generation),
        Preconditions(metageneration_match=1),
        Preconditions(metageneration_not_match=2),
        Preconditions(generation_match=generation, metageneration_match=3),
    ]
    holding = [
        Preconditions(generation_match=generation, metageneration_match=2),
        Preconditions(generation_not_match=generation + 1, metageneration_not_match=1),
        Preconditions(generation_not_match=0),
    ]
    put(bucket, "source", b"s")
    for demanded in failing:
        operations: list[Callable[[Preconditions], object]] = [
            lambda demanded: put(bucket, "a", b"2", preconditions=demanded),
            lambda demanded: bucket.delete("a", demanded),
            lambda demanded: bucket.patch("a", lambda present: present, demanded),
            lambda demanded: bucket.compose("a", [Source(name="source")], NONE, demanded),
            lambda demanded: bucket.copy(bucket, "source", "a", None, demanded),
            lambda demanded: bucket.check("a", demanded),
            lambda demanded: bucket.copy(bucket, "a", "b", None, ANY, source_preconditions=demanded),
        ]
        for operation in operations:
            with pytest.raises(ConditionFailed):
                operation(demanded)
    assert (bucket.stat("a"), read(bucket, "a")) == (present, b"1")
    for demanded in holding:
        bucket.check("a", demanded)
        bucket.copy(bucket, "a", "b", None, ANY, source_preconditions=demanded)
    assert put(bucket, "a", b"2", preconditions=holding[0]).generation > generation


@pytest.mark.parametrize(
    "demanded",
    [
        Preconditions(generation_match=1),
        Preconditions(generation_not_match=1),
        Preconditions(generation_not_match=0),
        Preconditions(metageneration_match=1),
    ],
)
def test_an_object_that_does_not_exist_fails_what_takes_one(bucket: Bucket, demanded: Preconditions) -> None:
    with pytest.raises(ConditionFailed):
        put(bucket, "a", preconditions=demanded)
    assert bucket.list().items == ()


# Reading


def test_only_the_live_generation_is_there(bucket: Bucket) -> None:
    former = put(bucket, "a", b"1").generation
    live = put(bucket, "a", b"2").generation

    assert bucket.stat("a", generation=live).generation == live
    with bucket.open("a", generation=live) as opened:
        assert opened.resource.generation == live
    operations: list[Callable[[], object]] = [
        lambda: bucket.stat("a", generation=former),
        lambda: bucket.open("a", generation=former),
        lambda: bucket.delete("a", ANY, generation=former),
        lambda: bucket.patch("a", lambda present: present, ANY, generation=former),
        lambda: bucket.copy(bucket, "a", "b", None, ANY, source_generation=former),
        lambda: bucket.compose("b", [Source(name="a", generation=former)], NONE, ANY),
        lambda: bucket.stat("none"),
        lambda: bucket.open("none"),
        lambda: bucket.delete("none", ANY),
        lambda: bucket.patch("none", lambda present: present, ANY),
        lambda: bucket.copy(bucket, "none", "b", None, ANY),
        lambda: bucket.compose("b", [Source(name="none")], NONE, ANY),
    ]
    for operation in operations:
        with pytest.raises(NoSuchObject):
            operation()
    bucket.delete("a", ANY, generation=live)


def test_an_open_object_outlives_its_name(bucket: Bucket) -> None:
    put(bucket, "a", b"old")
    with bucket.open("a") as opened:
        file = opened.detach_file()
    put(bucket, "a", b"new!")
    bucket.delete("a", ANY)
    try:
        assert os.pread(file, opened.resource.size, 0) == b"old"
    finally:
        os.close(file)


def test_no_descriptor_stays_open(bucket: Bucket) -> None:
    def everything() -> None:
        put(bucket, "a", b"1", TEXT)
        bucket.stat("a")
        read(bucket, "a")
        bucket.patch("a", lambda present: present, ANY)
        bucket.compose("b", [Source(name="a"), Source(name="a")], NONE, ANY)
        bucket.copy(bucket, "b", "c//", None, ANY)
        bucket.list(delimiter="/")
        for name in ("none", "a"):
            with pytest.raises((NoSuchObject, ConditionFailed)):
                bucket.delete(name, Preconditions(generation_match=1))
        with pytest.raises(NoSuchObject):
            bucket.open("a", generation=1)
        with pytest.raises(ConditionFailed):
            put(bucket, "a", preconditions=Preconditions(generation_match=0))
        (Path(bucket.path) / "foreign").write_bytes(b"f")
        bucket.stat("foreign")
        bucket.delete("a", ANY)

    def opened() -> list[str]:
        """Of the bucket's: what else this process has open comes and goes as it likes."""
        links = []
        for descriptor in Path("/proc/self/fd").iterdir():
            with contextlib.suppress(FileNotFoundError):
                links.append(str(descriptor.readlink()))
        return sorted(link for link in links if link.startswith(str(bucket.path)))

    everything()
    before = opened()
    everything()
    assert opened() == before


# Changing attributes


def test_a_patch_changes_attributes_and_metageneration_only(bucket: Bucket) -> None:
    first = put(bucket, "a", b"data", TEXT)

    changed = bucket.patch("a", lambda present: replace(present, content_type="x/y", metadata={"n": "1"}), ANY)

    assert changed.attributes == replace(TEXT, content_type="x/y", metadata={"n": "1"})
    assert changed.updated >= first.updated
    assert changed == replace(first, attributes=changed.attributes, metageneration=2, updated=changed.updated)
    assert bucket.stat("a") == changed
    assert bucket.patch("a", lambda present: present, Preconditions(metageneration_match=2)).metageneration == 3


def test_what_a_change_raises_changes_nothing(bucket: Bucket) -> None:
    first = put(bucket, "a", b"data", TEXT)

    def refusing(_: Attributes) -> Attributes:
        raise InvalidRequest("no")

    with pytest.raises(InvalidRequest):
        bucket.patch("a", refusing, ANY)
    assert bucket.stat("a") == first


# Composing and copying


def test_a_composite_object_is_its_pieces_in_order(bucket: Bucket) -> None:
    first = put(bucket, "1", b"a" * 100_000)
    put(bucket, "2", b"b")

    sources = [Source(name="1", generation=first.generation), Source(name="2"), Source(name="1")]
    resource = bucket.compose("all", sources, TEXT, Preconditions(generation_match=0))

    whole = b"a" * 100_000 + b"b" + b"a" * 100_000
    assert read(bucket, "all") == whole
    assert (resource.size, resource.crc32c) == (len(whole), google_crc32c.value(whole))
    assert (resource.md5, resource.component_count, resource.attributes) == (None, 3, TEXT)
    assert bucket.stat("all") == resource


def test_an_object_can_be_a_piece_of_its_next_generation(bucket: Bucket) -> None:
    present = put(bucket, "log", b"")
    for turn in range(5):
        put(bucket, "tail", b"%d\n" % turn)
        present = bucket.compose(
            "log",
            [Source(name="log", generation_match=present.generation), Source(name="tail")],
            NONE,
            Preconditions(generation_match=present.generation),
        )
    assert read(bucket, "log") == b"0\n1\n2\n3\n4\n"
    assert (present.component_count, present.crc32c) == (6, google_crc32c.value(b"0\n1\n2\n3\n4\n"))


def test_the_preconditions_of_a_source_bind_a_composition(bucket: Bucket) -> None:
    present = put(bucket, "a", b"a")
    with pytest.raises(ConditionFailed):
        bucket.compose("b", [Source(name="a", generation_match=present.generation + 1)], NONE, ANY)
    with pytest.raises(NoSuchObject):
        bucket.stat("b")


def test_a_copy_has_the_sources_bytes_and_attributes_or_those_given(buckets: Buckets, bucket: Bucket) -> None:
    other = buckets.create("other")
    source = put(bucket, "a", b"data" * 1000, TEXT)

    same = other.copy(bucket, "a", "x/y", None, ANY, source_generation=source.generation)
    given = other.copy(bucket, "a", "z", Attributes(content_type="x/y"), ANY)

    assert (same.bucket, same.name, same.attributes) == ("other", "x/y", TEXT)
    assert (same.crc32c, same.md5, same.size) == (source.crc32c, source.md5, source.size)
    assert given.attributes == Attributes(content_type="x/y")
    assert read(other, "x/y") == read(other, "z") == b"data" * 1000


def test_an_object_can_be_copied_onto_itself(bucket: Bucket) -> None:
    source = put(bucket, "a", b"data", TEXT)
    copy = bucket.copy(bucket, "a", "a", NONE, Preconditions(generation_match=source.generation))
    assert copy.generation > source.generation
    assert (read(bucket, "a"), bucket.stat("a").attributes) == (b"data", NONE)


@pytest.mark.parametrize("sizes", [(0, 0), (0, 5), (5, 0), (1, 1), (3, 100_000), (77, 4096), (4096, 4095)])
def test_crc32c_of_two_pieces_is_that_of_the_whole(sizes: tuple[int, int]) -> None:
    first, second = os.urandom(sizes[0]), os.urandom(sizes[1])
    combined = crc32c_combined(google_crc32c.value(first), google_crc32c.value(second), len(second))
    assert combined == google_crc32c.value(first + second)


# Many at once


def test_a_hundred_threads_lose_no_update(bucket: Bucket) -> None:
    put(bucket, "n", b"0")
    refused = threading.Event()

    # All have read before one writes: this is a race on any machine.
    read_once = threading.Barrier(100)

    def add() -> None:
        first = True
        while True:
            with bucket.open("n") as opened:
                value = int(os.pread(opened.fileno(), opened.resource.size, 0))
                demanded = Preconditions(generation_match=opened.resource.generation)
            if first:
                first = False
                read_once.wait(60)
            try:
                put(bucket, "n", b"%d" % (value + 1), preconditions=demanded)
            except ConditionFailed:
                refused.set()
            except StoreUnavailable:
                continue
            else:
                return

    threads = [threading.Thread(target=add) for _ in range(100)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert read(bucket, "n") == b"100"
    assert refused.is_set()


def test_readers_see_bytes_attributes_and_checksums_of_one_generation(bucket: Bucket) -> None:
    def version(number: int) -> ObjectResource:
        data = b"%d" % (number % 10) * (1 + number % 7)
        return put(bucket, "a", data, Attributes(metadata={"data": data.decode()}))

    version(0)
    over = threading.Event()
    torn = []

    def look() -> None:
        while not over.is_set():
            with bucket.open("a") as opened:
                data = os.pread(opened.fileno(), opened.resource.size, 0)
                shown = opened.resource
            for resource in (shown, bucket.stat("a"), bucket.list().items[0]):
                said = resource.attributes.metadata.get("data", "").encode()
                if (resource is shown and said != data) or resource.crc32c != google_crc32c.value(said):
                    torn.append((data, resource))

    readers = [threading.Thread(target=look) for _ in range(3)]
    for reader in readers:
        reader.start()
    for number in range(300):
        version(number)
    over.set()
    for reader in readers:
        reader.join(30)
    assert torn == []
