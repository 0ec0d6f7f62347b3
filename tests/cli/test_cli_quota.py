"""`bastion quota upload`, `show` and `diff`, on a simulated bastion and on two folders as buckets."""

from __future__ import annotations

import io
import json
import sys
from pathlib import Path

import pytest

from bastion.client.quota.upload import QuotaClient
from bastion.core.bucket import keys
from tests.cli.quota_files import shares


@pytest.fixture
def busy(bastion):
    """a-1 and a-2 of alice hold a's whole pool, and b-1 of bob waits."""
    bastion.write_quota(shares(1, 0))
    for name in ("a-1", "a-2"):
        bastion.submit(name, instance_type="tpu-v4-32")
        bastion.settle(4)
    bastion.submit("b-1", user="bob", project="b", instance_type="tpu-v4-32")
    bastion.settle(4)
    bastion.clock.advance(3 * 3600)
    bastion.settle(2)
    return bastion


def quota_file(bastion) -> bytes:
    return bastion.store.get(keys.PROJECT_QUOTAS).data


def former(bastion) -> list[str]:
    return bastion.listed(keys.FORMER_QUOTAS)


# -- upload ------------------------------------------------------------------------------------------------------------


def test_a_file_that_stops_a_running_job_is_refused_with_the_job_and_the_reason(run, busy, new) -> None:
    before = quota_file(busy)
    done = run("quota", "upload", str(new), code=64)
    assert "  a: v4 64 -> 32 (-32)\n  b: v4 0 -> 32 (+32)\n" in done.out
    assert "Running jobs that would stop: 1\n" in done.out
    assert "  a-2 of project a, user alice: tpu-v4-32, running for 3h\n" in done.out
    assert "frees capacity for b-1 of project b" in done.out
    assert "is using 64 v4 and its share is 32" in done.out
    assert "this file would stop 1 running job; nothing was written; use --yes to upload it anyway" in done.err
    assert quota_file(busy) == before
    assert former(busy) == []


def test_with_yes_it_is_uploaded_the_former_kept_and_the_job_stopped(run, busy, new, tmp_path) -> None:
    before = quota_file(busy)
    done = run("quota", "upload", str(new), "--yes", "--wait", code=0)
    assert quota_file(busy) == new.read_bytes()
    (kept,) = former(busy)
    assert busy.store.get(kept).data == before
    assert f"bastion quota upload {tmp_path}/memory/test-bastion/{kept}\n" in done.err
    generation = busy.json(keys.STATUS)["quota"]["generation"]
    assert done.err.endswith(f"generation {generation} is in force\n")
    busy.run_until(lambda: busy.status("b-1") == "ACTIVE")
    assert busy.status("a-1") == "ACTIVE"
    assert busy.status("a-2") == "PENDING"


def test_a_dry_run_answers_as_the_upload_would_and_writes_nothing(run, busy, new) -> None:
    before = busy.listed()
    assert run("quota", "upload", str(new), "--dry_run").code == 64
    allowed = run("quota", "upload", str(new), "--dry_run", "--yes", "--wait", code=0)
    assert "dry run: nothing was written" in allowed.err
    assert busy.listed() == before
    assert quota_file(busy) == shares(1, 0)


def test_the_refusal_as_json_names_the_jobs(run, busy, new) -> None:
    done = run("quota", "upload", str(new), "--output=json")
    document = json.loads(done.out)
    assert done.code == 64
    assert document["uploaded"] is False
    assert document["refused"] == "this file would stop 1 running job"
    (stopped,) = document["jobs"]["stopped"]
    assert (stopped["name"], stopped["claimant"], stopped["resources"]) == ("a-2", "b-1", {"v4": 32})
    assert document["difference"]["projects"]["a"]["entitlements"] == {"v4": {"before": 64, "after": 32}}
    uploaded = json.loads(run("quota", "upload", str(new), "--yes", "--wait", "--output=json").out)
    assert uploaded["uploaded"] is True
    assert uploaded["in_force"] is True
    assert [uploaded["former"]] == former(busy)


def test_the_same_file_again_writes_nothing(run, busy, tmp_path) -> None:
    same = tmp_path / "same.config"
    same.write_bytes(quota_file(busy))
    before = busy.store.head(keys.PROJECT_QUOTAS)
    done = run("quota", "upload", str(same), "--wait", code=0)
    assert "nothing to upload" in done.err
    assert busy.store.head(keys.PROJECT_QUOTAS) == before
    assert former(busy) == []


def test_other_comments_are_uploaded_although_nothing_changes(run, busy, tmp_path) -> None:
    other = tmp_path / "other.config"
    other.write_bytes(shares(2, 0, note="# the pool of 2026\n"))
    done = run("quota", "upload", str(other), code=0)
    assert done.out == "no changes: both files have the same meaning\n"
    assert quota_file(busy) == other.read_bytes()


