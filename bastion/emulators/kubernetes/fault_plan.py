"""The emulated cluster's faults by seed (`bastion.emulators.fault_plan`).

Names: of a pod `JOB-INDEX`, of a slice its Job, of a request method, path and the number of earlier ones, of a time the
number of periods of `FaultPlan.seconds` since the emulator's start.
"""

from __future__ import annotations

from collections.abc import Iterable

from bastion.emulators import fault_plan
from bastion.emulators.fault_plan import FaultPlan as FaultPlan

# All fault types, by the names that `--fault` uses.
FAULT_TYPES: dict[str, str] = {
    "preempt": "a slice's spot machine is reclaimed",
    "node-lost": "a pod's machine falls silent, and is removed",
    "out-of-memory": "a pod's containers run out of memory",
    "image-error": "the first pull of a pod's images fails",
    "no-capacity": "no pod is placed for a period",
    "watch-cut": "all watches are cut",
    "expired": "all watches are cut, and what they missed is too old: 410",
    "unavailable": "a request is answered with 503 and does nothing",
    "throttled": "a request is answered with 429 and does nothing",
    "lost-reply": "a request that changes something does so, and its connection is reset",
}


def parse_rates(texts: Iterable[str]) -> dict[str, float]:
    """Parse rates such as `preempt:0.2`. Raises Refused."""
    return fault_plan.parse_rates(texts, FAULT_TYPES)
