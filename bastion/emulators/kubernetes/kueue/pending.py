"""The order of pending Workloads in each ClusterQueue, and which of them wait until something changes
(kueue pkg/cache/queue/{cluster_queue,manager}.go). Upstream gathers such changes for a second; here they count at once.
"""

from __future__ import annotations

import datetime
from collections.abc import Iterable

from bastion.emulators.kubernetes.client import Obj
from bastion.emulators.kubernetes.controllers.api_objects import condition_of, parse_time, status_of
from bastion.emulators.kubernetes.kueue.conditions import is_false_because
from bastion.emulators.kubernetes.kueue.snapshot import Info

# Reasons of Requeued=False that end by a change of that condition.
_HELD = ("Deactivated", "ClusterQueueStopped", "LocalQueueStopped", "AdmissionCheck", "PodsReadyTimeout")


class Pending:
    """What the scheduler remembers of Workloads between its cycles."""

    def __init__(self) -> None:
        self._inadmissible: dict[str, object] = {}  # by uid: the state in which it was tried
        self._hopeless: set[tuple[str, str]] = set()  # queue and shape
        self._preemptors: dict[str, str] = {}  # uid by queue

    def wake(self) -> None:
        """Quota was freed, or a queue changed: try everything again."""
        self._inadmissible.clear()
        self._hopeless.clear()

    def head(self, infos: Iterable[Info], queue: str, *, strict: bool) -> Info | None:
        """The next Workload of a queue; `infos`: its pending ones."""
        preemptor = self._preemptors.get(queue) if not strict else None
        ready = [info for info in infos if self._may_be_tried(info, queue, strict=strict)]
        return min(ready, key=lambda info: (info.uid != preemptor, _order(info)), default=None)

    def _may_be_tried(self, info: Info, queue: str, *, strict: bool) -> bool:
        if info.uid in self._inadmissible:
            return self._inadmissible[info.uid] != _state(info.obj)
        return strict or (queue, info.shape) not in self._hopeless

    def put_aside(self, info: Info, *, equals: bool) -> None:
        """Not again until something changes; `equals`: nor Workloads of its shape (handleInadmissibleHash)."""
        self._inadmissible[info.uid] = _state(info.obj)
        if equals:
            self._hopeless.add((info.queue, info.shape))

    def preempts(self, info: Info) -> None:
        """It comes first until it is admitted."""
        self._preemptors[info.queue] = info.uid


def _order(info: Info) -> tuple[int, str, str]:
    return -info.priority, info.timestamp, info.uid


def _state(workload: Obj) -> object:
    """What makes a Workload worth another try if it changes (PushOrUpdate)."""
    return (
        workload["metadata"].get("generation"),
        status_of(workload).get("reclaimablePods"),
        condition_of(workload, "Evicted"),
        condition_of(workload, "Requeued"),
    )


def seconds_held(workload: Obj, now: datetime.datetime) -> float | None:
    """How long a Workload waits before it is queued again, 0: it does not; None: until it changes
    (backoffWaitingTimeExpired)."""
    if is_false_because(workload, "Requeued", *_HELD):
        return None
    at = (status_of(workload).get("requeueState") or {}).get("requeueAt")
    return max(0.0, (parse_time(at) - now).total_seconds()) if at else 0.0
