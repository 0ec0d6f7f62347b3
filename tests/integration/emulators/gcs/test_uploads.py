"""Resumable uploads of the storage endpoint: sessions and bytes that outlive the program, requests that come twice."""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import google_crc32c
import pytest

from bastion.emulators.gcs.buckets import Bucket, Buckets
from bastion.emulators.gcs.resources import (
    ChecksumMismatch,
    ConditionFailed,
    InvalidRequest,
    NoSuchBucket,
    NoSuchObject,
    NoSuchUpload,
    Preconditions,
)
from bastion.emulators.gcs.upload_sessions import Session, keep
from bastion.emulators.gcs.uploads import Uploads
from bastion.storage_wire.declared_sums import Declared
from bastion.testing.manual_clock import ManualClock
from tests.support.gcs_objects import ANY, NONE, TEXT, put, read

DAY = 24 * 3600.0


@pytest.fixture
def uploads(buckets: Buckets, bucket: Bucket) -> Uploads:
    return Uploads(buckets)


def files_of(bucket: Bucket) -> list[str]:
    return sorted(path.suffix for path in (Path(bucket.path) / ".objects" / "uploads").iterdir())


def test_an_upload_becomes_an_object_when_it_is_finished(uploads: Uploads, bucket: Bucket) -> None:
    upload_id = uploads.begin("lake", "a/b", TEXT, ANY)
    uploads.find(upload_id).append(0, [b"one", b"", b"two"])
    upload = uploads.find(upload_id)
    assert (upload.persisted, upload.resource) == (6, None)
    with pytest.raises(NoSuchObject):
        bucket.stat("a/b")
    upload.append(6, [b"three"])

    resource = upload.finish()

    assert (bucket.stat("a/b"), read(bucket, "a/b")) == (resource, b"onetwothree")
    assert (resource.attributes, resource.metageneration, resource.component_count) == (TEXT, 1, None)
    assert resource.crc32c == google_crc32c.value(b"onetwothree")
    assert resource.md5 == hashlib.md5(b"onetwothree").digest()


def test_a_finished_upload_answers_the_same_again(uploads: Uploads, buckets: Buckets, bucket: Bucket) -> None:
    upload_id = uploads.begin("lake", "a", TEXT, ANY)
    upload = uploads.find(upload_id)
    upload.append(0, [b"data"])
    resource = upload.finish()
    put(bucket, "a", b"newer")

    assert upload.finish() == upload.resource == resource
    for later in (uploads, Uploads(buckets)):
        again = later.find(upload_id)
        assert (again.resource, again.persisted, again.finish()) == (resource, 4, resource)
    assert read(bucket, "a") == b"newer"


def test_an_upload_without_bytes_is_an_empty_object(uploads: Uploads, bucket: Bucket) -> None:
    resource = uploads.find(uploads.begin("lake", "a", NONE, ANY)).finish()
    assert (resource.size, resource.crc32c, read(bucket, "a")) == (0, 0, b"")


def test_a_session_cannot_be_guessed_and_fits_into_an_address(uploads: Uploads) -> None:
    ids = {uploads.begin("lake", "a", NONE, ANY) for _ in range(20)}
    assert len(ids) == 20
    for upload_id in ids:
        token, bucket = upload_id.split("~")
        assert (bucket, len(token) >= 40) == ("lake", True)
        assert upload_id.isascii()
        assert not set(upload_id) & set("/?&#%+ ")


@pytest.mark.parametrize(
    "upload_id", ["", "x", "~lake", "x~lake", "A" * 43 + "~lake", "A" * 43 + "~none", "../../a~lake"]
)
def test_an_unknown_session_is_said_to_be_unknown(uploads: Uploads, upload_id: str) -> None:
    with pytest.raises(NoSuchUpload):
        uploads.find(upload_id)


def test_a_session_begins_only_for_an_object_that_can_be(uploads: Uploads, bucket: Bucket) -> None:
    put(bucket, "present", b"")
    with pytest.raises(NoSuchBucket):
        uploads.begin("none", "a", NONE, ANY)
    with pytest.raises(InvalidRequest):
        uploads.begin("lake", "a\nb", NONE, ANY)
    with pytest.raises(ConditionFailed):
        uploads.begin("lake", "present", NONE, Preconditions(generation_match=0))


