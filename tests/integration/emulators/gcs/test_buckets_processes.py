"""A bucket of the storage endpoint with other processes in it: racing writers, writers that are killed, and people.

The other writer of the folder is `DirectoryStore`, which the daemon, the worker and the CLI use.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import threading
import time
from pathlib import Path

import google_crc32c
import pytest

from bastion.adapters.folder.store import DirectoryStore
from bastion.core.errors import PreconditionFailed
from bastion.emulators.gcs import checksums
from bastion.emulators.gcs.buckets import Bucket, Buckets, Source
from bastion.emulators.gcs.resources import ConditionFailed, NoSuchObject, Preconditions
from tests.support.gcs_objects import ANY, NONE, TEXT, put, read

HOUR_NS = 3600 * 1_000_000_000


def sidecars_of(bucket: Bucket) -> list[str]:
    return sorted(path.name for path in (Path(bucket.path) / ".objects" / "attributes").iterdir())


# Processes

COUNTING = """
import os, sys
from pathlib import Path
from bastion.emulators.gcs.buckets import Buckets
from bastion.emulators.gcs.resources import Attributes, ConditionFailed, Preconditions

bucket = Buckets(Path(sys.argv[1])).open("lake")
added = 0
while added < 150:
    with bucket.open("n") as opened:
        value = int(os.pread(opened.fileno(), opened.resource.size, 0))
        demanded = Preconditions(generation_match=opened.resource.generation)
    with bucket.stage() as staging:
        staging.write(b"%d" % (value + 1))
        try:
            bucket.commit("n", staging, Attributes(metadata={"n": str(value + 1)}), demanded)
            added += 1
        except ConditionFailed:
            pass
"""


def test_two_processes_that_demand_generations_lose_no_update(bucket: Bucket, tmp_path: Path) -> None:
    put(bucket, "n", b"0")
    counting = [subprocess.Popen([sys.executable, "-c", COUNTING, str(tmp_path)]) for _ in range(2)]
    try:
        assert [process.wait(60) for process in counting] == [0, 0]
    finally:
        for process in counting:
            process.kill()
            process.wait()
    assert read(bucket, "n") == b"300"
    assert bucket.stat("n").attributes.metadata == {"n": "300"}
    assert len(sidecars_of(bucket)) == 1


# Every child writes objects whose attributes say what is in them, until it is killed; then its parent looks.
KILLED = """
import hashlib, itertools, json, os, random, signal, sys, time
from pathlib import Path
import google_crc32c
from bastion.emulators.gcs.buckets import Buckets, Source
from bastion.emulators.gcs.resources import Attributes, NoSuchObject, Preconditions
from bastion.emulators.gcs.uploads import Uploads

any, folder, rounds = Preconditions(), Path(sys.argv[1]), int(sys.argv[2])
buckets = Buckets(folder)
bucket = buckets.open("lake")
names = ["a", "b/c", "b//c"]

def described(data):
    return Attributes(metadata={"data": data.decode()})

def put(name, data):
    with bucket.stage() as staging:
        staging.write(data)
        bucket.commit(name, staging, described(data), any)

def write(seed):
    chance = random.Random(seed)
    for number in itertools.count(seed * 1000):
        data = str(number).encode() * chance.randrange(1, 4)
        name = chance.choice(names)
        match chance.randrange(6):
            case 0 | 1:
                put(name, data)
            case 2:
                put("piece", data)
                bucket.compose(name, [Source(name="piece"), Source(name="piece")], described(data + data), any)
            case 3:
                uploads = Uploads(buckets)
                upload = uploads.find(uploads.begin("lake", name, described(data), any))
                upload.append(0, [data])
                upload.finish()
            case 4:
                put("patched", b"p")
                bucket.patch("patched", lambda _: Attributes(content_type=str(number), cache_control=str(number)), any)
            case 5:
                put(name, data)
                bucket.delete(name, any)

