"""What ends an admission: owners that return, priorities, deactivation, stopped queues, admission checks."""

from __future__ import annotations

import pytest

from bastion.emulators.kubernetes.client import Obj
from bastion.emulators.kubernetes.controllers.api_objects import (
    ADMISSION_CHECK,
    CLUSTER_QUEUE,
    JOB_SET,
    WORKLOAD,
    condition_of,
    is_true,
    path_of,
    status_of,
    timestamp,
    uid_of,
)
from tests.integration.emulators.kubernetes.kueue.conftest import KueueMachine, StartKueue
from tests.support.kubernetes_jobs import JOB_SETS
from tests.support.kueue_objects import TPU, cluster_queue, flavor, group, kueue_object, local_queue, priority, quota
from tests.support.waiting import until

_PREEMPTS = {"preemption": {"withinClusterQueue": "LowerPriority", "reclaimWithinCohort": "Any"}}


def _team(chips: int, **spec: object) -> tuple[Obj, ...]:
    return flavor("tpu"), cluster_queue("cq", group(tpu=quota(TPU, chips)), **spec), local_queue("team", "cq")


def _suspended(machine: KueueMachine, gang: str) -> bool:
    return bool(machine.job_set(gang)["spec"]["suspend"])


def _deactivate(machine: KueueMachine, gang: str, *, active: bool = False) -> None:
    workload = machine.workload(gang)
    assert workload is not None
    machine.client.patch(path_of(workload), {"spec": {"active": active}})


def test_a_higher_priority_preempts_and_the_evicted_gang_is_queued_again(start: StartKueue) -> None:
    machine = start("v5litepod-16=1")
    labels = {"cloud.google.com/gke-tpu-accelerator": "tpu-v5-lite-podslice"}
    taint = {"key": "reserved", "operator": "Exists"}
    machine.make(
        flavor("tpu", labels=labels, tolerations=[taint]),
        cluster_queue("cq", group(tpu=quota(TPU, 4)), **_PREEMPTS),
        local_queue("team", "cq"),
        priority("high", 100),
    )
    original = machine.gang("low")
    machine.until_running("low")
    template = machine.job_set("low")["spec"]["replicatedJobs"][0]["template"]["spec"]["template"]
    assert taint in template["spec"]["tolerations"]
    high = machine.gang("high", priority="high")
    evicted = machine.until_has("low", "Evicted", reason="Preempted")
    workload = machine.workload("high")
    assert workload is not None
    message = (
        f"Preempted to accommodate a workload (UID: {uid_of(workload)}, JobUID: {uid_of(high)}) due to "
        "prioritization in the ClusterQueue; preemptor path: /cq; preemptee path: /cq"
    )
    assert evicted["message"] == message
    assert machine.until_has("low", "Preempted")["reason"] == "InClusterQueue"
    machine.until_running("high")
    reserved = machine.until_has("low", "QuotaReserved", "False")
    assert reserved["reason"] == "Pending"
    requeued = machine.until_has("low", "Requeued")
    assert (requeued["reason"], requeued["message"]) == ("Preempted", message)
    machine.until_has("low", "Admitted", "False", "NoReservation")
    low = machine.workload("low")
    assert low is not None
    stats = {"evictions": [{"reason": "Preempted", "underlyingCause": "", "count": 1}]}
    assert status_of(low)["schedulingStats"] == stats
    assert _suspended(machine, "low")
    assert machine.job_set("low")["spec"]["replicatedJobs"] == original["spec"]["replicatedJobs"]
    assert workload["spec"]["priorityClassRef"] == {
        "group": "kueue.x-k8s.io",
        "kind": "WorkloadPriorityClass",
        "name": "high",
    }
    machine.finish_gang("high")
    machine.until_running("low")
    evicted = machine.until_has("low", "Evicted", "False")
    assert (evicted["reason"], evicted["message"]) == ("QuotaReserved", f"Previously: {message}")


def test_an_owner_reclaims_what_another_queue_borrowed(start: StartKueue) -> None:
    machine = start("v5litepod-16=2")
    machine.make(
        flavor("tpu"),
        cluster_queue("a", group(tpu=quota(TPU, 4)), cohort="all", **_PREEMPTS),
        cluster_queue("b", group(tpu=quota(TPU, 4)), cohort="all", **_PREEMPTS),
        local_queue("team-a", "a"),
        local_queue("team-b", "b"),
    )
    machine.gang("a-1", "team-a")
    machine.until_running("a-1")
    machine.gang("a-2", "team-a")
    machine.until_running("a-2")
    path = CLUSTER_QUEUE.path("", "a")
    until(lambda: status_of(machine.client.get(path)).get("admittedWorkloads") == 2, 20)
    queue = machine.client.get(path)
    assert status_of(queue)["flavorsUsage"] == [
        {"name": "tpu", "resources": [{"name": TPU, "borrowed": "4", "total": "8"}]}
    ]
    machine.gang("b-1", "team-b")
    machine.until_running("b-1")
    evicted = [gang for gang in ("a-1", "a-2") if machine.has(gang, "Preempted", reason="InCohortReclamation")]
    assert len(evicted) == 1
    condition = machine.until_has(evicted[0], "Preempted")
    assert "preemptor path: /all/b; preemptee path: /all/a" in condition["message"]


