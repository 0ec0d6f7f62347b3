"""The permissions that `bastion kubernetes manifest` grants are those of a gang's requests: no more, no less."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from bastion.adapters.kubernetes import permissions, terms
from bastion.adapters.kubernetes.operations import Operation
from bastion.adapters.kubernetes.provisioner import KubernetesProvisioner
from bastion.adapters.kubernetes.transport import Transport
from bastion.adapters.system_clock import SystemClock
from bastion.core.model.gangs import GangRef, GangRequest, GangState, Place
from bastion.emulators.kubernetes.client import ApiClient
from tests.support import cluster_api
from tests.support.waiting import until

BASTION = "team-bastion"
REF = GangRef(name="b-aaaaaaaaaa-1")
LABELS = {"bastion-managed": BASTION, "bastion-run": "aaaaaaaaaa-1"}


class LateClock(SystemClock):
    """Can be moved ahead of the system's."""

    def __init__(self) -> None:
        super().__init__()
        self.ahead = 0.0

    def monotonic(self) -> float:
        return super().monotonic() + self.ahead


@pytest.fixture
def recorded(monkeypatch: pytest.MonkeyPatch) -> list[Operation]:
    """Each operation that the adapter asks for, as RBAC names it."""
    found: list[Operation] = []
    send, stream = Transport.send, Transport.stream

    def sent(self: Transport, method: str, path: str, operation: Operation, **rest: Any) -> Any:
        found.append(operation)
        return send(self, method, path, operation, **rest)

    def streamed(self: Transport, path: str, operation: Operation, **rest: Any) -> Any:
        found.append(operation)
        return stream(self, path, operation, **rest)

    monkeypatch.setattr(Transport, "send", sent)
    monkeypatch.setattr(Transport, "stream", streamed)
    return found


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[cluster_api.Cluster]:
    with cluster_api.running(tmp_path, kueue=True) as made:
        yield made


@pytest.mark.parametrize("queue", ["", "bastion-{project}"], ids=["ours", "kueue"])
def test_the_granted_permissions_are_exactly_those_of_a_gangs_life(
    cluster: cluster_api.Cluster, recorded: list[Operation], queue: str
) -> None:
    people = ApiClient.connect(cluster.server.address)  # and controllers
    clock = LateClock()
    uid = people.get("/api/v1/namespaces/kube-system")["metadata"]["uid"]
    settings = cluster.settings(uid=uid, queue=queue)
    provisioner = KubernetesProvisioner(settings, bastion=BASTION, startup_script="true", clock=clock)
    watched = {"jobsets", "jobs", "pods"} | ({"workloads"} if queue else set())
    try:
        live(provisioner, people, clock, queue)
        until(lambda: watched <= {each.resource for each in recorded if each.verb == "watch"})
    finally:
        provisioner.close()
        people.close()
    needed = (*permissions.IN_NAMESPACE, *(permissions.WITH_QUEUE if queue else ()))
    granted = {(each.group, each.resource, verb) for each in needed for verb in each.verbs}
    inside = {(each.group, each.resource, each.verb) for each in recorded if each.namespace == "default"}
    assert inside == granted
    identity = permissions.IDENTITY
    outside = {each for each in recorded if each.namespace != "default"}
    assert {(each.group, each.resource, each.verb) for each in outside} == {
        (identity.group, identity.resource, verb) for verb in identity.verbs
    }
    assert {each.name for each in outside} == {permissions.IDENTITY_NAMESPACE}


def live(provisioner: KubernetesProvisioner, people: ApiClient, clock: LateClock, queue: str) -> None:
    """A gang is created, waits for its pods, is deleted, and leaves what somebody orphaned."""
    provisioner.create(request(queue))
    # Kueue is not there to start it.
    people.patch(f"{terms.collection('jobsets', 'default')}/{REF.name}", {"spec": {"suspend": False}})
    job = people.create(terms.collection("jobs", "default"), orphan("Job", "batch/v1"))
    assert provisioner.list()
    provisioner.get(REF)
    clock.ahead += 10.0  # beyond the patience with pods that are not created
    provisioner.get(REF)
    provisioner.delete(REF)
    path = f"{terms.collection('jobsets', 'default')}/{REF.name}"
    people.patch(path, {"metadata": {"finalizers": None}})
    assert provisioner.get(REF) is not None
    people.create(terms.collection("pods", "default"), orphan("Pod", "v1"))
    services = terms.collection("services", "default")
    people.create(services, service(REF.name, selects=REF.name))
    people.create(services, service("b-other", selects=REF.name))
    found = provisioner.get(REF)
    assert found is not None
    assert (found.state, job["metadata"]["name"]) == (GangState.FAILED, f"{REF.name}-slice-0")
    provisioner.delete(REF)
    left = [each["metadata"]["name"] for each in people.get(services)["items"] if each["metadata"]["name"][:2] == "b-"]
    assert left == ["b-other"]


def request(queue: str) -> GangRequest:
    return GangRequest(
        ref=REF,
        bastion=BASTION,
        run="aaaaaaaaaa-1",
        token="token",
        accelerator_type="v4-8",
        place=Place(zone="k8s:west", queue=queue.format(project="research")),
        image="registry.example/train:v1",
        agent_arguments="{}",
    )


def orphan(kind: str, version: str) -> dict[str, Any]:
    pod = {"restartPolicy": "Never", "containers": [{"name": "host", "image": "python:3.12"}]}
    spec: dict[str, Any] = pod if kind == "Pod" else {"template": {"spec": pod}}
    name = f"{REF.name}-slice-0" + "-0-abcde" * (kind == "Pod")
    return {"apiVersion": version, "kind": kind, "metadata": {"name": name, "labels": LABELS}, "spec": spec}


def service(name: str, *, selects: str) -> dict[str, Any]:
    spec = {"clusterIP": "None", "selector": {terms.LABEL_JOBSET: selects}}
    return {"apiVersion": "v1", "kind": "Service", "metadata": {"name": name}, "spec": spec}
