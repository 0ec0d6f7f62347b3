"""Faults of machines, pods and watches by seed (`fault_plan.py`), applied in a thread.

A pod's fault is drawn once, by its Job and index, when it runs; so a pod of a new Job draws again.
"""

from __future__ import annotations

import contextlib
import datetime
import threading
import time
from collections.abc import Iterator
from pathlib import Path

from bastion.emulators.fault_plan import FaultPlan
from bastion.emulators.kubernetes.apiserver import ApiServer
from bastion.emulators.kubernetes.client import ApiClient, ApiError, Obj
from bastion.emulators.kubernetes.controllers.api_objects import (
    labels_of,
    node_name_of,
    parse_time,
    phase_of,
    status_of,
)
from bastion.emulators.kubernetes.controllers.cluster import utc_now
from bastion.emulators.kubernetes.controllers.node_faults import lose_node, preempt_node, remove_node
from bastion.emulators.kubernetes.kubelet.pod_folder import PodFolder

_PERIOD_SECONDS = 0.25
# From a machine's silence to the end of its Node; on GKE some minutes.
_SILENT_SECONDS = 2.0
_SPOT = "cloud.google.com/gke-spot"
_JOB, _INDEX = "batch.kubernetes.io/job-name", "batch.kubernetes.io/job-completion-index"
_CORDONED = "emulator.bastion/no-capacity"
_OF_PODS = ("preempt", "node-lost", "out-of-memory")


def pod_name(pod: Obj) -> str:
    """The name of a pod in the plan; empty if no Job owns it."""
    labels = labels_of(pod)
    return f"{labels[_JOB]}-{labels[_INDEX]}" if _JOB in labels and _INDEX in labels else ""


class SeededFaults:
    """Between `open` and `close`.

    Args:
        notice_seconds: Between the notice of a preemption and the end of the machine.
    """

    def __init__(
        self, state_dir: Path, server: ApiServer, client: ApiClient, plan: FaultPlan, *, notice_seconds: int
    ) -> None:
        self._pods = state_dir / "pods"
        self._server = server
        self._client = client
        self._plan = plan
        self._notice_seconds = notice_seconds
        self._done: set[tuple[str, str]] = set()
        self._remove_at: dict[str, float] = {}
        self._began = time.monotonic()
        self._period = 0
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="seeded faults", daemon=True)

    def open(self) -> None:
        self._thread.start()

    def close(self) -> None:
        self._stop.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._stop.wait(_PERIOD_SECONDS):
            # Faults of requests hit this client as any other: it looks again.
            with contextlib.suppress(ApiError):
                self._look()

    def _look(self) -> None:
        self._watches()
        nodes = {node["metadata"]["name"]: node for node in self._client.list("/api/v1/nodes")["items"]}
        self._capacity(nodes)
        for name, at in list(self._remove_at.items()):
            if time.monotonic() >= at:
                if name in nodes:
                    remove_node(self._client, name)
                del self._remove_at[name]
        for pod in self._client.list("/api/v1/pods")["items"]:
            for kind in self._due(pod, nodes):
                self._apply(kind, pod)
                self._done.add((kind, self._name(kind, pod)))

    def _watches(self) -> None:
        period = int((time.monotonic() - self._began) / self._plan.seconds)
        if period == self._period:
            return
        self._period = period
        if self._plan.strikes("expired", str(period)):
            self._server.expire_history()
            self._server.cut_watches()
        elif self._plan.strikes("watch-cut", str(period)):
            self._server.cut_watches()

    def _capacity(self, nodes: dict[str, Obj]) -> None:
        none = self._plan.strikes("no-capacity", str(self._period))
        for name, node in nodes.items():
            marked = _CORDONED in (node["metadata"].get("annotations") or {})
            if marked != none:
                mark = {"metadata": {"annotations": {_CORDONED: "" if none else None}}}
                self._client.patch(f"/api/v1/nodes/{name}", {**mark, "spec": {"unschedulable": True if none else None}})

    def _name(self, kind: str, pod: Obj) -> str:
        return str(labels_of(pod)[_JOB]) if kind == "preempt" else pod_name(pod)

    def _due(self, pod: Obj, nodes: dict[str, Obj]) -> Iterator[str]:
        node, started = nodes.get(node_name_of(pod)), status_of(pod).get("startTime")
        if not pod_name(pod) or phase_of(pod) != "Running" or node is None or not started:
            return
        age = (utc_now() - parse_time(started)) / datetime.timedelta(seconds=1)
        for kind in _OF_PODS:
            name = self._name(kind, pod)
            if (kind, name) in self._done or not self._plan.strikes(kind, name):
                continue
            if kind == "preempt" and (_SPOT not in labels_of(node) or labels_of(pod)[_INDEX] != "0"):
                continue
            if age >= self._plan.delay_seconds(kind, name):
                yield kind

    def _apply(self, kind: str, pod: Obj) -> None:
        node = node_name_of(pod)
        if kind == "preempt":
            preempt_node(self._client, node, now=utc_now(), grace_seconds=self._notice_seconds)
        elif kind == "node-lost":
            lose_node(self._client, node, now=utc_now())
            self._remove_at[node] = time.monotonic() + _SILENT_SECONDS
        else:
            folder = PodFolder(self._pods / pod["metadata"]["uid"])
            if folder.plan_file.exists():
                folder.oom.write_text("", "utf-8")
