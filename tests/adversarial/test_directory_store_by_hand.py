"""The folder is the bucket: what people and their tools do to its files by hand, also while we read or write one."""

from __future__ import annotations

import os
import resource
import shutil
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from bastion.adapters.folder.store import DirectoryStore
from bastion.core.errors import NotFound, PreconditionFailed, StoreUnavailable
from bastion.folder_format import files
from tests.adversarial.conftest import HOUR_NS, generation, keys

# Files are objects


def test_a_key_is_the_file_of_that_path(folder: Path, store: DirectoryStore) -> None:
    store.put("jobs/active/train", b"spec", generation=0)
    assert (folder / "jobs/active/train").read_bytes() == b"spec"
    (folder / "jobs/active/eval").write_bytes(b"by hand")
    assert store.get("jobs/active/eval").data == b"by hand"
    assert keys(store, "jobs/") == ["jobs/active/eval", "jobs/active/train"]
    (folder / "jobs/active/train").unlink()
    assert store.head("jobs/active/train") is None


def copy(source: Path, target: Path) -> None:
    subprocess.run(["cp", source, target], check=True)


def copy_with_times(source: Path, target: Path) -> None:
    subprocess.run(["cp", "-p", source, target], check=True)


def move_over(source: Path, target: Path) -> None:
    subprocess.run(["mv", source, target], check=True)


def edit_in_place(source: Path, target: Path) -> None:
    data = source.read_bytes()
    with target.open("r+b") as file:
        file.write(data)
        file.truncate()


def edit_by_rename(source: Path, target: Path) -> None:
    """As editors save: a new file beside the old one, with its times kept, moved over it."""
    beside = target.with_name(target.name + "~")
    shutil.copyfile(source, beside)
    shutil.copystat(target, beside)
    beside.replace(target)


@pytest.mark.parametrize("change", [copy, copy_with_times, move_over, edit_in_place, edit_by_rename])
@pytest.mark.parametrize("size", ["same", "other"])
def test_a_file_changed_by_hand_has_a_new_generation(
    folder: Path, tmp_path: Path, store: DirectoryStore, change: Callable[[Path, Path], None], size: str
) -> None:
    meta = store.put("k", b"ours", generation=0)
    seen = {meta.generation}
    for number in range(20):
        source = tmp_path / "source"
        source.write_bytes(b"%04d" % number if size == "same" else b"x" * number)
        # An old file, or one from the future: `cp -p` and `mv` keep such times.
        os.utime(source, ns=(0, number * HOUR_NS if number % 2 else time.time_ns() + HOUR_NS))
        change(source, folder / "k")
        stored = store.get("k")
        assert stored.data == (folder / "k").read_bytes()
        assert stored.meta.generation not in seen
        seen.add(stored.meta.generation)
        with pytest.raises(PreconditionFailed):
            store.put("k", b"lost update", generation=meta.generation)
        meta = store.put("k", b"ours", generation=stored.meta.generation)
        assert meta.generation > stored.meta.generation
        seen.add(meta.generation)


def test_a_copied_file_counts_as_of_now_whatever_time_it_brings(folder: Path, store: DirectoryStore) -> None:
    (folder / "k").write_bytes(b"")
    os.utime(folder / "k", (0, 0))
    meta = store.head("k")
    assert meta is not None
    assert abs(meta.updated - time.time()) < 60


def test_generations_go_up_although_the_clock_is_set_back(folder: Path) -> None:
    clock_ns = time.time_ns() + 24 * HOUR_NS

    def clock() -> int:
        return clock_ns

    seen = [0]
    for step_ns in (0, -48 * HOUR_NS, 1, -1):
        clock_ns += step_ns
        # Another process each time, which remembers nothing.
        store = DirectoryStore(folder, fsync=False, now_ns=clock)
        seen.append(store.put("k", b"1", generation=0).generation)
        seen.append(store.append("k", b"2", generation=seen[-1]).generation)
        seen.append(store.put("k", b"3", generation=seen[-1]).generation)
        seen.append(store.append("k", b"", generation=seen[-1]).generation)
        store.delete("k", generation=seen[-1])
    assert seen == sorted(set(seen))
    assert seen[1] - seen[0] > time.time_ns()


def test_a_time_at_the_end_of_time_does_not_stop_the_writers(folder: Path, store: DirectoryStore) -> None:
    meta = store.put("k", b"1", generation=0)
    # The last instant of ext4, in the year 2446: a later one is kept as this one.
    os.utime(folder / "k", ns=(0, 15_032_385_535_999_999_999))
    touched = generation(store, "k")
    assert touched != meta.generation
    assert store.put("k", b"2", generation=touched).generation > meta.generation


def test_an_append_adds_to_the_same_file(folder: Path, store: DirectoryStore) -> None:
    meta = store.put("log", b"one\n", generation=0)
    before = (folder / "log").stat().st_ino
    with (folder / "log").open("rb") as follower:
        assert follower.read() == b"one\n"
        store.append("log", b"two\n", generation=meta.generation)
        assert follower.read() == b"two\n"
    assert (folder / "log").stat().st_ino == before


def test_a_put_leaves_readers_of_the_old_file_alone(folder: Path, store: DirectoryStore) -> None:
    meta = store.put("k", b"old", generation=0)
    with (folder / "k").open("rb") as reader:
        store.put("k", b"new", generation=meta.generation)
        assert reader.read() == b"old"


