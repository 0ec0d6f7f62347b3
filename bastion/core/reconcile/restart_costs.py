"""What a restart costs, by resource type: how long attempts of late took from their decision to their command.

It says for how long units that a project gave back are kept for its next job, where the quota file
does not (`quota.rules.ProjectRules.keep_idle_seconds`): a loan that is called back costs a restart.
"""

from __future__ import annotations

import statistics
from collections import deque
from collections.abc import Iterable, Mapping

from bastion.core.model.job_record import JobRecord
from scheduler.decide.capacity import amounts_of

# So many attempts of a type, the last ones, tell what a restart costs.
_ATTEMPTS = 15


class RestartCosts:
    """Remembers, over ticks, how long attempts took to start. A restart of the daemon forgets it."""

    def __init__(self) -> None:
        self._known: set[tuple[str, int]] = set()
        self._took: dict[str, deque[float]] = {}

    def note(self, records: Iterable[JobRecord]) -> Mapping[str, float]:
        """Takes in which attempts run now.

        Returns:
            Seconds by resource type, the median; a type of which none was seen to start is absent.
        """
        running = set()
        for record in records:
            attempt = record.attempt
            if attempt is None or attempt.running_since is None:
                continue
            run = (record.uid, attempt.number)
            running.add(run)
            if run not in self._known:
                for kind, _ in amounts_of(attempt.charged):
                    took = max(0.0, attempt.running_since - attempt.started_at)
                    self._took.setdefault(kind, deque(maxlen=_ATTEMPTS)).append(took)
        self._known = running
        return {kind: float(round(statistics.median(took))) for kind, took in sorted(self._took.items())}
