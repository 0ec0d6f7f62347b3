"""Buckets of the storage endpoint, and what committing an object to one promises."""

from __future__ import annotations

import hashlib
import os
import time
from collections.abc import Callable
from pathlib import Path

import google_crc32c
import pytest

from bastion.emulators.gcs.buckets import Bucket, Buckets, Source
from bastion.emulators.gcs.resources import (
    Attributes,
    BucketExists,
    BucketNotEmpty,
    ChecksumMismatch,
    InvalidRequest,
    NoSuchBucket,
)
from bastion.storage_wire.declared_sums import Declared
from tests.support.gcs_objects import ANY, NONE, TEXT, put, read

# Buckets


def test_each_folder_with_a_valid_name_is_a_bucket(buckets: Buckets, tmp_path: Path) -> None:
    buckets.create("lake")
    for name in ("made-by-hand", "UPPER", "ab", ".hidden"):
        (tmp_path / name).mkdir()
    (tmp_path / "a-file").touch()
    (tmp_path / "a-link").symlink_to(tmp_path)

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
    monkeypatch.setattr("bastion.emulators.gcs.objects.time.time_ns", lambda: now + 3600 * 1_000_000_000)
    first = put(bucket, "a").generation
    monkeypatch.setattr("bastion.emulators.gcs.objects.time.time_ns", lambda: now)
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


def test_a_whole_commit_survives_a_power_cut_when_asked_to(tmp_path: Path) -> None:
    bucket = Buckets(tmp_path, fsync=True).create("lake")
    put(bucket, "a/b", b"1", TEXT)
    put(bucket, "a/b", b"2", TEXT)
    bucket.patch("a/b", lambda present: present, ANY)
    assert (read(bucket, "a/b"), bucket.stat("a/b").metageneration) == (b"2", 2)
    bucket.delete("a/b", ANY)
