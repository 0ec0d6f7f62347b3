"""`bastion admin project-admin` and `admin user` on a simulated bastion."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import quota
from bastion.core.bucket import keys
from tests.cli.quota_files import shares

HEAD = "# ours\n"


@pytest.fixture
def file(bastion):
    """Reads the quota file's text."""
    bastion.write_quota(HEAD.encode() + shares(1, 1))
    bastion.settle(4)
    return lambda: bastion.store.get(keys.PROJECT_QUOTAS).data.decode()


def admins(text: str) -> quota.Policy:
    return quota.load(text.encode()).admins


def test_an_admin_is_added_with_the_checks_and_the_former_copy_of_an_upload(run, bastion, file) -> None:
    before = file()
    done = run("admin", "project-admin", "add", "bob", "--project=a", "--wait", code=0)
    assert "Admins\n  of project a added: bob\n" in done.out
    assert "the previous file is kept; to restore it" in done.err
    assert file() == before + '\n[admins.projects]\na = ["bob"]\n'
    (former,) = bastion.listed(keys.FORMER_QUOTAS)
    assert bastion.store.get(former).data.decode() == before
    assert "bob is an admin of project a already" in run("admin", "project-admin", "add", "bob", "--project=a").err
    assert run("admin", "project-admin", "list", code=0).out == "ADMIN  OF\nbob    project a\n"
    run("admin", "project-admin", "add", "carol@example.com", "--all_projects", code=0)
    listed = json.loads(run("admin", "project-admin", "list", "--output=json", code=0).out)
    assert listed == {"bastion": ["carol@example.com"], "projects": {"a": ["bob"]}}
    assert file().startswith(HEAD)


def test_a_dry_run_shows_the_change_and_writes_nothing(run, file) -> None:
    before = file()
    done = run("admin", "project-admin", "add", "bob", "--project=a", "--dry_run", code=0)
    assert "of project a added: bob" in done.out
    assert "dry run: nothing was written" in done.err
    assert file() == before


def test_the_last_admin_who_removes_himself_is_asked_again(run, bastion, file) -> None:
    run("admin", "project-admin", "add", "alice", "--all_projects", code=0)
    run("admin", "project-admin", "add", "alice", "--project=a", code=0)
    run("admin", "project-admin", "remove", "alice", "--project=a", code=0)  # one of the bastion is left
    with_admin = file()
    done = run("admin", "project-admin", "remove", "alice", "--all_projects", code=64)
    assert (
        "alice is the last admin of the bastion: afterwards only its submitter could cancel a job; add another admin "
        "first, or use --yes; nothing was written" in done.err
    )
    assert file() == with_admin
    run("admin", "project-admin", "remove", "alice", "--all_projects", "--yes", code=0)
    assert admins(file()).bastion == ()
    assert (
        "alice is no admin of the bastion already"
        in run("admin", "project-admin", "remove", "alice", "--all_projects", code=0).err
    )


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["add", "bob"], "name one of --project=P and --all_projects"),
        (["add", "bob", "--project=a", "--all_projects"], "name one of --project=P and --all_projects"),
        (["add", "bob", "--project=aa"], "'aa' is not a project of the quota file; did you mean a?"),
        (["add", "b" * 300, "--project=a"], "is not a user id; it has 1 to"),
        (["add", "--project=a"], "add takes a name"),
        (["list", "bob"], "list takes no name"),
        (["give", "bob"], "'give' is none of add, remove, list"),
    ],
)
def test_bad_input_is_refused_with_what_to_write(run, file, arguments, told) -> None:
    before = file()
    assert told in run("admin", "project-admin", *arguments, code=64).err
    assert file() == before


def test_an_unusual_file_is_not_changed_and_the_lines_to_write_are_told(run, bastion, file) -> None:
    bastion.write_quota(b'admins = { bastion = ["x"] }\n' + shares(1, 1))
    done = run("admin", "project-admin", "add", "bob", "--project=a", code=64)
    assert done.err.startswith(
        '[admins.projects]\na = ["bob"]\nbastion: the quota file\'s [admins] is laid out in a way'
    )


def test_without_a_valid_quota_file_nothing_is_written(run, bastion) -> None:
    bastion.write_quota(b"[broken")
    assert "is not valid" in run("admin", "project-admin", "list", code=64).err
    meta = bastion.store.head(keys.PROJECT_QUOTAS)
    bastion.store.delete(keys.PROJECT_QUOTAS, generation=meta.generation)
    assert "there is no quota file" in run("admin", "project-admin", "add", "bob", "--project=a", code=64).err


def test_a_quota_file_that_is_elsewhere_is_not_called_missing(run, bastion, file, tmp_path: Path) -> None:
    file()
    (tmp_path / "admins").mkdir()
    told = run("admin", "project-admin", "list", f"--quota_root={tmp_path}/admins/test-bastion", code=64).err
    assert "the daemon reads its quota file under memory/test-bastion" in told
