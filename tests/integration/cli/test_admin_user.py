"""`bastion admin user` at a storage endpoint that enforces policies: what it grants and takes, what it finds wrong."""

from __future__ import annotations

import json
import shlex
from collections.abc import Callable, Iterator
from pathlib import Path
from urllib.parse import quote

import pytest

from bastion.cli.main import main
from bastion.core.bucket import keys
from bastion.core.model import identity
from tests.support.rights import how_to
from tests.support.rights.bindings import Granted, policy
from tests.support.rights.deployment import opened
from tests.support.rights.expected import READS, WRITES
from tests.support.rights.how_to import BASTION, BUCKET
from tests.support.rights.stage import Stage

ALICE = "--member=user:alice@example.com"
WRITER = f"projects/{how_to.PROJECT}/roles/bastionWriter"

Run = Callable[..., tuple[int, str, str]]


@pytest.fixture(scope="module")
def endpoint(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stage]:
    with opened(tmp_path_factory.mktemp("buckets"), how_to.roles(how_to.SHARED)) as stage:
        stage.grant(how_to.folders(how_to.SHARED), how_to.granted(how_to.SHARED))
        yield stage


@pytest.fixture
def stage(endpoint: Stage) -> Iterator[Stage]:
    """Without inboxes."""
    yield endpoint
    bucket = endpoint.client("daemon").bucket(BUCKET)
    for place in (f"{BASTION}/{keys.INBOX}", f"{BASTION}/{keys.IDENTITY}"):
        for blob in bucket.list_blobs(prefix=place):
            blob.delete()
    for name in ("alice", "bob", "research"):
        endpoint.ask("DELETE", f"{folder_path(name)}?allowNonEmpty=true", {}, missing_is_fine=True)


