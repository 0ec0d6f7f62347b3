"""`bastion.ports.InboxRights` in a folder bucket, with Unix users."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import pytest

from bastion.adapters.folder.inbox_rights import FolderInboxRights
from bastion.core.bucket import keys
from bastion.core.errors import AccessDenied, Refused
from bastion.core.model.identity import Inbox
from tests.support.unix_users import ALICE, BOB, DAEMON, MALLORY, as_root, call_as, shared_folder

pytestmark = as_root

HERS = Inbox(uid=ALICE)
SPEC = keys.active("job", "alice")


@pytest.fixture
def root() -> Iterator[Path]:
    """A ROOT of the daemon's user."""
    with shared_folder() as bucket:
        root = bucket / "team-bastion"
        call_as(DAEMON, partial(root.mkdir, 0o770))
        yield root


def as_daemon(root: Path, act: Callable[[FolderInboxRights], object]) -> object:
    return call_as(DAEMON, lambda: act(FolderInboxRights(str(root))))


def give(rights: FolderInboxRights) -> None:
    rights.grant("alice", HERS)


def problems(root: Path, **users: Inbox) -> dict[str, list[str]]:
    found = as_daemon(root, lambda rights: rights.findings(users))
    assert isinstance(found, dict)
    return found


def write(path: Path, text: str = "spec") -> None:
    path.write_text(text)


def test_a_user_writes_to_an_inbox_until_it_is_taken(root: Path) -> None:
    as_daemon(root, give)
    assert problems(root, alice=HERS) == {"alice": []}
    call_as(ALICE, partial(write, root / SPEC))
    as_daemon(root, lambda rights: rights.revoke("alice"))
    for changed in (SPEC, keys.active("other", "alice")):
        with pytest.raises(PermissionError):
            call_as(ALICE, partial(write, root / changed, "changed"))
    assert call_as(DAEMON, (root / SPEC).read_text) == "spec"
    assert problems(root) == {}
    as_daemon(root, give)
    call_as(ALICE, partial(write, root / SPEC, "changed"))


def test_the_printed_commands_make_the_same(root: Path) -> None:
    rights = FolderInboxRights(str(root))
    lines, taking = rights.granting("alice", HERS), rights.revoking("alice", HERS)
    call_as(DAEMON, lambda: [subprocess.run(["sh", "-c", line], check=True) for line in lines] and None)
    assert problems(root, alice=HERS) == {"alice": []}
    call_as(DAEMON, lambda: [subprocess.run(["sh", "-c", line], check=True) for line in taking] and None)
    with pytest.raises(PermissionError):
        call_as(ALICE, partial(write, root / SPEC))


def test_links_and_files_of_others_are_found(root: Path) -> None:
    as_daemon(root, give)
    folder = root / keys.INBOX / "alice" / "active"
    call_as(ALICE, partial(write, folder / "job"))
    call_as(ALICE, partial(os.link, folder / "job", folder / "again"))
    call_as(ALICE, partial(os.symlink, "/etc/hostname", folder / "link"))
    call_as(BOB, partial(write, folder / "forged"))
    found = " ".join(problems(root, alice=HERS)["alice"])
    assert f"{folder}/link is not a file (a link?), so it is refused; delete it" in found
    assert f"{folder}/job has 2 names (hard links), so it is refused" in found
    assert f"{folder}/forged belongs to the user {BOB}, so it is refused" in found


def test_a_missing_folder_a_link_and_a_wrong_mode_are_found_and_mended(root: Path) -> None:
    assert "has no folder" in problems(root, alice=HERS)["alice"][0]
    as_daemon(root, give)
    own = root / keys.INBOX / "alice"
    (own / "active").chmod(0o777)
    (problem,) = problems(root, alice=HERS)["alice"]
    assert problem.endswith("has the mode 777 instead of 3770; run it again: bastion admin user add alice --uid=64111")
    as_daemon(root, give)
    assert problems(root, alice=HERS) == {"alice": []}
    os.chown(own / "active", MALLORY, -1)
    assert (
        f"belongs to the user {MALLORY}, not to the daemon's; chown it to {DAEMON}"
        in problems(root, alice=HERS)["alice"][0]
    )
    own.rename(own.with_name("gone"))
    own.symlink_to("/tmp")
    assert "is not a folder (a link?)" in problems(root, alice=HERS)["alice"][0]
    with pytest.raises(Exception, match="cannot be made"):
        as_daemon(root, give)


def test_an_inbox_that_nobody_knows_is_found(root: Path) -> None:
    as_daemon(root, give)
    (problem,) = problems(root)["alice"]
    assert problem.startswith("others may write there, but the bastion does not know this inbox")


def test_only_the_daemons_user_gives_inboxes(root: Path) -> None:
    with pytest.raises(AccessDenied, match="run this as the user of the daemon"):
        call_as(MALLORY, lambda: FolderInboxRights(str(root)).grant("mallory", Inbox(uid=MALLORY)))


def test_what_a_folder_cannot_prove_is_refused(root: Path) -> None:
    rights = FolderInboxRights(str(root))
    assert "the Unix user counts" in rights.refusal(Inbox(member="user:alice@example.com"))
    assert "no group owns a file" in rights.refusal(Inbox(project="research"))
    with pytest.raises(Refused, match="this machine has no user nobody-here"):
        rights.grant("nobody-here", Inbox())
    assert "this machine has no user" in problems(root, **{"nobody-here": Inbox()})["nobody-here"][0]
