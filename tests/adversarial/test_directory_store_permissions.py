"""What a user of the folder may not do is denied by name, and hides nothing else."""

from __future__ import annotations

import contextlib
import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from bastion.adapters.folder.store import DirectoryStore
from bastion.core.errors import AccessDenied
from tests.adversarial.conftest import keys

NOBODY = 65534


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
