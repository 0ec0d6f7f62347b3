"""Clusters as the settings say: their addresses may change, never which clusters they are while a daemon runs."""

from __future__ import annotations

import contextlib
from dataclasses import replace

import pytest

from bastion.adapters.kubernetes import credentials
from bastion.core.errors import ProvisionerUnavailable
from bastion.core.model.clusters import ClusterSettings
from bastion.core.model.provisioning import BUILT_IN, Provisioning
from bastion.testing.fake_provisioner import FakeProvisioner
from bastion.testing.manual_clock import ManualClock
from bastion.wiring import daemon, kubernetes_clusters, roots
from bastion.wiring.kubernetes_clusters import KubernetesClusters
from bastion.wiring.tpu_slices import CloudApi

ONE = ClusterSettings(name="one", server="https://a", uid="1111-1111")


class Connections:
    """Notes what was connected to, and what was closed."""

    def __init__(self) -> None:
        self.made: list[ClusterSettings] = []
        self.closed: list[str] = []

    def __call__(self, settings: ClusterSettings) -> FakeProvisioner:
        self.made.append(settings)
        provisioner = FakeProvisioner(ManualClock())
        provisioner.close = lambda: self.closed.append(settings.server)  # type: ignore[attr-defined]
        return provisioner


def settings(*clusters: ClusterSettings) -> Provisioning:
    return replace(BUILT_IN, clusters={cluster.name: cluster for cluster in clusters})


def test_a_cluster_is_connected_to_when_it_is_first_asked_for_and_then_kept() -> None:
    connect = Connections()
    clusters = KubernetesClusters(connect)
    assert clusters.apply_settings(settings(ONE)) == ""
    assert connect.made == []
    assert clusters.provisioner("one") is clusters.provisioner("one")
    assert connect.made == [ONE]


def test_a_cluster_at_another_address_is_connected_to_again() -> None:
    connect = Connections()
    clusters = KubernetesClusters(connect)
    clusters.apply_settings(settings(ONE))
    clusters.provisioner("one")
    moved = replace(ONE, server="https://b")
    assert clusters.apply_settings(settings(moved)) == ""
    clusters.provisioner("one")
    assert (connect.made, connect.closed) == ([ONE, moved], ["https://a"])


@pytest.mark.parametrize("change", [{"uid": "2222-2222"}, {"namespace": "other"}], ids=["uid", "namespace"])
def test_another_cluster_of_the_same_name_waits_for_another_daemon(change: dict[str, str]) -> None:
    connect = Connections()
    clusters = KubernetesClusters(connect)
    clusters.apply_settings(settings(ONE))
    told = clusters.apply_settings(settings(replace(ONE, **change)))
    assert "cluster one is still the one with the uid 1111-1111" in told
    clusters.provisioner("one")
    assert connect.made == [ONE]


@pytest.mark.parametrize("change", [{"uid": "2222-2222"}, {"namespace": "other"}], ids=["uid", "namespace"])
def test_a_new_daemon_stays_with_the_cluster_that_a_job_has_its_gang_in(change: dict[str, str]) -> None:
    connect = Connections()
    clusters = KubernetesClusters(connect)
    edited = replace(ONE, server="https://b", **change)
    assert clusters.apply_settings(settings(edited)) == ""
    clusters.keep({"k8s:one": ONE.identity, "k8s:gone": "x/y"})
    clusters.provisioner("one")
    assert connect.made == [replace(ONE, server="https://b")]
    assert "cluster one is still the one with the uid 1111-1111" in clusters.apply_settings(settings(edited))


def test_libraries_of_clusters_and_of_cloud_tpu_are_loaded_one_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """In two threads at once they find `requests` half loaded, and the daemon never recovers."""
    entered: list[str] = []

    class Noting:
        def __init__(self, where: str) -> None:
            self._where = where

        def __enter__(self) -> None:
            entered.append(self._where)

        def __exit__(self, *_: object) -> None: ...

    for module in (kubernetes_clusters, credentials, daemon):
        monkeypatch.setattr(module, "LIBRARIES", Noting(module.__name__.rpartition(".")[2]))
    made = kubernetes_clusters.connector("team", ManualClock())(replace(ONE, server="http://127.0.0.1:1"))
    made.close()
    with contextlib.suppress(ProvisionerUnavailable):
        credentials.open_session(replace(ONE, server="", kubeconfig="/nowhere"))
    assert entered == ["kubernetes_clusters", "credentials"]
    daemon._connect_to(roots.parse_root("gs://team/t-bastion"))(CloudApi(project="p", endpoint="127.0.0.1:1", token=""))
    assert entered[2:] == ["daemon"]


def test_a_cluster_that_was_removed_from_the_settings_still_answers_for_its_gangs() -> None:
    clusters = KubernetesClusters(Connections())
    clusters.apply_settings(settings(ONE))
    clusters.apply_settings(settings())
    assert list(clusters.provisioner("one").list("k8s:one")) == []


def test_a_cluster_that_was_never_named_does_not_answer() -> None:
    with pytest.raises(ProvisionerUnavailable, match=r"has no cluster one, .* add \[clusters\.one\] again"):
        KubernetesClusters(Connections()).provisioner("one")


def test_at_the_daemons_end_every_connection_ends() -> None:
    connect = Connections()
    clusters = KubernetesClusters(connect)
    clusters.apply_settings(settings(ONE, replace(ONE, name="two", server="https://b")))
    clusters.provisioner("one")
    clusters.provisioner("two")
    clusters.close()
    assert sorted(connect.closed) == ["https://a", "https://b"]
