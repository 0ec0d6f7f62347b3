"""Each row of the state table, from documents; and the facts that go with a state."""

from __future__ import annotations

import pytest

from bastion.adapters.kubernetes.state import RULES
from bastion.core.model.gangs import GangState
from tests.support.gang_documents import (
    CASES,
    HOSTS,
    NAME,
    RUN,
    SLICES,
    Documents,
    condition,
    deleting,
    ended,
    unplaced,
    waiting,
)

# State and, where there is one, the failure's cause.
EXPECTED: dict[str, tuple[GangState, str]] = {
    "going": (GangState.DELETING, ""),
    "the rest goes": (GangState.DELETING, ""),
    "kept by a finalizer": (GangState.DELETING, ""),
    "orphaned": (GangState.FAILED, "infrastructure"),
    "suspended": (GangState.FAILED, "refused"),
    "evicted": (GangState.LOST, "evicted"),
    "evicted, its pods run": (GangState.LOST, "evicted"),
    "evicted, its Job failed": (GangState.LOST, "evicted"),
    "evicted and admitted again": (GangState.LOST, "evicted"),
    "deactivated while it ran": (GangState.LOST, "infrastructure"),
    "too long for Kueue": (GangState.LOST, "infrastructure"),
    "not started": (GangState.FAILED, "infrastructure"),
    "a queued pod goes": (GangState.LOST, ""),
    "its Workload was deleted": (GangState.LOST, "infrastructure"),
    "its Workload is being deleted": (GangState.LOST, "infrastructure"),
    "its node fails while it has no Workload": (GangState.LOST, ""),
    "Kueue is gone": (GangState.FAILED, "infrastructure"),
    "its label was removed": (GangState.FAILED, "infrastructure"),
    "no Workload yet": (GangState.WAITING, ""),
    "not considered yet": (GangState.WAITING, ""),
    "no quota": (GangState.WAITING, ""),
    "no LocalQueue": (GangState.WAITING, ""),
    "checks pending": (GangState.WAITING, ""),
    "evicted before it ran": (GangState.WAITING, ""),
    "deactivated before it ran": (GangState.WAITING, ""),
    "admitted": (GangState.WAITING, ""),
    "admitted, no pods yet": (GangState.WAITING, ""),
    "admitted, and runs": (GangState.READY, ""),
    "pre-empted": (GangState.LOST, ""),
    "a pod goes": (GangState.LOST, ""),
    "out of memory": (GangState.LOST, "failed"),
    "out of disk": (GangState.LOST, "failed"),
    "no Python": (GangState.FAILED, "refused"),
    "a host failed": (GangState.LOST, ""),
    "ended and gone": (GangState.LOST, ""),
    "wrong pod settings": (GangState.FAILED, "refused"),
    "bad image name": (GangState.FAILED, "refused"),
    "no such image": (GangState.FAILED, "refused"),
    "registry down": (GangState.FAILED, "infrastructure"),
    "over quota": (GangState.WAITING, ""),
    "not admitted": (GangState.FAILED, "refused"),
    "not admitted to the pod's namespace": (GangState.FAILED, "refused"),
    "webhook down": (GangState.WAITING, ""),
    "no account": (GangState.WAITING, ""),
    "half placed": (GangState.WAITING, ""),
    "unplaced": (GangState.WAITING, ""),
    "expired": (GangState.FAILED, "capacity"),
    "pulling": (GangState.CREATING, ""),
    "node has not read its services yet": (GangState.CREATING, ""),
    "registry not trusted yet": (GangState.CREATING, ""),
    "running": (GangState.READY, ""),
    "one ended": (GangState.READY, ""),
    "completed": (GangState.LOST, ""),
}


def test_there_is_a_case_for_each_row_and_an_expectation_for_each_case() -> None:
    assert {row for row, _ in CASES.values()} == set(range(len(RULES)))
    assert EXPECTED.keys() == CASES.keys()


@pytest.mark.parametrize("case", CASES)
def test_the_first_row_that_matches_gives_the_state(case: str) -> None:
    row, make = CASES[case]
    documents = make()
    findings = [rule.find(documents.parts) for rule in RULES[: row + 1]]
    assert [number for number, finding in enumerate(findings) if finding is not None] == [row]
    status = documents.status
    cause = status.failure.cause if status.failure is not None else ""
    assert (status.state, cause) == EXPECTED[case]
    assert status.state.name in RULES[row].state
    assert status.run == RUN


def test_a_gang_that_a_finalizer_keeps_says_which() -> None:
    message = CASES["kept by a finalizer"][1]().status.message
    assert message == "its JobSet is being deleted; waiting for whoever set the finalizer example.com/never"


@pytest.mark.parametrize("case", ["its Workload was deleted", "its Workload is being deleted"])
def test_a_gang_whose_workload_was_deleted_names_kueue(case: str) -> None:
    failure = CASES[case][1]().status.failure
    assert failure is not None
    assert failure.message.startswith(
        "Kueue stopped it, because it has no admitted Workload (deleted, replaced, or resumed by hand): pod b-"
    )


