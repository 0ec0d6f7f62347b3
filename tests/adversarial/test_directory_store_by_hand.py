"""The folder is the bucket: what people and their tools do to it by hand, and what no tool may do through it."""

from __future__ import annotations

import contextlib
import errno
import os
import resource
import shutil
import socket
import stat
import subprocess
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from bastion.adapters.directory_store import DirectoryStore
from bastion.core.errors import AccessDenied, NotFound, PreconditionFailed, StoreError, StoreUnavailable
from bastion.directory import files
from bastion.directory.keys import hidden_name
from bastion.directory.lock import locked

NOBODY = 65534
HOUR_NS = 3_600_000_000_000


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "bucket"


@pytest.fixture
def store(folder: Path) -> DirectoryStore:
    return DirectoryStore(folder, fsync=False)


def keys(store: DirectoryStore, prefix: str = "") -> list[str]:
    return [meta.key for meta in store.list(prefix)]


def generation(store: DirectoryStore, key: str) -> int:
    meta = store.head(key)
    assert meta is not None
    return meta.generation


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


# Keys that cannot be files


@pytest.mark.parametrize(
    "key", ["../outside", "/etc/x", "a/../../outside", ".objects/locks/00", "a//b", "a/", "n" * 256]
)
def test_a_key_that_cannot_be_a_file_lies_under_its_hash(folder: Path, store: DirectoryStore, key: str) -> None:
    store.put(key, b"x", generation=0)
    assert (folder / ".objects" / hidden_name(key)).read_bytes() == b"x"
    visible = [path for path in folder.parent.rglob("*") if ".objects" not in path.parts]
    assert visible == [folder]


def test_a_file_in_the_way_of_a_folder_and_back(folder: Path, store: DirectoryStore) -> None:
    a = store.put("a", b"file", generation=0)
    ab = store.put("a/b", b"barred", generation=0)
    assert (folder / ".objects" / hidden_name("a/b")).exists()
    store.delete("a", generation=a.generation)
    # It stays where it is as long as it lives ...
    ab = store.put("a/b", b"still barred", generation=ab.generation)
    assert not (folder / "a").exists()
    store.delete("a/b", generation=ab.generation)
    # ... and is a file the next time.
    assert store.put("a/b", b"free", generation=0).generation > ab.generation
    assert (folder / "a/b").read_bytes() == b"free"
    a = store.put("a", b"barred now", generation=0)
    assert keys(store) == ["a", "a/b"]
    assert store.get("a").data == b"barred now"
    hidden = {path.name for path in (folder / ".objects").iterdir() if path.is_file()}
    assert hidden == {hidden_name("a"), hidden_name("a") + ".key"}
    store.delete("a", generation=a.generation)
    assert not [path for path in (folder / ".objects").iterdir() if path.is_file()]


@pytest.mark.parametrize("then", ["put", "delete"])
def test_a_file_copied_over_a_barred_name_wins_and_the_hidden_one_goes(
    folder: Path, store: DirectoryStore, then: str
) -> None:
    (folder / "k").mkdir()
    hidden = store.put("k", b"hidden", generation=0)
    (folder / "k").rmdir()
    (folder / "k").write_bytes(b"by hand")
    stored = store.get("k")
    assert stored.data == b"by hand"
    assert stored.meta.generation != hidden.generation
    assert [*store.list("")] == [stored.meta]
    if then == "put":
        store.put("k", b"ours", generation=stored.meta.generation)
        assert (folder / "k").read_bytes() == b"ours"
        (folder / "k").unlink()
    else:
        store.delete("k", generation=stored.meta.generation)
    assert store.head("k") is None
    assert keys(store) == []


def test_folders_go_with_their_last_object_but_never_the_bucket(folder: Path, store: DirectoryStore) -> None:
    one = store.put("a/b/c/one", b"", generation=0)
    two = store.put("a/two", b"", generation=0)
    store.delete("a/b/c/one", generation=one.generation)
    assert not (folder / "a/b").exists()
    store.delete("a/two", generation=two.generation)
    assert [path.name for path in folder.iterdir()] == [".objects"]


def test_puts_survive_a_neighbour_that_keeps_removing_their_folder(store: DirectoryStore) -> None:
    def come_and_go(name: str) -> None:
        for _ in range(150):
            store.delete(name, generation=store.put(name, b"", generation=0).generation)

    threads = [threading.Thread(target=come_and_go, args=(f"deep/er/{name}",)) for name in "abc"]
    for thread in threads:
        thread.start()
    try:
        for number in range(50):
            store.put(f"deep/er/stays/{number}", b"", generation=0)
            store.delete(f"deep/er/stays/{number}", generation=generation(store, f"deep/er/stays/{number}"))
    finally:
        for thread in threads:
            thread.join()
    assert keys(store) == []