def test_a_deactivated_gang_stops_and_runs_again_when_activated(start: StartKueue) -> None:
    machine = start("v5litepod-16=1")
    machine.make(*_team(4))
    machine.gang("one")
    machine.until_running("one")
    _deactivate(machine, "one")
    evicted = machine.until_has("one", "Evicted", reason="Deactivated")
    assert evicted["message"] == "The workload is deactivated"
    machine.until_has("one", "QuotaReserved", "False", "Pending")
    machine.until_has("one", "Requeued", "False", "Deactivated")
    until(lambda: machine.pods() == [], 20)
    _deactivate(machine, "one", active=True)
    machine.until_running("one")
    requeued = machine.until_has("one", "Requeued")
    assert (requeued["reason"], requeued["message"]) == ("Reactivated", "The workload was reactivated")


def test_a_gang_without_a_queue_or_in_a_stopped_one_says_why(start: StartKueue) -> None:
    machine = start("v5litepod-16=1")
    machine.gang("one")
    why = machine.until_has("one", "QuotaReserved", "False", "Inadmissible")
    assert why["message"] == "LocalQueue team doesn't exist"
    machine.make(local_queue("team", "cq"))
    until(lambda: _message(machine, "one") == "ClusterQueue cq doesn't exist", 20)
    tpu, queue, local = _team(4)
    machine.make(queue)
    until(lambda: _message(machine, "one") == "ClusterQueue cq is inactive", 20)
    until(lambda: _active_reason(machine, queue) != "", 20)
    inactive = condition_of(machine.client.get(CLUSTER_QUEUE.path("", "cq")), "Active")
    assert inactive is not None
    assert (inactive["reason"], inactive["message"]) == (
        "FlavorNotFound",
        "Can't admit new workloads: references missing ResourceFlavor(s): tpu.",
    )
    machine.patch(local, {"spec": {"stopPolicy": "Hold"}})
    until(lambda: _message(machine, "one") == "LocalQueue team is inactive", 20)
    machine.make(tpu)
    machine.patch(local, {"spec": {"stopPolicy": "None"}})
    machine.until_running("one")
    until(lambda: machine.is_active(queue) and machine.is_active(local), 20)


def _message(machine: KueueMachine, gang: str) -> str:
    workload = machine.workload(gang)
    condition = condition_of(workload, "QuotaReserved") if workload is not None else None
    return condition["message"] if condition is not None else ""


def test_a_queue_that_is_drained_evicts_and_one_that_holds_does_not(start: StartKueue) -> None:
    machine = start("v5litepod-16=1")
    _, queue, local = objects = _team(4)
    machine.make(*objects)
    machine.gang("one")
    machine.until_running("one")
    machine.patch(queue, {"spec": {"stopPolicy": "Hold"}})
    until(lambda: not machine.is_active(queue), 20)
    assert not machine.has("one", "Evicted")
    machine.patch(queue, {"spec": {"stopPolicy": "HoldAndDrain"}})
    evicted = machine.until_has("one", "Evicted", reason="ClusterQueueStopped")
    assert evicted["message"] == "The ClusterQueue is stopped"
    machine.until_has("one", "QuotaReserved", "False")
    machine.patch(queue, {"spec": {"stopPolicy": "None"}})
    machine.until_running("one")
    assert machine.until_has("one", "Requeued")["reason"] == "ClusterQueueRestarted"
    machine.patch(local, {"spec": {"stopPolicy": "HoldAndDrain"}})
    machine.until_has("one", "Evicted", reason="LocalQueueStopped")
    until(lambda: machine.pods() == [], 20)


def test_a_gang_that_never_fits_names_the_resource(start: StartKueue) -> None:
    machine = start()
    machine.make(*_team(2))
    machine.gang("one")
    why = machine.until_has("one", "QuotaReserved", "False", "Pending")
    assert why["message"] == (
        f"couldn't assign flavors to pod set slice: insufficient quota for {TPU} in flavor tpu, previously considered "
        "podsets requests (0) + current podset request (4) > maximum capacity (2)"
    )
    assert not machine.has("one", "Admitted", "False")


