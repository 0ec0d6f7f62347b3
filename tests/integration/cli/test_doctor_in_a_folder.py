"""`bastion doctor` at a ROOT in a folder: modes and owners, and who is left out."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

import bastion
from bastion.cli.main import main
from bastion.core import documents
from bastion.core.bucket import keys
from bastion.core.model.lease import LeaseDocument
from bastion.core.status.document import DaemonEntry, HostJobsEntry, QuotaEntry, StatusDocument
from bastion.core.status.packing import pack
from bastion.folder_format import inboxes
from bastion.wiring.local_starter_quota import starter_quota
from bastion.wiring.roots import make_folders, open_root, parse_root


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A bastion with inboxes whose daemon runs."""
    monkeypatch.setenv("BASTION_HOME", str(tmp_path / "home"))
    found = tmp_path / "bucket" / "team-bastion"
    found.parent.mkdir(mode=0o755)
    make_folders(parse_root(str(found)))
    store = open_root(str(found))
    quota = store.put(keys.PROJECT_QUOTAS, starter_quota("alice") + b'\n[admins]\nbastion = ["root"]\n', generation=0)
    users = b'{"format": 1, "mode": "inbox", "users": {"alice": {"uid": %d}}}' % os.getuid()
    store.put(keys.IDENTITY, users, generation=0)
    status = StatusDocument(
        bastion="team-bastion",
        mode="inbox",
        daemon=DaemonEntry(version=bastion.__version__, bastion_host_jobs=HostJobsEntry(mode="off")),
        quota=QuotaEntry(in_force=True, generation=quota.generation, root=str(found)),
    )
    store.put(keys.STATUS, documents.dumps(pack(status)), generation=0)
    store.put(keys.LEASE, LeaseDocument(owner="x", epoch=1).to_bytes(), generation=0)
    inboxes.close(str(found.parent), found.name)
    inboxes.make(str(found), ["alice"])
    return found


def doctor(root: Path, capsys: pytest.CaptureFixture[str]) -> tuple[int, list[str]]:
    capsys.readouterr()
    code = main(["doctor", f"--root={root}", "--output=json"])
    document = json.loads(capsys.readouterr().out)
    assert document["unchecked"] == []
    return code, [found["what"] for found in document["findings"]]


def test_nothing_is_wrong_with_a_closed_folder(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert doctor(root, capsys) == (0, [])


def test_modes_and_links_are_named(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    root.chmod(0o777)
    root.parent.chmod(0o777)
    (root / "jobs" / "states").mkdir(exist_ok=True)
    (root / "jobs" / "states").chmod(0o770)
    (root / "inbox" / "alice" / "active").chmod(0o770)
    (root / "inbox" / "alice" / "user_states" / "job").symlink_to("/etc/passwd")
    code, what = doctor(root, capsys)
    assert code == 1
    expected = (
        f"everybody on this machine may write {root}",
        f"everybody on this machine may rename what is in {root.parent}",
        f"others than its owner may write {root}/jobs/states",
        f"inbox/alice: {root}/inbox/alice/active has the mode 2770 instead of 3770"
        if (root / "inbox" / "alice" / "active").stat().st_mode & 0o2000
        else f"inbox/alice: {root}/inbox/alice/active has the mode 770 instead of 3770",
        f"inbox/alice: {root}/inbox/alice/user_states/job is not a file (a link?)",
    )
    for text in expected:
        assert sum(each.startswith(text) for each in what) == 1, (text, what)
    assert len(what) == len(expected), what


@pytest.mark.parametrize("damaged", [True, False])
def test_without_a_valid_identity_file_inboxes_are_those_in_force(
    root: Path, capsys: pytest.CaptureFixture[str], damaged: bool
) -> None:
    store = open_root(str(root))
    stored = store.get(keys.IDENTITY)
    store.put(keys.IDENTITY_IN_FORCE, stored.data, generation=0)
    if damaged:
        store.put(keys.IDENTITY, b"{", generation=stored.meta.generation)
    else:
        store.delete(keys.IDENTITY, generation=stored.meta.generation)
    code, what = doctor(root, capsys)
    assert code == 1
    assert [each.startswith((f"{keys.IDENTITY} is not valid", f"there is no {keys.IDENTITY}")) for each in what] == [
        True
    ]


def test_a_daemon_that_has_ended_and_one_of_another_version(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    store = open_root(str(root))
    held, status = store.get(keys.LEASE), store.get(keys.STATUS)
    released = LeaseDocument(owner="x", epoch=1, released=True).to_bytes()
    store.put(keys.LEASE, released, generation=held.meta.generation)
    older = json.loads(status.data)
    older["daemon"]["version"] = "0.0.1"
    store.put(keys.STATUS, json.dumps(older).encode(), generation=status.meta.generation)
    code, what = doctor(root, capsys)
    assert (code, what) == (
        1,
        ["the daemon has ended", f"the daemon has version 0.0.1, and this command {bastion.__version__}"],
    )


@pytest.mark.skipif(os.getuid() != 0, reason="only root gives files away")
def test_a_file_of_another_user_is_named(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    os.chown(root / "config" / "identity.json", 65534, -1)
    code, what = doctor(root, capsys)
    assert code == 1
    assert [f"{root}/config/identity.json does not belong to the owner" in each for each in what] == [True]


def test_the_proxy_of_this_shell_is_looked_at_if_there_is_one(
    root: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    for name in ("https_proxy", "HTTPS_PROXY"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("PROXY_CERT_PATH", str(tmp_path))
    code, what = doctor(root, capsys)
    assert code == 1
    assert what[0] == "storage proxy: https_proxy is not set"
    assert all(each.startswith("storage proxy: ") for each in what)


def test_without_a_daemon_and_a_quota_file_both_are_named_once(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("BASTION_HOME", str(tmp_path / "home"))
    root = tmp_path / "new-bastion"
    assert main(["doctor", f"--root={root}", "--nowrite"]) == 1
    out, told = capsys.readouterr()
    assert [line for line in out.splitlines() if not line.startswith(" ")] == [
        f"error: there is no quota file {root}/{keys.PROJECT_QUOTAS}",
        "error: no daemon has ever run here",
    ]
    assert told.splitlines() == [
        "cannot be checked: whether the store keeps the conditions of writes, and its clock: it takes an object of its "
        "own, and --nowrite was given",
        f"cannot be checked: what the daemon says: there is no {keys.STATUS}: no daemon has published one",
        f"2 findings at {root}",
    ]
    assert not root.exists()