# Links and special files


@pytest.fixture
def secret(tmp_path: Path) -> Path:
    (tmp_path / "outside").mkdir()
    (tmp_path / "outside/secret").write_bytes(b"secret")
    return tmp_path / "outside/secret"


def test_links_are_neither_followed_nor_listed_nor_replaced(folder: Path, store: DirectoryStore, secret: Path) -> None:
    (folder / "link").symlink_to(secret)
    (folder / "dangling").symlink_to(folder / "nowhere")
    (folder / "folder").symlink_to(secret.parent)
    assert keys(store) == keys(store, "folder/") == []
    for key in ("link", "dangling", "folder", "folder/secret", "folder/new"):
        with pytest.raises(NotFound):
            store.get(key)
        assert store.head(key) is None
        meta = store.put(key, b"ours", generation=0)
        meta = store.append(key, b"!", generation=meta.generation)
        assert store.get(key).data == b"ours!"
        assert key in keys(store)
        store.delete(key, generation=meta.generation)
    assert secret.read_bytes() == b"secret"
    assert [path.name for path in secret.parent.iterdir()] == ["secret"]
    assert not (folder / "nowhere").exists()
    assert all((folder / name).is_symlink() for name in ("link", "dangling", "folder"))


@pytest.mark.parametrize("part", [".objects", ".objects/tmp", ".objects/locks"])
def test_a_link_in_place_of_our_own_folders_is_refused(folder: Path, secret: Path, part: str) -> None:
    target = folder / part
    target.parent.mkdir(parents=True)
    target.symlink_to(secret.parent)
    store = DirectoryStore(folder, fsync=False)
    with pytest.raises(StoreError):
        store.put("k", b"", generation=0)
    assert [path.name for path in secret.parent.iterdir()] == ["secret"]


def test_the_bucket_itself_may_be_given_by_a_link(folder: Path, tmp_path: Path) -> None:
    folder.mkdir()
    (tmp_path / "link").symlink_to(folder)
    DirectoryStore(tmp_path / "link").put("k", b"x", generation=0)
    assert (folder / "k").read_bytes() == b"x"


