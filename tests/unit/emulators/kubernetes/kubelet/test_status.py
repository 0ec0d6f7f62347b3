"""Pod statuses from what the kubelet knows, as pkg/kubelet computes them."""

from __future__ import annotations

from typing import Any

import pytest

from bastion.emulators.kubernetes.kubelet.pod_folder import ContainerState
from bastion.emulators.kubernetes.kubelet.status import Killed, Observed, pod_status, qos_class, timestamp

Obj = dict[str, Any]

NOW = 1_800_000_000.9
STAMP = "2027-01-15T08:00:00Z"


def pod(*names: str, init: tuple[str, ...] = (), status: Obj | None = None) -> Obj:
    spec = {
        "containers": [{"name": name, "image": "python"} for name in names],
        "initContainers": [{"name": name, "image": "python"} for name in init],
    }
    return {"metadata": {"name": "p"}, "spec": spec, "status": status or {"phase": "Pending"}}


def running(name: str) -> ContainerState:
    return ContainerState(name=name, phase="running", container_id="containerd://1", started_at=NOW - 5)


def ended(name: str, code: int = 0, reason: str = "") -> ContainerState:
    return ContainerState(
        name=name,
        phase="terminated",
        container_id="containerd://1",
        started_at=NOW - 5,
        finished_at=NOW - 1,
        exit_code=code,
        reason=reason or ("Error" if code else "Completed"),
    )


def status(which: Obj, *states: ContainerState, **fields: Any) -> Obj:
    observed = Observed(containers={state.name: state for state in states}, **{"address": "127.100.1.1", **fields})
    return pod_status(which, observed, now=NOW)


def conditions(found: Obj) -> dict[str, tuple[str, str]]:
    return {each["type"]: (each["status"], each.get("reason", "")) for each in found["conditions"]}


@pytest.mark.parametrize(
    ("states", "phase"),
    [
        ((), "Pending"),
        ((running("a"),), "Pending"),
        ((running("a"), running("b")), "Running"),
        ((running("a"), ended("b", 1)), "Running"),
        ((ended("a"), ended("b")), "Succeeded"),
        ((ended("a"), ended("b", 1)), "Failed"),
    ],
)
def test_the_phase_follows_the_containers(states: tuple[ContainerState, ...], phase: str) -> None:
    assert status(pod("a", "b"), *states)["phase"] == phase


def test_before_anything_runs_containers_are_being_created() -> None:
    found = status(pod("a"), address="")
    assert found["containerStatuses"][0]["state"] == {"waiting": {"reason": "ContainerCreating"}}
    assert conditions(found)["PodReadyToStartContainers"] == ("False", "")
    assert conditions(found)["Ready"] == ("False", "ContainersNotReady")
    assert "podIP" not in found
    assert found["startTime"] == STAMP


def test_init_containers_come_first() -> None:
    waiting = status(pod("a", init=("i",)), running("i"))
    assert waiting["phase"] == "Pending"
    assert waiting["containerStatuses"][0]["state"] == {"waiting": {"reason": "PodInitializing"}}
    assert conditions(waiting)["Initialized"] == ("False", "ContainersNotInitialized")
    assert status(pod("a", init=("i",)), ended("i"), running("a"))["phase"] == "Running"
    failed = status(pod("a", init=("i",)), ended("i", 3), terminated=True)
    assert failed["phase"] == "Failed"
    # Its containers never started, and are not said to be lost.
    assert "waiting" in failed["containerStatuses"][0]["state"]


def test_a_terminated_container_says_how() -> None:
    found = status(pod("a"), ended("a", 137, "OOMKilled"))["containerStatuses"][0]
    assert found["state"]["terminated"]["exitCode"] == 137
    assert found["state"]["terminated"]["reason"] == "OOMKilled"
    assert (found["ready"], found["started"], found["restartCount"]) == (False, False, 0)


def test_what_is_not_known_at_the_end_is_lost_and_fails_the_pod() -> None:
    found = status(pod("a", "b", status={"phase": "Running"}), ended("a"), terminated=True)
    assert found["phase"] == "Failed"
    lost = found["containerStatuses"][1]["state"]["terminated"]
    assert (lost["exitCode"], lost["reason"]) == (137, "ContainerStatusUnknown")


def test_an_eviction_counts_once_all_containers_have_ended() -> None:
    killed = Killed(reason="Evicted", message="The node was low on resource: memory. ")
    early = status(pod("a"), running("a"), killed=killed)
    assert (early["phase"], early.get("reason")) == ("Running", None)
    assert "DisruptionTarget" not in conditions(early)
    late = status(pod("a"), ended("a", 137), killed=killed)
    assert (late["phase"], late["reason"]) == ("Failed", "Evicted")
    assert conditions(late)["DisruptionTarget"] == ("True", "TerminationByKubelet")


def test_a_final_phase_keeps_its_reason_and_never_changes() -> None:
    old = {"phase": "Failed", "reason": "Evicted", "message": "m"}
    found = status(pod("a", status=old), ended("a"))
    assert (found["phase"], found["reason"], found["message"]) == ("Failed", "Evicted", "m")


def test_a_condition_keeps_its_time_until_its_status_changes_and_those_of_others_stay() -> None:
    first = status(pod("a"), running("a"))
    other = {"type": "DisruptionTarget", "status": "True", "reason": "PreemptionByScheduler", "lastTransitionTime": "t"}
    before = {**first, "conditions": [*first["conditions"], other]}
    observed = Observed(containers={"a": ended("a")}, address="127.100.1.1")
    found = pod_status(pod("a", status=before), observed, now=NOW + 60)
    times = {each["type"]: each["lastTransitionTime"] for each in found["conditions"]}
    assert times["PodScheduled"] == STAMP
    assert times["Ready"] != STAMP
    assert times["DisruptionTarget"] == "t"
    assert before["conditions"][-1] == other


def test_an_unchanged_pod_has_an_unchanged_status() -> None:
    first = status(pod("a"), running("a"))
    observed = Observed(containers={"a": running("a")}, address="127.100.1.1")
    assert pod_status(pod("a", status=first), observed, now=NOW + 60) == first


def test_a_refused_pod_keeps_the_rest_of_its_status() -> None:
    found = status(pod("a"), refused=Killed(reason="NotEmulated", message="m"))
    assert found == {"phase": "Failed", "reason": "NotEmulated", "message": "m", "startTime": STAMP}


def test_classes_of_service() -> None:
    def of(**resources: Obj) -> str:
        return qos_class({"spec": {"containers": [{"resources": resources}]}})

    both = {"cpu": "1", "memory": "1Gi"}
    assert of() == "BestEffort"
    assert of(limits={"google.com/tpu": "4"}) == "BestEffort"
    assert of(requests={"memory": "1Gi"}) == "Burstable"
    assert of(limits=both) == "Guaranteed"
    assert of(limits=both, requests={"cpu": "1", "memory": "512Mi"}) == "Burstable"


def test_times_are_whole_seconds() -> None:
    assert timestamp(NOW) == STAMP
    assert timestamp(0.0) == "1970-01-01T00:00:00Z"
