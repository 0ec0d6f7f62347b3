"""What goes wrong with nodes, on demand (`faults.py`) or by seed (`fault_plan.py`).

Decides only; the fleet does it. A seeded fault names a creation by its node or queued resource, so that a gang has one
fate, and a fault of a READY node by the node and the number of its boots, so that a node made anew has a new one.
"""

from __future__ import annotations

import time
from typing import Protocol

from bastion.emulators.tpu.fault_plan import FaultPlan
from bastion.emulators.tpu.faults import CreateFailure, Faults, stockout
from bastion.emulators.tpu.records import NodeRecord


class Victims(Protocol):
    """What can be done to nodes. A node that is gone or not complete is left alone."""

    def preempt(self, name: str) -> None: ...

    def maintain(self, name: str, *, recreate: bool = False) -> None: ...

    def crash(self, name: str, worker: int = 0, *, silent: bool = False) -> None: ...


class FaultInjector:
    """The faults of one emulator."""

    def __init__(self, faults: Faults, plan: FaultPlan, victims: Victims) -> None:
        self._faults = faults
        self._plan = plan
        self._victims = victims

    def creation_hangs(self, node: NodeRecord) -> bool:
        """Whether the creation at hand never ends."""
        return self._faults.take("hang-create") is not None or self._strikes_creation("hang", node)

    def creation_fails(self, node: NodeRecord, zone: str) -> CreateFailure | None:
        """How the creation at hand fails, if it does."""
        failure = self._faults.take_create_failure(zone)
        return stockout(zone) if failure is None and self._strikes_creation("stockout", node) else failure

    def look(self, ready: list[NodeRecord]) -> None:
        """Does to READY nodes what is due.

        Raises:
            OSError: a fault's file cannot be removed.
        """
        asked = self._faults.node_faults()
        now = time.time()
        for node in ready:
            for fault in [fault for fault in asked if fault.node_id == node.node_id]:
                self._faults.happened(fault)
                self._do(fault.fault_type, node, worker=fault.worker, recreate=fault.recreate)
            for fault_type in ("preempt", "maintenance", "crash", "silent-crash"):
                if self._is_due(fault_type, node, now):
                    self._do(fault_type, node)

    def _is_due(self, fault_type: str, node: NodeRecord, now: float) -> bool:
        name = f"{node.node_id}#{node.boots}"
        if node.ready_at is None or (fault_type == "preempt" and not (node.spot and node.slice_index == 0)):
            return False
        if (fault_type == "silent-crash" and node.unwatched) or not self._plan.strikes(fault_type, name):
            return False
        return now >= node.ready_at + self._plan.delay_seconds(fault_type, name)

    def _do(self, fault_type: str, node: NodeRecord, *, worker: int = 0, recreate: bool = False) -> None:
        match fault_type:
            case "preempt":
                self._victims.preempt(node.name)
            case "maintenance":
                self._victims.maintain(node.name, recreate=recreate)
            case _:
                self._victims.crash(node.name, worker, silent=fault_type == "silent-crash")

    def _strikes_creation(self, fault_type: str, node: NodeRecord) -> bool:
        if node.slice_index > 0 or node.boots > 1:
            return False
        return self._plan.strikes(fault_type, (node.queued or node.name).rpartition("/")[2])
