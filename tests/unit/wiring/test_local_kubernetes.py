"""The local bastion's cluster: its node pools, and settings that are written, rewritten, or left to their author."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest

from bastion.cli.main import main
from bastion.core.bucket import keys
from bastion.core.errors import Refused
from bastion.core.model import daemon_settings
from bastion.emulators.kubernetes.address import KubernetesAddress
from bastion.processes import ProcessId
from bastion.testing.memory_store import MemoryStore
from bastion.wiring import local_kubernetes
from bastion.wiring.local import LocalStatus
from bastion.wiring.local_kubernetes import ClusterOptions

UID = "5f0c1a2b-1111-2222-3333-444455556666"
ADDRESS = KubernetesAddress(server="https://127.0.0.1:1", token="t", ca_file="", process=ProcessId(pid=1, started=1))


@pytest.fixture(autouse=True)
def installed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: object())
    monkeypatch.setattr(local_kubernetes, "_uid", lambda address: UID)


def _pools(folder: Path) -> list[str]:
    return (folder / "pools").read_text().split()


def test_a_second_request_for_a_cluster_keeps_its_pools(tmp_path: Path) -> None:
    local_kubernetes.set_up(tmp_path, ClusterOptions(pools=["v6e-8=1"]))
    local_kubernetes.set_up(tmp_path, ClusterOptions())
    assert _pools(tmp_path) == ["v6e-8=1"]


def test_other_pools_of_a_cluster_that_runs_are_refused_with_what_to_do(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    local_kubernetes.set_up(tmp_path, ClusterOptions(pools=["v6e-8=1"]))
    monkeypatch.setattr(local_kubernetes, "locate", lambda folder: ADDRESS)
    with pytest.raises(Refused, match="bastion local down, then bastion local up --kubernetes --pool=v4-8=1"):
        local_kubernetes.set_up(tmp_path, ClusterOptions(pools=["v4-8=1"]))
    local_kubernetes.set_up(tmp_path, ClusterOptions(pools=["v6e-8=1"]))
    assert _pools(tmp_path) == ["v6e-8=1"]


def test_what_to_do_about_kueue_on_a_cluster_that_runs_does_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    local_kubernetes.set_up(tmp_path, ClusterOptions(pools=["v6e-8=1"], kueue=True))
    monkeypatch.setattr(local_kubernetes, "locate", lambda folder: ADDRESS)
    with pytest.raises(Refused, match=r"with Kueue; .* --pool=v6e-8=1 --nokueue$"):
        local_kubernetes.set_up(tmp_path, ClusterOptions(kueue=False))
    with pytest.raises(Refused, match=r"with Kueue; .* --pool=v4-8=1 --kueue$"):
        local_kubernetes.set_up(tmp_path, ClusterOptions(pools=["v4-8=1"]))


def test_without_the_extra_a_cluster_is_refused_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(Refused, match=r"install bastion\[kubernetes\]"):
        local_kubernetes.set_up(tmp_path, ClusterOptions())
    assert not local_kubernetes.is_set_up(tmp_path)


def test_settings_that_nobody_changed_follow_the_pools(tmp_path: Path) -> None:
    store, said = MemoryStore(), list[str]()
    for pools, types in ((["v4-8=1"], {"v4"}), (["v6e-8=1", "v5p-8=1"], {"v5p", "v6e"})):
        local_kubernetes.set_up(tmp_path, ClusterOptions(pools=pools))
        local_kubernetes.write_settings(store, tmp_path, ADDRESS, said.append)
        assert store.get(keys.DAEMON_SETTINGS).data == local_kubernetes.settings(tmp_path, UID, types, kueue=False)
    assert said == []


@pytest.mark.parametrize("own", [b"project = 'mine'\n", b"not = [ toml"])
def test_a_users_own_settings_stay_and_the_user_is_told_what_to_add(tmp_path: Path, own: bytes) -> None:
    store, said = MemoryStore(), list[str]()
    store.put(keys.DAEMON_SETTINGS, own, generation=0)
    local_kubernetes.set_up(tmp_path, ClusterOptions(pools=["v4-8=1"]))
    local_kubernetes.write_settings(store, tmp_path, ADDRESS, said.append)
    assert store.get(keys.DAEMON_SETTINGS).data == own
    assert "it sends no jobs of v4 to the cluster" in said[0]
    assert (tmp_path / "daemon.toml").read_bytes() == local_kubernetes.settings(tmp_path, UID, {"v4"}, kueue=False)


def test_down_says_that_it_stopped_what_an_interrupted_up_left(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    rest = LocalStatus(root="", daemon=None, emulator=None, kubernetes=ADDRESS, storage=None, processes=1)
    monkeypatch.setenv("BASTION_HOME", str(tmp_path))
    monkeypatch.setattr("bastion.cli.admin.local.status", lambda home: rest)
    assert main(["local", "down"]) == 0
    assert "the local bastion is down" in capsys.readouterr().err


def test_kueue_decides_where_the_user_asked_for_it_last(tmp_path: Path) -> None:
    store = MemoryStore()
    for asked, queue in ((None, ""), (True, "bastion-{project}"), (None, "bastion-{project}"), (False, "")):
        local_kubernetes.set_up(tmp_path, ClusterOptions(pools=["v4-8=1"], kueue=asked))
        local_kubernetes.write_settings(store, tmp_path, ADDRESS, lambda _: None)
        found = daemon_settings.load(store.get(keys.DAEMON_SETTINGS).data)
        assert found.clusters["local"].queue == queue
