"""A cluster where Kueue decides between two projects, whose pods are no processes, and the adapter's view of it."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bastion.adapters.kubernetes.provisioner import KubernetesProvisioner
from bastion.adapters.system_clock import SystemClock
from bastion.core.model.clusters import ClusterSettings
from bastion.core.model.gangs import GangRef, GangRequest, GangState, GangStatus, Place
from bastion.core.model.kueue import local_queue, priority_class
from bastion.emulators.kubernetes.client import ApiClient, Obj
from bastion.emulators.kubernetes.controllers.api_objects import CLUSTER_QUEUE, POD, WORKLOAD, is_true, owners_of
from bastion.emulators.kubernetes.controllers.controllers import Controllers
from bastion.emulators.kubernetes.controllers.nodes import Pool
from quota import Policy
from tests.support import cluster_api
from tests.support.emulated_cluster import QUEUE, decide_by, uid_of
from tests.support.fake_kubelet import FakeKubelet
from tests.support.waiting import until

BASTION = "team-bastion"
_KEEP = "example.com/keep"
# One slice of four chips each; the cluster has both.
POLICY = Policy(
    tiers=({"v4": 16},), weights={"product": {"v4": 1.0}, "research": {"v4": 1.0}}, members={"product": (".*",)}
)


@dataclass
class KueueCluster:
    """`requests` counts from the start."""

    people: ApiClient
    kubelet: FakeKubelet
    api: cluster_api.Cluster
    settings: ClusterSettings
    provisioner: KubernetesProvisioner

    def ask(self, run: str, project: str = "research", *, again: bool = False, slices: int = 1) -> GangRef:
        ref = GangRef(name=f"b-{run}", num_slices=slices)
        self.provisioner.create(request(ref, project, again=again))
        return ref

    def status(self, ref: GangRef) -> GangStatus | None:
        """As the daemon lists it."""
        return next((each for each in self.provisioner.list() if each.ref.name == ref.name), None)

    def until_is(self, ref: GangRef, state: GangState) -> GangStatus:
        found: list[GangStatus] = []

        def there() -> bool:
            found[:] = [each for each in self.provisioner.list() if each.ref.name == ref.name]
            return [each.state for each in found] == [state]

        until(there, 20)
        return found[0]

    def until_waits(self, ref: GangRef, words: str = "") -> GangStatus:
        """Until Kueue has said why it waits, in these words; reasons differ by version and feature gates."""

        def told() -> bool:
            found = self.status(ref)
            if found is None or found.state is not GangState.WAITING or words not in found.waiting_message:
                return False
            return found.waiting not in ("NoWorkload", "PendingEvaluation", "Admitted")

        until(told, 20)
        return self.until_is(ref, GangState.WAITING)

    def until_gone(self, ref: GangRef) -> None:
        until(lambda: self.provisioner.get(ref) is None, 20)

    def workload(self, ref: GangRef) -> Obj:
        found = self.people.list(WORKLOAD.path("default"))["items"]
        workload: Obj = next(each for each in found if owners_of(each)[0]["name"] == ref.name)
        return workload

    def deactivate(self, ref: GangRef) -> None:
        name = self.workload(ref)["metadata"]["name"]
        self.people.patch(WORKLOAD.path("default", name), {"spec": {"active": False}})

    def stop(self, project: str, policy: str) -> None:
        """Set the policy and wait until Kueue knows it."""
        path = CLUSTER_QUEUE.path("", local_queue(QUEUE, project))
        self.people.patch(path, {"spec": {"stopPolicy": policy}})
        until(lambda: is_true(self.people.get(path), "Active") == (policy == "None"), 20)

    def keep_pods(self) -> None:
        """Let the present pods stay when they are deleted, for as long as a test looks at them."""
        self._set_finalizers(lambda known: [*known, _KEEP])

    def release_pods(self) -> None:
        self._set_finalizers(lambda known: [each for each in known if each != _KEEP])

    def _set_finalizers(self, change: Callable[[list[str]], list[str]]) -> None:
        for pod in self.people.list(POD.path("default"))["items"]:
            finalizers = change(pod["metadata"].get("finalizers") or [])
            self.people.patch(POD.path("default", pod["metadata"]["name"]), {"metadata": {"finalizers": finalizers}})

    def finish(self, ref: GangRef) -> None:
        for pod in self.people.list(POD.path("default"))["items"]:
            if pod["metadata"]["labels"]["jobset.sigs.k8s.io/jobset-name"] == ref.name:
                self.kubelet.finish(pod)


def request(ref: GangRef, project: str = "research", *, again: bool = False, **changes: Any) -> GangRequest:
    fields: dict[str, Any] = {
        "ref": ref,
        "bastion": BASTION,
        "run": ref.name.removeprefix("b-"),
        "token": "token",
        "accelerator_type": "v4-8",
        "place": Place(zone="k8s:west", queue=local_queue(QUEUE, project)),
        "priority_class": priority_class(5, again=again),
        "image": "registry.example/train:v1",
        "agent_arguments": "{}",
    }
    return GangRequest(**{**fields, **changes})


@contextlib.contextmanager
def kueue_cluster(folder: Path) -> Iterator[KueueCluster]:
    with contextlib.ExitStack() as parts:
        api = parts.enter_context(cluster_api.running(folder, kueue=True))
        people = ApiClient.connect(api.server.address)
        parts.callback(people.close)
        controllers = Controllers(people, [Pool.parse("v4-8=2")], kueue=True)
        controllers.open()
        parts.callback(controllers.close)
        kubelet = parts.enter_context(FakeKubelet(people))
        settings = api.settings(uid=uid_of(people), queue=QUEUE)
        decide_by(POLICY, people, settings)
        yield parts.enter_context(_client(people, kubelet, api, settings))


@contextlib.contextmanager
def _client(
    people: ApiClient, kubelet: FakeKubelet, api: cluster_api.Cluster, settings: ClusterSettings
) -> Iterator[KueueCluster]:
    with provisioner(settings) as made:
        yield KueueCluster(people=people, kubelet=kubelet, api=api, settings=settings, provisioner=made)


@contextlib.contextmanager
def provisioner(settings: ClusterSettings, **options: Any) -> Iterator[KubernetesProvisioner]:
    made = KubernetesProvisioner(settings, bastion=BASTION, startup_script="true", clock=SystemClock(), **options)
    try:
        yield made
    finally:
        made.close()
