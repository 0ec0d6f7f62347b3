"""The production scheduler as a policy of the simulator."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from quota import Policy
from scheduler.decide.lending import RecentHoldings
from scheduler.model import Job, JobStatus, Plan, RecentUnits, Snapshot, Verdict
from scheduler.scheduling import Scheduler
from scheduler.simulation.simulator import Simulator
from scheduler.usage_history import UsageHistory


class Production:
    """The scheduler, with what the daemon remembers between passes."""

    def __init__(
        self,
        settings: Snapshot,
        *,
        usage: UsageHistory | None = None,
        plan: Callable[[Snapshot, float], Plan] | None = None,
    ) -> None:
        """`settings`: the snapshot but for its jobs.

        Args:
            usage: Accounts usage; None: usage stays that of the settings.
            plan: Replaces `Scheduler.schedule`.
        """
        # While a job waits: reservations, backoffs and deadlines pass.
        self.time_dependent = False
        self.policy = settings.policy or Policy(tiers=(), weights={}, members={})
        self._settings = settings
        self._plan = plan or Scheduler().schedule
        self._usage = usage
        self._recent = RecentHoldings(settings.held_recently)

    def note_holdings(self, simulator: Simulator[Any], now: float) -> Mapping[str, Mapping[str, RecentUnits]]:
        return self._recent.note(simulator.jobs.values(), now, self.policy, self._settings.restart_seconds)

    def note_usage(self, simulator: Simulator[Any]) -> Mapping[str, Mapping[str, float]]:
        if self._usage is None:
            return self._settings.user_usage
        return self._usage.note(simulator.jobs.values(), simulator.now, self.policy)

    def decide(self, simulator: Simulator[Any], /) -> None:
        """Make a plan and apply it, its starts first, since it chooses victims with these running.

        After immediate evictions a second plan, which does not see the victims, starts jobs on what they freed.
        """
        simulator.note_checkpoints()
        held, used = self.note_holdings(simulator, simulator.now), self.note_usage(simulator)
        jobs = simulator.jobs
        snapshot = replace(self._settings, jobs=(*jobs.values(),), held_recently=held, user_usage=used)
        plan = self._plan(snapshot, simulator.now)
        _start(simulator, plan)
        if plan.evicted:
            claimants = {decision.name: decision.evicted_for for decision in plan.acting}
            for name in plan.evicted:
                simulator.evict(name, claimants[name])
        if plan.impossible:
            simulator.refuse(plan)
        simulator.promise(plan.promised)
        victims = {name for name in plan.evicted if jobs[name].status is JobStatus.PENDING}
        if victims:
            others: tuple[Job, ...] = tuple(job for name, job in jobs.items() if name not in victims)
            _start(simulator, self._plan(replace(snapshot, jobs=others), simulator.now))
        self.time_dependent = any(job.status is JobStatus.PENDING for job in jobs.values())


def _start(simulator: Simulator[Any], plan: Plan) -> None:
    for decision in plan.acting:
        if decision.verdict is Verdict.START:
            simulator.start(decision.name, decision.tier)
