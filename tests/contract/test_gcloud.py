"""gcloud, unmodified, against the storage endpoint: `make gcloud`.

It runs every line of docs/how-to/run-on-gcp.md that makes or changes rights in a bucket, and then works with them.
"""

from __future__ import annotations

import json
import os
import shlex
import shutil
import subprocess
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pytest

from bastion.adapters.gcs.inbox_rights import GcsInboxRights
from bastion.adapters.gcs.managed_folders import ManagedFolders
from bastion.core.model.identity import Inbox
from bastion.emulators.gcs.iam.identities import Identities
from bastion.emulators.gcs.iam.policies import Binding
from bastion.emulators.gcs.server import StorageEndpoint
from tests.support.rights import how_to
from tests.support.rights.bindings import Granted
from tests.support.rights.deployment import opened

OWNER, ALICE = "user:owner@example.com", "user:alice@example.com"
TOKENS = {"owner": OWNER, "alice": ALICE, "worker": how_to.WORKER}
WRITES = [["managed-folders", "create"], ["managed-folders", "add-iam-policy-binding"], ["buckets", "create"]]
WRITES += [["buckets", "remove-iam-policy-binding"]]

pytestmark = [pytest.mark.gcloud, pytest.mark.timeout(600)]

Run = Callable[..., "subprocess.CompletedProcess[str]"]


@pytest.fixture(autouse=True)
def asked_for(request: pytest.FixtureRequest) -> None:
    if "gcloud" not in request.config.getoption("markexpr"):
        pytest.skip("gcloud is asked for by: make gcloud")


def runner(tmp_path: Path, url: str) -> Run:
    """Runs `gcloud storage` at an endpoint as somebody whose name is his token."""
    program = shutil.which("gcloud")
    if program is None:
        pytest.skip("gcloud is not installed")
    settings = {
        "CLOUDSDK_API_ENDPOINT_OVERRIDES_STORAGE": f"{url}/storage/v1/",
        "CLOUDSDK_CONFIG": str(tmp_path / "gcloud"),
        "CLOUDSDK_CORE_DISABLE_PROMPTS": "true",
        "CLOUDSDK_CORE_DISABLE_USAGE_REPORTING": "true",
        "CLOUDSDK_CORE_PROJECT": how_to.PROJECT,
    }

    def run(caller: str, *words: str) -> subprocess.CompletedProcess[str]:
        token = tmp_path / f"{caller}.token"
        token.write_text(caller)
        environment = {**os.environ, **settings, "CLOUDSDK_AUTH_ACCESS_TOKEN_FILE": str(token)}
        command = [program, "storage", *words]
        return subprocess.run(command, env=environment, capture_output=True, text=True, check=False, timeout=60)

    return run


@pytest.fixture
def gcloud(tmp_path: Path) -> Iterator[Run]:
    """Runs `gcloud storage` as somebody of TOKENS."""
    identities = Identities(
        tokens=TOKENS,
        groups={how_to.USERS: frozenset({ALICE})},
        roles={name: frozenset(permissions) for name, permissions in how_to.roles().items()},
        project=(Binding(role="roles/storage.admin", members=(OWNER,)),),
    )
    with StorageEndpoint(tmp_path / "buckets", identities=identities) as endpoint:
        yield runner(tmp_path, endpoint.url)


def said(made: subprocess.CompletedProcess[str]) -> str:
    return " ".join((made.stdout + made.stderr).split())


