"""Decide which faults hit nodes, on demand (`faults.py`) or by seed (`fault_plan.py`); the fleet applies them.

A seeded fault of a creation depends on the name of the node or queued resource, so a gang shares it. A fault of a READY
node depends on its name and boot count, so a recreated node draws again.
"""

from __future__ import annotations

import time
from typing import Protocol

from bastion.emulators.tpu.fault_plan import FaultPlan
from bastion.emulators.tpu.faults import CreateFailure, Faults, stockout
from bastion.emulators.tpu.records import NodeRecord


class Victims(Protocol):
    """Applies faults to nodes; ignores missing or incomplete nodes."""

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
        """Whether the current creation never ends."""
        return self._faults.take("hang-create") is not None or self._strikes_creation("hang", node)

    def creation_fails(self, node: NodeRecord, zone: str) -> CreateFailure | None:
        """How the current creation fails, if at all."""
        failure = self._faults.take_create_failure(zone)
        return stockout(zone) if failure is None and self._strikes_creation("stockout", node) else failure

    def look(self, ready: list[NodeRecord]) -> None:
        """Apply due faults to READY nodes. Raises OSError if a fault's file cannot be removed."""
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
