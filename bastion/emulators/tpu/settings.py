"""How this machine plays Cloud TPU: the knobs of one emulator."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from bastion.emulators.tpu.fault_plan import FaultPlan

# A block of loopback addresses ends there.
HOSTS_MAX = 250


@dataclass(frozen=True, slots=True, kw_only=True)
class FleetSettings:
    """How this machine plays Cloud TPU.

    Attributes:
        hosts_max: The largest node; a host costs about 0.3 s and 160 MB once JAX runs on it.
        grace_seconds: Between SIGTERM and SIGKILL when a node is deleted or pre-empted.
        orphan_seconds: How long hosts outlive an emulator that has no successor.
        watch_seconds: How often dead hosts and fault files are looked for.
        create_seconds: How long every creation of a node takes before its hosts boot.
        wait_seconds: How long every queued resource waits for resources at least.
        notice_seconds: Between the hosts' notice of a pre-emption or a maintenance and their end.
        boot: Whether nodes have hosts at all; without, they are READY and nothing runs.
        exists, quota: As in `Capacity`.
        plan: What goes wrong by chance.
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
