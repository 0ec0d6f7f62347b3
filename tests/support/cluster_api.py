"""An emulated Kubernetes API server without controllers and pods, and the adapter's client of it."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from bastion.adapters.kubernetes.api import KubernetesApi
from bastion.adapters.system_clock import SystemClock
from bastion.core.model.clusters import ClusterSettings
from bastion.emulators.kubernetes.apiserver.faults import Fault
from bastion.emulators.kubernetes.apiserver.server import ApiServer

PODS = "/api/v1/namespaces/default/pods"
JOBSETS = "/apis/jobset.x-k8s.io/v1alpha2/namespaces/default/jobsets"
SELECTOR = "bastion-managed=team"


@dataclass
class Cluster:
    """A running API server.

    Attributes:
        server: Its faults go through `refuse`.
        requests: Method and path, with query, of each request since the start.
        faults: Consulted in order; the first whose words are in the request is used up by it.
    """

    server: ApiServer
    folder: Path
    requests: list[str] = field(default_factory=list)
    faults: list[tuple[str, Fault]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.server.faults.plan(self._fault)

    def _fault(self, method: str, path: str) -> Fault | None:
        request = f"{method} {path}"
        self.requests.append(request)
        for entry in self.faults:
            if entry[0] in request:
                self.faults.remove(entry)
                return entry[1]
        return None

    def settings(self, **changes: Any) -> ClusterSettings:
        address = self.server.address
        token = self.folder / "token"
        if not token.exists():
            token.write_text(address.token)
        given: dict[str, Any] = {"server": address.server, "ca_file": address.ca_file, "token_file": str(token)}
        return ClusterSettings(**({"name": "west"} | given | changes))

    def api(self, *, request_seconds: float = 10.0, **changes: Any) -> KubernetesApi:
        return KubernetesApi(self.settings(**changes), clock=SystemClock(), request_seconds=request_seconds)

    def lists(self) -> list[str]:
        return [request for request in self.requests if request.startswith("GET") and "watch=1" not in request]

    def watches(self) -> list[str]:
        return [request for request in self.requests if "watch=1" in request]


@contextlib.contextmanager
def running(folder: Path, **settings: Any) -> Iterator[Cluster]:
    with ApiServer(folder / "state", **settings) as server:
        yield Cluster(server=server, folder=folder)


def pod(name: str, *, managed: str = "team", **labels: str) -> dict[str, Any]:
    """A pod as a JobSet's controllers would make it, with its own labels."""
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "labels": {"bastion-managed": managed, "bastion-run": "aaaaaaaaaa-1"} | labels},
        "spec": {"restartPolicy": "Never", "containers": [{"name": "host", "image": "python:3.11"}]},
    }
