"""Kueue in memory: what it says of the gangs in its queues, and when it admits them."""

from __future__ import annotations

from dataclasses import dataclass, field

from bastion.core.model.gangs import GangFailure, GangRequest
from bastion.core.model.kueue import KueueStatus, WorkloadCondition
from bastion.ports import Clock


@dataclass(slots=True)
class Workload:
    """What Kueue keeps of one gang."""

    request: GangRequest
    admitted: bool = False
    conditions: dict[str, WorkloadCondition] = field(default_factory=dict)
    evictions: int = 0

    @property
    def status(self) -> KueueStatus:
        return KueueStatus(
            queue=self.request.place.queue,
            workload=f"jobset-{self.request.ref.name}",
            admitted=self.admitted,
            conditions=tuple(self.conditions.values()),
            evictions=self.evictions,
        )


class FakeKueue:
    """Admits gangs in the order of their priority classes, as many as fit.

    Attributes:
        most: Number of gangs that are admitted at once; None: all.
        reason, message: Why the others wait.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._workloads: dict[str, Workload] = {}
        self.most: int | None = None
        self.reason = "Pending"
        self.message = "insufficient unused quota (simulated)"

    def add(self, request: GangRequest) -> None:
        if request.place.queue:
            self._workloads[request.ref.name] = Workload(request)
            self._say(request.ref.name, "QuotaReserved", self.reason, self.message, status=False)

    def drop(self, name: str) -> None:
        self._workloads.pop(name, None)

    def of(self, name: str) -> KueueStatus | None:
        found = self._workloads.get(name)
        return None if found is None else found.status

    def decide(self) -> None:
        """Admit what fits, the first in the queue first."""
        waiting = [name for name, workload in self._workloads.items() if not workload.conditions.get("Evicted")]
        # The classes of one priority differ in their end; the one of later attempts comes first.
        waiting.sort(key=lambda name: not self._workloads[name].request.priority_class.endswith("-again"))
        room = len(waiting) if self.most is None else self.most - sum(w.admitted for w in self._workloads.values())
        for name in [name for name in waiting if not self._workloads[name].admitted][: max(0, room)]:
            self._workloads[name].admitted = True
            self._say(name, "QuotaReserved", "QuotaReserved", "Quota reserved", status=True)
            self._say(name, "Admitted", "Admitted", "The workload is admitted", status=True)

    def evict(self, name: str, reason: str, message: str) -> GangFailure:
        """Take the gang's quota away; return what its platform says of the loss."""
        workload = self._workloads[name]
        workload.admitted, workload.evictions = False, workload.evictions + 1
        self._say(name, "Evicted", reason, message, status=True)
        return GangFailure(cause="evicted", message=f"{reason}: {message}")

    def deactivate(self, name: str, message: str) -> None:
        """Never admit the gang, which waits."""
        self._say(name, "Evicted", "Deactivated", message, status=True)
        self._say(name, "QuotaReserved", "Pending", message, status=False)

    def _say(self, name: str, type_: str, reason: str, message: str, *, status: bool) -> None:
        self._workloads[name].conditions[type_] = WorkloadCondition(
            type=type_, status=status, reason=reason, message=message, since=self._clock.now()
        )
