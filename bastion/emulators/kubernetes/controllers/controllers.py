"""All controllers of one API server."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from typing import Any

from bastion.emulators.kubernetes.client import ApiClient
from bastion.emulators.kubernetes.controllers.cluster import Clock, Cluster, utc_now
from bastion.emulators.kubernetes.controllers.disruptions import DisruptionController, DisruptionSettings
from bastion.emulators.kubernetes.controllers.garbage_collector import GarbageCollector
from bastion.emulators.kubernetes.controllers.job_controllers import JobController, JobSetController
from bastion.emulators.kubernetes.controllers.node_pools import NodePools
from bastion.emulators.kubernetes.controllers.nodes import Pool
from bastion.emulators.kubernetes.controllers.reconcile_loop import Loop
from bastion.emulators.kubernetes.controllers.scheduler import Scheduler
from bastion.emulators.kubernetes.kueue.kueue import Kueue


class Controllers:
    """The controllers, between `open` and `close`; the client is the caller's.

    Args:
        pools: Empty: nodes come from elsewhere.
        repair_seconds: From the end of a node to its successor.
        kueue: Also those of Kueue; the server must have its kinds.
    """

    def __init__(
        self,
        client: ApiClient,
        pools: Sequence[Pool] = (),
        *,
        repair_seconds: float = 5.0,
        disruptions: DisruptionSettings | None = None,
        clock: Clock = utc_now,
        kueue: bool = False,
    ) -> None:
        self.cluster = Cluster(client, clock=clock, kueue=kueue)
        self.node_pools = NodePools(self.cluster, pools, repair_seconds=repair_seconds)
        self._loops: list[Loop[Any]] = [
            JobSetController(self.cluster).loop,
            JobController(self.cluster).loop,
            GarbageCollector(self.cluster).loop,
            Scheduler(self.cluster).loop,
            DisruptionController(self.cluster, disruptions or DisruptionSettings()).loop,
            self.node_pools.loop,
            *([Kueue(self.cluster).loop] if kueue else []),
        ]
        self._running = contextlib.ExitStack()

    def open(self) -> None:
        """Fill the caches, and start. Raises TimeoutError."""
        with contextlib.ExitStack() as stack:
            # The loops end before the caches.
            stack.enter_context(self.cluster.running())
            for loop in self._loops:
                loop.start()
                stack.callback(loop.stop)
            self._running = stack.pop_all()
        self.node_pools.begin()

    def close(self) -> None:
        self._running.close()
