"""The quota file that a new local bastion begins with replaces none that was ever in force."""

from __future__ import annotations

from pathlib import Path

import pytest
import tomli

from bastion.core.bucket import keys
from bastion.wiring import local, local_emulators
from bastion.wiring.local_home import LocalBastionError, LocalHome
from bastion.wiring.local_kubernetes import ClusterOptions
from bastion.wiring.local_starter_quota import starter_quota, write_starter_quota
from bastion.wiring.roots import open_root


def test_a_new_bastion_gets_a_quota_file_that_lets_its_user_in(tmp_path: Path) -> None:
    home = LocalHome(tmp_path / "home")
    store = open_root(home.root.url)
    write_starter_quota(home, "alice")
    assert b"alice" in store.get(keys.PROJECT_QUOTAS).data


def test_a_quota_file_that_was_removed_stays_in_force(tmp_path: Path) -> None:
    home = LocalHome(tmp_path / "home")
    store = open_root(home.root.url)
    store.put(keys.QUOTAS_IN_FORCE, b"# the copy of a daemon", generation=0)
    write_starter_quota(home, "alice")
    assert store.head(keys.PROJECT_QUOTAS) is None


def test_types_of_a_clusters_pools_are_in_the_quota_file_too() -> None:
    policy = tomli.loads(starter_quota("alice", ["gpu-a100-2=2", "tpu7x-8=1", "v4-8=1"]).decode())
    assert (policy["total_resources"]["a100"], policy["total_resources"]["tpu7x"]) == (64, 64)
    assert policy["total_resources"]["v4"] == 128
    assert set(policy["project_resources"]["default"]) == set(policy["total_resources"])


def test_a_new_bastion_with_a_cluster_has_its_pools_in_the_quota_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    home = LocalHome(tmp_path / "home")

    def begin(*_: object, wanted: bool) -> None:
        raise LocalBastionError("far enough")

    monkeypatch.setattr(local_emulators, "begin_storage", lambda _: None)
    monkeypatch.setattr(local_emulators, "begin_kubernetes", begin)
    with pytest.raises(LocalBastionError, match="far enough"):
        local.up(home, user="alice", say=print, cluster=ClusterOptions(pools=["gpu-l4-1=2"]))
    policy = tomli.loads(open_root(home.root.url).get(keys.PROJECT_QUOTAS).data.decode())
    assert policy["total_resources"]["l4"] == 64