def test_special_files_are_no_objects_and_are_never_waited_for(
    folder: Path, store: DirectoryStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    os.mkfifo(folder / "fifo")
    # A socket's path has at most 107 bytes.
    monkeypatch.chdir(folder)
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind("socket")
    for key in ("fifo", "socket"):
        assert store.head(key) is None
        with pytest.raises(NotFound):
            store.get(key)
        store.put(key, b"beside it", generation=0)
        assert store.get(key).data == b"beside it"
    assert stat.S_ISFIFO((folder / "fifo").stat().st_mode)
    assert keys(store) == ["fifo", "socket"]


def test_names_that_are_no_keys_are_skipped(folder: Path, store: DirectoryStore) -> None:
    for name in (b"not utf-8 \xff", b"new\nline", b"carriage\rreturn", b"good"):
        Path(os.fsdecode(os.fsencode(folder) + b"/" + name)).write_bytes(b"")
    deep = folder.joinpath(*["d" * 200] * 6)
    deep.mkdir(parents=True)
    (deep / "beyond 1024 bytes").write_bytes(b"")
    assert keys(store) == ["good"]


def test_a_hidden_file_without_its_right_key_is_not_listed(folder: Path, store: DirectoryStore) -> None:
    store.put("a//b", b"", generation=0)
    (folder / ".objects/stray").write_bytes(b"")
    (folder / ".objects/stray.key").write_bytes(b"../forged")
    (folder / ".objects" / (hidden_name("only its key") + ".key")).write_bytes(b"only its key")
    (folder / ".objects/binary.key").write_bytes(b"\xff")
    assert keys(store) == ["a//b"]


# Leftovers, locks and errors


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
        (errno.ENOSPC, StoreUnavailable, "free some space"),
        (errno.EDQUOT, StoreUnavailable, "quota"),
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


# Permissions


@pytest.fixture
def shared() -> Iterator[Path]:
    """A folder that another user can reach."""
    folder = Path(tempfile.mkdtemp(prefix="shared-bucket-", dir="/tmp"))
    folder.chmod(0o777)
    yield folder
    shutil.rmtree(folder)


@contextlib.contextmanager
def as_ordinary_user() -> Iterator[None]:
    """Root may read everything, so tests of permissions step down."""
    me = os.geteuid()
    if me == 0:
        os.seteuid(NOBODY)
    try:
        yield
    finally:
        os.seteuid(me)


def test_an_unreadable_object_is_denied_by_name_and_still_listed(shared: Path) -> None:
    store = DirectoryStore(shared, fsync=False)
    store.put("secret", b"x", generation=0)
    store.put("open", b"x", generation=0)
    (shared / "secret").chmod(0)
    with as_ordinary_user():
        assert keys(store) == ["open", "secret"]
        assert store.get("open").data == b"x"
        with pytest.raises(AccessDenied, match=r"/secret failed: .*read permission"):
            store.get("secret")


def test_an_unreadable_folder_hides_only_itself_from_a_listing(shared: Path, caplog: pytest.LogCaptureFixture) -> None:
    store = DirectoryStore(shared, fsync=False)
    for key in ("a/1", "locked/2", "z/3"):
        store.put(key, b"x", generation=0)
    (shared / "locked").chmod(0)
    with as_ordinary_user():
        assert keys(store) == ["a/1", "z/3"]
        assert "locked" in caplog.text
        with pytest.raises(AccessDenied, match=r"listing .*/locked/"):
            keys(store, "locked/")
        # Absence in a listing proves nothing; asked by name, the store does not claim that it is gone.
        for call in (store.get, store.head):
            with pytest.raises(AccessDenied, match="locked/2"):
                call("locked/2")
    (shared / "locked").chmod(0o755)


def test_a_folder_that_may_only_be_searched_still_gives_its_objects(shared: Path) -> None:
    store = DirectoryStore(shared, fsync=False)
    store.put("dropbox/known", b"x", generation=0)
    (shared / "dropbox").chmod(0o711)
    with as_ordinary_user():
        assert store.get("dropbox/known").data == b"x"


def test_who_may_only_read_reads_everything_and_is_told_what_a_write_needs(shared: Path) -> None:
    owner = DirectoryStore(shared, fsync=False)
    meta = owner.put("k", b"x", generation=0)
    owner.put("a//b", b"y", generation=0)
    shared.chmod(0o755)
    with as_ordinary_user():
        reader = DirectoryStore(shared, create=False)
        assert reader.get("k").data == b"x"
        assert reader.get("a//b").data == b"y"
        assert keys(reader) == ["a//b", "k"]
        reader.delete("never-there", generation=1)
        for call in (
            lambda: reader.put("new", b"", generation=0),
            lambda: reader.append("k", b"", generation=meta.generation),
            lambda: reader.delete("k", generation=meta.generation),
        ):
            with pytest.raises(AccessDenied, match="write and search permission"):
                call()
    assert owner.get("k").meta == meta


def test_a_bucket_that_may_not_be_opened_is_denied(shared: Path) -> None:
    DirectoryStore(shared)
    shared.chmod(0o700)
    with as_ordinary_user(), pytest.raises(AccessDenied, match="opening"):
        DirectoryStore(shared)


# Speed


def test_a_listing_reads_only_the_folders_that_can_matter(shared: Path, caplog: pytest.LogCaptureFixture) -> None:
    store = DirectoryStore(shared, fsync=False)
    for key in ("a/1", "b/1", "b/c/1", "b/d/1", "e/1"):
        store.put(key, b"", generation=0)
    for name in ("a", "b/c", "e"):
        (shared / name).chmod(0)
    with as_ordinary_user():
        # Reading a closed folder would warn.
        assert keys(store, "b/d") == ["b/d/1"]
        assert [meta.key for meta in store.list("b", start_after="b/d")] == ["b/d/1"]
        assert caplog.text == ""


def test_ten_thousand_objects_are_listed_fast(folder: Path, store: DirectoryStore) -> None:
    (folder / "jobs").mkdir()
    for number in range(10_000):
        (folder / f"jobs/{number:05d}").touch()
    best = min(_seconds_of_listing(store) for _ in range(3))
    # Measured: 0.06 s. The bound leaves room for a loaded machine.
    assert best < 0.5


def _seconds_of_listing(store: DirectoryStore) -> float:
    began = time.perf_counter()
    assert len(keys(store, "jobs/")) == 10_000
    return time.perf_counter() - began


def test_a_folder_that_people_copy_files_into_stays_when_its_last_object_goes(tmp_path: Path) -> None:
    store = DirectoryStore(tmp_path, fsync=False, kept_folders=["team/jobs/active"])
    for key in ("team/jobs/active/job", "team/runs/r/order"):
        meta = store.put(key, b"x", generation=0)
        store.delete(key, generation=meta.generation)
    assert (tmp_path / "team" / "jobs" / "active").is_dir()
    assert not (tmp_path / "team" / "runs").exists()
