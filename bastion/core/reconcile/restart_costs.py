"""Restart cost by resource type: the recent time from an attempt's decision to its command.

A recalled loan costs a restart. Units that a project gave back are reserved for its next job that long, unless the
quota file says otherwise (`quota.rules.ProjectRules.keep_idle_seconds`).
"""

from __future__ import annotations

import statistics
from collections import deque
from collections.abc import Iterable, Mapping

from bastion.core.model.job_record import JobRecord
from scheduler.decide.capacity import amounts_of

# The cost is the median of this many recent attempts.
_ATTEMPTS = 15


class RestartCosts:
    """The start times of recent attempts. A restart of the daemon forgets them."""

    def __init__(self) -> None:
        self._known: set[tuple[str, int]] = set()
        self._took: dict[str, deque[float]] = {}

    def note(self, records: Iterable[JobRecord]) -> Mapping[str, float]:
        """Record the attempts that run now; return the median seconds by resource type, where known."""
        running = set()
        for record in records:
            attempt = record.attempt
            if attempt is None or attempt.running_since is None:
                continue
            run = (record.uid, attempt.number)
            running.add(run)
            if run not in self._known:
                for resource_type, _ in amounts_of(attempt.charged):
                    took = max(0.0, attempt.running_since - attempt.started_at)
                    self._took.setdefault(resource_type, deque(maxlen=_ATTEMPTS)).append(took)
        self._known = running
        return {
            resource_type: float(round(statistics.median(took))) for resource_type, took in sorted(self._took.items())
        }
