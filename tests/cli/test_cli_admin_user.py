"""`bastion admin user` on S3 and in a folder, and what it says about a user's jobs and the quota file."""

from __future__ import annotations

import json
import os

import pytest

from bastion.core.bucket import keys
from bastion.core.model import identity
from bastion.core.model.identity import Identity, Inbox
from tests.cli.quota_files import shares
from tests.support.unix_users import as_root

S3 = "--root=s3://my-team-bastion/test-bastion"
ALICE = "--member=arn:aws:iam::123456789012:role/alice"
ADMINS = b'[admins]\nbastion = ["alice"]\nprojects.a = ["alice"]\n'


def known(bastion) -> Identity:
    return identity.read(bastion.store.get(keys.IDENTITY).data)


def test_on_s3_the_document_is_changed_and_the_policy_printed(run, bastion) -> None:
    dry = run("admin", "user", "add", "alice", ALICE, S3, "--dry_run", code=0)
    assert bastion.store.head(keys.IDENTITY) is None
    done = run("admin", "user", "add", "alice", ALICE, S3, code=0)
    assert done.out == dry.out
    *policy, command = done.out.splitlines()
    assert "inbox/alice/*" in json.dumps(json.loads("\n".join(policy)))
    assert command.startswith("aws iam put-role-policy --role-name=alice --policy-name=test-bastion-inbox-alice ")
    assert "now run the last line with the document above it" in done.err
    assert known(bastion).users["alice"].member == ALICE.partition("=")[2]
    listed = run("admin", "user", "list", S3, code=0)
    assert "alice  user  arn:aws:iam::123456789012:role/alice" in listed.out
    assert "S3 does not tell who may write" in listed.err
    done = run("admin", "user", "remove", "alice", S3, code=0)
    assert done.out.startswith("aws iam delete-role-policy --role-name=alice")
    assert "he may write to his inbox until that line was run" in done.err
    assert known(bastion).users == {}


def test_remove_says_what_is_still_his(run, bastion) -> None:
    bastion.write_quota(shares(1, 1) + ADMINS)
    bastion.submit("train", instance_type="tpu-v4-32")
    bastion.settle(4)
    run("admin", "user", "add", "alice", ALICE, S3, code=0)
    said = run("admin", "user", "remove", "alice", S3, code=0).err
    assert "jobs of alice go on until they end: train; to end them: bastion cancel JOB, as an admin\n" in said
    assert "alice is still a member of a" in said
    assert "alice is still an admin: bastion admin project-admin remove alice --all_projects\n" in said
    assert "alice is still an admin of a: bastion admin project-admin remove alice --project=a\n" in said


def test_a_job_from_before_the_inboxes_is_not_given_to_the_next_user_of_that_name_by_surprise(run, bastion) -> None:
    bastion.submit("train", instance_type="tpu-v4-32")
    bastion.settle(4)
    bastion.use_inboxes({"alice": Inbox(member=ALICE.partition("=")[2])})
    bastion.settle(3)
    run("admin", "user", "remove", "alice", S3, code=0)
    again = ("admin", "user", "add", "alice", "--member=arn:aws:iam::123456789012:role/another-alice", S3)
    assert "has jobs of a former user: train; cancel them first, or add --take_over" in run(*again, code=64).err
    run(*again, "--take_over", code=0)


def test_who_is_no_member_is_told_when_he_is_added(run, bastion) -> None:
    bastion.write_quota(shares(1, 1))
    said = run("admin", "user", "add", "zoe", "--member=arn:aws:iam::123456789012:role/zoe", S3, code=0).err
    assert "no project of the quota file has zoe as a member, so his jobs would wait" in said


def test_a_broken_document_and_one_that_changed_meanwhile_are_not_overwritten(run, bastion, monkeypatch) -> None:
    bastion.store.put(keys.IDENTITY, b"{broken", generation=0)
    assert f"{keys.IDENTITY} is not valid" in run("admin", "user", "add", "alice", ALICE, S3, code=64).err
    assert bastion.store.get(keys.IDENTITY).data == b"{broken"
    bastion.store.delete(keys.IDENTITY, generation=bastion.store.head(keys.IDENTITY).generation)
    put = bastion.store.put

    def late(key: str, data: bytes, *, generation: int):
        put(keys.IDENTITY, identity.OPEN.to_bytes(), generation=0)
        return put(key, data, generation=generation)

    monkeypatch.setattr(bastion.store, "put", late)
    assert "somebody else has changed" in run("admin", "user", "add", "alice", ALICE, S3, code=64).err
    assert known(bastion).users == {}


@as_root
def test_in_a_folder_modes_are_the_rights(run, tmp_path, monkeypatch) -> None:
    root = tmp_path / "bucket" / "team-bastion"
    root.mkdir(parents=True)
    monkeypatch.setenv("BASTION_ROOT", str(root))
    assert "the Unix user counts" in run("admin", "user", "add", "root", ALICE, code=64).err
    assert "this machine has no user nobody-here" in run("admin", "user", "add", "nobody-here", code=64).err
    dry = run("admin", "user", "add", "root", "--dry_run", code=0)
    assert f"mkdir --parents {root}/inbox/root/active {root}/inbox/root/user_states\n" in dry.out
    assert not (root / "inbox").exists()
    run("admin", "user", "add", "root", code=0)
    assert (root / "inbox" / "root" / "active").stat().st_mode & 0o7777 == 0o3770
    listed = run("admin", "user", "list", code=0)
    assert [line.split() for line in listed.out.splitlines()][1] == ["root", "user", "the", "Unix", "user"]
    os.link(root / "config" / "identity.json", root / "inbox" / "root" / "active" / "job")
    assert "has 2 names (hard links), so it is refused; delete it" in run("admin", "user", "list", code=0).out
    run("admin", "user", "remove", "root", code=0)
    assert (root / "inbox" / "root").stat().st_mode & 0o7777 == 0o700


@as_root
def test_inboxes_of_a_folder_are_turned_on_with_the_names_that_count_and_not_where_no_bastion_is(
    run, tmp_path, monkeypatch
) -> None:
    root = tmp_path / "bucket" / "team-bastion"
    root.parent.mkdir()
    monkeypatch.setenv("BASTION_ROOT", str(root))
    told = run("admin", "inbox", "enable", code=64).err
    assert f"there is no bastion at {root} yet; start its daemon first, or correct --root" in told
    run("admin", "user", "add", "eve", "--uid=64111", code=0)
    spec = root / "jobs" / "active" / "old"
    spec.parent.mkdir(parents=True)
    spec.write_bytes(b"{}")
    for path in (spec, root / "config" / "identity.json"):
        os.chown(path, 64111, -1)
    monkeypatch.setattr(os, "geteuid", lambda: 64110)  # root could change everything
    told = run("admin", "inbox", "enable", code=0).err
    assert "whose files count: eve (uid 64111); check them, because in mode open everybody could add inboxes" in told
    assert f"{spec} belongs to another user, who may still change it; use chown or delete it" in told
    assert "identity.json belongs" not in told, "it was written anew"


@pytest.mark.parametrize("flag", ["--role=projects/p/roles/x", "--uid=7"])
def test_flags_of_another_kind_of_bucket_are_refused(run, bastion, flag) -> None:
    assert f"{flag.partition('=')[0]} is for" in run("admin", "user", "add", "alice", ALICE, S3, flag, code=64).err
