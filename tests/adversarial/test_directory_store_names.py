"""Which files are objects and which keys are files: names that cannot be, links, special files, and folders."""

from __future__ import annotations

import os
import socket
import stat
import threading
from pathlib import Path

import pytest

from bastion.adapters.folder.store import DirectoryStore
from bastion.core.errors import NotFound, StoreError
from bastion.folder_format.keys import hidden_name
from tests.adversarial.conftest import generation, keys

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


def test_a_folder_that_people_copy_files_into_stays_when_its_last_object_goes(tmp_path: Path) -> None:
    store = DirectoryStore(tmp_path, fsync=False, kept_folders=["team/jobs/active"])
    for key in ("team/jobs/active/job", "team/runs/r/order"):
        meta = store.put(key, b"x", generation=0)
        store.delete(key, generation=meta.generation)
    assert (tmp_path / "team" / "jobs" / "active").is_dir()
    assert not (tmp_path / "team" / "runs").exists()


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