def test_a_smaller_share_that_nobody_claims_is_uploaded_and_its_borrowing_told(run, bastion, new) -> None:
    bastion.write_quota(shares(1, 0))
    bastion.submit("a-1", instance_type="tpu-v4-64")
    bastion.settle(4)
    done = run("quota", "upload", str(new), code=0)
    assert "project a is using 64 v4; its share would be 32 instead of 64" in done.out
    bastion.settle(4)
    assert bastion.status("a-1") == "ACTIVE"


def test_a_smaller_pool_tells_what_does_not_start_any_more(run, busy, tmp_path) -> None:
    small = tmp_path / "small.config"
    small.write_bytes(shares(1, 1).replace(b"v4 = 64", b"v4 = 16").replace(b'"alice"', b'"carol"'))
    done = run("quota", "upload", str(small), code=0)
    assert "Waiting jobs that could no longer start: 1\n  b-1: needs more than the whole pool" in done.out
    assert "Running jobs that would continue but could not restart: 2\n  a-1: user alice is not a member" in done.out
    assert "64 of 16 v4 would be in use" in done.out


def test_the_first_file_needs_no_daemon(run, bastion, new) -> None:
    present = bastion.store.head(keys.PROJECT_QUOTAS)
    bastion.store.delete(keys.PROJECT_QUOTAS, generation=present.generation)
    done = run("quota", "upload", str(new), code=0)
    assert "there is no quota file" in done.err
    assert "resource type v4 is new" in done.out
    assert "to restore it" not in done.err
    assert quota_file(bastion) == new.read_bytes()


def test_without_a_daemon_what_happens_to_jobs_is_not_known_and_yes_is_needed(run, busy, tmp_path) -> None:
    more = tmp_path / "more.config"
    more.write_bytes(shares(1, 0).replace(b"v4 = 64", b"v4 = 65"))
    busy.daemon.close()
    done = run("quota", "upload", str(more), code=64)
    assert "the daemon has ended, so the information about jobs may be out of date" in done.err
    assert "it is unknown what this file does to running jobs; nothing was written" in done.err
    waited = run("quota", "upload", str(more), "--yes", "--wait", code=75)
    assert "is not in force: the daemon has ended; the file applies when one runs" in waited.err
    assert quota_file(busy) == more.read_bytes()


def test_a_broken_file_is_told_line_by_line_and_not_written(run, busy, tmp_path) -> None:
    broken = tmp_path / "broken.config"
    broken.write_bytes(shares(1, 0).replace(b"v4 = 64", b'v4 = "64"'))
    done = run("quota", "upload", str(broken), "--yes", code=64)
    assert "line 4" in done.err
    assert done.out == ""
    assert json.loads(run("quota", "upload", str(broken), "--output=json").out)["problems"][0]["line"] == 4
    assert quota_file(busy) == shares(1, 0)


def test_somebody_elses_change_in_between_is_kept(run, busy, new, monkeypatch) -> None:
    """The other one comes at the worst moment: after the difference was shown."""
    original = QuotaClient.replace

    def late(self, data, present):
        busy.write_quota(shares(3, 0))
        return original(self, data, present)

    monkeypatch.setattr(QuotaClient, "replace", late)
    done = run("quota", "upload", str(new), "--yes", code=64)
    assert "someone else changed" in done.err and "run the command again to see the difference" in done.err
    assert quota_file(busy) == shares(3, 0)


def test_a_former_file_comes_back_by_the_command_that_was_shown(run, busy, new, monkeypatch) -> None:
    run("quota", "upload", str(new), "--yes")
    (kept,) = former(busy)
    data = busy.store.get(kept).data
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(data)))
    assert run("quota", "upload", "-", "--yes").code == 0
    assert quota_file(busy) == data
    assert len(former(busy)) == 2


# -- show and diff -----------------------------------------------------------------------------------------------------


def test_the_file_in_force_is_shown_in_words_as_json_and_as_it_is(run, busy) -> None:
    done = run("quota", "show", code=0)
    assert "it is in force" in done.err
    assert "a        64  alice\n" in done.out
    document = json.loads(run("quota", "show", "--output=json").out)
    assert document["in_force"] is True
    assert document["projects"]["a"] == {"entitlement": {"v4": 64}, "members": ["alice"]}
    assert run("quota", "show", "--raw").out.encode() == quota_file(busy)
    assert run("quota", "show", "--raw", "--output=json").code == 64


