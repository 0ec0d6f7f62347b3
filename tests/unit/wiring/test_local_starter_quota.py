"""The quota file that a new local bastion begins with replaces none that was ever in force."""

from __future__ import annotations

from pathlib import Path

from bastion.core.bucket import keys
from bastion.wiring.local import LocalHome, _write_starter_quota
from bastion.wiring.roots import open_root


def test_a_new_bastion_gets_a_quota_file_that_lets_its_user_in(tmp_path: Path) -> None:
    home = LocalHome(tmp_path / "home")
    store = open_root(home.root.url)
    _write_starter_quota(home, "alice")
    assert b"alice" in store.get(keys.PROJECT_QUOTAS).data


def test_a_quota_file_that_was_removed_stays_in_force(tmp_path: Path) -> None:
    home = LocalHome(tmp_path / "home")
    store = open_root(home.root.url)
    store.put(keys.QUOTAS_IN_FORCE, b"# the copy of a daemon", generation=0)
    _write_starter_quota(home, "alice")
    assert store.head(keys.PROJECT_QUOTAS) is None
