"""Keeps the nodes of the pools: makes missing ones, and removes machines that were told to terminate."""

from __future__ import annotations

import contextlib
import secrets
import threading
import time
from collections.abc import Iterable

from bastion.emulators.kubernetes.client import ApiError, Obj
from bastion.emulators.kubernetes.controllers.api_objects import (
    NODE,
    POD,
    is_terminal,
    labels_of,
    name_of,
    node_name_of,
    status_of,
)
from bastion.emulators.kubernetes.controllers.cluster import Cluster, Index, Write, delete
from bastion.emulators.kubernetes.controllers.node_faults import termination_of
from bastion.emulators.kubernetes.controllers.nodes import NODE_POOL, SLOT, Pool, build_node
from bastion.emulators.kubernetes.controllers.reconcile_loop import Loop


class NodePools:
    """A machine that is gone comes back as a new node after `repair_seconds`, unless its pool is held."""

    def __init__(self, cluster: Cluster, pools: Iterable[Pool], *, repair_seconds: float) -> None:
        self._cluster = cluster
        self._pools = {name: pool for pool in pools for name in pool.names}
        self._repair_seconds = repair_seconds
        self._nodes = cluster.informer(NODE)
        self._pods = Index(cluster.informer(POD), lambda pod: (node_name_of(pod),) if node_name_of(pod) else ())
        self._held: set[str] = set()
        self._lost_at: dict[str, float] = {}
        self._lock = threading.Lock()
        self.loop: Loop[str] = Loop("node pools", self._reconcile)
        self._nodes.subscribe(self._node_changed)
        cluster.informer(POD).subscribe(self._pod_changed)

    @property
    def names(self) -> list[str]:
        return list(self._pools)

    def hold(self, name: str, *, held: bool = True) -> None:
        """Make no nodes for a pool, as a cloud without capacity; or make them again."""
        with self._lock:
            (self._held.add if held else self._held.discard)(name)
        self.loop.add(name)

    def begin(self) -> None:
        for name in self._pools:
            self.loop.add(name)

    def _node_changed(self, old: Obj | None, new: Obj | None) -> None:
        node = new or old
        assert node is not None
        pool = labels_of(node).get(NODE_POOL)
        if pool in self._pools:
            if new is None:
                self._lost_at[labels_of(node)[SLOT]] = time.monotonic()
            self.loop.add(pool)

    def _pod_changed(self, old: Obj | None, new: Obj | None) -> None:
        """A node that terminates goes with its last pod."""
        if old is None or not node_name_of(old) or not (new is None or is_terminal(new)):
            return
        node = self._nodes.get("", node_name_of(old))
        if node is not None and termination_of(node) is not None:
            self.loop.add(labels_of(node).get(NODE_POOL, ""))

    def _reconcile(self, name: str) -> float | None:
        pool = self._pools.get(name)
        if pool is None:
            return None
        nodes = [node for node in self._nodes.items().values() if labels_of(node).get(NODE_POOL) == name]
        waits = [self._terminate(node) for node in nodes]
        slots = {labels_of(node).get(SLOT) for node in nodes}
        for machine in range(pool.instance_type.hosts):
            slot = f"{name}-{machine}"
            if slot not in slots and name not in self._held:
                waits.append(self._make(pool, name, machine, self._lost_at.get(slot)))
        return min((wait for wait in waits if wait is not None), default=None)

    def _terminate(self, node: Obj) -> float | None:
        """Remove a node whose time is over, or that runs nothing more; return when to look again."""
        ends = termination_of(node)
        if ends is None:
            return None
        left = (ends - self._cluster.clock()).total_seconds()
        if left > 0 and not all(is_terminal(pod) for pod in self._pods.get(name_of(node))):
            return left
        self._cluster.write(delete(node))
        return None

    def _make(self, pool: Pool, name: str, machine: int, lost_at: float | None) -> float | None:
        if lost_at is not None and (left := lost_at + self._repair_seconds - time.monotonic()) > 0:
            return left
        node = build_node(pool, name, machine, secrets.token_hex(2), now=self._cluster.clock())
        made = self._cluster.write(Write(method="create", path=NODE.path(""), body=node))
        # A server that treats the status as a subresource leaves it out.
        if made is not None and not status_of(made).get("allocatable"):
            patch = {"status": node["status"]}
            with contextlib.suppress(ApiError):
                self._cluster.write(Write(method="patch", path=NODE.path("", name_of(node)) + "/status", body=patch))
        return None
