"""A cluster with Kueue and one without it, as a client of the API sees them."""

from __future__ import annotations

import pytest

from bastion.emulators.kubernetes.client import ApiClient, ApiError
from tests.integration.emulators.kubernetes.apiserver.conftest import Fresh
from tests.support.kubernetes_jobs import JOB_SETS, job_set

_GROUP = "/apis/kueue.x-k8s.io"
_QUEUE = "kueue.x-k8s.io/queue-name"


def _queued(*, suspend: bool) -> dict[str, object]:
    made = job_set(suspend=suspend)
    made["metadata"]["labels"][_QUEUE] = "team"
    return made


def test_without_kueue_its_kinds_are_unknown_and_job_sets_stay_as_they_are(fresh: Fresh) -> None:
    client = ApiClient.connect(fresh().address)
    for path in ("", "/v1beta2", "/v1beta2/workloads", "/v1beta2/namespaces/default/localqueues/team"):
        with pytest.raises(ApiError) as refused:
            client.get(_GROUP + path)
        assert refused.value.code == 404
    assert "kueue.x-k8s.io" not in [group["name"] for group in client.get("/apis")["groups"]]
    assert client.create(JOB_SETS, _queued(suspend=False))["spec"]["suspend"] is False
    client.close()


def test_with_kueue_its_kinds_are_served_and_job_sets_in_queues_suspended(fresh: Fresh) -> None:
    client = ApiClient.connect(fresh(kueue=True).address)
    assert client.get(_GROUP)["preferredVersion"]["version"] == "v1beta2"
    assert client.get(f"{_GROUP}/v1beta2/workloads")["kind"] == "WorkloadList"
    assert client.create(JOB_SETS, _queued(suspend=False))["spec"]["suspend"] is True
    client.close()


@pytest.mark.parametrize(
    ("plural", "spec", "named"),
    [
        ("cohorts", {"parentName": "all"}, "a cohort in a cohort"),
        ("resourceflavors", {"topologyName": "racks"}, "topology-aware scheduling"),
        ("clusterqueues", {"admissionScope": {"admissionMode": "NoAdmissionFairSharing"}}, "admissionScope"),
        ("topologies", {}, "topologies.kueue.x-k8s.io"),
        ("multikueueconfigs", {}, "multikueueconfigs.kueue.x-k8s.io"),
    ],
)
def test_what_is_not_emulated_is_refused_by_name(fresh: Fresh, plural: str, spec: object, named: str) -> None:
    client = ApiClient.connect(fresh(kueue=True).address)
    with pytest.raises(ApiError) as refused:
        client.create(f"{_GROUP}/v1beta2/{plural}", {"metadata": {"name": "x"}, "spec": spec})
    assert refused.value.code == 501
    assert named in refused.value.message
    client.close()


def test_a_team_that_has_a_default_queue_needs_no_label(fresh: Fresh) -> None:
    client = ApiClient.connect(fresh(kueue=True).address)
    queues = f"{_GROUP}/v1beta2/namespaces/default/localqueues"
    client.create(queues, {"metadata": {"name": "default"}, "spec": {"clusterQueue": "all"}})
    made = client.create(JOB_SETS, job_set())
    assert made["metadata"]["labels"][_QUEUE] == "default"
    assert made["spec"]["suspend"] is True
    with pytest.raises(ApiError, match="queue-name must not be empty in namespace with default queue"):
        client.patch(f"{JOB_SETS}/b-one-1", {"metadata": {"labels": {_QUEUE: None}}})
    client.close()
