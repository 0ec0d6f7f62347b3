"""The control loop: what each pod of a node should do against what its processes do, and its status in the API.

One thread decides for all pods. It wakes up when a pod or node changes, when a supervisor reports, and every second.
Invariants:

* A pod's processes start at most once: never for a pod that was running, ended or is being deleted.
* A pod's object is deleted for good (grace 0) only after the last process has ended (pkg/kubelet/status,
  `canBeDeleted`).
* Nothing is written about pods whose node is gone or whose Ready condition is Unknown: such a kubelet has no contact.
"""

from __future__ import annotations

import contextlib
import logging
import os
import select
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from bastion.emulators.kubernetes.client import ApiClient, ApiError, Informer, running
from bastion.emulators.kubernetes.controllers.cluster import utc_now
from bastion.emulators.kubernetes.controllers.events import Recorder
from bastion.emulators.kubernetes.kubelet import job
from bastion.emulators.kubernetes.kubelet.addresses import PodAddresses
from bastion.emulators.kubernetes.kubelet.disruption import (
    eviction,
    has_no_contact,
    shutdown,
    shutdown_grace_seconds,
)
from bastion.emulators.kubernetes.kubelet.environment import Addresses, ConfigError
from bastion.emulators.kubernetes.kubelet.planning import Planner, grace_seconds
from bastion.emulators.kubernetes.kubelet.pod_events import events
from bastion.emulators.kubernetes.kubelet.pod_folder import CHANGES, ContainerState
from bastion.emulators.kubernetes.kubelet.pulls import Pulls, Waiting
from bastion.emulators.kubernetes.kubelet.refusals import refusal
from bastion.emulators.kubernetes.kubelet.settings import KubeletSettings
from bastion.emulators.kubernetes.kubelet.status import Killed, Observed, pod_status
from bastion.emulators.kubernetes.kubelet.workers import Worker, Workers

Obj = dict[str, Any]
_log = logging.getLogger(__name__)

_POLL_SECONDS = 1.0
_EXIT_SECONDS = 0.01
# `killContainer` gives every container at least this long.
_GRACE_MIN_SECONDS = 2.0
_EVICTION_GRACE_SECONDS = 1.0


@dataclass(slots=True)
class _Record:
    """What the kubelet remembers of one pod."""

    pulls: Pulls
    worker: Worker | None = None
    waiting: Waiting = field(default_factory=dict)
    refused: Killed | None = None
    killed: Killed | None = None
    removed: bool = False


