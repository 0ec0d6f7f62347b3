"""What people do to a gang's objects by hand, on an API server without controllers."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

pytest.importorskip("kubernetes", reason="the extra `kubernetes` is not installed")

from bastion.adapters.kubernetes.provisioner import KubernetesProvisioner
from bastion.adapters.system_clock import SystemClock
from bastion.core.errors import ProvisionerRefused
from bastion.core.model.gangs import GangRef, GangRequest, GangState
from bastion.emulators.kubernetes.client import ApiClient
from tests.support.cluster_api import JOBSETS, PODS, pod, running

REF = GangRef(name="b-aaaaaaaaaa-1")
Made = tuple[KubernetesProvisioner, ApiClient]
REQUEST = GangRequest(
    ref=REF,
    bastion="team",
    run="aaaaaaaaaa-1",
    token="token",
    accelerator_type="v4-8",
    image="registry.example/train:v1",
    agent_arguments="{}",
)


@pytest.fixture
def made(tmp_path: Path) -> Iterator[Made]:
    with running(tmp_path) as cluster:
        people = ApiClient.connect(cluster.server.address)
        uid = people.get("/api/v1/namespaces/kube-system")["metadata"]["uid"]
        settings = cluster.settings(uid=uid)
        provisioner = KubernetesProvisioner(settings, bastion="team", startup_script="true", clock=SystemClock())
        try:
            provisioner.create(REQUEST)
            yield provisioner, people
        finally:
            provisioner.close()
            people.close()


def test_a_job_set_whose_labels_were_removed_is_found_and_deleted(
    made: Made,
) -> None:
    provisioner, people = made
    path = f"{JOBSETS}/{REF.name}"
    people.patch(path, {"metadata": {"labels": {"bastion-managed": None, "bastion-run": "zzzzzzzzzz-1"}}})
    found = provisioner.get(REF)
    assert found is not None and (found.run, found.token) == ("aaaaaaaaaa-1", "token")
    provisioner.delete(REF)
    assert "deletionTimestamp" in people.get(path)["metadata"]


def test_a_copy_under_the_name_of_another_run_is_left_alone(made: Made) -> None:
    provisioner, people = made
    copy = people.get(f"{JOBSETS}/{REF.name}")
    copy["metadata"] = {"name": "b-aaaaaaaaaa-2", "namespace": "default"}
    people.create(JOBSETS, copy)
    with pytest.raises(ProvisionerRefused, match="lacks the label bastion-managed=team"):
        provisioner.delete(GangRef(name="b-aaaaaaaaaa-2"))


def test_what_becomes_of_a_copied_pod_ends_no_job(made: Made) -> None:
    provisioner, people = made
    copied = pod("mine", **{"jobset.sigs.k8s.io/jobset-name": REF.name})
    people.create(PODS, copied)
    failed = {"status": {"phase": "Failed", "reason": "Evicted", "message": "The node was low on resource: memory"}}
    people.patch(f"{PODS}/mine/status", failed)
    found = provisioner.get(REF)
    assert found is not None and (found.state, found.failure) == (GangState.WAITING, None)
