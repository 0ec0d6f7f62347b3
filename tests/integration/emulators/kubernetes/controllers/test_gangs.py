"""A JobSet from creation to its end: the controllers together."""

from __future__ import annotations

from collections.abc import Callable

from bastion.emulators.kubernetes.controllers.objects import (
    JOB,
    JOB_SET,
    is_true,
    labels_of,
    name_of,
    node_name_of,
    status_of,
)
from tests.support.kubernetes_jobs import job_set
from tests.support.waiting import until


def test_a_gang_runs_on_one_pool_per_slice_and_completes(machine_of: Callable[..., object]) -> None:
    machine = machine_of("v5litepod-16=3")
    machine.submit(job_set(slices=2, hosts=4))
    until(lambda: len(machine.running()) == 8, 20)
    pods = machine.running()
    pools = {name_of(node): labels_of(node)["cloud.google.com/gke-nodepool"] for node in machine.nodes()}
    by_job: dict[str, set[str]] = {}
    for pod in pods:
        by_job.setdefault(labels_of(pod)["batch.kubernetes.io/job-name"], set()).add(pools[node_name_of(pod)])
    assert sorted(by_job) == ["b-one-1-slice-0", "b-one-1-slice-1"]
    assert all(len(pools) == 1 for pools in by_job.values())
    assert by_job["b-one-1-slice-0"] != by_job["b-one-1-slice-1"]
    assert machine.services() == ["b-one-1"] or "b-one-1" in machine.services()
    for pod in pods:
        machine.kubelet.finish(pod)
    done = machine.until_condition(JOB_SET.path("default", "b-one-1"), "Completed")
    assert done["reason"] == "AllJobsCompleted"
    job = machine.job("b-one-1-slice-0")
    assert status_of(job)["succeeded"] == 4
    assert status_of(job)["completedIndexes"] == "0-3"
    assert is_true(job, "SuccessCriteriaMet")
    machine.client.delete(JOB_SET.path("default", "b-one-1"), propagation="Foreground")
    until(lambda: machine.left() == [], 20)


def test_a_failed_host_fails_its_gang(machine_of: Callable[..., object]) -> None:
    machine = machine_of("v5litepod-16=2")
    machine.submit(job_set(slices=2, hosts=2))
    until(lambda: len(machine.running()) == 4, 20)
    pod = machine.running()[1]
    machine.kubelet.finish(pod, 7)
    failed = machine.until_condition(JOB_SET.path("default", "b-one-1"), "Failed")
    assert failed["message"] == "jobset failed due to one or more job failures (first failed job: b-one-1-slice-0)"
    job = machine.job("b-one-1-slice-0")
    target = machine.until_condition(JOB.path("default", name_of(job)), "FailureTarget")
    assert target["reason"] == "PodFailurePolicy"
    assert target["message"] == (
        f"Container host for pod default/{name_of(pod)} failed with exit code 7 matching FailJob rule at index 1"
    )
    until(lambda: machine.is_gone(JOB.path("default", "b-one-1-slice-1")), 20)
    until(lambda: not machine.running(), 20)
