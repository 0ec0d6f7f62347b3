"""Real processes for the end-to-end tests, and the certainty that none of them is left."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from bastion.core import jobspec
from bastion.local import LocalHome, down, starter_quota
from bastion.ports import ObjectStore
from bastion.processes import marked
from bastion.wiring import open_root

USER = "tester"


@dataclass
class LocalRoot:
    """One ROOT in the home, with the daemons that a test starts for it."""

    home: LocalHome
    url: str
    store: ObjectStore
    daemons: list[subprocess.Popen[bytes]] = field(default_factory=list)

    def start_daemon(self, *script: str) -> subprocess.Popen[bytes]:
        """An ordinary daemon, or `script` with ROOT and HOME as its first arguments."""
        if script:
            command = [sys.executable, script[0], self.url, str(self.home.path), *script[1:]]
        else:
            command = [
                sys.executable,
                "-m",
                "bastion.cli.main",
                "daemon",
                "run",
                f"--root={self.url}",
                "--tick_seconds=0.2",
            ]
        log = (self.home.path / "daemons.log").open("ab")
        environment = {**os.environ, "BASTION_HOME": str(self.home.path)}
        daemon = subprocess.Popen(command, stdout=log, stderr=log, env=environment)
        self.daemons.append(daemon)
        return daemon

    def submit(self, name: str, command: str, *, instance_type: str = "") -> None:
        spec = jobspec.new(
            name=name, bastion="e2e-bastion", command=command, user_id=USER, project_id="default", now=time.time(),
            instance_type=instance_type,
        )  # fmt: skip
        self.store.put(f"jobs/active/{name}", spec.to_bytes(), generation=0)


def wait_for(done: Callable[[], object], seconds: float = 60.0) -> None:
    """Polls until `done`.

    Raises:
        AssertionError: it was not done in time.
    """
    deadline = time.monotonic() + seconds
    while not done():
        assert time.monotonic() < deadline, f"not done within {seconds} s"
        time.sleep(0.05)


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalHome]:
    """A BASTION_HOME whose emulator is started with the first slice, and ended with everything it runs."""
    home = LocalHome(tmp_path_factory.mktemp("home"))
    home.run_dir.mkdir()
    yield home
    down(home, say=lambda _: None)


@pytest.fixture
def new_root(home: LocalHome, tmp_path: Path) -> Iterator[Callable[[str], LocalRoot]]:
    """Makes ROOTs; their daemons end with the test."""
    roots: list[LocalRoot] = []

    def make(name: str) -> LocalRoot:
        url = str(tmp_path / name / "e2e-bastion")
        root = LocalRoot(home=home, url=url, store=open_root(url))
        root.store.put("project-quotas/project-quotas.config", starter_quota(USER), generation=0)
        roots.append(root)
        return root

    yield make
    for root in roots:
        for daemon in root.daemons:
            daemon.kill()
            daemon.wait()


@pytest.fixture(scope="module", autouse=True)
def nothing_left() -> Iterator[None]:
    """Every process that carries an emulated host's or agent's marker must be gone when a module is done."""
    yield
    left = [process for process in marked("BASTION_E2E", str(os.getpid())) if process.alive]
    assert left == []


@pytest.fixture(scope="session", autouse=True)
def mark_processes() -> None:
    os.environ["BASTION_E2E"] = str(os.getpid())
