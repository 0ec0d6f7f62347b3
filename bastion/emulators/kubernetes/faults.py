"""Faults on demand, for tests and demonstrations: files in `DIR/faults/`.

* `oom.<pod>`: the pod's containers run out of memory.
* `evict.<pod>`: the pod's node evicts it; the text is the short resource, by default `memory`.
* `preempt.<node>`: a spot machine is reclaimed; the text is its grace period in seconds, by default 15.
* `silence.<node>`: the node does not answer any more; its pods go on.
* `remove.<node>`: the machine is gone at once, with its pods' processes.
* `hold.<node pool>`: the pool gets no new nodes, as without capacity; stays until removed.
* `cut-watches.<anything>`: all watches are cut; `expire.<anything>`: what they missed is too old, too (410).

`request_faults.py` has those of requests.

A node can be named by its node pool and number, `v5litepod-16-0-3`; machines that come back have new names. Files work
from a shell (`touch`), for a separate process, and before their pod or node exists.
"""

from __future__ import annotations

import contextlib
import logging
import threading
import uuid
from collections.abc import Iterator
from pathlib import Path

from bastion.emulators.kubernetes.apiserver import ApiServer
from bastion.emulators.kubernetes.client import ApiClient, ApiError, Obj
from bastion.emulators.kubernetes.controllers.cluster import utc_now
from bastion.emulators.kubernetes.controllers.node_faults import lose_node, preempt_node, remove_node
from bastion.emulators.kubernetes.controllers.node_pools import NodePools
from bastion.emulators.kubernetes.controllers.nodes import SLOT
from bastion.emulators.kubernetes.kubelet.pod_folder import PodFolder
from bastion.emulators.state_folder import write_private

_log = logging.getLogger(__name__)

_PERIOD_SECONDS = 0.25
_SPOT_GRACE_SECONDS = 15


class Faults:
    """Writes fault files, for tests."""

    def __init__(self, state_dir: Path) -> None:
        self._folder = state_dir / "faults"

    def out_of_memory(self, pod: str) -> None:
        self._write(f"oom.{pod}")

    def evict(self, pod: str, resource: str = "memory") -> None:
        self._write(f"evict.{pod}", resource)

    def preempt(self, node: str, grace_seconds: int = _SPOT_GRACE_SECONDS) -> None:
        self._write(f"preempt.{node}", str(grace_seconds))

    def silence(self, node: str) -> None:
        self._write(f"silence.{node}")

    def remove(self, node: str) -> None:
        self._write(f"remove.{node}")

    def hold(self, pool: str, *, held: bool = True) -> None:
        if held:
            self._write(f"hold.{pool}")
        else:
            (self._folder / f"hold.{pool}").unlink(missing_ok=True)

    def cut_watches(self) -> None:
        self._write(f"cut-watches.{uuid.uuid4().hex}")

    def expire(self) -> None:
        self._write(f"expire.{uuid.uuid4().hex}")

    def refuse(self, method: str, code: int = 503) -> None:
        """Refuse the next request with a method such as POST."""
        self._write(f"refuse.{method}.{uuid.uuid4().hex}", str(code))

    def lose_reply(self, method: str) -> None:
        self._write(f"lose-reply.{method}.{uuid.uuid4().hex}")

    def _write(self, name: str, text: str = "") -> None:
        self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        draft = self._folder / f".{uuid.uuid4().hex}"
        draft.write_text(text, "utf-8")
        draft.replace(self._folder / name)  # Readers never see a part of it.


class FaultFiles:
    """Applies the fault files of a state folder, in a thread. A file that was applied is removed."""

    def __init__(self, state_dir: Path, server: ApiServer, client: ApiClient, node_pools: NodePools) -> None:
        self._folder = state_dir / "faults"
        self._pods = state_dir / "pods"
        self._server = server
        self._client = client
        self._node_pools = node_pools
        self._held: set[str] = set()
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="faults", daemon=True)

    def open(self) -> None:
        self._folder.mkdir(mode=0o700, exist_ok=True)
        self._look()
        self._thread.start()

    def close(self) -> None:
        self._stop.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._stop.wait(_PERIOD_SECONDS):
            try:
                self._look()
            except Exception:  # noqa: BLE001, PERF203 - one fault must not keep the others from happening
                _log.exception("faults")

    def _look(self) -> None:
        with contextlib.suppress(OSError):
            self._hold({path.name.removeprefix("hold.") for path in self._folder.glob("hold.*")})
        for path in self._folder.glob("[!.]*.*"):
            kind, _, name = path.name.partition(".")
            try:
                text = path.read_text("utf-8", "replace").strip()
                applied = self._apply(kind, name, text)
            except (OSError, ApiError) as error:
                _log.warning("fault %s: %s", path.name, error)
                continue
            if applied:
                path.unlink(missing_ok=True)

    def _apply(self, kind: str, name: str, text: str) -> bool:
        """Whether the fault has happened; otherwise it waits for its pod or node. Raises ApiError, OSError."""
        if kind in ("cut-watches", "expire"):
            if kind == "expire":
                self._server.expire_history()
            self._server.cut_watches()
            return True
        if kind in ("oom", "evict"):
            return self._of_pod(kind, name, text)
        if kind not in ("preempt", "silence", "remove"):
            return False
        node = next(self._nodes(name), None)
        if node is None:
            return False
        if kind == "preempt":
            preempt_node(
                self._client, node, now=utc_now(), grace_seconds=int(text) if text.isdigit() else _SPOT_GRACE_SECONDS
            )
        elif kind == "silence":
            lose_node(self._client, node, now=utc_now())
        else:
            remove_node(self._client, node)
        return True

    def _of_pod(self, kind: str, name: str, text: str) -> bool:
        for pod in self._client.list("/api/v1/pods")["items"]:
            folder = PodFolder(self._pods / pod["metadata"]["uid"])
            if pod["metadata"]["name"] == name and folder.plan_file.exists():
                # At once: an empty file means something else.
                write_private(folder.oom if kind == "oom" else folder.evict, text.encode())
                return True
        return False

    def _nodes(self, name: str) -> Iterator[str]:
        """Names of the nodes that a fault means."""
        found: list[Obj] = self._client.list("/api/v1/nodes")["items"]
        for node in found:
            metadata = node["metadata"]
            if name in (metadata["name"], (metadata.get("labels") or {}).get(SLOT)):
                yield metadata["name"]

    def _hold(self, wanted: set[str]) -> None:
        for name in wanted ^ self._held:
            self._node_pools.hold(name, held=name in wanted)
        self._held = wanted
