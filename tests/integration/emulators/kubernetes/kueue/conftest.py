"""An API server with all controllers, Kueue's among them, and a kubelet that runs no processes."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import pytest

from bastion.emulators.kubernetes.client import Address, ApiError, Obj
from bastion.emulators.kubernetes.controllers.api_objects import WORKLOAD, condition_of, is_true, owners_of
from tests.support.kubernetes_jobs import job_set
from tests.support.kubernetes_machine import Machine, starting
from tests.support.kueue_objects import collection
from tests.support.waiting import until

QUEUE = "kueue.x-k8s.io/queue-name"
PRIORITY_CLASS = "kueue.x-k8s.io/priority-class"


@dataclass
class KueueMachine(Machine):
    def make(self, *objects: Obj) -> None:
        for obj in objects:
            self.client.create(collection(obj), obj)

    def gang(self, name: str, queue: str = "team", *, priority: str = "", hosts: int = 1, **more: Any) -> Obj:
        """Create a JobSet for a LocalQueue, which outlives that its pods are stopped: it has no rule for exit codes."""
        made = job_set(name, hosts=hosts, **more)
        del made["spec"]["replicatedJobs"][0]["template"]["spec"]["podFailurePolicy"]
        if queue:
            made["metadata"]["labels"][QUEUE] = queue
            made["spec"]["suspend"] = True
        if priority:
            made["metadata"]["labels"][PRIORITY_CLASS] = priority
        return self.submit(made)

    def workload(self, gang: str) -> Obj | None:
        """Of a JobSet."""
        found = self.client.list(WORKLOAD.path("default"))["items"]
        kind = {"apiVersion": WORKLOAD.api_version, "kind": WORKLOAD.kind}
        return next(({**kind, **each} for each in found if owners_of(each)[0]["name"] == gang), None)

    def has(self, gang: str, condition: str, status: str = "True", reason: str = "") -> bool:
        return self._condition(gang, condition, status, reason) is not None

    def _condition(self, gang: str, condition: str, status: str, reason: str) -> Obj | None:
        workload = self.workload(gang)
        known = condition_of(workload, condition) if workload is not None else None
        return known if known is not None and known["status"] == status and reason in ("", known["reason"]) else None

    def until_has(self, gang: str, condition: str, status: str = "True", reason: str = "") -> Obj:
        """The condition."""
        found: list[Obj | None] = []

        def there() -> bool:
            found[:] = [self._condition(gang, condition, status, reason)]
            return found != [None]

        until(there, 20)
        assert found[0] is not None
        return found[0]

    def until_admitted(self, gang: str) -> Obj:
        self.until_has(gang, "Admitted")
        workload = self.workload(gang)
        assert workload is not None
        return workload

    def until_running(self, gang: str, hosts: int = 1) -> None:
        until(lambda: sum(self._is_of(pod, gang) for pod in self.running()) == hosts, 20)

    def finish_gang(self, gang: str) -> None:
        for pod in self.running():
            if self._is_of(pod, gang):
                self.kubelet.finish(pod)

    def is_gone_gang(self, gang: str) -> bool:
        try:
            self.job_set(gang)
        except ApiError:
            return True
        return False

    def patch(self, obj: Obj, patch: Obj) -> Obj:
        return self.client.patch(f"{collection(obj)}/{obj['metadata']['name']}", patch)

    def is_active(self, obj: Obj) -> bool:
        return is_true(self.client.get(f"{collection(obj)}/{obj['metadata']['name']}"), "Active")

    @staticmethod
    def _is_of(pod: Obj, gang: str) -> bool:
        return bool(pod["metadata"]["labels"]["jobset.sigs.k8s.io/jobset-name"] == gang)


StartKueue = Callable[..., KueueMachine]


@pytest.fixture
def has_kueue() -> bool:
    return True


@pytest.fixture
def start(address: Address) -> Iterator[StartKueue]:
    """Starts a machine with pools such as `v5litepod-16=2`."""
    with starting(KueueMachine, address, kueue=True) as start:
        yield start