def test_bytes_that_are_here_are_passed_over(uploads: Uploads, bucket: Bucket) -> None:
    upload = uploads.find(uploads.begin("lake", "a", NONE, ANY))
    upload.append(0, [b"0123"])
    upload.append(2, [b"2", b"345", b"67"])
    upload.append(0, [b"01234567"])
    assert upload.persisted == 8
    upload.finish()
    assert read(bucket, "a") == b"01234567"


def test_a_gap_is_refused(uploads: Uploads) -> None:
    upload = uploads.find(uploads.begin("lake", "a", NONE, ANY))
    upload.append(0, [b"0123"])
    with pytest.raises(InvalidRequest):
        upload.append(5, [b"5"])
    assert upload.persisted == 4


def test_what_came_before_a_connection_broke_is_kept(uploads: Uploads) -> None:
    class Broken(Exception):
        pass

    def pieces() -> Iterator[bytes]:
        yield b"one"
        yield b"two"
        raise Broken

    upload = uploads.find(uploads.begin("lake", "a", NONE, ANY))
    with pytest.raises(Broken):
        upload.append(0, pieces())
    assert upload.persisted == 6


def test_the_size_that_an_upload_was_begun_for_binds_it(uploads: Uploads, bucket: Bucket) -> None:
    upload = uploads.find(uploads.begin("lake", "a", NONE, ANY, size=5))
    upload.append(0, [b"0123"])
    with pytest.raises(InvalidRequest):
        upload.finish()
    with pytest.raises(InvalidRequest):
        upload.append(4, [b"45"])
    upload.append(4, [b"4"])
    assert upload.finish().size == 5


def test_checksums_bind_an_upload_whenever_they_are_declared(uploads: Uploads, bucket: Bucket) -> None:
    right = Declared(crc32c=google_crc32c.value(b"data"), md5=hashlib.md5(b"data").digest())
    wrong = Declared(crc32c=google_crc32c.value(b"tada"))
    for at_first, at_last in ((wrong, right), (right, wrong), (Declared(md5=b"0" * 16), Declared())):
        upload = uploads.find(uploads.begin("lake", "a", NONE, ANY, declared=at_first))
        upload.append(0, [b"data"])
        with pytest.raises(ChecksumMismatch):
            upload.finish(at_last)
        assert upload.resource is None
        with pytest.raises(NoSuchObject):
            bucket.stat("a")
    upload = uploads.find(uploads.begin("lake", "a", NONE, ANY, declared=right))
    upload.append(0, [b"data"])
    upload.finish(right)
    assert read(bucket, "a") == b"data"


def test_preconditions_are_checked_at_the_end_too(uploads: Uploads, bucket: Bucket) -> None:
    upload_id = uploads.begin("lake", "a", NONE, Preconditions(generation_match=0))
    upload = uploads.find(upload_id)
    upload.append(0, [b"ours"])
    put(bucket, "a", b"theirs")
    for _ in range(2):
        with pytest.raises(ConditionFailed):
            upload.finish()
    assert (read(bucket, "a"), uploads.find(upload_id).resource) == (b"theirs", None)

    bucket.delete("a", ANY)
    upload.finish()
    assert read(bucket, "a") == b"ours"


def test_a_cancelled_upload_is_gone(uploads: Uploads, bucket: Bucket) -> None:
    upload_id = uploads.begin("lake", "a", NONE, ANY)
    upload = uploads.find(upload_id)
    upload.append(0, [b"data"])
    uploads.find(upload_id).cancel()

    assert files_of(bucket) == []
    with pytest.raises(NoSuchUpload):
        uploads.find(upload_id)
    for late in (upload.finish, lambda: upload.append(4, [b"x"]), lambda: upload.persisted):
        with pytest.raises(NoSuchUpload):
            late()
    upload.cancel()
    assert bucket.list().items == ()


