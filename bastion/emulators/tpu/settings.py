"""The settings of one TPU emulator."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from bastion.emulators.tpu.fault_plan import FaultPlan

# Limit of a block of loopback addresses.
HOSTS_MAX = 250


@dataclass(frozen=True, slots=True, kw_only=True)
class FleetSettings:
    """Settings of the emulated fleet.

    Attributes:
        hosts_max: Hosts of the largest node; a host costs about 0.3 s and 160 MB with JAX.
        grace_seconds: Between SIGTERM and SIGKILL of a deleted or preempted node.
        orphan_seconds: How long hosts outlive their emulator.
        watch_seconds: Interval of checks for dead hosts and fault files.
        create_seconds: Time of every node creation before its hosts boot.
        wait_seconds: Minimum wait of every queued resource.
        notice_seconds: Between the notice of a preemption or maintenance and the end.
        boot: Whether nodes have hosts; without, they are READY and run nothing.
        exists, quota: As in `Capacity`.
    """

    state_dir: Path
    hosts_max: int = 16
    grace_seconds: float = 5.0
    orphan_seconds: float = 60.0
    watch_seconds: float = 0.25
    create_seconds: float = 0.0
    wait_seconds: float = 0.0
    notice_seconds: float = 0.0
    boot: bool = True
    exists: Mapping[tuple[str, str], int] = field(default_factory=dict)
    quota: Mapping[tuple[str, str], int] = field(default_factory=dict)
    plan: FaultPlan = field(default_factory=FaultPlan)
