"""Faults by seed: the seed and the names alone decide which resources and calls are hit.

Two runs with the same names have the same faults, whatever their threads and restarts.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from bastion.core.errors import Refused

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


@dataclass(frozen=True, slots=True, kw_only=True)
class FaultPlan:
    """Random faults.

    Attributes:
        rates: Probability of each fault type, 0 to 1, per creation, READY node or call.
        seed: Decides which.
        seconds: Faults of a READY node happen within this time.
    """

    rates: Mapping[str, float] = field(default_factory=dict)
    seed: int = 0
    seconds: float = 30.0

    def strikes(self, fault_type: str, name: str) -> bool:
        rate = self.rates.get(fault_type, 0.0)
        return rate > 0.0 and self._draw(fault_type, name, "whether") < rate

    def delay_seconds(self, fault_type: str, name: str) -> float:
        """How long after READY the fault hits a node."""
        return self._draw(fault_type, name, "when") * self.seconds

    def _draw(self, fault_type: str, name: str, question: str) -> float:
        """A number in [0, 1)."""
        digest = hashlib.sha256("\0".join((str(self.seed), fault_type, name, question)).encode()).digest()
        return int.from_bytes(digest[:8], "big") / 2**64


def parse_rates(texts: Iterable[str]) -> dict[str, float]:
    """Parse rates such as `preempt:0.2`. Raises Refused."""
    rates = {}
    for text in texts:
        fault_type, _, rate = text.partition(":")
        try:
            rates[fault_type] = float(rate)
        except ValueError:
            rates[fault_type] = -1.0
        if fault_type not in FAULT_TYPES or not 0.0 <= rates[fault_type] <= 1.0:
            raise Refused(
                f"'{text}' is not KIND:RATE with a rate from 0 to 1 and KIND one of {', '.join(FAULT_TYPES)}; "
                "example: preempt:0.2"
            )
    return rates
