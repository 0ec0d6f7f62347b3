"""Hosts whose commands run as a user of their own: only root can make such."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from bastion import job_user
from bastion.agent.command_user import CommandUser
from bastion.job_user import JobUser
from tests.support.unix_users import claim_users
from tests.support.worker_stage import Stage

NUMBER = claim_users()


@pytest.fixture
def user() -> JobUser:
    if os.geteuid() != 0 or job_user.missing_rights():
        pytest.skip("needs root: only it can run commands as another user")
    return job_user.resolve(f"{NUMBER}:{NUMBER}")


@pytest.fixture
def public(user: JobUser) -> Iterator[Path]:
    """A folder that everybody can pass; pytest's own are closed."""
    folder = Path(tempfile.mkdtemp(prefix="bastion-job-user-"))
    folder.chmod(0o711)
    yield folder
    shutil.rmtree(folder)


@pytest.fixture
def secret(public: Path) -> Path:
    """A file of root's in a folder of root's, of the kind that a job must not see."""
    folder = public / "root"
    (folder / "out").mkdir(mode=0o700, parents=True)
    folder.chmod(0o700)
    file = folder / "out" / "key"
    file.write_text("the key")
    file.chmod(0o600)
    return file


@pytest.fixture
def shared(public: Path, user: JobUser) -> Iterator[Stage]:
    """A stage whose hosts run commands as `user`."""
    stage = OwnUser(public / "state", user)
    yield stage
    stage.end()
    assert not user.processes()


class OwnUser(Stage):
    def __init__(self, state_dir: Path, user: JobUser) -> None:
        super().__init__(state_dir)
        self.user = user

    def run(self, command: str = "true", **order: object) -> None:
        host = self.host(on_vm=True, command_user=CommandUser(user=self.user))
        super().run(command, host=host, **order)  # type: ignore[arg-type]
