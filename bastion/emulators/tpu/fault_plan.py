"""The emulated Cloud TPU's faults by seed (`bastion.emulators.fault_plan`)."""

from __future__ import annotations

from collections.abc import Iterable

from bastion.emulators import fault_plan
from bastion.emulators.fault_plan import FaultPlan as FaultPlan

# All fault types, by the names that `--fault` and `Faults` use.
FAULT_TYPES: dict[str, str] = {
    "stockout": "a creation's operation fails with a stockout; a queued resource becomes FAILED",
    "hang": "a creation never ends",
    "preempt": "a spot node is preempted, with its whole queued resource",
    "maintenance": "host maintenance ends a node; it is TERMINATED",
    "crash": "a host dies, and its node is TERMINATED",
    "silent-crash": "a host dies, and its node stays READY",
    "unavailable": "a call is answered with 503 UNAVAILABLE and does nothing",
    "throttled": "a call is answered with 429 RESOURCE_EXHAUSTED and does nothing",
    "lost-reply": "a call that changes something does so and is answered with 503 UNAVAILABLE",
}


def parse_rates(texts: Iterable[str]) -> dict[str, float]:
    """Parse rates such as `preempt:0.2`. Raises Refused."""
    return fault_plan.parse_rates(texts, FAULT_TYPES)
