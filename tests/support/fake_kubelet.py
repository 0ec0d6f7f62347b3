"""A kubelet without processes: bound pods run until a test ends them; deleted ones end at once."""

from __future__ import annotations

import datetime
from typing import Any

from bastion.emulators.kubernetes.client import ApiClient, ApiError, Informer, Key, Obj, key
from bastion.emulators.kubernetes.controllers.api_objects import (
    NODE,
    POD,
    is_deleting,
    is_terminal,
    node_name_of,
    path_of,
    phase_of,
    status_of,
    timestamp,
    uid_of,
)
from bastion.emulators.kubernetes.controllers.node_faults import is_silent
from bastion.emulators.kubernetes.controllers.reconcile_loop import Loop

_KILLED = 143


class FakeKubelet:
    """Reports pods of every node as Running and Ready. A pod on a silent node stays as it was last seen."""

    def __init__(self, client: ApiClient) -> None:
        self._client = client
        self._pods = Informer(client, POD.root, on_change=self._pod_changed)
        self._nodes = Informer(client, NODE.root, on_change=self._node_changed)
        self._exits: dict[str, int] = {}  # by uid
        self._loop: Loop[Key] = Loop("fake kubelet", self._sync)

    def __enter__(self) -> FakeKubelet:
        for informer in (self._nodes, self._pods):
            informer.start()
            assert informer.wait_synced(30)
        self._loop.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._loop.stop()
        self._pods.stop()
        self._nodes.stop()

    def finish(self, pod: Obj, exit_code: int = 0) -> None:
        """End the containers of a pod."""
        self._exits[uid_of(pod)] = exit_code
        self._loop.add(key(pod))

    def _pod_changed(self, _old: Obj | None, new: Obj | None) -> None:
        if new is not None and node_name_of(new):
            self._loop.add(key(new))

    def _node_changed(self, _old: Obj | None, new: Obj | None) -> None:
        for pod in self._pods.items().values() if new is not None else ():
            if node_name_of(pod) == new["metadata"]["name"]:
                self._loop.add(key(pod))

    def _sync(self, name: Key) -> None:
        pod = self._pods.get(*name)
        node = self._nodes.get("", node_name_of(pod)) if pod is not None else None
        if pod is None or node is None or is_silent(node) or (is_deleting(pod) and self._is_cut_off(node)):
            return
        code = self._exits.get(uid_of(pod))
        if is_deleting(pod):
            if not is_terminal(pod):
                self._report(pod, _KILLED if code is None else code)
            try:
                self._client.delete(path_of(pod), grace_seconds=0, uid=uid_of(pod))
            except ApiError as error:
                if error.code not in (404, 409):
                    raise
        elif not is_terminal(pod) and (code is not None or phase_of(pod) == "Pending"):
            self._report(pod, code)

    def _is_cut_off(self, node: Obj) -> bool:
        """Whether it is silent by now: a deletion because of that may be known before it."""
        try:
            return is_silent(self._client.get(path_of(node)))
        except ApiError as error:
            if error.code == 404:
                return True
            raise

    def _report(self, pod: Obj, exit_code: int | None) -> None:
        now = timestamp(datetime.datetime.now(datetime.timezone.utc))
        running = exit_code is None
        state: Obj = {"running": {"startedAt": now}}
        if exit_code is not None:
            reason = "Completed" if exit_code == 0 else "Error"
            state = {"terminated": {"exitCode": exit_code, "reason": reason, "startedAt": now, "finishedAt": now}}
        kinds = {"Initialized": True, "ContainersReady": running, "Ready": running}
        own = [
            {"type": kind, "status": str(status), "lastProbeTime": None, "lastTransitionTime": now}
            for kind, status in kinds.items()
        ]
        others = [each for each in status_of(pod).get("conditions") or () if each["type"] not in kinds]
        status: dict[str, Any] = {
            "phase": "Running" if running else "Failed" if exit_code else "Succeeded",
            "podIP": "127.0.0.1",
            "conditions": [*others, *own],
            "containerStatuses": [
                {
                    "name": container["name"],
                    "image": container.get("image", ""),
                    "imageID": "",
                    "ready": running,
                    "restartCount": 0,
                    "state": state,
                }
                for container in pod["spec"]["containers"]
            ],
        }
        # Conditions are replaced as a list: only in the version that was read.
        version = {"resourceVersion": pod["metadata"]["resourceVersion"]}
        try:
            answer = self._client.patch(path_of(pod, "status"), {"metadata": version, "status": status})
        except ApiError as error:
            if error.code == 404:
                return
            raise
        self._pods.learn(answer)