@pytest.fixture
def run(stage: Stage, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Run:
    monkeypatch.setenv("BASTION_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("BASTION_ROOT", f"gs://{BUCKET}/{BASTION}")
    monkeypatch.setenv("STORAGE_EMULATOR_HOST", stage.url)

    def run_as(*arguments: str, caller: str = "admin") -> tuple[int, str, str]:
        monkeypatch.setenv("GOOGLE_AUTH_TOKEN_FOR_TESTING", caller)
        capsys.readouterr()
        code = main(["admin", "user", *arguments])
        return code, *capsys.readouterr()

    return run_as


def folder_path(name: str) -> str:
    return f"b/{BUCKET}/managedFolders/{quote(f'{BASTION}/inbox/{name}/', safe='')}"


def set_members(stage: Stage, *members: str) -> None:
    """Make these the writers of alice's inbox."""
    granted = [
        Granted(bucket=BUCKET, folder=f"{BASTION}/inbox/alice/", role=WRITER, member=member, condition=None)
        for member in members
    ]
    stage.ask("PUT", f"{folder_path('alice')}/iam", policy(granted))


def rights(stage: Stage, caller: str, name: str = "alice") -> set[str]:
    return stage.rights(caller, BUCKET, f"{BASTION}/{keys.active('job', name)}")


def known(stage: Stage) -> dict[str, str]:
    blob = stage.client("daemon").bucket(BUCKET).blob(f"{BASTION}/{keys.IDENTITY}")
    found = identity.read(blob.download_as_bytes()) if blob.exists() else identity.OPEN
    return {name: inbox.member for name, inbox in found.users.items()}


def test_an_inbox_is_given_shown_and_taken(run: Run, stage: Stage) -> None:
    assert rights(stage, "user") == READS
    code, _, said = run("add", "alice", ALICE)
    assert code == 0
    assert "user:alice@example.com may write to inbox/alice/\n" in said
    assert "bastion admin inbox enable" in said
    assert (rights(stage, "user"), rights(stage, "other user")) == (WRITES, READS)
    assert run("add", "alice", ALICE)[0] == 0
    assert run("list")[1].splitlines() == [
        "NAME   OF    MEMBER                  PROBLEM",
        "alice  user  user:alice@example.com",
    ]
    code, _, said = run("remove", "alice")
    assert code == 0
    assert "nobody may write to inbox/alice/ any more" in said
    assert rights(stage, "user") == READS
    assert known(stage) == {}
    assert "there are no inboxes" in run("list")[2]


def test_a_dry_run_prints_what_gcloud_does_and_changes_nothing(run: Run, stage: Stage) -> None:
    code, out, said = run("add", "alice", ALICE, "--dry_run")
    assert (code, said) == (0, "dry run: nothing was changed\n")
    url = f"gs://{BUCKET}/{BASTION}/inbox/alice/"
    assert [shlex.split(line) for line in out.splitlines()] == [
        ["gcloud", "storage", "managed-folders", "create", url],
        ["gcloud", "storage", "managed-folders", "add-iam-policy-binding", url, ALICE, f"--role={WRITER}"],
    ]
    assert known(stage) == {}
    assert run("add", "alice", ALICE)[0] == 0
    code, out, _ = run("remove", "alice", "--dry_run")
    assert out.startswith(f"gcloud storage managed-folders remove-iam-policy-binding {url} {ALICE} --role={WRITER}")
    assert rights(stage, "user") == WRITES


def test_a_project_shares_an_inbox(run: Run, stage: Stage) -> None:
    assert run("add", "research", "--member=group:tpu-users@example.com", "--project=research")[0] == 0
    assert [rights(stage, caller, "research") for caller in ("user", "other user", "stranger")] == [
        WRITES,
        WRITES,
        set(),
    ]
    assert "research  project research  group:tpu-users@example.com" in run("list")[1]


def test_list_names_each_thing_that_is_wrong_and_what_mends_it(run: Run, stage: Stage) -> None:
    def problems(name: str = "alice") -> list[str]:
        code, out, _ = run("list", "--output=json")
        assert code == 0
        found: list[str] = json.loads(out)["inboxes"][name]["problems"]
        return found

    assert run("add", "alice", ALICE)[0] == 0
    assert problems() == []
    set_members(stage)
    (problem,) = problems()
    assert problem == f"user:alice@example.com may not write there; run it again: bastion admin user add alice {ALICE}"
    assert run(*shlex.split(problem.partition("bastion admin user ")[2]))[0] == 0
    assert problems() == []
    set_members(stage, "user:alice@example.com", "user:mallory@example.com")
    assert problems() == ["user:mallory@example.com may write there, too; take that away"]
    code, _, said = run("add", "alice", ALICE)
    assert code == 64
    assert "user:mallory@example.com may write to" in said
    set_members(stage, "deleted:user:alice@example.com?uid=123")
    assert any("was deleted from the directory" in each for each in problems())
    stage.ask("DELETE", folder_path("alice"), {})
    (problem,) = problems()
    assert problem.startswith("has no managed folder; run it again")
    stage.ask("POST", f"b/{BUCKET}/managedFolders", {"name": f"{BASTION}/inbox/bob/active/"})
    assert problems("bob") == ["inbox/bob/active/ is a managed folder of its own, so others may write there; delete it"]
    stage.ask("DELETE", f"b/{BUCKET}/managedFolders/{quote(f'{BASTION}/inbox/bob/active/', safe='')}", {})


def test_rights_without_a_line_in_the_document_are_found_and_removed(run: Run, stage: Stage) -> None:
    stage.ask("POST", f"b/{BUCKET}/managedFolders", {"name": f"{BASTION}/inbox/alice/"})
    set_members(stage, "user:mallory@example.com")
    assert "user:mallory@example.com may write there, but the bastion does not know this inbox" in run("list")[1]
    assert run("remove", "alice")[0] == 0
    assert rights(stage, "stranger") == set()


def test_what_a_former_user_left_is_not_given_to_the_next_one_by_surprise(run: Run, stage: Stage) -> None:
    blob = stage.client("daemon").bucket(BUCKET).blob(f"{BASTION}/{keys.active('train', 'alice')}")
    blob.upload_from_string(b"spec")
    code, _, said = run("add", "alice", ALICE)
    assert code == 64
    assert "inbox/alice/ has jobs of a former user: train; cancel them first, or add --take_over" in said
    assert known(stage) == {}
    assert run("add", "alice", ALICE, "--take_over")[0] == 0


def test_an_account_is_changed_by_removing_and_adding(run: Run, stage: Stage) -> None:
    assert run("add", "alice", ALICE)[0] == 0
    code, _, said = run("add", "alice", "--member=user:bob@example.com")
    assert code == 64
    assert "the inbox alice is of user:alice@example.com already; run `bastion admin user remove alice` first" in said
    code, _, said = run("add", "bob", "--member=user:Alice@example.com")
    assert code == 64
    assert "has the inbox alice already, and would be two users to all limits" in said
    assert run("remove", "alice")[0] == 0
    assert run("add", "alice", "--member=user:bob@example.com")[0] == 0
    assert (rights(stage, "user"), rights(stage, "other user")) == (READS, WRITES)


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["add", "Alice", ALICE], "'Alice' is not a valid name of an inbox"),
        (["add", "../x", ALICE], "'../x' is not a valid name of an inbox"),
        (
            ["add", "alice"],
            "--member is missing: it says who may write to the inbox; write --member=user:alice@example",
        ),
        (["add", "alice", "--member=alice@example.com"], "is not a principal of Google Cloud"),
        (["add", "alice", "--member=allUsers"], "allUsers is everybody"),
        (["add", "alice", "--member=group:g@example.com"], "is several people, so the inbox would not prove who wrote"),
        (["add", "alice", ALICE, "--uid=7"], "--uid is for folder buckets"),
        (["add", ALICE], "add takes a name"),
        (["list", "alice"], "list takes no name"),
        (["rename", "alice"], "'rename' is none of add, remove, list"),
        (["ad", "alice"], "did you mean add?"),
        ([], "add|remove|list is missing; usage: bastion admin user "),
        (["remove", "alice"], "there is no inbox alice; bastion admin user list shows them"),
    ],
)
def test_bad_input_is_refused_with_what_to_write(run: Run, arguments: list[str], told: str) -> None:
    code, out, said = run(*arguments)
    assert (code, out) == (64, "")
    assert told in said


def test_who_is_no_administrator_is_told_which_right_is_missing(run: Run, stage: Stage) -> None:
    code, _, said = run("add", "alice", ALICE, caller="user")
    assert code == 1
    assert "alice@example.com lacks the permission storage.managedFolders.getIamPolicy" in said
    assert "Or let an owner of the bucket run what --dry_run --role=ROLE prints" in said
    assert run("add", "alice", ALICE, "--dry_run", f"--role={WRITER}", caller="user")[0] == 0
    code, _, said = run("list", caller="user")
    assert code == 0
    assert "who may write is not known: " in said
    assert "storage.managedFolders.list" in said


def test_an_administrator_without_the_role_on_inboxes_is_told_what_to_do(run: Run, stage: Stage) -> None:
    inbox = f"b/{BUCKET}/managedFolders/{quote(f'{BASTION}/inbox/', safe='')}/iam"
    own = [one for one in how_to.granted(how_to.SHARED) if one.folder == f"{BASTION}/inbox/"]
    stage.ask("PUT", inbox, policy([]))
    try:
        code, _, said = run("add", "alice", ALICE, f"--role={WRITER}")
        assert code == 1
        assert "storage.managedFolders.getIamPolicy" in said
        assert known(stage) == {}
    finally:
        stage.ask("PUT", inbox, policy(own))
