"""`up` on a real daemon: what somebody does to the bucket must not lock a user out of a bastion that runs."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from bastion.core.bucket import keys
from bastion.wiring.local import down, status, up
from bastion.wiring.local_home import LocalHome

pytestmark = pytest.mark.e2e


def _ignore(_text: str) -> None:
    pass


@pytest.fixture
def home(tmp_path: Path) -> Iterator[LocalHome]:
    home = LocalHome(tmp_path / "home")
    yield home
    down(home, say=_ignore)
    assert status(home).processes == 0


def test_a_daemon_that_runs_is_found_when_its_status_was_overwritten(home: LocalHome) -> None:
    root = up(home, user="ann", say=_ignore)
    daemon = status(home).daemon
    assert daemon is not None
    with (Path(root.url) / keys.STATUS).open("wb") as current:
        current.truncate(1 << 43)  # a hole: it takes no room on the disk, and no memory holds it
    said: list[str] = []
    assert up(home, user="ann", say=said.append) == root
    assert (said, status(home).daemon) == ([], daemon)
