"""docs/how-to/share-a-bastion.md with real programs, each with a token of its own."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from bastion.wiring.local_starter_quota import starter_quota
from tests.support.rights import how_to
from tests.support.rights.programs import QUOTA_ROOT, Run, running
from tests.support.rights.stage import Stage

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(300)]

QUOTA = starter_quota("alice").replace(b'"alice"', b'"alice", "bob"')
LAUNCH = ("launch", "--project_id=default")


def granted(stage: Stage) -> None:
    stage.grant(how_to.folders(how_to.SHARED), how_to.granted(how_to.SHARED))


@pytest.fixture
def bastion(tmp_path: Path) -> Iterator[Run]:
    """In mode `inbox`, after an administrator has done what the page says."""
    with running(tmp_path, granted) as run:
        quota = tmp_path / "quota.toml"
        quota.write_bytes(QUOTA)
        as_admin = [
            ("quota", "upload", str(quota), QUOTA_ROOT),
            ("admin", "user", "add", "alice", "--member=user:alice@example.com"),
            ("admin", "user", "add", "bob", "--member=user:bob@example.com"),
            ("admin", "inbox", "enable"),
        ]
        for words in as_admin:
            done = run("admin", *words)
            assert done.returncode == 0, (words, done.stderr)
        soon(lambda: json.loads(run("user", "admin", "inbox", "status", "--output=json").stdout)["in_force"] == "inbox")
        yield run


def soon(done: Callable[[], bool]) -> None:
    for _ in range(100):
        if done():
            return
        time.sleep(0.1)
    raise AssertionError("it did not happen")


def test_a_user_who_leaves_keeps_his_job_and_nothing_else_until_an_admin_ends_it(bastion: Run) -> None:
    launched = bastion("user", *LAUNCH, "--name=long", "--", "sleep", "300")
    assert launched.returncode == 0, launched.stderr
    soon(lambda: "running" in bastion("other user", "list").stdout)
    removed = bastion("admin", "admin", "user", "remove", "alice")
    assert removed.returncode == 0, removed.stderr
    assert "jobs of alice go on until they end: long" in removed.stderr
    late = bastion("user", *LAUNCH, "--name=late", "--", "true")
    assert late.returncode != 0
    assert "you may not write to inbox/alice/; if your inbox has another name, set it" in late.stderr
    assert "alice@example.com lacks the permission storage.objects.create" in late.stderr
    named = bastion("admin", "admin", "project-admin", "add", "bob", "--project=default", "--wait", QUOTA_ROOT)
    assert named.returncode == 0, named.stderr
    cancelled = bastion("other user", "cancel", "--wait", "long", login="bob")
    assert cancelled.returncode == 0, cancelled.stderr