def _with_check(machine: KueueMachine) -> None:
    check = kueue_object("AdmissionCheck", "prov", spec={"controllerName": "example.com/prov"})
    machine.make(check, *_team(4, admissionChecksStrategy={"admissionChecks": [{"name": "prov"}]}))
    now = timestamp(machine.controllers.cluster.clock())
    active = {"type": "Active", "status": "True", "reason": "Up", "message": "", "lastTransitionTime": now}
    machine.client.patch(f"{ADMISSION_CHECK.path('', 'prov')}/status", {"status": {"conditions": [active]}})


def _set_check(machine: KueueMachine, gang: str, state: str, **fields: object) -> None:
    workload = machine.workload(gang)
    assert workload is not None
    now = timestamp(machine.controllers.cluster.clock())
    check = {"name": "prov", "state": state, "message": "by hand", "lastTransitionTime": now, **fields}
    machine.client.patch(path_of(workload, "status"), {"status": {"admissionChecks": [check]}})


def _check_of(machine: KueueMachine, gang: str) -> Obj:
    """The state of `prov`; a workload's checks are written after its quota reservation."""
    found: list[Obj] = []

    def told() -> bool:
        found[:] = status_of(machine.workload(gang) or {}).get("admissionChecks", [])
        return [each["name"] for each in found] == ["prov"]

    until(told, 20)
    return found[0]


def test_an_admission_check_delays_admission_and_its_updates_are_injected(start: StartKueue) -> None:
    machine = start("v5litepod-16=1")
    _with_check(machine)
    machine.gang("one")
    machine.until_has("one", "QuotaReserved")
    assert _check_of(machine, "one")["state"] == "Pending"
    assert not machine.has("one", "Admitted")
    assert _suspended(machine, "one")
    update = {"name": "slice", "annotations": {"example.com/request": "r-1"}}
    _set_check(machine, "one", "Ready", podSetUpdates=[update])
    machine.until_admitted("one")
    machine.until_running("one")
    (pod,) = machine.running()
    assert pod["metadata"]["annotations"]["example.com/request"] == "r-1"


def test_a_check_that_retries_gives_quota_back_and_one_that_rejects_deactivates(start: StartKueue) -> None:
    machine = start("v5litepod-16=1")
    _with_check(machine)
    machine.gang("one")
    machine.until_has("one", "QuotaReserved")
    assert _check_of(machine, "one")["state"] == "Pending"
    _set_check(machine, "one", "Retry", requeueAfterSeconds=1)
    machine.until_has("one", "Requeued", reason="BackoffFinished")
    # It may have quota again by now.
    message = 'Evicted due to AdmissionCheck in Retry state: "prov" (by hand)'
    assert ("EvictedDueToAdmissionCheck", message) in machine.events()
    machine.until_has("one", "QuotaReserved")
    assert _check_of(machine, "one")["message"] == "Reset to Pending after eviction. Previously: Retry"
    _set_check(machine, "one", "Rejected")
    evicted = machine.until_has("one", "Evicted", reason="DeactivatedDueToAdmissionCheck")
    assert evicted["message"] == (
        'The workload is deactivated due to AdmissionCheck in Rejected state: "prov" (by hand)'
    )
    machine.until_has("one", "QuotaReserved", "False", "Pending")
    workload = machine.workload("one")
    assert workload is not None
    assert workload["spec"]["active"] is False
    assert status_of(workload)["schedulingStats"]["evictions"] == [
        {"reason": "AdmissionCheck", "underlyingCause": "", "count": 1},
        {"reason": "Deactivated", "underlyingCause": "AdmissionCheck", "count": 1},
    ]


@pytest.mark.parametrize("address", ["emulated"], indirect=True)  # A webhook adds the finalizers.
def test_queues_and_flavors_in_use_are_kept_until_they_are_not(start: StartKueue) -> None:
    machine = start("v5litepod-16=1")
    tpu, queue, _ = objects = _team(4)
    machine.make(*objects)
    machine.gang("one")
    machine.until_running("one")
    for obj in (tpu, queue):
        machine.client.delete(path_of(obj))
    until(lambda: _active_reason(machine, queue) == "Terminating", 20)
    assert not machine.is_gone(path_of(tpu))
    machine.client.delete(f"{JOB_SETS}/one", propagation="Foreground")
    until(lambda: machine.is_gone(path_of(queue)) and machine.is_gone(path_of(tpu)), 20)
    until(lambda: machine.client.list(WORKLOAD.path("default"))["items"] == [], 20)


def _active_reason(machine: KueueMachine, queue: Obj) -> str:
    condition = condition_of(machine.client.get(path_of(queue)), "Active")
    return condition["reason"] if condition is not None else ""


def test_a_job_set_without_a_queue_is_left_alone(start: StartKueue) -> None:
    machine = start("v5litepod-16=1")
    machine.make(*_team(4))
    made = machine.gang("one", "")
    assert "suspend" not in made["spec"]
    machine.until_running("one")
    assert machine.workload("one") is None
    assert not is_true(machine.client.get(JOB_SET.path("default", "one")), "Suspended")