def test_cancelling_a_finished_upload_leaves_the_object(uploads: Uploads, bucket: Bucket) -> None:
    upload_id = uploads.begin("lake", "a", NONE, ANY)
    uploads.find(upload_id).finish()
    uploads.find(upload_id).cancel()
    assert uploads.find(upload_id).resource == bucket.stat("a")


def test_a_connection_that_wakes_up_late_never_writes_into_the_object(uploads: Uploads, bucket: Bucket) -> None:
    upload_id = uploads.begin("lake", "a", NONE, ANY)
    waiting, go_on = threading.Event(), threading.Event()
    ended: list[bool] = []

    def pieces() -> Iterator[bytes]:
        yield b"one"
        waiting.set()
        assert go_on.wait(30)
        yield b"twothree"

    def stalled() -> None:
        try:
            uploads.find(upload_id).append(0, pieces())
        except NoSuchUpload:
            ended.append(True)

    thread = threading.Thread(target=stalled)
    thread.start()
    assert waiting.wait(30)
    second = uploads.find(upload_id)
    second.append(second.persisted, [b"two"])
    resource = second.finish()
    go_on.set()
    thread.join(30)
    assert ended == [True]
    assert (read(bucket, "a"), bucket.stat("a")) == (b"onetwo", resource)


def test_two_connections_that_send_the_same_make_one_object(uploads: Uploads, bucket: Bucket) -> None:
    data = os.urandom(100_000)
    upload_id = uploads.begin("lake", "a", NONE, ANY, declared=Declared(md5=hashlib.md5(data).digest()))

    def send() -> None:
        uploads.find(upload_id).append(0, [data[at : at + 997] for at in range(0, len(data), 997)])

    threads = [threading.Thread(target=send) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    finishing: list[object] = []
    threads = [threading.Thread(target=lambda: finishing.append(uploads.find(upload_id).finish())) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert finishing == [bucket.stat("a")] * 4
    assert read(bucket, "a") == data


# Dying


def test_another_process_goes_on_where_one_died(uploads: Uploads, buckets: Buckets, bucket: Bucket) -> None:
    upload_id = uploads.begin("lake", "a", TEXT, ANY)
    uploads.find(upload_id).append(0, [b"one"])

    later = Uploads(buckets).find(upload_id)
    assert later.persisted == 3
    later.append(3, [b"two"])
    resource = Uploads(buckets).find(upload_id).finish(Declared(md5=hashlib.md5(b"onetwo").digest()))
    assert (bucket.stat("a"), resource.attributes) == (resource, TEXT)


@pytest.mark.parametrize("replaced", [False, True])
def test_dying_between_the_object_and_its_session_loses_neither(
    uploads: Uploads, buckets: Buckets, bucket: Bucket, monkeypatch: pytest.MonkeyPatch, replaced: bool
) -> None:
    class Dying(Exception):
        pass

    upload_id = uploads.begin("lake", "a", TEXT, Preconditions(generation_match=0))
    upload = uploads.find(upload_id)
    upload.append(0, [b"data"])
    kept: list[Session] = []

    def dying(bucket: Bucket, token: str, session: Session) -> None:
        if kept:
            raise Dying
        kept.append(session)
        keep(bucket, token, session)

    monkeypatch.setattr("bastion.emulators.gcs.uploads.keep", dying)
    with pytest.raises(Dying):
        upload.finish()
    monkeypatch.undo()
    live = bucket.stat("a")
    if replaced:
        put(bucket, "a", b"newer")

    again = Uploads(buckets).find(upload_id)
    resource = again.resource
    assert resource is not None
    assert (resource.size, resource.crc32c, resource.attributes) == (4, google_crc32c.value(b"data"), TEXT)
    if replaced:
        assert 0 < resource.generation < bucket.stat("a").generation
    else:
        assert resource == live
    assert again.finish() == resource == Uploads(buckets).find(upload_id).resource


def test_dying_just_before_the_object_leaves_the_upload_to_be_finished(
    uploads: Uploads, buckets: Buckets, bucket: Bucket, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Dying(Exception):
        pass

    def dying(*_: object, **__: object) -> None:
        raise Dying

    upload_id = uploads.begin("lake", "a", NONE, ANY)
    upload = uploads.find(upload_id)
    upload.append(0, [b"data"])
    monkeypatch.setattr("bastion.folder_format.places.fill", dying)
    with pytest.raises(Dying):
        upload.finish()
    monkeypatch.undo()

    again = Uploads(buckets).find(upload_id)
    assert (again.resource, again.persisted) == (None, 4)
    assert (again.finish(), read(bucket, "a")) == (bucket.stat("a"), b"data")


# A child uploads objects in pieces and says, as an endpoint would, what it acknowledged; the parent kills it.
KILLED = """
import hashlib, json, os, random, signal, sys, time
from pathlib import Path
from bastion.emulators.gcs.buckets import Buckets
from bastion.emulators.gcs.resources import Attributes, Preconditions
from bastion.storage_wire.declared_sums import Declared
from bastion.emulators.gcs.uploads import Uploads

buckets = Buckets(Path(sys.argv[1]))
bucket = buckets.open("lake")
data = bytes(range(256)) * 16
chance = random.Random(1)
wrong, resumed, finished = [], 0, 0
# On a busy machine most children may be through before they are killed.
turn = -1
while (turn := turn + 1) < int(sys.argv[2]) or (resumed <= 5 and turn < 2000):
    name = f"o{turn}"
    upload_id = Uploads(buckets).begin("lake", name, Attributes(content_type=name), Preconditions(generation_match=0))
    told, tell = os.pipe()
    child = os.fork()
    if not child:
        upload = Uploads(buckets).find(upload_id)
        for offset in range(0, len(data), 512):
            upload.append(offset, [data[offset : offset + 512]])
            os.write(tell, b".")
        upload.finish()
        os.write(tell, b"!")
        os._exit(0)
    os.close(tell)
    time.sleep(chance.uniform(0.001, 0.009))
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    said = os.read(told, 1000)
    os.close(told)
    upload = Uploads(buckets).find(upload_id)
    if upload.persisted < 512 * said.count(b"."):
        wrong.append([turn, "lost bytes"])
    if upload.resource is None:
        resumed += 1
        if b"!" in said:
            wrong.append([turn, "lost the end"])
        upload.append(upload.persisted, [data[upload.persisted :]])
    else:
        finished += 1
    resource = upload.finish(Declared(md5=hashlib.md5(data).digest()))
    if resource != bucket.stat(name) or resource.attributes.content_type != name:
        wrong.append([turn, repr(resource)])
print(json.dumps({"wrong": wrong, "resumed": resumed, "finished": finished}))
"""


def test_a_kill_loses_no_session_and_no_acknowledged_byte(bucket: Bucket, tmp_path: Path) -> None:
    said = subprocess.run(
        [sys.executable, "-c", KILLED, str(tmp_path), "80"], check=True, capture_output=True, text=True, timeout=100
    )
    result = json.loads(said.stdout)
    assert result["wrong"] == []
    assert result["resumed"] > 5, "every child was through before it was killed"


# Age


def test_a_session_is_forgotten_after_a_week(buckets: Buckets, bucket: Bucket) -> None:
    clock = ManualClock(time.time())
    uploads = Uploads(buckets, now=clock.now)
    old = uploads.begin("lake", "a", NONE, ANY)
    uploads.find(old).append(0, [b"data"])

    clock.advance(6 * DAY)
    assert uploads.find(old).persisted == 4
    young = uploads.begin("lake", "b", NONE, ANY)
    assert files_of(bucket) == [".data", ".data", ".json", ".json"]

    clock.advance(1.1 * DAY)
    with pytest.raises(NoSuchUpload):
        uploads.find(old)
    assert uploads.find(young).persisted == 0


def test_the_files_of_forgotten_sessions_are_removed(buckets: Buckets, bucket: Bucket) -> None:
    clock = ManualClock(time.time())
    uploads = Uploads(buckets, now=clock.now)
    uploads.find(uploads.begin("lake", "a", NONE, ANY)).finish()
    uploads.begin("lake", "a", NONE, ANY)
    clock.advance(7.5 * DAY)
    last = uploads.begin("lake", "b", NONE, ANY)
    assert files_of(bucket) == [".data", ".json"]
    uploads.find(last).finish()