def test_the_lines_of_the_page_make_its_bindings_and_these_hold(gcloud: Run, tmp_path: Path) -> None:
    for words in how_to.commands():
        if words[0] == "storage" and words[1:3] in WRITES:
            made = gcloud("owner", *words[1:])
            assert made.returncode == 0, f"{words}: {said(made)}"
    assert sorted(one.told for one in granted(gcloud, how_to.folders())) == sorted(one.told for one in how_to.granted())

    root = f"gs://{how_to.BUCKET}/{how_to.BASTION}"
    file = tmp_path / "file"
    file.write_text("text")
    assert gcloud("alice", "cp", str(file), f"{root}/jobs/active/job").returncode == 0
    assert gcloud("worker", "cp", str(file), f"{root}/jobs/claims/run", "--if-generation-match=0").returncode == 0
    assert gcloud("alice", "cat", f"{root}/jobs/claims/run").stdout == "text"
    assert gcloud("alice", "ls", f"{root}/jobs/active/").stdout.split() == [f"{root}/jobs/active/job"]
    denied = {
        "alice@example.com does not have storage.objects.create access": ("alice", "cp", str(file), f"{root}/lease"),
        "alice@example.com does not have storage.objects.delete access": ("alice", "rm", f"{root}/jobs/claims/run"),
        "does not have storage.objects.get access": ("worker", "cat", f"{root}/jobs/active/job"),
        "does not have storage.objects.delete access": ("worker", "cp", str(file), f"{root}/jobs/claims/run"),
        "does not have storage.managedFolders.create access": ("alice", "managed-folders", "create", f"{root}/new/"),
    }
    for message, words in denied.items():
        made = gcloud(*words)
        assert made.returncode != 0
        assert message in said(made)


def test_gcloud_gives_and_takes_an_inbox_as_the_command_does(tmp_path: Path) -> None:
    """By the lines of docs/how-to/share-a-bastion.md, and those that `bastion admin user ... --dry_run` prints."""
    alice, bob = (f"{how_to.BASTION}/inbox/{name}/" for name in ("alice", "bob"))
    with opened(tmp_path / "buckets", how_to.roles(how_to.SHARED)) as stage:
        gcloud = runner(tmp_path, stage.url)

        def run(caller: str, words: list[str]) -> None:
            made = gcloud(caller, *words[1:])
            assert made.returncode == 0, f"{words}: {said(made)}"

        stage.grant(how_to.folders(), how_to.granted())
        for words in how_to.commands(how_to.SHARED)[len(how_to.commands()) :]:
            if words[0] == "storage":
                run("owner", words)
        rights = GcsInboxRights(ManagedFolders(how_to.BUCKET, client=stage.client("admin")), how_to.BASTION)
        inbox = Inbox(member="user:alice@example.com")
        for line in rights.granting("alice", inbox):
            run("admin", shlex.split(line)[1:])
        rights.grant("bob", Inbox(member="user:bob@example.com"))
        assert rights.findings({"alice": inbox, "bob": Inbox(member="user:bob@example.com")}) == {
            "alice": [],
            "bob": [],
        }
        shown = {one.folder: one for one in granted(gcloud, [(how_to.BUCKET, alice), (how_to.BUCKET, bob)])}
        assert shown[alice].told.replace("alice", "bob") == shown[bob].told.replace("alice", "bob")
        for line in rights.revoking("alice", inbox):
            run("admin", shlex.split(line)[1:])
        rights.revoke("bob")
        assert granted(gcloud, [(how_to.BUCKET, alice), (how_to.BUCKET, bob)]) == []
        every = [*how_to.folders(how_to.SHARED)]
        assert sorted(one.told for one in granted(gcloud, every)) == sorted(
            one.told for one in how_to.granted(how_to.SHARED)
        )


def granted(gcloud: Run, folders: Sequence[tuple[str, str]]) -> list[Granted]:
    """What gcloud shows as bound."""
    found = []
    for bucket, folder in folders:
        shown = gcloud("owner", "managed-folders", "get-iam-policy", f"gs://{bucket}/{folder}", "--format=json")
        for binding in json.loads(shown.stdout).get("bindings", []):
            found += [
                Granted(
                    bucket=bucket,
                    folder=folder,
                    role=binding["role"],
                    member=member,
                    condition=binding.get("condition"),
                )
                for member in binding["members"]
            ]
    return found
