"""The start of each waiting job's present reason, across passes and restarts."""

from __future__ import annotations

import contextlib

from bastion.core.status.document import StatusDocument
from scheduler import Plan, ReasonCode


class WaitingSince:
    """Remembers each waiting job's headline reason and its start."""

    def __init__(self) -> None:
        self._codes: dict[str, ReasonCode] = {}
        self.since: dict[str, float] = {}
        self._taken_in: Plan | None = None

    @property
    def promised(self) -> frozenset[str]:
        """Jobs with capacity ordered that have not started since."""
        return frozenset(name for name, code in self._codes.items() if code is ReasonCode.WAITING_FOR_PREEMPTED)

    def update(self, plan: Plan, now: float) -> None:
        """Note the plan's reasons: a job's first reason holds since it was queued, a new one since now."""
        if plan is self._taken_in:
            return
        self._taken_in = plan
        codes: dict[str, ReasonCode] = {}
        since: dict[str, float] = {}
        for decision in plan.waiting:
            if decision.reason is not None:
                name, code = decision.name, decision.reason.code
                before = self._codes.get(name)
                codes[name] = code
                if before is None:
                    since[name] = decision.reason.since
                else:
                    since[name] = self.since[name] if before is code else now
        self._codes, self.since = codes, since

    def recover(self, status: StatusDocument | None) -> None:
        """Take over the predecessor's published status, without reasons that this version does not know."""
        for job in status.jobs if status is not None else ():
            if job.reason is not None:
                with contextlib.suppress(ValueError):
                    self._codes[job.name], self.since[job.name] = ReasonCode(job.reason.code), job.reason.since