def test_an_append_that_runs_out_of_space_adds_nothing(store: DirectoryStore, folder: Path) -> None:
    meta = store.put("log", b"head", generation=0)
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (4096, limits[1]))
    try:
        # Python ignores SIGXFSZ, so the limit shows as an error after the first 4 KiB.
        with pytest.raises(StoreUnavailable, match="log"):
            store.append("log", b"x" * 10_000, generation=meta.generation)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert (folder / "log").read_bytes() == b"head"
    assert store.append("log", b"!", generation=generation(store, "log")).size == 5


# Changes at the worst moment: in the middle of our own system calls


def in_the_middle(monkeypatch: pytest.MonkeyPatch, call: str, act: Callable[[], object]) -> None:
    """Acts once, right after the next real `os.<call>`."""
    exact = getattr(os, call)

    def interrupted(*args: object, **kwargs: object) -> object:
        result = exact(*args, **kwargs)
        monkeypatch.setattr(os, call, exact)
        act()
        return result

    monkeypatch.setattr(os, call, interrupted)


def test_a_file_that_becomes_a_folder_before_it_is_opened_is_no_object(
    folder: Path, store: DirectoryStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    (folder / "k").write_bytes(b"old")
    look = files.status_of

    def looked(at: int, name: str) -> os.stat_result | None:
        found = look(at, name)
        if found is not None and name == "k":
            (folder / "k").unlink()
            (folder / "k").mkdir()
        return found

    monkeypatch.setattr(files, "status_of", looked)
    with pytest.raises(NotFound):
        store.get("k")


def test_a_file_edited_while_it_is_read_is_read_again(
    folder: Path, store: DirectoryStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    meta = store.put("k", b"old", generation=0)
    in_the_middle(monkeypatch, "pread", lambda: (folder / "k").write_bytes(b"new"))
    stored = store.get("k")
    assert stored.data == b"new"
    assert stored.meta.generation != meta.generation
    assert stored.meta == store.head("k")


@pytest.mark.parametrize("then", ["put", "delete"])
def test_a_file_replaced_or_deleted_while_it_is_read_is_read_as_it_was(
    store: DirectoryStore, monkeypatch: pytest.MonkeyPatch, then: str
) -> None:
    meta = store.put("k", b"old", generation=0)
    other = {
        "put": lambda: store.put("k", b"new", generation=meta.generation),
        "delete": lambda: store.delete("k", generation=meta.generation),
    }[then]

    def act() -> None:
        other()

    # The lock file is read with pread too, so the change must come with the first one, which is of the object.
    in_the_middle(monkeypatch, "pread", act)
    stored = store.get("k")
    assert (stored.data, stored.meta) == (b"old", meta)


def test_a_file_that_changes_during_every_read_is_unavailable_in_the_end(
    folder: Path, store: DirectoryStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    store.put("k", b"x", generation=0)
    exact = os.pread

    def restless(file: int, length: int, offset: int) -> bytes:
        (folder / "k").write_bytes(b"%d" % time.perf_counter_ns())
        return exact(file, length, offset)

    monkeypatch.setattr(os, "pread", restless)
    with pytest.raises(StoreUnavailable, match="changed during each"):
        store.get("k")


def test_an_append_whose_file_was_replaced_meanwhile_did_not_land(
    folder: Path, store: DirectoryStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    meta = store.put("k", b"old", generation=0)
    (folder / "other").write_bytes(b"by hand")
    in_the_middle(monkeypatch, "write", lambda: (folder / "other").replace(folder / "k"))
    with pytest.raises(PreconditionFailed):
        store.append("k", b"lost", generation=meta.generation)
    assert store.get("k").data == b"by hand"


def test_a_durable_write_flushes_the_file_and_every_folder_it_made(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    flushed: list[str] = []
    exact = os.fsync

    def noted(file: int) -> None:
        exact(file)
        flushed.append(str(Path(f"/proc/self/fd/{file}").readlink().relative_to(folder)))

    monkeypatch.setattr(os, "fsync", noted)
    store = DirectoryStore(folder)
    meta = store.put("a/b/k", b"x", generation=0)
    # The new .objects and a, the content, the new b in a, the new name in b.
    assert [name.partition("/")[0] if name.startswith(".") else name for name in flushed] == [
        ".",
        ".objects",
        ".",
        "a",
        "a/b",
    ]
    flushed.clear()
    meta = store.append("a/b/k", b"x", generation=meta.generation)
    assert flushed == ["a/b/k"]
    flushed.clear()
    store.delete("a/b/k", generation=meta.generation)
    assert flushed == ["a/b"]
    flushed.clear()
    DirectoryStore(folder, fsync=False).put("a/b/k", b"x", generation=0)
    assert flushed == []


# Speed


def test_ten_thousand_objects_are_listed_fast(folder: Path, store: DirectoryStore) -> None:
    (folder / "jobs").mkdir()
    for number in range(10_000):
        (folder / f"jobs/{number:05d}").touch()
    best = min(_seconds_of_listing(store) for _ in range(3))
    # Measured: 0.06 s. The bound leaves room for a slow machine.
    assert best < 0.5


def _seconds_of_listing(store: DirectoryStore) -> float:
    """Of this thread at work, in the kernel too, and not of others that have the processor."""
    began = time.thread_time()
    assert len(keys(store, "jobs/")) == 10_000
    return time.thread_time() - began
