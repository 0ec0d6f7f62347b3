"""Real programs with the rights of the how-to: each has its own token, and the bindings are Terraform's."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from bastion.wiring.local_starter_quota import starter_quota
from tests.support.rights.programs import QUOTA_ROOT, Run, running

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(300)]


@pytest.fixture
def bastion(tmp_path: Path) -> Iterator[Run]:
    with running(tmp_path) as run:
        yield run


def test_a_daemon_a_user_and_an_administrator_work_with_their_rights_and_a_stranger_does_not(
    bastion: Run, tmp_path: Path
) -> None:
    quota = tmp_path / "quota.toml"
    quota.write_bytes(starter_quota("alice"))
    refused = bastion("user", "quota", "upload", str(quota), QUOTA_ROOT)
    assert refused.returncode != 0
    assert "alice@example.com lacks the permission storage.objects" in refused.stderr
    uploaded = bastion("admin", "quota", "upload", str(quota), QUOTA_ROOT)
    assert uploaded.returncode == 0, uploaded.stderr
    done = bastion(
        "user", "launch", "--project_id=default", "--name=hello", "--wait", "--", "echo", "hello from the VM"
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "hello from the VM" in done.stdout
    stranger = bastion("stranger", "launch", "--project_id=default", "--name=evil", "--", "true")
    assert stranger.returncode != 0
    assert "mallory@example.com lacks the permission storage.objects.get" in stranger.stderr
