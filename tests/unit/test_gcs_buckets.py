"""Buckets and objects of the storage endpoint: what each operation of the storage half promises."""

from __future__ import annotations

import hashlib
import os
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import google_crc32c
import pytest

from bastion.core.errors import StoreUnavailable
from bastion.emulator.gcs.buckets import Bucket, Buckets, Source
from bastion.emulator.gcs.checksums import crc32c_combined
from bastion.emulator.gcs.resources import (
    Attributes,
    BucketExists,
    BucketNotEmpty,
    ChecksumMismatch,
    ConditionFailed,
    Declared,
    InvalidRequest,
    NoSuchBucket,
    NoSuchObject,
    ObjectResource,
    Preconditions,
)

ANY = Preconditions()
NONE = Attributes()
TEXT = Attributes(content_type="text/plain", cache_control="no-store", metadata={"Key": "välue", "other": ""})


@pytest.fixture
def buckets(tmp_path: Path) -> Buckets:
    return Buckets(tmp_path / "buckets")


@pytest.fixture
def bucket(buckets: Buckets) -> Bucket:
    return buckets.create("lake")


def put(
    bucket: Bucket,
    name: str,
    data: bytes = b"x",
    attributes: Attributes = NONE,
    preconditions: Preconditions = ANY,
    declared: Declared | None = None,
) -> ObjectResource:
    with bucket.stage() as staging:
        staging.write(data)
        return bucket.commit(name, staging, attributes, preconditions, declared=declared or Declared())


def read(bucket: Bucket, name: str) -> bytes:
    with bucket.open(name) as opened:
        return os.pread(opened.fileno(), opened.resource.size, 0)


# Buckets


def test_each_folder_with_a_valid_name_is_a_bucket(buckets: Buckets, tmp_path: Path) -> None:
    buckets.create("lake")
    for name in ("made-by-hand", "UPPER", "ab", ".hidden"):
        (tmp_path / "buckets" / name).mkdir()
    (tmp_path / "buckets" / "a-file").touch()
    (tmp_path / "buckets" / "a-link").symlink_to(tmp_path)

    assert buckets.names() == ["lake", "made-by-hand"]
    assert buckets.open("made-by-hand").name == "made-by-hand"
    for name in ("none", "UPPER", "ab", ".hidden", "a-file", "a-link", "..", "lake/..", "lake/"):
        with pytest.raises(NoSuchBucket):
            buckets.open(name)


@pytest.mark.parametrize(
    "name",
    [
        *("", "ab", "Lake", "-lake", "lake-", "la ke", "la/ke", "..", "192.168.5.4", "goog-lake", "my-google-lake"),
        *("a" * 64, "a..b", "x" * 60 + "." + "y" * 64, "la\nke", "lake\n", "lakë"),
    ],
)
def test_a_bucket_cannot_have_a_name_that_the_service_refuses(buckets: Buckets, name: str) -> None:
    with pytest.raises(InvalidRequest):
        buckets.create(name)
    assert buckets.names() == []


@pytest.mark.parametrize("name", ["abc", "a" * 63, "0_9-a.b", "x" * 63 + "." + "y" * 63])
def test_a_bucket_can_have_any_other_name(buckets: Buckets, name: str) -> None:
    assert buckets.create(name).name == name
    assert buckets.names() == [name]


def test_a_bucket_is_created_once(buckets: Buckets) -> None:
    buckets.create("lake")
    with pytest.raises(BucketExists):
        buckets.create("lake")


def test_only_an_empty_bucket_is_deleted(buckets: Buckets, bucket: Bucket) -> None:
    for name in ("a/b", "a//b"):
        put(bucket, name)
        with pytest.raises(BucketNotEmpty):
            buckets.delete("lake")
        assert read(bucket, name) == b"x"
        bucket.delete(name, ANY)
    (Path(bucket.path) / "by hand").mkdir()

    buckets.delete("lake")

    assert buckets.names() == []
    assert list(Path(bucket.path).parent.iterdir()) == []
    with pytest.raises(NoSuchBucket):
        buckets.delete("lake")