def test_a_broken_file_shows_the_last_good_one_if_upload_kept_it(run, busy, new) -> None:
    run("quota", "upload", str(new), "--yes", "--wait")
    (kept,) = former(busy)
    busy.write_quota(b"broken")
    busy.settle(2)
    lost = run("quota", "show", code=64)
    assert "it is not in force" in lost.err and "not valid TOML" in lost.err
    generation = busy.json(keys.STATUS)["quota"]["generation"]
    busy.store.put(keys.former_quota(0.0, generation), new.read_bytes(), generation=0)
    found = run("quota", "show", code=0)
    assert "the last valid file, which is in force" in found.err
    assert "a        32  alice\n" in found.out
    assert kept in former(busy)


def test_no_quota_file_and_no_daemon_are_told(run, bastion) -> None:
    assert "no daemon has reported which file is in force" in run("quota", "show").err
    present = bastion.store.head(keys.PROJECT_QUOTAS)
    bastion.store.delete(keys.PROJECT_QUOTAS, generation=present.generation)
    done = run("quota", "show", code=64)
    assert "there is no quota file" in done.err and "bastion quota upload FILE" in done.err


def test_the_difference_of_two_files_is_told(run, new, tmp_path) -> None:
    old = tmp_path / "old.config"
    old.write_bytes(shares(1, 0))
    assert run("quota", "diff", str(old), str(new)).out == (
        "Projects and entitlements\n  a: v4 64 -> 32 (-32)\n  b: v4 0 -> 32 (+32)\n"
    )
    assert run("quota", "diff", str(new), str(new)).out == "no changes: both files have the same meaning\n"
    document = json.loads(run("quota", "diff", str(old), str(new), "--output=json").out)
    assert document["projects"]["b"]["entitlements"] == {"v4": {"before": 0, "after": 32}}
    old.write_bytes(b"")
    assert run("quota", "diff", str(old), str(new)).code == 64
    assert run("quota", "diff", "-", "-").code == 64


# -- a private bucket --------------------------------------------------------------------------------------------------


def test_a_private_bucket_gets_the_file_and_the_users_bucket_does_not(run, new, tmp_path: Path) -> None:
    for name in ("users", "admins"):
        (tmp_path / name).mkdir()
    private = ["--root=users/x-bastion", "--quota_root=admins/x-bastion"]
    run("quota", "upload", str(new), *private, code=0)
    assert (tmp_path / "admins/x-bastion" / keys.PROJECT_QUOTAS).read_bytes() == new.read_bytes()
    assert not (tmp_path / "users/x-bastion" / keys.PROJECT_QUOTAS).exists()
    new.write_bytes(shares(3, 1))
    again = run("quota", "upload", str(new), *private)
    (kept,) = (tmp_path / "admins/x-bastion" / keys.FORMER_QUOTAS).iterdir()
    command = f"bastion quota upload {kept} --root={tmp_path}/users/x-bastion --quota_root={tmp_path}/admins/x-bastion"
    assert command in again.err
    assert run(*command.split()[1:]).code == 0
    assert (tmp_path / "admins/x-bastion" / keys.PROJECT_QUOTAS).read_bytes() == shares(1, 1)


def test_the_setting_quota_root_counts_for_its_own_bastion_only(run, new, tmp_path: Path) -> None:
    for name in ("users", "admins"):
        (tmp_path / name).mkdir()
    assert run("config", "set", "quota_root", "admins/x-bastion").code == 0
    assert run("quota", "upload", str(new), "--root=users/x-bastion").code == 0
    assert (tmp_path / "admins/x-bastion" / keys.PROJECT_QUOTAS).exists()
    other = run("quota", "upload", str(new), "--root=users/y-bastion")
    assert "it is for x-bastion" in other.err
    assert (tmp_path / "users/y-bastion" / keys.PROJECT_QUOTAS).exists()


@pytest.mark.parametrize(
    ("quota_root", "message"),
    [
        ("admins/y-bastion", "is for y-bastion, but the bastion is x-bastion"),
        ("nowhere/x-bastion", "no such folder:"),
        ("", "--quota_root is empty"),
        ("admins", "must end in -bastion"),
    ],
)
def test_a_private_root_that_cannot_be_is_refused(run, new, tmp_path: Path, quota_root: str, message: str) -> None:
    for name in ("users", "admins"):
        (tmp_path / name).mkdir()
    done = run("quota", "upload", str(new), "--root=users/x-bastion", f"--quota_root={quota_root}", code=64)
    assert message in done.err


def test_a_file_where_the_daemon_does_not_read_it_needs_yes(run, busy, new, tmp_path: Path) -> None:
    (tmp_path / "admins").mkdir()
    done = run("quota", "upload", str(new), "--quota_root=admins/test-bastion", code=64)
    assert "the daemon reads its quota file under memory/test-bastion" in done.err
    assert not (tmp_path / "admins/test-bastion").exists()
