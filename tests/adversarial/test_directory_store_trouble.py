"""What a directory store does when its folder, a lock or the system fails it: leftovers go, errors say what to do."""

from __future__ import annotations

import contextlib
import errno
import os
import time
from pathlib import Path

import pytest

from bastion.adapters.folder.store import DirectoryStore
from bastion.core.errors import AccessDenied, NotFound, PreconditionFailed, StoreError, StoreFull, StoreUnavailable
from bastion.folder_format import files
from bastion.folder_format.lock import locked
from tests.adversarial.conftest import HOUR_NS, keys


def test_leftovers_of_dead_writers_go_after_an_hour(folder: Path, store: DirectoryStore) -> None:
    store.put("k", b"", generation=0)
    leftover = folder / ".objects/tmp/1-dead"
    leftover.write_bytes(b"half")
    DirectoryStore(folder)
    assert leftover.exists()
    DirectoryStore(folder, now_ns=lambda: time.time_ns() + HOUR_NS + 1_000_000_000)
    assert not leftover.exists()
    assert keys(store) == ["k"]


def test_no_temporary_file_stays_after_success_or_refusal(folder: Path, store: DirectoryStore) -> None:
    store.put("k", b"", generation=0)
    store.put("a//b", b"", generation=0)
    with pytest.raises(PreconditionFailed):
        store.put("k", b"", generation=0)
    assert [*(folder / ".objects/tmp").iterdir()] == []


def test_a_writer_that_hangs_with_the_lock_is_named_not_waited_for_forever(folder: Path, store: DirectoryStore) -> None:
    meta = store.put("k", b"", generation=0)
    impatient = DirectoryStore(folder, fsync=False, lock_timeout_seconds=0.01)
    objects = os.open(folder / ".objects", os.O_RDONLY)
    try:
        with contextlib.ExitStack() as hanging:
            for name in range(64):
                hanging.enter_context(locked(objects, f"{name:02x}", path="", timeout_seconds=1))
            for write in (impatient.put, impatient.append):
                with pytest.raises(StoreUnavailable, match=r"\.objects/locks/[0-3][0-9a-f] .*fuser"):
                    write("k", b"x", generation=meta.generation)
            assert impatient.get("k").meta == meta
    finally:
        os.close(objects)
    assert impatient.put("k", b"x", generation=meta.generation).size == 1


def test_nonsense_in_a_lock_file_means_nothing_known(folder: Path, store: DirectoryStore) -> None:
    meta = store.put("k", b"", generation=0)
    for lock in (folder / ".objects/locks").iterdir():
        lock.write_text("not a number")
    store.delete("k", generation=meta.generation)
    assert store.put("k", b"", generation=0).generation > meta.generation


def test_a_bucket_that_is_a_file_is_refused_clearly(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"")
    for path in (tmp_path / "file", tmp_path / "file/below"):
        for create in (True, False):
            with pytest.raises(StoreError, match="folder"):
                DirectoryStore(path, create=create)


def test_a_missing_folder_is_made_only_when_asked_to(folder: Path) -> None:
    with pytest.raises(StoreError, match="there is no folder"):
        DirectoryStore(folder, create=False)
    assert not folder.exists()
    DirectoryStore(folder)
    assert folder.is_dir()


def test_a_bucket_that_vanished_is_unavailable_not_empty(folder: Path, store: DirectoryStore) -> None:
    meta = store.put("k", b"", generation=0)
    folder.rename(folder.with_name("moved"))
    for call in (
        lambda: store.get("k"),
        lambda: store.head("k"),
        lambda: list(store.list("")),
        lambda: store.put("k", b"", generation=0),
        lambda: store.append("k", b"", generation=meta.generation),
        lambda: store.delete("k", generation=meta.generation),
    ):
        with pytest.raises(StoreUnavailable, match="gone"):
            call()
    folder.with_name("moved").rename(folder)
    assert store.get("k").meta == meta


@pytest.mark.parametrize(
    ("number", "kind", "advice"),
    [
        (errno.ENOSPC, StoreFull, "free some space"),
        (errno.EDQUOT, StoreFull, "quota"),
        (errno.EIO, StoreUnavailable, "disk"),
        (errno.ESTALE, StoreUnavailable, "remount"),
        (errno.EMFILE, StoreUnavailable, "ulimit"),
        (errno.EROFS, AccessDenied, "it needs write permission"),
        (errno.EXDEV, StoreError, "unmount"),
        (errno.EBUSY, StoreUnavailable, "try again"),
    ],
)
def test_what_the_system_says_becomes_advice(number: int, kind: type[StoreError], advice: str) -> None:
    error = files.explain(OSError(number, ""), doing="writing", path="/b/k", needs="write permission")
    assert type(error) is kind
    assert advice in str(error)
    assert "writing /b/k failed" in str(error)


def test_a_hostile_key_writes_no_control_characters_into_a_message(store: DirectoryStore) -> None:
    with pytest.raises(NotFound) as caught:
        store.get("\x1b[31mred")
    assert str(caught.value).isprintable()


def test_a_file_system_that_rounds_times_to_seconds_is_refused_before_any_harm(
    folder: Path, store: DirectoryStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    meta = store.put("k", b"1", generation=0)
    exact = os.utime

    def rounded(file: int, *, ns: tuple[int, int]) -> None:
        exact(file, ns=(0, ns[1] // 1_000_000_000 * 1_000_000_000))

    # The change time of the file is the kernel's own and exact here, so the stamp must also lie above it.
    ahead = DirectoryStore(folder, fsync=False, now_ns=lambda: time.time_ns() + HOUR_NS // 60)
    monkeypatch.setattr(os, "utime", rounded)
    with pytest.raises(StoreError, match="another file system"):
        ahead.put("k", b"2", generation=meta.generation)
    assert store.get("k").meta == meta
