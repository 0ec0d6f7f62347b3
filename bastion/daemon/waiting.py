"""Since when each waiting job has had its present reason, so that "since" survives from one pass to the next."""

from __future__ import annotations

from scheduler import Plan, ReasonCode, Verdict


class WaitingSince:
    """Maps job names to the instant their present headline reason began."""

    def __init__(self) -> None:
        self._codes: dict[str, ReasonCode] = {}
        self.since: dict[str, float] = {}

    @property
    def promised(self) -> frozenset[str]:
        """Jobs for which room was ordered and that have not started since."""
        return frozenset(name for name, code in self._codes.items() if code is ReasonCode.WAITING_FOR_PREEMPTED)

    def update(self, plan: Plan) -> None:
        """Takes over what the plan says; a job with another reason than before begins anew in the next pass."""
        codes: dict[str, ReasonCode] = {}
        since: dict[str, float] = {}
        for decision in plan.decisions:
            if decision.verdict is Verdict.WAIT and decision.reason is not None:
                codes[decision.name] = decision.reason.code
                same = self._codes.get(decision.name) is decision.reason.code
                if same and decision.name in self.since:
                    since[decision.name] = self.since[decision.name]
                elif same:
                    since[decision.name] = decision.reason.since
        self._codes, self.since = codes, since