def test_what_is_no_object_keeps_a_bucket_from_being_deleted(buckets: Buckets, bucket: Bucket, tmp_path: Path) -> None:
    (Path(bucket.path) / "folder").mkdir()
    (Path(bucket.path) / "folder" / "link").symlink_to(tmp_path)
    with pytest.raises(BucketNotEmpty):
        buckets.delete("lake")


def test_every_operation_on_a_deleted_bucket_says_so(buckets: Buckets, bucket: Bucket) -> None:
    staging = bucket.stage()
    buckets.delete("lake")
    operations: list[Callable[[], object]] = [
        lambda: bucket.stat("a"),
        lambda: bucket.open("a"),
        lambda: bucket.stage(),
        lambda: bucket.list(),
        lambda: bucket.delete("a", ANY),
        lambda: bucket.patch("a", lambda present: present, ANY),
        lambda: bucket.commit("a", staging, NONE, ANY),
    ]
    for operation in operations:
        with pytest.raises(NoSuchBucket):
            operation()
    buckets.create("lake")
    with pytest.raises(NoSuchBucket):
        # It was staged in the former bucket of that name.
        bucket.commit("a", staging, NONE, ANY)
    staging.discard()


# Committing


def test_what_is_committed_is_described_and_served(bucket: Bucket) -> None:
    data = os.urandom(70_000)

    resource = put(bucket, "a/b", data, TEXT)

    assert (resource.bucket, resource.name, resource.size) == ("lake", "a/b", 70_000)
    assert resource.crc32c == google_crc32c.value(data)
    assert resource.md5 == hashlib.md5(data).digest()
    assert resource.attributes == TEXT
    assert (resource.metageneration, resource.component_count) == (1, None)
    assert resource.time_created == resource.updated > 1_700_000_000
    assert bucket.stat("a/b") == resource
    with bucket.open("a/b") as opened:
        assert opened.resource == resource
    assert read(bucket, "a/b") == data
    assert (Path(bucket.path) / "a" / "b").read_bytes() == data


def test_pieces_add_up(bucket: Bucket) -> None:
    with bucket.stage() as staging:
        for piece in (b"", b"ab", b"c" * 100_000, b"d"):
            staging.write(piece)
        whole = b"ab" + b"c" * 100_000 + b"d"
        assert (staging.size, staging.crc32c) == (len(whole), google_crc32c.value(whole))
        assert staging.md5 == hashlib.md5(whole).digest()
        bucket.commit("a", staging, NONE, ANY)
    assert read(bucket, "a") == whole


def test_an_empty_object_is_an_object(bucket: Bucket) -> None:
    assert put(bucket, "a", b"").size == 0
    assert (read(bucket, "a"), bucket.stat("a").crc32c) == (b"", 0)


def test_a_staging_that_is_not_committed_leaves_nothing(bucket: Bucket) -> None:
    with bucket.stage() as staging:
        staging.write(b"x" * 1000)
    staging.discard()
    assert [path for path in Path(bucket.path).rglob("*") if path.is_file()] == []


def test_each_commit_has_a_greater_generation_also_after_a_deletion(bucket: Bucket) -> None:
    generations = []
    for turn in range(40):
        generations.append(put(bucket, "a", b"same").generation)
        if turn % 3 == 0:
            bucket.delete("a", ANY)
    assert generations == sorted(set(generations))


@pytest.mark.parametrize("between", ["nothing", "deletion", "rm", "touch and deletion"])
def test_generations_rise_when_the_clock_is_set_back(
    bucket: Bucket, monkeypatch: pytest.MonkeyPatch, between: str
) -> None:
    path = Path(bucket.path) / "a"
    now = time.time_ns()
    monkeypatch.setattr("bastion.emulator.gcs.objects.time.time_ns", lambda: now + 3600 * 1_000_000_000)
    first = put(bucket, "a").generation
    monkeypatch.setattr("bastion.emulator.gcs.objects.time.time_ns", lambda: now)
    if between == "touch and deletion":
        os.utime(path, ns=(now, now + 7200 * 1_000_000_000))
        first = bucket.stat("a").generation
    if between == "rm":
        path.unlink()
    elif between != "nothing":
        bucket.delete("a", ANY)

    assert put(bucket, "a").generation > first


