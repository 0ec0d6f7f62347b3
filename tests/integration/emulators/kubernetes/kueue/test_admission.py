"""JobSets in queues: admitted, started, finished."""

from __future__ import annotations

from bastion.emulators.kubernetes.controllers.api_objects import JOB_SET, annotations_of, labels_of, status_of
from tests.integration.emulators.kubernetes.kueue.conftest import QUEUE, StartKueue
from tests.support.kueue_objects import TPU, cluster_queue, flavor, group, local_queue, quota
from tests.support.waiting import until

_POOL = {"cloud.google.com/gke-tpu-accelerator": "tpu-v5-lite-podslice"}


def test_a_gang_is_admitted_runs_and_finishes(start: StartKueue) -> None:
    machine = start("v5litepod-16=1")
    machine.make(
        flavor("tpu", labels=_POOL),
        cluster_queue("cq", group(tpu=quota(TPU, 16))),
        local_queue("team", "cq"),
    )
    made = machine.gang("one", hosts=4)
    assert made["spec"]["suspend"] is True
    workload = machine.until_admitted("one")
    assert workload["spec"]["queueName"] == "team"
    assert labels_of(workload) == {"kueue.x-k8s.io/job-uid": made["metadata"]["uid"]}
    assert status_of(workload)["admission"] == {
        "clusterQueue": "cq",
        "podSetAssignments": [
            {"name": "slice", "flavors": {TPU: "tpu"}, "resourceUsage": {TPU: "16"}, "count": 4},
        ],
    }
    machine.until_running("one", 4)
    (pod, *_) = machine.running()
    assert labels_of(pod)["kueue.x-k8s.io/podset"] == "slice"
    assert labels_of(pod)["kueue.x-k8s.io/local-queue-name"] == "team"
    assert labels_of(pod)["kueue.x-k8s.io/cluster-queue-name"] == "cq"
    assert annotations_of(pod)["kueue.x-k8s.io/workload"] == workload["metadata"]["name"]
    machine.finish_gang("one")
    finished = machine.until_has("one", "Finished")
    assert (finished["reason"], finished["message"]) == ("Succeeded", "jobset completed successfully")
    machine.client.delete(JOB_SET.path("default", "one"), propagation="Foreground")
    until(lambda: machine.workload("one") is None and machine.is_gone_gang("one"), 10)
    assert QUEUE in labels_of(made)
