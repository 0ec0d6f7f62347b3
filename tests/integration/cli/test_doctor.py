"""`bastion doctor` at a storage endpoint that enforces policies: eight mistakes are named and nothing else."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest

from bastion.adapters.gcs.bucket_facts import PROJECTS_ENDPOINT
from bastion.cli.main import main
from bastion.core.bucket import keys
from tests.support.rights import examined, how_to
from tests.support.rights.bindings import Granted, policy
from tests.support.rights.examined import ROOT, settings, store
from tests.support.rights.how_to import BASTION, BUCKET, PRIVATE, PROJECT, USERS, WORKER
from tests.support.rights.stage import Stage

WRITER = f"projects/{PROJECT}/roles/bastionWriter"
MINE = [
    {"role": "roles/owner", "members": ["user:owner@example.com"]},
    {"role": f"projects/{PROJECT}/roles/bastionProvisioner", "members": [how_to.DAEMON]},
]


@dataclass
class Said:
    code: int
    findings: list[dict[str, str]]
    unchecked: dict[str, str]

    @property
    def what(self) -> list[str]:
        return [found["what"] for found in self.findings]


@dataclass
class Bastion:
    stage: Stage
    run: Callable[..., tuple[int, str, str]]
    of_project: list[dict[str, object]] = field(default_factory=lambda: list(MINE))

    def doctor(self, caller: str, *arguments: str) -> Said:
        code, out, _ = self.run(caller, "doctor", "--output=json", *arguments)
        document: dict[str, Any] = json.loads(out)
        return Said(code, document["findings"], {one["what"]: one["why"] for one in document["unchecked"]})

    def grant(self, folder: str, role: str, *members: str) -> None:
        """Add to a managed folder's policy."""
        path = f"b/{BUCKET}/managedFolders/{quote(f'{BASTION}/{folder}', safe='')}"
        present = [
            one for one in how_to.granted(how_to.SHARED) if (one.bucket, one.folder) == (BUCKET, f"{BASTION}/{folder}")
        ]
        more = [
            Granted(bucket=BUCKET, folder=f"{BASTION}/{folder}", role=role, member=one, condition=None)
            for one in members
        ]
        self.stage.ask("PUT", f"{path}/iam", policy([*present, *more]))


