"""Faults by seed: the seed and the names alone decide which resources and calls are hit.

Two runs with the same names have the same faults, whatever their threads and restarts.
"""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field

from bastion.core.errors import Refused


@dataclass(frozen=True, slots=True, kw_only=True)
class FaultPlan:
    """Random faults.

    Attributes:
        rates: Probability of each fault type, 0 to 1, per name.
        seed: Decides which.
        seconds: Faults of what has become ready happen within this time.
    """

    rates: Mapping[str, float] = field(default_factory=dict)
    seed: int = 0
    seconds: float = 30.0

    def strikes(self, fault_type: str, name: str) -> bool:
        rate = self.rates.get(fault_type, 0.0)
        return rate > 0.0 and self._draw(fault_type, name, "whether") < rate

    def delay_seconds(self, fault_type: str, name: str) -> float:
        """How long after it has become ready the fault hits what has that name."""
        return self._draw(fault_type, name, "when") * self.seconds

    def _draw(self, fault_type: str, name: str, question: str) -> float:
        """A number in [0, 1)."""
        digest = hashlib.sha256("\0".join((str(self.seed), fault_type, name, question)).encode()).digest()
        return int.from_bytes(digest[:8], "big") / 2**64


def parse_rates(texts: Iterable[str], fault_types: Collection[str]) -> dict[str, float]:
    """Parse rates such as `preempt:0.2` of known fault types. Raises Refused."""
    rates = {}
    for text in texts:
        fault_type, _, rate = text.partition(":")
        try:
            rates[fault_type] = float(rate)
        except ValueError:
            rates[fault_type] = -1.0
        if fault_type not in fault_types or not 0.0 <= rates[fault_type] <= 1.0:
            raise Refused(
                f"'{text}' is not KIND:RATE with a rate from 0 to 1 and KIND one of {', '.join(fault_types)}; "
                "example: preempt:0.2"
            )
    return rates
