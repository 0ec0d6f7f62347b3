"""A JobSet from creation to its end: the controllers together."""

from __future__ import annotations

import pytest

from bastion.emulators.kubernetes.controllers.api_objects import (
    JOB,
    JOB_SET,
    condition_of,
    is_true,
    labels_of,
    name_of,
    node_name_of,
    status_of,
)
from tests.support.kubernetes_jobs import JOB_SETS, JOBS, job_set, job_template
from tests.support.kubernetes_machine import StartMachine
from tests.support.waiting import until


def test_a_gang_runs_on_one_pool_per_slice_and_completes(start: StartMachine) -> None:
    machine = start("v5litepod-16=3")
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
    assert "b-one-1" in machine.services()
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


def test_a_failed_host_fails_its_gang(start: StartMachine) -> None:
    machine = start("v5litepod-16=2")
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


def test_followers_are_created_when_the_leader_is_placed(start: StartMachine) -> None:
    machine = start()
    machine.submit(job_set(hosts=3))
    until(lambda: {"FailedScheduling", "FailedCreate"} <= {reason for reason, _ in machine.events()}, 20)
    (leader,) = machine.pods()
    scheduled = condition_of(leader, "PodScheduled")
    assert scheduled is not None
    assert scheduled["reason"] == "Unschedulable"
    assert scheduled["message"] == "no nodes available to schedule pods"
    denied = [message for reason, message in machine.events() if reason == "FailedCreate"]
    assert denied == [
        'Error creating: admission webhook "vpod.kb.io" denied the request: follower pod node selector for topology '
        "domain not found. missing selector: cloud.google.com/gke-nodepool"
    ]


def test_a_second_gang_waits_until_the_first_leaves_its_pool(start: StartMachine) -> None:
    machine = start("v5litepod-16=1")
    machine.submit(job_set("b-one-1", hosts=4))
    until(lambda: len(machine.running()) == 4, 20)
    machine.submit(job_set("b-two-1", hosts=4))
    until(lambda: machine.events("b-two-1-slice-0-0-"), 20)
    (message,) = {message for reason, message in machine.events("b-two-1-slice-0-0-") if reason == "FailedScheduling"}
    assert message == (
        "0/4 nodes are available: 4 Insufficient google.com/tpu. no new claims to deallocate, preemption: "
        "0/4 nodes are available: 4 No preemption victims found for incoming pod."
    )
    machine.client.delete(JOB_SET.path("default", "b-one-1"), propagation="Foreground")
    owner = "jobset.sigs.k8s.io/jobset-name"
    until(lambda: [labels_of(pod)[owner] for pod in machine.running()] == ["b-two-1"] * 4, 20)


def test_a_gang_keeps_other_gangs_off_its_pool_even_where_there_is_room(start: StartMachine) -> None:
    machine = start("v5litepod-16=1")
    machine.submit(job_set("b-one-1", hosts=1))
    until(lambda: len(machine.running()) == 1, 20)
    machine.submit(job_set("b-two-1", hosts=1))
    wanted = ("1 Insufficient google.com/tpu", "3 node(s) didn't match pod anti-affinity rules")
    # The scheduler may not know all nodes at first.
    until(lambda: any(all(each in message for each in wanted) for _, message in machine.events("b-two-1-")), 20)
    assert len(machine.running()) == 1


def test_a_suspended_gang_has_no_pods_until_it_is_resumed(start: StartMachine) -> None:
    machine = start("v5litepod-16=1")
    machine.submit(job_set(suspend=True))
    path = JOB_SET.path("default", "b-one-1")
    machine.until_condition(path, "Suspended")
    machine.until_condition(JOB.path("default", "b-one-1-slice-0"), "Suspended")
    assert machine.pods() == []
    machine.client.patch(path, {"spec": {"suspend": False}})
    until(lambda: len(machine.running()) == 2, 20)
    until(lambda: not is_true(machine.job_set(), "Suspended"), 20)
    machine.client.patch(path, {"spec": {"suspend": True}})
    until(lambda: machine.pods() == [], 20)


def test_a_finished_gang_is_removed_after_its_time(start: StartMachine) -> None:
    machine = start("v5litepod-16=1")
    machine.submit(job_set(ttlSecondsAfterFinished=0))
    until(lambda: len(machine.running()) == 2, 20)
    for pod in machine.running():
        machine.kubelet.finish(pod)
    until(lambda: machine.left() == [], 20)


def test_a_failure_policy_that_restarts_is_refused_by_name(start: StartMachine) -> None:
    machine = start("v5litepod-16=1")
    machine.submit(job_set(failurePolicy={"maxRestarts": 3}))
    until(lambda: len(machine.running()) == 2, 20)
    machine.kubelet.finish(machine.running()[0], 1)
    failed = machine.until_condition(JOB_SET.path("default", "b-one-1"), "Failed")
    assert failed["reason"] == "NotEmulated"


def test_a_job_of_someone_else_with_the_name_is_left_alone(start: StartMachine) -> None:
    machine = start("v5litepod-16=1")
    template = job_template(suspend=True)
    own = {"apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": "b-one-1-slice-0"}, "spec": template["spec"]}
    before = machine.client.create(JOBS, own)
    machine.submit(job_set())
    until(lambda: any(reason == "JobCreationFailed" for reason, _ in machine.events()), 20)
    machine.client.delete(f"{JOB_SETS}/b-one-1", propagation="Foreground")
    until(lambda: machine.is_gone(f"{JOB_SETS}/b-one-1"), 20)
    assert machine.job("b-one-1-slice-0")["metadata"]["uid"] == before["metadata"]["uid"]


@pytest.mark.parametrize("address", ["emulated"], indirect=True)  # The real server's build has no quotas.
def test_a_quota_that_is_full_is_named_by_an_event(start: StartMachine) -> None:
    machine = start("v5litepod-16=1")
    quota = {
        "apiVersion": "v1",
        "kind": "ResourceQuota",
        "metadata": {"name": "few"},
        "spec": {"hard": {"pods": "1"}},
    }
    machine.client.create("/api/v1/namespaces/default/resourcequotas", quota)
    machine.submit(job_set())
    until(lambda: any("exceeded quota" in message for _, message in machine.events()), 20)
    message = next(message for _, message in machine.events() if "exceeded quota" in message)
    assert message.startswith('Error creating: pods "b-one-1-slice-0-1-')
    assert message.endswith("is forbidden: exceeded quota: few, requested: pods=1, used: pods=1, limited: pods=1")
    machine.client.delete("/api/v1/namespaces/default/resourcequotas/few")
    until(lambda: len(machine.running()) == 2, 20)
