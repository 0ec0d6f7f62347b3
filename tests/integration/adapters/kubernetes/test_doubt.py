"""After a request without an answer, watches that begin anew show soon whether the API server still answers."""

from __future__ import annotations

from pathlib import Path

import pytest

pytest.importorskip("kubernetes", reason="the extra `kubernetes` is not installed")

from bastion.adapters.kubernetes.provisioner import KubernetesProvisioner
from bastion.adapters.system_clock import SystemClock
from bastion.core.errors import GangExists, ProvisionerUnavailable
from bastion.core.model.gangs import GangRef, GangRequest
from bastion.emulators.kubernetes.apiserver.faults import Fault
from bastion.emulators.kubernetes.client import ApiClient
from tests.support.cluster_api import JOBSETS, running
from tests.support.waiting import until

REQUEST = GangRequest(
    ref=GangRef(name="b-aaaaaaaaaa-1"),
    bastion="team",
    run="aaaaaaaaaa-1",
    token="token",
    accelerator_type="v5litepod-16",
    image="registry.example/train:v1",
    agent_arguments="{}",
)


def test_a_lost_reply_silences_a_cluster_for_a_moment_only(tmp_path: Path) -> None:
    with running(tmp_path) as cluster:
        client = ApiClient.connect(cluster.server.address)
        uid = client.get("/api/v1/namespaces/kube-system")["metadata"]["uid"]
        client.close()
        provisioner = KubernetesProvisioner(
            cluster.settings(uid=uid), bastion="team", startup_script="exit 0", clock=SystemClock()
        )
        try:
            assert provisioner.list() == []
            cluster.faults.append((f"POST {JOBSETS}", Fault(cut_reply=True)))
            with pytest.raises(ProvisionerUnavailable):
                provisioner.create(REQUEST)
            watches = len(cluster.watches())
            until(lambda: _answers(provisioner), 10)  # the server's bookmarks are a minute apart
            assert len(cluster.watches()) >= watches + 2
            assert [gang.ref.name for gang in provisioner.list()] == [REQUEST.ref.name]
            with pytest.raises(GangExists):
                provisioner.create(REQUEST)
        finally:
            provisioner.close()


def _answers(provisioner: KubernetesProvisioner) -> bool:
    try:
        provisioner.list()
    except ProvisionerUnavailable:
        return False
    return True
