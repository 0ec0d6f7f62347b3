"""`bastion.ports.InboxProof`: what another user puts into an inbox, or changes there, is refused or has a problem."""

from __future__ import annotations

import os
import stat
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import pytest

from bastion.adapters.folder.store import DirectoryStore
from bastion.adapters.inbox_proof import FolderProof
from bastion.adapters.prefixed_store import PrefixedStore
from bastion.core.bucket import keys
from bastion.core.bucket.objects import FileFacts
from bastion.core.errors import AccessDenied, StoreError
from bastion.core.model.identity import Inbox
from bastion.folder_format import inboxes, places
from bastion.folder_format.keys import HIDDEN_FOLDER
from bastion.ports import ObjectMeta, ObjectStore
from tests.support.inbox_stages import InboxStage, endpoint_stage, folder_stage
from tests.support.unix_users import ALICE, BOB, DAEMON, MALLORY, TEAM, as_root, call_as

JOB = keys.active("job", "alice")
REQUEST = keys.user_state("job", "alice")


@pytest.fixture(params=[pytest.param("folder", marks=as_root), "endpoint"])
def stage(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[InboxStage]:
    with folder_stage() if request.param == "folder" else endpoint_stage(tmp_path) as stage:
        yield stage


@pytest.fixture
def folder() -> Iterator[InboxStage]:
    with folder_stage() as stage:
        yield stage


def put(store: ObjectStore, key: str = JOB, data: bytes = b"spec", generation: int = 0) -> ObjectMeta:
    return store.put(key, data, generation=generation)


def delete(store: ObjectStore, key: str = JOB) -> None:
    meta = store.head(key)
    assert meta is not None
    store.delete(key, generation=meta.generation)


def overwrite(store: ObjectStore, key: str = JOB) -> None:
    meta = store.head(key)
    assert meta is not None
    store.put(key, b"forged", generation=meta.generation)


def read(store: ObjectStore, key: str = JOB) -> bytes:
    return store.get(key).data


@pytest.mark.parametrize("key", [JOB, REQUEST])
def test_what_a_user_writes_is_his_and_the_daemon_reads_and_removes_it(stage: InboxStage, key: str) -> None:
    stage.call("alice", partial(put, key=key))
    assert stage.problems() == {key: ""}
    assert stage.call("daemon", partial(read, key=key)) == b"spec"
    stage.call("alice", partial(overwrite, key=key))
    assert stage.problems() == {key: ""}
    stage.call("daemon", partial(delete, key=key))
    assert stage.problems() == {}
    stage.call("alice", partial(put, key=key))
    stage.call("alice", partial(delete, key=key))
    assert stage.problems() == {}


@pytest.mark.parametrize("who", ["bob", "mallory"])
@pytest.mark.parametrize("key", [JOB, REQUEST])
def test_what_another_user_writes_there_is_refused_or_has_a_problem(stage: InboxStage, key: str, who: str) -> None:
    try:
        stage.call(who, partial(put, key=key))
    except AccessDenied:
        assert stage.problems() == {}
    else:
        assert "belongs to the user" in stage.problems()[key]


@pytest.mark.parametrize("who", ["bob", "mallory"])
@pytest.mark.parametrize("change", [overwrite, delete])
def test_nobody_changes_or_removes_what_another_user_wrote(
    stage: InboxStage, who: str, change: Callable[[ObjectStore], None]
) -> None:
    stage.call("alice", put)
    with pytest.raises(StoreError):
        stage.call(who, change)
    assert stage.problems() == {JOB: ""}
    assert stage.call("daemon", read) == b"spec"


@pytest.mark.parametrize(
    "key",
    ["jobs/states/job", "jobs/invalid/job~alice", keys.IDENTITY, keys.IDENTITY_IN_FORCE, "inbox/eve/active/job"],
)
@pytest.mark.parametrize("who", ["alice", "mallory"])
def test_nobody_writes_what_the_daemon_decides_by(stage: InboxStage, key: str, who: str) -> None:
    with pytest.raises(StoreError):
        stage.call(who, partial(put, key=key))
    assert stage.call("daemon", lambda store: store.head(key)) is None


# -- a folder: links, modes, and files that are put there again -----------------------------------------------------


def path_of(stage: InboxStage, key: str) -> Path:
    assert stage.folder is not None
    return stage.folder / key


@as_root
def test_a_link_is_no_object_and_a_further_name_makes_a_file_prove_nothing(folder: InboxStage) -> None:
    outside = path_of(folder, "inbox/alice/active/other")
    call_as(ALICE, lambda: path_of(folder, JOB).symlink_to("/etc/passwd"))
    assert folder.problems() == {}
    path_of(folder, JOB).unlink()
    folder.call("alice", put)
    call_as(ALICE, lambda: os.link(path_of(folder, JOB), outside))
    assert all("2 names" in problem for problem in folder.problems().values())
    assert len(folder.problems()) == 2
    with pytest.raises(PermissionError):
        call_as(MALLORY, lambda: os.link(path_of(folder, JOB), outside.with_name("third")))


@as_root
@pytest.mark.parametrize("mode", [0o660, 0o646, 0o622])
def test_a_file_that_others_may_write_proves_nothing(folder: InboxStage, mode: int) -> None:
    folder.call("alice", put)
    path_of(folder, JOB).chmod(mode)
    assert "others could change it" in folder.problems()[JOB]


@as_root
def test_a_file_that_the_daemon_cannot_read_has_a_problem(folder: InboxStage) -> None:
    folder.call("alice", put)
    path_of(folder, JOB).chmod(0o600)
    assert "the daemon cannot read it" in folder.problems()[JOB]


@as_root
def test_closing_a_bucket_closes_objects_whose_keys_are_no_paths(folder: InboxStage) -> None:
    assert folder.folder is not None
    objects = folder.folder.parent / HIDDEN_FOLDER
    folder.call("daemon", partial(put, key="jobs/states//x"))
    hidden = [path for path in objects.iterdir() if path.is_file() and len(path.name) >= 64]
    assert len(hidden) == 2
    for path in hidden:
        path.chmod(0o660)  # as a team's umask made them in mode open
    call_as(DAEMON, lambda: inboxes.close(str(objects.parent), folder.folder.name))
    assert {stat.S_IMODE(path.stat().st_mode) for path in hidden} == {0o640}


@as_root
def test_an_old_file_cannot_be_moved_back_by_others(folder: InboxStage) -> None:
    """While it is there, its folder is sticky; once the daemon has removed it, nobody has a name of it."""
    folder.call("alice", put)
    aside = path_of(folder, "inbox/alice/user_states/aside")
    for take in (os.rename, os.link):
        with pytest.raises(PermissionError):
            call_as(MALLORY, partial(take, path_of(folder, JOB), aside))
    copy = path_of(folder, "bundles/copy")

    def copied() -> None:
        copy.write_bytes(path_of(folder, JOB).read_bytes())
        copy.rename(path_of(folder, JOB).with_name("again"))

    call_as(MALLORY, copied, umask=0o027)
    assert f"belongs to the user {MALLORY}" in folder.problems()["inbox/alice/active/again"]


@as_root
def test_the_modes_of_the_folders_are_what_they_should_be(folder: InboxStage) -> None:
    folder.call("alice", put)
    folder.call("daemon", delete)
    modes = {
        name: stat.S_IMODE(path_of(folder, name).stat().st_mode)
        for name in ("inbox", "inbox/alice", "inbox/alice/active", "inbox/alice/user_states", "bundles")
    }
    assert modes == {
        "inbox": 0o2750,
        "inbox/alice": 0o2750,
        "inbox/alice/active": 0o3770,
        "inbox/alice/user_states": 0o3770,
        "bundles": 0o3770,
    }, "an empty folder of an inbox stays"
    assert {path_of(folder, name).stat().st_gid for name in modes} == {TEAM}


@as_root
def test_a_writer_with_the_teams_umask_leaves_nothing_that_the_group_may_change(folder: InboxStage) -> None:
    root = folder.folder
    assert root is not None

    def written(*keys_: str) -> None:
        store = PrefixedStore(DirectoryStore(root.parent), f"{root.name}/")
        for key in keys_:
            store.put(key, b"first", generation=0)
            overwrite(store, key)

    decided_by = (keys.IDENTITY, keys.DAEMON_SETTINGS, keys.PROJECT_QUOTAS, f"{keys.FORMER_QUOTAS}1")
    call_as(DAEMON, lambda: written(*decided_by), umask=0o002)
    call_as(ALICE, lambda: written("bundles/code", JOB, REQUEST), umask=0o002)
    for key in (*decided_by, "bundles/code", JOB, REQUEST):
        for uid in (BOB, MALLORY):
            with pytest.raises(PermissionError):
                call_as(uid, partial(Path.open, path_of(folder, key), "r+b"))
    assert stat.S_IMODE(path_of(folder, keys.FORMER_QUOTAS).stat().st_mode) == 0o2750, "nor may it replace files"


@as_root
def test_nobody_can_open_a_file_for_writing_before_it_is_in_its_place(folder: InboxStage) -> None:
    assert folder.folder is not None
    objects = folder.folder.parent / HIDDEN_FOLDER

    def made() -> int:
        opened = os.open(objects, os.O_RDONLY | os.O_DIRECTORY)
        content = places.new_temporary(opened)
        mode = stat.S_IMODE(os.fstat(content.file).st_mode)
        content.discard()
        return mode

    assert call_as(ALICE, made, umask=0o002) == 0o640


@as_root
def test_a_hidden_object_cannot_be_put_beside_the_folders(folder: InboxStage) -> None:
    assert folder.folder is not None
    hidden = folder.folder.parent / ".objects"
    with pytest.raises(PermissionError):
        call_as(MALLORY, lambda: (hidden / "x").write_bytes(b""))


def test_a_user_without_a_number_a_projects_inbox_and_an_unsafe_kernel_are_refused(tmp_path: Path) -> None:
    safe, unsafe = tmp_path / "safe", tmp_path / "unsafe"
    safe.write_text("1\n")
    unsafe.write_text("0\n")
    meta = ObjectMeta(key=JOB, size=1, generation=1, updated=0.0, file=FileFacts(uid=BOB, mode=0o640, links=1))
    proof = FolderProof(str(tmp_path), uid_of={"bob": BOB}.get, hard_links=safe)
    assert proof.problem("bob", Inbox(), meta) == ""
    assert proof.problem("bob", Inbox(uid=ALICE), meta).startswith(f"the file belongs to the user {BOB}")
    assert "this machine has no user alice" in proof.problem("alice", Inbox(), meta)
    assert "proves users, not groups" in proof.problem("bob", Inbox(project="b"), meta)
    assert "fs.protected_hardlinks" in FolderProof(str(tmp_path), uid_of={"bob": BOB}.get, hard_links=unsafe).problem(
        "bob", Inbox(), meta
    )
