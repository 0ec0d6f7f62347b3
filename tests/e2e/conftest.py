"""Real processes for the end-to-end tests, and the certainty that none of them is left."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from bastion.processes import marked
from bastion.wiring.local import down
from bastion.wiring.local_home import LocalHome
from bastion.wiring.local_starter_quota import starter_quota
from bastion.wiring.roots import open_root
from tests.support.local_root import USER, LocalRoot


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
    # What is about to end is not left; what stays is.
    deadline = time.monotonic() + 10.0
    while (left := marked("BASTION_E2E", str(os.getpid()))) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert left == []


@pytest.fixture(scope="session", autouse=True)
def mark_processes() -> None:
    os.environ["BASTION_E2E"] = str(os.getpid())