def test_a_status_says_whose_gang_it_is() -> None:
    status = Documents().status
    assert (status.ref.name, status.ref.zone, status.ref.num_slices) == (NAME, "k8s:west", SLICES)
    assert status.token == "token"
    assert status.labels["bastion-managed"] == "team"
    assert status.nodes == {f"{NAME}-0": GangState.READY, f"{NAME}-1": GangState.READY}


@pytest.mark.parametrize(("host", "worker"), [(0, 0), (3, 3)])
def test_of_an_out_of_memory_kill_the_host_and_its_code_are_told(host: int, worker: int) -> None:
    documents = Documents()
    ended(documents.pods[host], 137, "OOMKilled")
    failure = documents.status.failure
    assert failure is not None
    assert (failure.host, failure.exit_code) == (worker, 137)
    assert host == (host // HOSTS) * HOSTS + host % HOSTS


def test_of_several_lost_pods_the_one_that_failed_first_is_told_not_those_deleted_with_it() -> None:
    documents = Documents()
    deleting(documents.pods[0])
    deleting(documents.pods[1])
    ended(documents.pods[2], 143, "Error", "", condition("DisruptionTarget", "PreemptionByScheduler", "made room"))
    assert "PreemptionByScheduler: made room" in documents.status.message
    assert "node-1-0" in documents.status.message


def test_a_job_that_failed_without_a_pod_left_tells_its_own_reason() -> None:
    documents = Documents(pods=[])
    documents.jobs[1]["status"] = {"conditions": [condition("FailureTarget", "PodFailurePolicy", "exit code 1")]}
    status = documents.status
    assert (status.state, status.message) == (GangState.LOST, "PodFailurePolicy: exit code 1")


@pytest.mark.parametrize("who", ["Job", "JobSet"])
def test_while_the_pods_of_a_failed_job_are_seen_as_before_the_gang_is_not_lost_yet(who: str) -> None:
    """Watched apart, they may come later than their Job; only they tell an image that cannot run from a lost node."""
    documents = Documents()
    told = condition("Failed", "PodFailurePolicy", "exit code 64")
    item = documents.jobs[0] if who == "Job" else documents.jobset
    assert item is not None
    item["status"] = {"conditions": [told]}  # 30 s after the gang was created
    documents.age = 89.0
    assert (documents.status.state, documents.status.failure) == (GangState.READY, None)
    documents.age = 90.0
    assert documents.status.state is GangState.LOST
    documents.age = 89.0
    ended(documents.pods[0], 64, "Error", "no Python 3.10 or later")
    assert documents.status.failure is not None and documents.status.failure.cause == "refused"


def test_a_condition_that_is_not_true_means_nothing() -> None:
    documents = Documents()
    told = condition("Failed", "PodFailurePolicy", status="False")
    documents.jobs[0]["status"] = {"conditions": [told]}
    documents.pods[0]["status"]["conditions"] = [condition("DisruptionTarget", "x", status="False")]
    assert documents.status.state is GangState.READY


def test_an_image_that_cannot_run_on_a_host_that_was_taken_away_is_not_the_images_fault() -> None:
    documents = Documents()
    ended(documents.pods[0], 64, "Error", "", condition("DisruptionTarget", "TerminationByKubelet"))
    assert (documents.status.state, documents.status.failure) == (GangState.LOST, None)


@pytest.mark.parametrize(("pods", "partial"), [(0, False), (2, True), (4, True)])
def test_a_gang_holds_machines_as_soon_as_one_pod_is_placed(pods: int, partial: bool) -> None:
    documents = Documents()
    documents.pods = documents.pods[:pods]
    if pods == 4:
        unplaced(documents.pods[0], "0/4 nodes are available: 4 Insufficient google.com/tpu.")
    status = documents.status
    assert (status.state, status.partial) == (GangState.WAITING, partial)
    assert status.waiting == ("Unschedulable" if pods == 4 else "PodsPending")
    assert ("Insufficient google.com/tpu" in status.waiting_message) == (pods == 4)


def test_a_slice_without_all_of_its_pods_waits_while_the_other_is_ready() -> None:
    documents = Documents()
    unplaced(documents.pods[3])
    assert documents.status.nodes == {f"{NAME}-0": GangState.READY, f"{NAME}-1": GangState.WAITING}
    waiting(documents.pods[0], "ContainerCreating")
    assert documents.status.nodes[f"{NAME}-0"] is GangState.CREATING


def test_pods_that_are_not_created_yet_are_not_gone_though_another_has_ended() -> None:
    documents = Documents()
    ended(documents.pods[0], 0)
    documents.jobs[0]["status"] = {"succeeded": 1}
    assert documents.status.state is GangState.READY
    del documents.pods[1]
    assert documents.status.state is GangState.WAITING


def test_an_init_container_that_failed_counts_and_one_that_ended_well_does_not() -> None:
    documents = Documents()
    init = {"name": "agent", "state": {"terminated": {"exitCode": 64, "message": "no agent"}}}
    documents.pods[0]["status"] = {"phase": "Failed", "initContainerStatuses": [init]}
    failure = documents.status.failure
    assert failure is not None and "no agent" in failure.message
    init["state"] = {"terminated": {"exitCode": 0}}
    documents.pods[0]["status"] = {"phase": "Running", "initContainerStatuses": [init]}
    assert documents.status.state is GangState.READY
