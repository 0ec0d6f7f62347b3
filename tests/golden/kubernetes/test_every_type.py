"""What pods ask of their nodes, for every instance type on every kind of cluster, on two slices."""

from __future__ import annotations

import json
from typing import Any

import pytest

from bastion.core.model import instance_types
from bastion.core.model.clusters import ClusterSettings
from bastion.core.model.instance_types import InstanceType

pytest.importorskip("kubernetes", reason="the official client's models: pip install 'bastion[kubernetes]'")

from bastion.adapters.kubernetes import manifest
from bastion.core.errors import ProvisionerRefused
from tests.golden.kubernetes import golden_files
from tests.golden.kubernetes.test_jobsets import EKS, GENERIC, GKE, pod_of, request
from tests.support.kubernetes_schemas import crd_documents, job_set_problems, object_problems

CLUSTERS = {"every-type-gke": GKE, "every-type-eks": EKS, "every-type-generic": GENERIC}
EACH_CLUSTER = pytest.mark.parametrize("name", CLUSTERS)


def sizes(cluster: ClusterSettings) -> list[InstanceType]:
    """Every type of GPUs, and the smallest and the largest of each type of TPUs."""
    found = [each for each in instance_types.table().values() if cluster.provider in each.providers]
    ends: dict[str, list[InstanceType]] = {}
    for each in sorted(found, key=lambda each: each.amount):
        ends.setdefault(each.resource_type, []).append(each)
    return [each for each in found if each.kind == "gpu" or each in (ends[each.resource_type][i] for i in (0, -1))]


def written(instance_type: InstanceType, cluster: ClusterSettings) -> dict[str, Any]:
    asked = request(instance_type.accelerator_type, slices=2)
    return manifest.jobset(asked, cluster, bastion=asked.bastion, startup_script="true")


def needs_of(jobset: dict[str, Any]) -> dict[str, Any]:
    """The parts that depend on the type."""
    pod = pod_of(jobset)["spec"]
    job = jobset["spec"]["replicatedJobs"][0]["template"]["spec"]
    return {
        "hosts": job["parallelism"],
        "exclusive": jobset["metadata"]["annotations"].get("alpha.jobset.sigs.k8s.io/exclusive-topology", ""),
        "nodeSelector": pod["nodeSelector"],
        "tolerations": [each["key"] for each in pod["tolerations"]],
        "resources": pod["containers"][0]["resources"],
        "sidecars": [each["name"] for each in pod.get("initContainers", ()) if each.get("restartPolicy")],
    }


@EACH_CLUSTER
def test_each_type_asks_for_what_was_reviewed(name: str) -> None:
    found = {each.name: needs_of(written(each, CLUSTERS[name])) for each in sizes(CLUSTERS[name])}
    golden_files.check(f"{name}.json", json.dumps(found, indent=1) + "\n")


@EACH_CLUSTER
def test_each_type_is_a_jobset_that_jobset_and_the_official_client_know(name: str) -> None:
    try:
        crd_documents()
    except FileNotFoundError as absent:
        pytest.skip(str(absent))
    for each in sizes(CLUSTERS[name]):
        jobset = written(each, CLUSTERS[name])
        pod = {"apiVersion": "v1", "kind": "Pod", **pod_of(jobset)}
        assert job_set_problems(jobset) + object_problems(pod) == [], each.name


@EACH_CLUSTER
def test_a_type_that_the_provider_does_not_sell_is_refused_by_name(name: str) -> None:
    cluster = CLUSTERS[name]
    others = [each for each in instance_types.table().values() if cluster.provider not in each.providers]
    assert others
    for each in others:
        with pytest.raises(ProvisionerRefused, match=f"has no {each.name};"):
            written(each, cluster)


def test_every_machine_of_the_table_is_known() -> None:
    machines = {each.gke_machine_type for each in instance_types.table().values() if "gke" in each.providers}
    machines |= {each.eks_instance_type for each in instance_types.table().values() if "eks" in each.providers}
    assert machines <= set(instance_types.machine_types())
