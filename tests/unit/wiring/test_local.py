"""The local bastion where its folder is not one, and a daemon that cannot say anything."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from bastion.wiring.daemon import build_daemon
from bastion.wiring.local import LocalBastionError, LocalHome, up
from bastion.wiring.roots import parse_root


def _ignore(_text: str) -> None:
    pass


def test_a_home_that_cannot_be_a_folder_is_refused_with_what_to_do(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(LocalBastionError, match="set BASTION_HOME to another"):
        up(LocalHome(tmp_path / "file" / "home"), user="ann", say=_ignore)


def test_a_daemon_whose_own_log_is_on_a_full_disk_lives_on(tmp_path: Path) -> None:
    def say(text: str) -> None:
        with Path("/dev/full").open("w") as full:
            full.write(text)

    root = parse_root(str(tmp_path / "bucket" / "team-bastion"))
    daemon = build_daemon(root, home=LocalHome(tmp_path / "home"), owner="me", notify=say)
    try:
        shutil.rmtree(tmp_path / "bucket")
        assert not daemon.tick().acted
    finally:
        daemon.close()
