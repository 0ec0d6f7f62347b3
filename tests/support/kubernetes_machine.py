"""An API server with the controllers and a kubelet that runs no processes, as tests look at them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from bastion.emulators.kubernetes.client import ApiClient, ApiError, Obj
from bastion.emulators.kubernetes.controllers.controllers import Controllers
from bastion.emulators.kubernetes.controllers.objects import (
    EVENT,
    JOB,
    JOB_SET,
    NODE,
    POD,
    SERVICE,
    condition_of,
    is_true,
    name_of,
)
from tests.support.fake_kubelet import FakeKubelet
from tests.support.kubernetes_jobs import JOB_SETS
from tests.support.waiting import until


@dataclass
class Machine:
    client: ApiClient
    controllers: Controllers
    kubelet: FakeKubelet

    def submit(self, job_set: Obj) -> Obj:
        return self.client.create(JOB_SETS, job_set)

    def job_set(self, name: str = "b-one-1") -> Obj:
        return self.client.get(JOB_SET.path("default", name))

    def job(self, name: str) -> Obj:
        return self.client.get(JOB.path("default", name))

    def pods(self) -> list[Obj]:
        return self._all(POD.root, "Pod")

    def nodes(self) -> list[Obj]:
        return self._all(NODE.root, "Node")

    def running(self) -> list[Obj]:
        return [pod for pod in self.pods() if pod.get("status", {}).get("phase") == "Running"]

    def services(self) -> list[str]:
        return [name_of(each) for each in self.client.list(SERVICE.path("default"))["items"]]

    def events(self) -> list[tuple[str, str]]:
        return [(each["reason"], each["message"]) for each in self.client.list(EVENT.root)["items"]]

    def left(self) -> list[str]:
        """All JobSets, Jobs, pods and services."""
        kinds = (JOB_SET, JOB, POD, SERVICE)
        return [name_of(each) for kind in kinds for each in self.client.list(kind.root)["items"] if _ours(each)]

    def until_condition(self, path: str, kind: str) -> Obj:
        until(lambda: is_true(self.client.get(path), kind), 20)
        condition = condition_of(self.client.get(path), kind)
        assert condition is not None
        return condition

    def is_gone(self, path: str) -> bool:
        try:
            self.client.get(path)
        except ApiError as error:
            return error.code == 404
        return False

    def _all(self, path: str, kind: str) -> list[Obj]:
        found = self.client.list(path)["items"]
        return sorted(({"apiVersion": "v1", "kind": kind, **each} for each in found), key=name_of)


def _ours(obj: Obj) -> bool:
    return name_of(obj) != "kubernetes"


StartMachine = Callable[..., Machine]
