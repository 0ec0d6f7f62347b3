"""The settings of one emulated cluster."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from bastion.emulators.fault_plan import FaultPlan
from bastion.emulators.kubernetes.controllers.nodes import Pool


@dataclass(frozen=True, slots=True, kw_only=True)
class EmulatorSettings:
    """Settings of an emulated cluster.

    Attributes:
        port: Of the API server on 127.0.0.1; 0: the last run's if it is free, else any.
        pools: Its node pools; nodes of other pools are removed at the start.
        repair_seconds: From the end of a node to its successor.
        orphan_seconds: How long pods outlive the emulator.
        close_grace_seconds: Between SIGTERM and SIGKILL of all pods when the emulator closes.
        image_backoff_seconds: Between the first two attempts to pull an image.
        notice_seconds: Between the notice of a seeded preemption and the end of the machine.
        plan: Random faults (`fault_plan.FAULT_TYPES`).
        kueue: Have Kueue on the cluster, without any queue yet.
    """

    state_dir: Path
    port: int = 0
    pools: tuple[Pool, ...] = ()
    repair_seconds: float = 5.0
    orphan_seconds: float = 60.0
    close_grace_seconds: float = 5.0
    image_backoff_seconds: float = 10.0
    notice_seconds: int = 15
    plan: FaultPlan = field(default_factory=FaultPlan)
    kueue: bool = False
