"""An API server with the controllers and a kubelet that runs no processes, as tests look at them."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, TypeVar

from bastion.emulators.kubernetes.client import Address, ApiClient, ApiError, Obj
from bastion.emulators.kubernetes.controllers.api_objects import (
    EVENT,
    JOB,
    JOB_SET,
    KINDS,
    NODE,
    POD,
    SERVICE,
    condition_of,
    name_of,
    path_of,
)
from bastion.emulators.kubernetes.controllers.controllers import Controllers
from bastion.emulators.kubernetes.controllers.nodes import Pool
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

    def events(self, about: str = "") -> list[tuple[str, str]]:
        """Reasons and messages, by default of all objects."""
        found = self.client.list(EVENT.root)["items"]
        return [(each["reason"], each["message"]) for each in found if about in each["involvedObject"]["name"]]

    def left(self) -> list[str]:
        """All JobSets, Jobs, pods and services."""
        kinds = (JOB_SET, JOB, POD, SERVICE)
        return [name_of(each) for kind in kinds for each in self.client.list(kind.root)["items"] if _ours(each)]

    def until_condition(self, path: str, kind: str) -> Obj:
        found: list[Obj] = []

        def there() -> bool:
            found[:] = [each] if (each := condition_of(self.client.get(path), kind)) is not None else []
            return [each["status"] for each in found] == ["True"]

        until(there, 20)
        return found[0]

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
_M = TypeVar("_M", bound=Machine)


@contextlib.contextmanager
def starting(kind: type[_M], address: Address, **options: Any) -> Iterator[Callable[..., _M]]:
    """Yield what starts a machine with pools such as `v5litepod-16=2`; each ends with the context.

    Args:
        options: Of its controllers, unless the caller gives others.
    """
    with contextlib.ExitStack() as stack:

        def start(*pools: str, **more: Any) -> _M:
            client = ApiClient.connect(address)
            stack.callback(client.close)
            controllers = Controllers(client, [Pool.parse(pool) for pool in pools], **{**options, **more})
            controllers.open()
            stack.callback(controllers.close)
            return kind(client, controllers, stack.enter_context(FakeKubelet(client)))

        yield start


def clear(address: Address) -> None:
    """Remove what a test left behind."""
    client = ApiClient.connect(address)
    for kind in KINDS.values():
        for item in client.list(kind.root)["items"]:
            path = path_of({"apiVersion": kind.api_version, "kind": kind.kind, **item})
            if item["metadata"].get("finalizers"):
                client.patch(path, {"metadata": {"finalizers": None}})
            client.delete(path, grace_seconds=0)
    client.close()
