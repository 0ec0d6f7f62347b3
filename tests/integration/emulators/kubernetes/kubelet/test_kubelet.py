"""Pods of an API server as the kubelet runs them: status, deletion, images, disruption, restarts."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from bastion import processes
from bastion.emulators.kubernetes.client import Address, ApiClient, ApiError
from bastion.emulators.kubernetes.controllers.cluster import utc_now
from bastion.emulators.kubernetes.controllers.node_faults import lose_node, preempt_node, remove_node
from bastion.emulators.kubernetes.kubelet.kubelet import Kubelet
from bastion.emulators.kubernetes.kubelet.planning import OOM_ANNOTATION
from bastion.emulators.kubernetes.kubelet.settings import KubeletSettings
from bastion.emulators.markers import MARKER
from tests.support.kubernetes_schemas import object_problems
from tests.support.waiting import until

Obj = dict[str, Any]
PODS = "/api/v1/namespaces/default/pods"


class Node:
    """An API server with one node, and the kubelet."""

    def __init__(self, folder: Path, address: Address) -> None:
        self.folder = folder
        self.settings = KubeletSettings(state_dir=folder, image_backoff_seconds=0.1, close_grace_seconds=0.0)
        self.client = ApiClient.connect(address)
        self.add_node("node-1")
        self.kubelet = Kubelet(self.client, self.settings)
        self.kubelet.open()
        self.uids: list[str] = []

    def add_node(self, name: str) -> None:
        self.client.create("/api/v1/nodes", {"apiVersion": "v1", "kind": "Node", "metadata": {"name": name}})

    def close(self) -> None:
        self.kubelet.close()
        self.client.close()
        assert [uid for uid in self.uids if processes.marked(MARKER, uid)] == []

    def create(self, script: str = "exit 0", **changes: Any) -> Obj:
        container = {"name": "host", "image": "python:3.12", "command": ["/bin/bash", "-c", script]}
        container |= changes.pop("container", {})
        body = {
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {"generateName": "pod-", **changes.pop("metadata", {})},
            "spec": {"nodeName": "node-1", "restartPolicy": "Never", "containers": [container], **changes},
        }
        pod = self.client.create(PODS, body)
        self.uids.append(pod["metadata"]["uid"])
        return pod

    def get(self, pod: Obj) -> Obj:
        return self.client.get(f"{PODS}/{pod['metadata']['name']}")

    def wait(self, pod: Obj, *phases: str) -> Obj:
        """Wait for one of these phases; return the status."""
        until(lambda: self.get(pod)["status"].get("phase") in phases)
        found = self.get(pod)
        # By the models of the official client, which do not say where null stands for no time.
        assert object_problems(without_nulls(found)) == []
        status: Obj = found["status"]
        return status

    def wait_reason(self, pod: Obj, reason: str) -> str:
        """Wait until the container waits for this reason; return the message."""

        def waiting() -> Obj:
            statuses = self.get(pod)["status"].get("containerStatuses") or [{"state": {}}]
            found: Obj = statuses[0]["state"].get("waiting") or {}
            return found

        until(lambda: waiting().get("reason") == reason)
        return str(waiting().get("message", ""))

    def home(self, pod: Obj) -> Path:
        return self.folder / "pods" / pod["metadata"]["uid"] / "home"

    def wait_file(self, pod: Obj, name: str) -> None:
        until(lambda: (self.home(pod) / name).exists())

    def is_gone(self, pod: Obj) -> bool:
        try:
            self.get(pod)
        except ApiError as error:
            assert error.code == 404
            return True
        return False

    def delete(self, pod: Obj, grace_seconds: int | None = None) -> None:
        self.client.delete(f"{PODS}/{pod['metadata']['name']}", grace_seconds=grace_seconds)


@pytest.fixture
def node(tmp_path: Path, address: Address) -> Iterator[Node]:
    node = Node(tmp_path, address)
    yield node
    node.close()


def without_nulls(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: without_nulls(each) for name, each in value.items() if each is not None}
    return [without_nulls(each) for each in value] if isinstance(value, list) else value


def conditions(status: Obj) -> dict[str, tuple[str, str]]:
    return {each["type"]: (each["status"], each.get("reason", "")) for each in status["conditions"]}


def terminated(status: Obj) -> Obj:
    found: Obj = status["containerStatuses"][0]["state"]["terminated"]
    return found


def test_a_pod_runs_and_succeeds(node: Node) -> None:
    pod = node.create("touch up; until [ -e stop ]; do sleep 0.02; done")
    running = node.wait(pod, "Running")
    assert conditions(running) == {
        "PodReadyToStartContainers": ("True", ""),
        "Initialized": ("True", ""),
        "Ready": ("True", ""),
        "ContainersReady": ("True", ""),
        "PodScheduled": ("True", ""),
    }
    assert running["podIP"].startswith("127.100.")
    node.wait_file(pod, "up")
    (node.home(pod) / "stop").touch()
    status = node.wait(pod, "Succeeded", "Failed")
    assert (status["phase"], terminated(status)["reason"]) == ("Succeeded", "Completed")
    assert conditions(status)["Ready"] == ("False", "PodCompleted")
    events = node.client.list("/api/v1/namespaces/default/events")["items"]
    assert "Started container host" in [each["message"] for each in events]


def test_a_failure_has_the_exit_code_and_the_message_and_is_not_run_again(node: Node) -> None:
    pod = node.create(
        "date >> runs; echo why > $LOG; exit 64", container={"env": [{"name": "LOG", "value": "/dev/termination-log"}]}
    )
    status = node.wait(pod, "Succeeded", "Failed")
    assert status["phase"] == "Failed"
    assert (terminated(status)["exitCode"], terminated(status)["message"]) == (64, "why\n")
    node.client.patch(f"{PODS}/{pod['metadata']['name']}", {"metadata": {"labels": {"a": "b"}}})
    # The kubelet has looked at the first pod again when a later one has ended.
    node.wait(node.create(), "Succeeded")
    assert len((node.home(pod) / "runs").read_text().splitlines()) == 1


def test_deletion_asks_the_first_process_and_removes_the_object_when_all_have_ended(node: Node) -> None:
    pod = node.create("trap 'until [ -e go ]; do sleep 0.02; done; exit' TERM; touch up; while :; do sleep 0.02; done")
    node.wait_file(pod, "up")
    node.delete(pod, grace_seconds=60)
    assert "deletionTimestamp" in node.get(pod)["metadata"]
    (node.home(pod) / "go").touch()
    until(lambda: node.is_gone(pod))
    assert processes.marked(MARKER, pod["metadata"]["uid"]) == []
    until(lambda: not node.home(pod).exists())


def test_a_finalizer_keeps_the_final_status_of_a_deleted_pod(node: Node) -> None:
    pod = node.create(
        "trap 'exit 9' TERM; touch up; while :; do sleep 0.02; done", metadata={"finalizers": ["example.com/keep"]}
    )
    node.wait_file(pod, "up")
    node.delete(pod)
    status = node.wait(pod, "Failed")
    assert terminated(status)["exitCode"] == 9
    node.client.patch(f"{PODS}/{pod['metadata']['name']}", {"metadata": {"finalizers": None}})
    until(lambda: node.is_gone(pod))


def test_a_pod_deleted_by_force_leaves_no_process(node: Node) -> None:
    pod = node.create("trap 'exit 0' TERM; touch up; while :; do sleep 0.02; done")
    node.wait_file(pod, "up")
    node.delete(pod, grace_seconds=0)
    assert node.is_gone(pod)
    until(lambda: not node.home(pod).exists())
    assert processes.marked(MARKER, pod["metadata"]["uid"]) == []


def test_an_image_that_cannot_be_pulled_is_tried_again_and_the_pod_can_be_deleted(node: Node) -> None:
    pod = node.create(container={"image": "missing/trainer:1"})
    message = node.wait_reason(pod, "ErrImagePull")
    name = "docker.io/missing/trainer:1"
    assert message.endswith(f'failed to resolve reference "{name}": {name}: not found')
    backoff = node.wait_reason(pod, "ImagePullBackOff")
    assert backoff.startswith('Back-off pulling image "missing/trainer:1"')
    node.wait_reason(pod, "ErrImagePull")
    assert node.get(pod)["status"]["phase"] == "Pending"
    node.delete(pod)
    until(lambda: node.is_gone(pod))


@pytest.mark.parametrize(
    ("container", "reason", "message"),
    [
        ({"image": "private/x"}, "ErrImagePull", "pull access denied"),
        ({"image": "Not/Valid"}, "InvalidImageName", "must be lowercase"),
        ({"image": "missing/x", "imagePullPolicy": "Never"}, "ErrImageNeverPull", "not present with pull policy"),
        (
            {"env": [{"name": "A", "valueFrom": {"secretKeyRef": {"name": "absent", "key": "k"}}}]},
            "CreateContainerConfigError",
            'secret "absent" not found',
        ),
    ],
)
def test_a_container_that_cannot_be_created_waits(node: Node, container: Obj, reason: str, message: str) -> None:
    pod = node.create(container=container)
    assert message in node.wait_reason(pod, reason)


def test_an_image_without_bash_is_a_start_error(node: Node) -> None:
    pod = node.create(container={"image": "bare/x"})
    status = node.wait(pod, "Failed")
    assert (terminated(status)["exitCode"], terminated(status)["reason"]) == (128, "StartError")
    assert terminated(status)["message"].endswith('exec: "/bin/bash": stat /bin/bash: no such file or directory')
    assert terminated(status)["startedAt"] == "1970-01-01T00:00:00Z"


def test_what_is_not_emulated_fails_by_name(node: Node) -> None:
    pod = node.create(hostNetwork=True)
    status = node.wait(pod, "Failed")
    assert status["reason"] == "NotEmulated"
    assert status["message"].startswith("Pod was rejected: spec.hostNetwork is not emulated")


def test_out_of_memory(node: Node) -> None:
    pod = node.create("sleep 1000", metadata={"annotations": {OOM_ANNOTATION: "0"}})
    status = node.wait(pod, "Failed")
    assert (terminated(status)["exitCode"], terminated(status)["reason"]) == (137, "OOMKilled")
    assert status.get("reason") is None


def test_an_evicted_pod_says_which_resource_was_short(node: Node) -> None:
    pod = node.create("touch up; exec sleep 1000")
    node.wait_file(pod, "up")
    (node.home(pod).parent / "evict").write_text("ephemeral-storage")
    status = node.wait(pod, "Failed")
    assert status["reason"] == "Evicted"
    assert status["message"].startswith("The node was low on resource: ephemeral-storage.")
    assert conditions(status)["DisruptionTarget"] == ("True", "TerminationByKubelet")


def test_the_pods_of_a_node_that_shuts_down_end_and_say_so(node: Node) -> None:
    keep = {"finalizers": ["example.com/keep"]}
    pod = node.create("touch up; exec sleep 1000", metadata=keep)
    node.wait_file(pod, "up")
    preempt_node(node.client, "node-1", now=utc_now(), grace_seconds=0)
    status = node.wait(pod, "Failed")
    assert (status["reason"], terminated(status)["exitCode"]) == ("Terminated", 137)
    assert conditions(status)["DisruptionTarget"] == ("True", "TerminationByKubelet")
    late = node.create()
    assert node.wait(late, "Failed")["reason"] == "NodeShutdown"


def test_a_lost_node_says_nothing_and_its_pods_live_until_it_is_gone(node: Node) -> None:
    pod = node.create("trap 'exit 0' TERM; touch up; while :; do sleep 0.02; done")
    node.wait(pod, "Running")
    node.wait_file(pod, "up")
    lose_node(node.client, "node-1", now=utc_now())
    node.add_node("node-2")
    # The kubelet has seen the loss when a pod of a later node has ended, and then the deletion when a later pod has.
    node.wait(node.create(nodeName="node-2"), "Succeeded")
    node.delete(pod, grace_seconds=30)
    node.wait(node.create(nodeName="node-2"), "Succeeded")
    uid = pod["metadata"]["uid"]
    assert processes.marked(MARKER, uid) != []
    remove_node(node.client, "node-1")
    until(lambda: processes.marked(MARKER, uid) == [])
    assert node.get(pod)["status"]["phase"] == "Running"


def test_a_pod_that_was_deleted_before_its_node_came_never_starts(node: Node) -> None:
    pod = node.create(nodeName="node-2", metadata={"finalizers": ["example.com/keep"]})
    node.delete(pod)
    # Nodes and pods are watched apart: a pod that was made later shows that the deletion is known.
    assert node.wait(node.create("true"), "Failed", "Succeeded")["phase"] == "Succeeded"
    node.add_node("node-2")
    assert node.wait(pod, "Failed", "Succeeded")["phase"] == "Failed"
    assert not list(node.folder.glob(f"logs/*{pod['metadata']['uid']}*"))
    node.client.patch(f"{PODS}/{pod['metadata']['name']}", {"metadata": {"finalizers": None}})
    until(lambda: node.is_gone(pod))


def test_after_a_restart_the_pods_of_a_job_still_share_their_addresses(node: Node) -> None:
    template = {"spec": {"restartPolicy": "Never", "containers": [{"name": "host", "image": "x", "command": ["true"]}]}}
    spec = {"completions": 2, "parallelism": 2, "completionMode": "Indexed", "suspend": True, "template": template}
    body = {"apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": "job"}, "spec": spec}
    job = node.client.create("/apis/batch/v1/namespaces/default/jobs", body)
    owner = {"apiVersion": "batch/v1", "kind": "Job", "name": "job", "uid": job["metadata"]["uid"], "controller": True}

    def host(index: int, script: str) -> Obj:
        annotations = {"batch.kubernetes.io/job-completion-index": str(index)}
        return node.create(script, metadata={"annotations": annotations, "ownerReferences": [owner]})

    first = host(0, "touch up; exec sleep 1000")
    node.wait_file(first, "up")
    node.kubelet.close(end_pods=False)
    node.kubelet = Kubelet(node.client, node.settings)
    node.kubelet.open()
    second = host(1, "exit 0")
    addresses = [node.wait(pod, "Running", "Succeeded")["podIP"] for pod in (first, second)]
    assert addresses[1] == f"{addresses[0].rpartition('.')[0]}.2"
    node.client.delete("/apis/batch/v1/namespaces/default/jobs/job")


def test_a_restarted_emulator_adopts_running_pods_and_one_that_ended_meanwhile(node: Node) -> None:
    first = node.create("touch up; until [ -e stop ]; do sleep 0.02; done; exit 3")
    second = node.create("touch up; until [ -e stop ]; do sleep 0.02; done; exit 4")
    for pod in (first, second):
        node.wait_file(pod, "up")
        node.wait(pod, "Running")
    node.kubelet.close(end_pods=False)
    (node.home(second) / "stop").touch()
    until(lambda: processes.marked(MARKER, second["metadata"]["uid"]) == [])
    node.kubelet = Kubelet(node.client, node.settings)
    node.kubelet.open()
    assert terminated(node.wait(second, "Failed"))["exitCode"] == 4
    assert node.get(first)["status"]["phase"] == "Running"
    (node.home(first) / "stop").touch()
    assert terminated(node.wait(first, "Failed"))["exitCode"] == 3


def test_pods_of_an_emulator_that_closed_have_failed_after_its_restart(node: Node) -> None:
    pod = node.create("touch up; sleep 1000")
    node.wait(pod, "Running")
    node.kubelet.close()
    assert processes.marked(MARKER, pod["metadata"]["uid"]) == []
    node.kubelet = Kubelet(node.client, node.settings)
    node.kubelet.open()
    status = node.wait(pod, "Failed")
    assert terminated(status)["reason"] == "ContainerStatusUnknown"