def test_a_new_generation_begins_with_its_own_attributes(bucket: Bucket) -> None:
    put(bucket, "a", attributes=TEXT)
    bucket.patch("a", lambda _: TEXT, ANY)

    resource = put(bucket, "a")

    assert (resource.metageneration, resource.attributes) == (1, NONE)
    assert bucket.stat("a") == resource


@pytest.mark.parametrize(
    "declared",
    [
        Declared(crc32c=google_crc32c.value(b"data")),
        Declared(md5=hashlib.md5(b"data").digest()),
        Declared(crc32c=google_crc32c.value(b"data"), md5=hashlib.md5(b"data").digest()),
    ],
)
def test_bytes_that_are_the_declared_ones_are_stored(bucket: Bucket, declared: Declared) -> None:
    put(bucket, "a", b"data", declared=declared)
    with pytest.raises(ChecksumMismatch):
        put(bucket, "a", b"tada", declared=declared)
    assert read(bucket, "a") == b"data"


@pytest.mark.parametrize(
    "name", ["", ".", "..", "a\rb", "a\nb", "a\0b", "x" * 1025, "\udc80", ".well-known/acme-challenge/a"], ids=ascii
)
def test_an_object_cannot_have_a_name_that_the_service_refuses(bucket: Bucket, name: str) -> None:
    put(bucket, "source")
    operations: list[Callable[[], object]] = [
        lambda: put(bucket, name),
        lambda: bucket.stat(name),
        lambda: bucket.open(name),
        lambda: bucket.delete(name, ANY),
        lambda: bucket.patch(name, lambda present: present, ANY),
        lambda: bucket.compose(name, [Source(name="source")], NONE, ANY),
        lambda: bucket.copy(bucket, "source", name, None, ANY),
    ]
    for operation in operations:
        with pytest.raises(InvalidRequest):
            operation()


@pytest.mark.parametrize(
    "name",
    [
        *("a//b", "/a", "a/", "a/../b", "./a", ".objects/locks/00", ".objects/attributes", "x" * 300, "ä" * 500),
        *("-", "a b", "a?b#c", "*", "a\tb", "\x7f", "\U0010ffff", "..."),
    ],
    ids=ascii,
)
def test_an_object_can_have_any_other_name(bucket: Bucket, name: str) -> None:
    first = put(bucket, name, b"1", TEXT)
    second = put(bucket, name, b"22", TEXT)

    assert first.generation < second.generation
    assert (bucket.stat(name), read(bucket, name)) == (second, b"22")
    assert [item.name for item in bucket.list().items] == [name]
    bucket.delete(name, ANY)
    assert bucket.list().items == ()


def test_custom_metadata_has_a_limit_and_an_object_that_goes_over_it_is_not_stored(bucket: Bucket) -> None:
    put(bucket, "a", b"1", Attributes(metadata={"k": "v" * 8000}))
    with pytest.raises(InvalidRequest):
        put(bucket, "a", b"2", Attributes(metadata={"k": "v" * 100_000}))
    with pytest.raises(InvalidRequest):
        bucket.patch("a", lambda _: Attributes(metadata={"k": "v" * 100_000}), ANY)
    assert (read(bucket, "a"), bucket.stat("a").metageneration) == (b"1", 1)


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

    everything()
    before = len(list(Path("/proc/self/fd").iterdir()))
    everything()
    assert len(list(Path("/proc/self/fd").iterdir())) == before


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

    def add() -> None:
        while True:
            with bucket.open("n") as opened:
                value = int(os.pread(opened.fileno(), opened.resource.size, 0))
                demanded = Preconditions(generation_match=opened.resource.generation)
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


def test_a_whole_commit_survives_a_power_cut_when_asked_to(tmp_path: Path) -> None:
    bucket = Buckets(tmp_path, fsync=True).create("lake")
    put(bucket, "a/b", b"1", TEXT)
    put(bucket, "a/b", b"2", TEXT)
    bucket.patch("a/b", lambda present: present, ANY)
    assert (read(bucket, "a/b"), bucket.stat("a/b").metageneration) == (b"2", 2)
    bucket.delete("a/b", ANY)