class Kubelet:
    """Runs the pods that are bound to nodes. Call `open`, and `close` in the end."""

    def __init__(self, client: ApiClient, settings: KubeletSettings) -> None:
        self._client = client
        self._settings = settings
        self._workers = Workers(settings.state_dir)
        self._planner = Planner(settings, self._workers, self._fetch)
        self._addresses = PodAddresses()
        self._records: dict[str, _Record] = {}
        self._changes = -1
        self._pods = Informer(client, "/api/v1/pods", on_change=self._on_change)
        self._nodes = Informer(client, "/api/v1/nodes", on_change=self._on_change)
        self._recorder = Recorder(client, utc_now)
        self._namespace = ""
        self._informers = contextlib.ExitStack()
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None

    def open(self) -> None:
        """Adopt pods of an earlier emulator, and begin. Raises TimeoutError if the API server does not answer."""
        self._workers.prepare()
        pipe = self._settings.state_dir / CHANGES
        with contextlib.suppress(FileExistsError):
            os.mkfifo(pipe, 0o600)
        self._changes = os.open(pipe, os.O_RDWR | os.O_NONBLOCK)
        for uid, worker in self._workers.adopt().items():
            self._records[uid] = self._record(worker)
            self._addresses.adopt(worker.plan.job, worker.plan.address)
        with contextlib.ExitStack() as stack:
            stack.enter_context(running({"nodes": self._nodes, "pods": self._pods}))
            self._informers = stack.pop_all()
        self._thread = threading.Thread(target=self._run, name="kubelet", daemon=True)
        self._thread.start()

    def close(self, *, end_pods: bool = True) -> None:
        """Stop; by default end all pods, without a word to the API, like nodes that are switched off."""
        self._stop.set()
        self._on_change(None, None)
        self._informers.close()
        if self._thread is not None:
            self._thread.join()
        if end_pods:
            self._end_all()
        self._addresses.close()
        os.close(self._changes)

    def _end_all(self) -> None:
        workers = [record.worker for record in self._records.values() if record.worker is not None]
        for worker in workers:
            worker.order_stop(min(self._settings.close_grace_seconds, worker.plan.grace_seconds))
        deadline = time.monotonic() + self._settings.close_grace_seconds + _GRACE_MIN_SECONDS
        while any(not worker.ended for worker in workers) and time.monotonic() < deadline:
            time.sleep(0.02)
            self._workers.reap()
            for worker in workers:
                worker.look()
        for worker in workers:
            worker.kill()
            self._workers.remove(worker.uid)
        self._workers.reap()

    def _on_change(self, _old: Obj | None, _new: Obj | None) -> None:
        with contextlib.suppress(OSError):  # A full pipe wakes the loop anyway.
            os.write(self._changes, b"\n")

    def _run(self) -> None:
        while not self._stop.is_set():
            select.select([self._changes], [], [], self._pause_seconds)
            with contextlib.suppress(BlockingIOError):
                os.read(self._changes, 65536)
            self._pass()

    @property
    def _pause_seconds(self) -> float:
        workers = [record.worker for record in self._records.values() if record.worker is not None]
        # A supervisor exits soon after its last report.
        if any(not worker.ended and worker.reported_end for worker in workers):
            return _EXIT_SECONDS
        return min(_POLL_SECONDS, self._settings.image_backoff_seconds / 2)

    def _pass(self) -> None:
        self._workers.reap()
        pods = {pod["metadata"]["uid"]: pod for pod in self._pods.items().values() if pod["spec"].get("nodeName")}
        for uid in [uid for uid in self._records if uid not in pods]:
            self._forget(uid)
        for uid, pod in pods.items():
            if self._stop.is_set():
                return
            record = self._records.setdefault(uid, self._record(None))
            try:
                self._sync(pod, record)
            except ApiError as error:
                # A conflict or deletion shows in the cache soon; anything else is tried again.
                if error.code not in (404, 409):
                    _log.warning("pod %s: %s", pod["metadata"]["name"], error)
            except Exception:  # noqa: BLE001 - a bug about one pod must not end the others' kubelet
                _log.exception("pod %s", pod["metadata"]["name"])
        self._addresses.keep_only({job.group(pod) for pod in pods.values()})

    def _record(self, worker: Worker | None) -> _Record:
        return _Record(pulls=Pulls(self._settings.image_backoff_seconds), worker=worker)

    def _forget(self, uid: str) -> None:
        """End what runs of a pod without an object; it was removed by force, which grants its own grace period."""
        worker = self._records[uid].worker
        if worker is not None:
            worker.look()
            worker.order_stop(max(worker.plan.grace_seconds, _GRACE_MIN_SECONDS))
            if not worker.ended:
                return
        self._workers.remove(uid)
        del self._records[uid]

    def _sync(self, pod: Obj, record: _Record) -> None:
        node = self._nodes.get("", pod["spec"]["nodeName"])
        if node is None:
            if record.worker is not None:
                record.worker.kill()
            return
        if has_no_contact(node):
            return
        metadata, phase = pod["metadata"], (pod.get("status") or {}).get("phase", "Pending")
        deleting = "deletionTimestamp" in metadata
        if record.worker is None and phase == "Pending" and not deleting and record.refused is None:
            self._begin(pod, node, record)
        if record.worker is not None:
            self._steer(pod, node, record.worker, record)
        elif phase in ("Succeeded", "Failed"):
            self._remove_if(pod, record, deleting)
            return
        terminated = record.worker.ended if record.worker is not None else deleting or phase != "Pending"
        status = pod_status(pod, self._observe(node, record, terminated=terminated), now=time.time())
        if status != pod.get("status"):
            self._write_status(pod, status)
        self._remove_if(pod, record, deleting and terminated)

    def _begin(self, pod: Obj, node: Obj, record: _Record) -> None:
        """Start the pod, or note why it cannot start (yet)."""
        if problem := refusal(pod):
            record.refused = Killed(reason="NotEmulated", message=f"Pod was rejected: {problem}")
            return
        if shutdown(node) is not None:
            message = "Pod was rejected as the node is shutting down."
            record.refused = Killed(reason="NodeShutdown", message=message)
            return
        record.waiting = record.pulls.waiting(pod, time.monotonic(), first_fails=self._settings.first_pull_fails(pod))
        if record.waiting:
            return
        owner = job.owner(pod, self._client)
        if owner is None:
            return
        self._namespace = pod["metadata"]["namespace"]
        try:
            listener, addresses = self._addresses.take(owner.group, owner.index, owner.size)
        except OSError as error:
            _log.warning("pod %s has no address: %s", pod["metadata"]["name"], error)
            return
        try:
            known = Addresses(
                pod=addresses[owner.index], node=_node_address(node), job=addresses if owner.group != _uid(pod) else ()
            )
            plan = self._planner.plan(pod, owner, known, _zone(node, self._settings))
            record.worker = self._workers.start(plan, listener)
        except ConfigError as error:
            first = [*(pod["spec"].get("initContainers") or ()), *pod["spec"]["containers"]][0]["name"]
            record.waiting = {first: ("CreateContainerConfigError", str(error))}
        except OSError as error:
            _log.warning("pod %s cannot start: %s", pod["metadata"]["name"], error)
        finally:
            listener.close()

    def _steer(self, pod: Obj, node: Obj, worker: Worker, record: _Record) -> None:
        """Order the end if it is time, and notice it."""
        metadata = pod["metadata"]
        if record.killed is None and (killed := eviction(pod, worker.folder)) is not None:
            record.killed = killed
            worker.order_stop(_EVICTION_GRACE_SECONDS)
        if record.killed is None and (killed := shutdown(node)) is not None and not worker.ended:
            record.killed = killed
            worker.order_stop(min(grace_seconds(pod), shutdown_grace_seconds(node, utc_now())))
        if "deletionTimestamp" in metadata:
            if not worker.stopping:
                for container in pod["spec"]["containers"]:
                    message = f"Stopping container {container['name']}"
                    self._recorder.record(pod, "Killing", message, warning=False)
            worker.order_stop(max(float(metadata.get("deletionGracePeriodSeconds") or 0), _GRACE_MIN_SECONDS))
        worker.look()

    def _observe(self, node: Obj, record: _Record, *, terminated: bool) -> Observed:
        worker = record.worker
        states: Mapping[str, ContainerState] = worker.state().containers if worker is not None else {}
        if terminated:
            # What a dead supervisor has not reported is unknown.
            states = {name: state for name, state in states.items() if state.phase == "terminated"}
        return Observed(
            containers=states,
            waiting=record.waiting,
            address=worker.plan.address if worker is not None else "",
            node_address=_node_address(node),
            terminated=terminated,
            killed=record.killed,
            refused=record.refused,
        )

    def _write_status(self, pod: Obj, status: Obj) -> None:
        metadata = pod["metadata"]
        precondition = {"uid": metadata["uid"], "resourceVersion": metadata["resourceVersion"]}
        answer = self._client.patch(f"{_path(pod)}/status", {"metadata": precondition, "status": status})
        self._pods.learn(answer)
        for event in events(pod, status):
            self._recorder.record(pod, event.reason, event.message, warning=event.warning)

    def _remove_if(self, pod: Obj, record: _Record, condition: bool) -> None:
        """Delete the object for good, once; finalizers can keep it for longer."""
        if condition and not record.removed:
            self._client.delete(_path(pod), grace_seconds=0, uid=_uid(pod))
            record.removed = True

    def _fetch(self, kind: str, name: str) -> Obj | None:
        try:
            return self._client.get(f"/api/v1/namespaces/{self._namespace}/{kind}s/{name}")
        except ApiError as error:
            if error.code == 404:
                return None
            raise


def _uid(pod: Obj) -> str:
    return str(pod["metadata"]["uid"])


def _path(pod: Obj) -> str:
    return f"/api/v1/namespaces/{pod['metadata']['namespace']}/pods/{pod['metadata']['name']}"


def _node_address(node: Obj) -> str:
    addresses = (node.get("status") or {}).get("addresses") or ()
    return next((str(each["address"]) for each in addresses if each["type"] == "InternalIP"), "127.0.0.1")


def _zone(node: Obj, settings: KubeletSettings) -> str:
    return str((node["metadata"].get("labels") or {}).get("topology.kubernetes.io/zone", settings.zone))