wrong, generations, seen = [], {}, 0
for seed in range(rounds):
    child = os.fork()
    if not child:
        write(seed)
    time.sleep(random.Random(seed).uniform(0.001, 0.012))
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    for name in names:
        try:
            with bucket.open(name) as opened:
                data, resource = os.pread(opened.fileno(), 1000, 0), opened.resource
        except NoSuchObject:
            continue
        seen += 1
        said = resource.attributes.metadata.get("data", "").encode()
        md5 = None if resource.component_count else hashlib.md5(data).digest()
        if (said, resource.crc32c, resource.md5, resource.size) != (data, google_crc32c.value(data), md5, len(data)):
            wrong.append([seed, name, data.decode(), repr(resource)])
        if resource.generation < generations.get(name, 0):
            wrong.append([seed, name, "went back"])
        generations[name] = resource.generation
    try:
        patched = bucket.stat("patched")
        if patched.attributes.content_type != patched.attributes.cache_control:
            wrong.append([seed, repr(patched)])
    except NoSuchObject:
        pass
    listed = {item.name: item.attributes for item in bucket.list().items}
    if not set(listed) <= {*names, "piece", "patched"}:
        wrong.append([seed, sorted(listed)])
bucket.sweep(before_ns=time.time_ns() + 10**9)
left = [path.name for path in (folder / "lake" / ".objects" / "tmp").iterdir()]
sidecars = len(list((folder / "lake" / ".objects" / "attributes").iterdir()))
print(json.dumps({"wrong": wrong, "seen": seen, "left": left, "spare": sidecars - len(bucket.list().items)}))
"""


def test_a_writer_that_is_killed_leaves_old_or_new_with_its_own_attributes(bucket: Bucket, tmp_path: Path) -> None:
    said = subprocess.run(
        [sys.executable, "-c", KILLED, str(tmp_path), "150"], check=True, capture_output=True, text=True, timeout=100
    )
    result = json.loads(said.stdout)
    assert result["wrong"] == []
    assert result["seen"] > 100, "the children were killed before they wrote anything"
    assert (result["left"], result["spare"]) == ([], 0)


# What a dying writer leaves


def test_a_sidecar_whose_content_never_came_changes_nothing_and_goes_after_an_hour(bucket: Bucket) -> None:
    class Dying(Exception):
        pass

    def die(_: os.stat_result) -> None:
        raise Dying

    old = put(bucket, "a", b"old", TEXT)
    with bucket.stage() as staging:
        staging.write(b"new")
        sidecar = bucket.new_sidecar("a", staging, NONE)
        with pytest.raises(Dying):
            bucket.fill("a", staging, sidecar, ANY, about_to=die)
    assert (bucket.stat("a"), read(bucket, "a"), len(sidecars_of(bucket))) == (old, b"old", 2)

    bucket.sweep(before_ns=time.time_ns() - HOUR_NS)
    assert len(sidecars_of(bucket)) == 2
    bucket.sweep(before_ns=time.time_ns() + HOUR_NS)
    assert len(sidecars_of(bucket)) == 1
    assert bucket.stat("a") == old


def test_a_new_start_finishes_the_deletion_of_a_bucket(bucket: Bucket, tmp_path: Path) -> None:
    put(bucket, "a", b"")
    Path(bucket.path).rename(tmp_path / ".deleted-0123456789abcdef")
    assert Buckets(tmp_path).names() == []
    assert list(tmp_path.iterdir()) == []


def test_a_key_whose_object_was_deleted_by_a_dying_writer_is_no_object(bucket: Bucket, tmp_path: Path) -> None:
    put(bucket, "a//b", b"")
    (hidden,) = (path for path in (Path(bucket.path) / ".objects").iterdir() if path.is_file() and not path.suffix)
    hidden.unlink()
    assert bucket.list().items == ()
    Buckets(tmp_path).delete("lake")


def test_a_torn_or_foreign_sidecar_is_none(bucket: Bucket) -> None:
    put(bucket, "a", b"data", TEXT)
    sidecar = Path(bucket.path) / ".objects" / "attributes" / sidecars_of(bucket)[0]
    for content in (b"", b'{"name":"a"', b"[]", b"null", b"\xff", b'{"name": "a", "attributes": {"colour": "red"}}'):
        sidecar.write_bytes(content)
        resource = bucket.stat("a")
        assert (resource.attributes, resource.crc32c) == (NONE, google_crc32c.value(b"data"))


# Other writers of the folder


def test_a_directory_store_and_the_endpoint_see_the_same_objects(bucket: Bucket) -> None:
    store = DirectoryStore(bucket.path, fsync=False)
    for name in ("a", "b/c", "b//c", "a/under"):
        ours = put(bucket, name, b"ours", TEXT)
        seen = store.get(name)
        assert (seen.data, seen.meta.generation) == (b"ours", ours.generation)

        theirs = store.put(name, b"theirs", generation=ours.generation)
        resource = bucket.stat(name)
        assert (read(bucket, name), resource.generation) == (b"theirs", theirs.generation)
        assert (resource.attributes, resource.metageneration) == (NONE, 1)
        assert (resource.crc32c, resource.md5) == (google_crc32c.value(b"theirs"), None)
        assert resource.updated == resource.time_created == theirs.updated

    assert [(meta.key, meta.generation) for meta in store.list("")] == [
        (item.name, item.generation) for item in bucket.list().items
    ]


def test_generations_rise_whoever_writes(bucket: Bucket) -> None:
    store = DirectoryStore(bucket.path, fsync=False)
    generations = [0]
    for _ in range(10):
        generations.append(store.put("a", b"1", generation=generations[-1]).generation)
        with pytest.raises(PreconditionFailed):
            store.put("a", b"0", generation=generations[-2])
        demanded = Preconditions(generation_match=generations[-1])
        generations.append(put(bucket, "a", b"2", preconditions=demanded).generation)
        generations.append(store.append("a", b"3", generation=generations[-1]).generation)
    store.delete("a", generation=generations[-1])
    generations.append(put(bucket, "a", b"4", preconditions=Preconditions(generation_match=0)).generation)
    bucket.delete("a", ANY)
    generations.append(store.put("a", b"5", generation=0).generation)
    assert generations == sorted(set(generations))


def test_a_directory_store_that_races_with_the_endpoint_loses_no_update(bucket: Bucket) -> None:
    store = DirectoryStore(bucket.path, fsync=False)
    put(bucket, "n", b"0")
    wins = {"store": 0, "endpoint": 0}

    def by_store() -> None:
        while wins["store"] < 60:
            present = store.get("n")
            try:
                store.put("n", b"%d" % (int(present.data) + 1), generation=present.meta.generation)
                wins["store"] += 1
            except PreconditionFailed:
                continue

    thread = threading.Thread(target=by_store)
    thread.start()
    while wins["endpoint"] < 60:
        with bucket.open("n") as opened:
            value = int(os.pread(opened.fileno(), opened.resource.size, 0))
            demanded = Preconditions(generation_match=opened.resource.generation)
        try:
            put(bucket, "n", b"%d" % (value + 1), preconditions=demanded)
            wins["endpoint"] += 1
        except ConditionFailed:
            continue
    thread.join(60)
    assert read(bucket, "n") == b"120"


def test_a_read_is_not_disturbed_by_an_append(bucket: Bucket) -> None:
    store = DirectoryStore(bucket.path, fsync=False)
    present = put(bucket, "log", b"one\n", TEXT)
    with bucket.open("log") as opened:
        meta = store.append("log", b"two\n", generation=present.generation)
        assert os.pread(opened.fileno(), opened.resource.size, 0) == b"one\n"

    resource = bucket.stat("log")
    assert (resource.generation, resource.size, resource.attributes) == (meta.generation, 8, NONE)
    assert resource.crc32c == google_crc32c.value(b"one\ntwo\n")
    with pytest.raises(NoSuchObject):
        bucket.stat("log", generation=present.generation)


def test_files_copied_moved_and_edited_by_hand_are_objects(bucket: Bucket) -> None:
    folder = Path(bucket.path)
    (folder / "by").mkdir()
    (folder / "by" / "hand").write_bytes(b"1")
    first = bucket.stat("by/hand")
    (folder / "by" / "hand").write_bytes(b"22")
    second = bucket.stat("by/hand")
    assert first.generation < second.generation
    assert (second.size, second.crc32c) == (2, google_crc32c.value(b"22"))

    put(bucket, "ours", b"ours", TEXT)
    shutil.copy2(folder / "ours", folder / "copy")
    (folder / "ours").rename(folder / "moved")
    assert (bucket.stat("copy").attributes, bucket.stat("moved").attributes) == (NONE, NONE)
    with pytest.raises(NoSuchObject):
        bucket.stat("ours")
    (folder / "moved").rename(folder / "ours")
    with (folder / "ours").open("ab") as file:
        file.write(b"+")
    assert (read(bucket, "ours"), bucket.stat("ours").attributes) == (b"ours+", NONE)


def test_a_file_that_came_by_hand_can_be_patched_composed_and_copied(bucket: Bucket) -> None:
    folder = Path(bucket.path)
    (folder / "a").write_bytes(b"data")
    first = bucket.stat("a")

    patched = bucket.patch("a", lambda present: TEXT, Preconditions(metageneration_match=1))
    assert (patched.generation, patched.metageneration, patched.attributes) == (first.generation, 2, TEXT)
    assert (patched.crc32c, patched.time_created) == (first.crc32c, first.time_created)
    assert bucket.stat("a") == patched

    composed = bucket.compose("b", [Source(name="a"), Source(name="a")], NONE, ANY)
    assert composed.crc32c == google_crc32c.value(b"datadata")
    copied = bucket.copy(bucket, "a", "c", None, ANY)
    assert (copied.crc32c, copied.attributes) == (first.crc32c, TEXT)


def test_links_and_special_files_are_no_objects(bucket: Bucket, tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    secret.write_bytes(b"secret")
    folder = Path(bucket.path)
    (folder / "link").symlink_to(secret)
    (folder / "folder").symlink_to(tmp_path)
    os.mkfifo(folder / "fifo")
    for name in ("link", "folder/secret", "fifo"):
        with pytest.raises(NoSuchObject):
            bucket.open(name)
        # The path is barred, so the object lies elsewhere.
        put(bucket, name, b"mine")
        assert read(bucket, name) == b"mine"
    assert secret.read_bytes() == b"secret"


def test_a_checksum_is_computed_once_for_each_content(bucket: Bucket, monkeypatch: pytest.MonkeyPatch) -> None:
    bytes_read = 0
    compute = checksums.crc32c_of_file

    def counting(file: int, size: int) -> int | None:
        nonlocal bytes_read
        bytes_read += size
        return compute(file, size)

    monkeypatch.setattr(checksums, "crc32c_of_file", counting)
    for number in range(20):
        (Path(bucket.path) / f"{number:02}").write_bytes(b"x" * 1000)
    for _ in range(3):
        assert len(bucket.list().items) == 20
        bucket.stat("00")
    put(bucket, "ours", b"x" * 1000)
    bucket.list()
    assert bytes_read == 20_000


def test_a_page_ends_early_when_much_had_to_be_read_for_checksums(
    bucket: Bucket, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("bastion.emulators.gcs.pages._READ_MAX_BYTES", 2500)
    for number in range(7):
        (Path(bucket.path) / f"{number:02}").write_bytes(b"x" * 1000)
    sizes: list[int] = []
    token = ""
    while not sizes or token:
        page = bucket.list(page_token=token)
        sizes.append(len(page.items))
        token = page.next_page_token
    assert sizes == [3, 3, 1]
    assert len(bucket.list().items) == 7
