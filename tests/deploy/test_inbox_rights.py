"""Who may do what in a bastion's buckets with inboxes: docs/how-to/share-a-bastion.md, `inboxes` of deploy/terraform.

As test_rights.py does for mode `open`, with the same kinds of objects and callers.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from pathlib import Path

import pytest

from bastion.adapters.gcs.inbox_rights import GcsInboxRights
from bastion.adapters.gcs.managed_folders import ManagedFolders
from bastion.cli import parsing
from bastion.core.bucket import keys
from bastion.core.model.identity import Inbox
from tests.support.rights import how_to
from tests.support.rights.bindings import Granted
from tests.support.rights.deployment import INBOXES, opened, terraform
from tests.support.rights.expected import (
    IN_ROOT,
    OTHERS,
    ROWS,
    WRITES,
    expected_with_inboxes,
    found,
)
from tests.support.rights.how_to import BASTION, BUCKET
from tests.support.rights.stage import Stage
from tests.support.terraform.bucket_module import MODULE


def granted_by_page(stage: Stage) -> None:
    """What both pages grant with gcloud, and then what `bastion admin user add` does as an administrator."""
    stage.grant(how_to.folders(how_to.SHARED), how_to.granted(how_to.SHARED))
    rights = GcsInboxRights(ManagedFolders(BUCKET, client=stage.client("admin")), BASTION)
    for name, member in added_by_page().items():
        rights.grant(name, Inbox(member=member))


def added_by_page() -> dict[str, str]:
    """Members by inbox, before the section about projects."""
    page = how_to.SHARE_PAGE.partition("## Who may do what")[0]
    added = [words for words in how_to.commands(page, "bastion") if words[:3] == ["admin", "user", "add"]]
    return {words[3]: words[4].partition("=")[2] for words in added}


@pytest.fixture(scope="module")
def stage(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stage]:
    """What Terraform makes."""
    module = terraform(inboxes=INBOXES)
    with opened(tmp_path_factory.mktemp("buckets"), module.roles) as stage:
        stage.grant(module.folders, module.granted)
        yield stage


@pytest.mark.parametrize("caller", [*(caller for callers in ROWS.values() for caller in callers), *OTHERS])
def test_everybody_has_the_rights_of_his_row(stage: Stage, caller: str) -> None:
    wanted = expected_with_inboxes(caller)
    assert found(stage, caller, wanted) == wanted
    assert any(wanted.values()) is (caller not in OTHERS)


def test_the_pages_and_the_command_of_an_administrator_give_the_same_inboxes(tmp_path: Path) -> None:
    with opened(tmp_path, how_to.roles(how_to.SHARED)) as stage:
        granted_by_page(stage)
        for caller in ("user", "other user"):
            wanted = {place: of for place, of in expected_with_inboxes(caller).items() if "/inbox/" in place}
            assert found(stage, caller, wanted) == wanted


def test_every_row_and_every_place_of_the_table_is_tried() -> None:
    rows = how_to.table(how_to.SHARE_PAGE)
    assert [who for who, _, _ in rows] == list(ROWS)
    named = {place for row in rows for place in re.findall(r"`(\w+/[\w/.<>]*)`", " ".join(row))}
    assert named == {"inbox/<user>/", "benchmarks/", "bundles/", keys.IDENTITY}
    assert {name for name in named if not name.startswith(keys.INBOX)} <= {
        *IN_ROOT,
        *(key.partition("/")[0] + "/" for key in IN_ROOT),
    }


def test_terraform_grants_what_the_pages_and_the_command_grant() -> None:
    module = terraform(inboxes=INBOXES)
    assert added_by_page() == INBOXES
    rights = GcsInboxRights(_NoRequests(), BASTION, role=f"projects/{how_to.PROJECT}/roles/bastionWriter")  # type: ignore[arg-type]
    lines = [
        shlex.split(line)[1:]
        for name, member in INBOXES.items()
        for line in rights.granting(name, Inbox(member=member))
    ]
    by_command = [how_to.granted_by(words) for words in lines if "add-iam-policy-binding" in words]
    made = [(BUCKET, words[3].removeprefix(f"gs://{BUCKET}/")) for words in lines if "create" in words]
    assert told(module.granted) == told([*how_to.granted(how_to.SHARED), *by_command])
    assert sorted(module.folders) == sorted([*how_to.folders(how_to.SHARED), *made])
    assert {name: sorted(of) for name, of in module.roles.items()} == {
        name: sorted(of) for name, of in how_to.roles(how_to.SHARED).items()
    }


def told(granted: list[Granted]) -> list[str]:
    return sorted(one.told for one in granted)


class _NoRequests:
    def url(self, name: str) -> str:
        return f"gs://{BUCKET}/{name}"


def test_every_folder_that_is_granted_is_tried() -> None:
    tried = expected_with_inboxes("user")
    for granted in terraform(inboxes=INBOXES).granted:
        assert any(place.startswith(f"{granted.bucket}/{granted.folder}") for place in tried), granted.told


def test_the_commands_of_the_page_take_their_flags() -> None:
    lines = how_to.commands(how_to.SHARE_PAGE, "bastion")
    assert {words[1] for words in lines if words[0] == "admin"} == {"user", "project-admin", "inbox"}
    for words in lines:
        entry, count = parsing.find(words)
        parsing.parse(entry.name, entry.load(), words[count:])


@pytest.mark.parametrize("caller", ["user", "daemon", "worker", "stranger"])
def test_only_administrators_give_inboxes(stage: Stage, caller: str) -> None:
    rights = GcsInboxRights(
        ManagedFolders(BUCKET, client=stage.client(caller)),
        BASTION,
        role=f"projects/{how_to.PROJECT}/roles/bastionWriter",
    )
    with pytest.raises(Exception, match=r"storage\.managedFolders\.create"):
        rights.grant("mallory", Inbox(member="user:mallory@example.com"))


OF_USER = 'folder = "inbox/${name}/", role = "writer"'
MISTAKES = {
    "one inbox for all": (OF_USER, 'folder = "inbox/", role = "writer"', "other user"),
    "users still write specs": ("openers = local.open ? var.users : []", "openers = var.users", "user"),
    "users write the whole ROOT": (
        '{ folder = "", role = "reader", member = user', '{ folder = "", role = "writer", member = user', "user",
    ),
    "names are prefixes": (OF_USER, 'folder = "inbox/al/", role = "writer"', "user"),
}  # fmt: skip


@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_mistake_in_the_bindings_changes_what_is_found(mistake: str, tmp_path: Path) -> None:
    was, planted, caller = MISTAKES[mistake]
    text = (MODULE / "main.tf").read_text("utf-8")
    assert was in text
    module = terraform(text.replace(was, planted), inboxes=INBOXES)
    wanted = {
        place: rights
        for place, rights in expected_with_inboxes(caller).items()
        if "/inbox/" in place or "/jobs/active/" in place
    }
    with opened(tmp_path, module.roles) as stage:
        stage.grant(module.folders, module.granted)
        got = found(stage, caller, wanted)
    assert got != wanted
    assert all(rights <= WRITES for rights in got.values())