@pytest.fixture
def bastion(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Iterator[Bastion]:
    monkeypatch.setenv("BASTION_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("BASTION_ROOT", ROOT)
    monkeypatch.setenv("LOGNAME", "alice")
    with examined.made(tmp_path / "buckets") as stage:
        monkeypatch.setenv("STORAGE_EMULATOR_HOST", stage.url)

        def run(caller: str, *arguments: str) -> tuple[int, str, str]:
            monkeypatch.setenv("GOOGLE_AUTH_TOKEN_FOR_TESTING", caller)
            capsys.readouterr()
            return main([*arguments]), *capsys.readouterr()

        made = Bastion(stage, run)
        for user, member in (("alice", "user:alice@example.com"), ("bob", "user:bob@example.com")):
            assert run("admin", "admin", "user", "add", user, f"--member={member}")[0] == 0
        with examined.projects(lambda: made.of_project) as url:
            monkeypatch.setenv(PROJECTS_ENDPOINT, url)
            yield made


def objects(bastion: Bastion) -> dict[str, int]:
    blobs = bastion.stage.client("owner").list_blobs(BUCKET, prefix=BASTION)
    return {blob.name: int(blob.generation or 0) for blob in blobs}


def test_a_bastion_as_the_pages_make_it_has_no_findings_and_is_not_changed(bastion: Bastion) -> None:
    before = objects(bastion)
    assert bastion.doctor("owner") == Said(0, [], {})
    assert objects(bastion) == before


def test_eight_mistakes_are_named_and_nothing_else(bastion: Bastion) -> None:
    stage = bastion.stage
    # 1: the bindings of new buckets
    legacy = {"role": "roles/storage.legacyBucketOwner", "members": [f"projectEditor:{PROJECT}"]}
    stage.ask("PUT", f"b/{BUCKET}/iam", {"version": 3, "bindings": [legacy]})
    # 2: a role on the project
    bastion.of_project.append({"role": "roles/storage.objectAdmin", "members": ["user:carol@example.com"]})
    # 3: everybody reads the logs
    bastion.grant("logs/", "roles/storage.objectViewer", "allUsers")
    # 4: users may still write specs past their inboxes
    bastion.grant(keys.JOBS_ACTIVE, WRITER, USERS)
    # 5: a host may replace claims
    bastion.grant(keys.JOBS_CLAIMS, WRITER, WORKER)
    # 6: jobs are deleted after a month
    rule = {"action": {"type": "Delete"}, "condition": {"age": 30, "matchesPrefix": [f"{BASTION}/jobs/"]}}
    settings(stage, BUCKET, {"lifecycle": {"rule": [rule]}})
    # 7: secrets stay
    settings(stage, BUCKET, {"versioning": {"enabled": True}})
    # 8: jobs on the VM are the daemon
    examined.running(stage, host_jobs="as-daemon")
    said = bastion.doctor("owner")
    expected = (
        "lifecycle rule",
        "keeps versions",
        f"projectEditor:{PROJECT} have the roles of new buckets",
        "user:carol@example.com may",
        "allUsers may read objects of",
        f"{USERS} may create and replace objects of {ROOT}/jobs/active/",
        f"{WORKER} (a host) may replace objects of {ROOT}/jobs/claims/",
        "commands on the bastion's own host run as the daemon",
    )
    for text in expected:
        assert sum(text in what for what in said.what) == 1, (text, said.what)
    assert (said.code, len(said.findings), said.unchecked) == (1, len(expected), {})
    assert all(found["why"] and found["remedy"] for found in said.findings)


def test_other_mistakes(bastion: Bastion) -> None:
    stage = bastion.stage
    store(stage, PRIVATE, keys.PROJECT_QUOTAS, b"[total_resources")
    store(stage, BUCKET, keys.DAEMON_SETTINGS, b"nonsense = 1")
    settings(stage, BUCKET, {"iamConfiguration": {"uniformBucketLevelAccess": {"enabled": False}}})
    settings(stage, BUCKET, {"retentionPolicy": {"retentionPeriod": "86400"}})
    examined.running(stage, alarms=("the disk of the daemon is full", f"{keys.DAEMON_SETTINGS} is not valid"))
    bastion.grant(keys.BEATS, WRITER, "user:eve@example.com")
    said = bastion.doctor("owner")
    expected = (
        "uniform bucket-level access",
        "public access prevention",
        "retention policy of 1d",
        "the quota file gs://my-team-bastion-admin/alice-bastion/project-quotas/project-quotas.config is not valid",
        "config/daemon.toml is not valid: ",
        "the daemon's alarm: the disk of the daemon is full",
    )
    for text in expected:
        assert sum(text in what for what in said.what) == 1, (text, said.what)
    assert len(said.findings) == len(expected), said.what


def test_a_user_is_told_once_what_only_an_owner_sees(bastion: Bastion) -> None:
    said = bastion.doctor("user")
    assert (said.code, said.findings) == (0, [])
    assert f"the policy of gs://{BUCKET}" in said.unchecked
    assert f"the settings of gs://{BUCKET}" in said.unchecked
    assert "the quota file" in said.unchecked
    code, out, told = bastion.run("user", "doctor")
    assert (code, out) == (0, "")
    assert told.count(f"you may not read it; ask an owner of gs://{BUCKET}\n") == 1


def test_a_user_who_may_do_more_or_less_than_users_is_told(bastion: Bastion) -> None:
    bastion.grant(keys.RUNS, WRITER, "user:alice@example.com")
    assert bastion.doctor("user").what == ["you may write and replace runs/"]
    said = bastion.run("admin", "admin", "user", "remove", "bob")
    assert said[0] == 0
    assert bastion.doctor("other user", "--nowrite").what == ["you may not write and replace inbox/alice/"]


@pytest.mark.parametrize("caller", ["admin", "daemon"])
def test_who_writes_the_root_proves_its_store_and_leaves_nothing(bastion: Bastion, caller: str) -> None:
    before = objects(bastion)
    said = bastion.doctor(caller)
    assert (said.code, said.findings) == (0, [])
    assert not any(what.startswith("whether the store") for what in said.unchecked)
    assert objects(bastion) == before


def test_a_stranger_learns_nothing(bastion: Bastion) -> None:
    said = bastion.doctor("stranger")
    assert (said.code, said.what) == (1, [f"you may not read {ROOT}"])
    assert "the lease" in said.unchecked


def test_somebody_with_a_role_on_the_bucket_is_told(bastion: Bastion) -> None:
    wide = {"role": "roles/storage.objectUser", "members": [USERS]}
    bastion.stage.ask("PUT", f"b/{BUCKET}/iam", {"version": 3, "bindings": [wide]})
    assert bastion.doctor("user").what == [f"you may read and write and replace every object of gs://{BUCKET}"]
    assert bastion.doctor("owner").what == [
        f"{USERS} may read, create and replace every object of gs://{BUCKET} (roles/storage.objectUser on the bucket)"
    ]


def test_a_custom_role_of_which_nothing_is_known_is_named_and_not_judged(bastion: Bastion) -> None:
    role = f"projects/{PROJECT}/roles/ownWriter"
    bastion.of_project.append({"role": role, "members": ["user:carol@example.com"]})
    said = bastion.doctor("owner")
    assert (said.code, said.findings, list(said.unchecked)) == (0, [], [f"what {role} permits"])


def test_without_a_bucket_nothing_is_said_to_be_fine(bastion: Bastion) -> None:
    code, out, told = bastion.run("owner", "doctor", "--root=gs://no-such-bucket/team-bastion")
    assert (code, out) == (1, "")
    assert "there is no bucket gs://no-such-bucket" in told
