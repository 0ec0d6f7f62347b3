"""What the hosts of one run wrote, as far as they proved it: the claim, the reports, the heartbeats."""

from __future__ import annotations

from collections.abc import Mapping

from bastion.core import limits
from bastion.core.bucket import keys
from bastion.core.bucket.protocol import Claim, Report
from bastion.core.errors import StoreUnavailable
from bastion.core.reconcile.runs import RunPlan
from bastion.daemon.observe.folders import Folders
from bastion.ports import Clock

# Stands for the signature of a claim that was there when the run began.
_SEEN_BEFORE = "seen"


class HostWords:
    """Reads them from the caches of a tick.

    Attributes:
        ignored: One text for each run with a report that does not count.
    """

    def __init__(self, folders: Folders, clock: Clock) -> None:
        self._folders = folders
        self._clock = clock
        self.ignored: list[str] = []
        # By report: its sequence, and when that was first seen.
        self._seen: dict[str, tuple[int, float]] = {}
        self._seen_before: dict[str, tuple[int, float]] = {}

    def begin(self) -> None:
        """Begin a tick."""
        self._seen_before, self._seen = self._seen, {}
        self.ignored = []

    def alarms(self) -> list[str]:
        more = len(self.ignored) - limits.ALARMS_OF_JOBS_MAX
        told = self.ignored[: limits.ALARMS_OF_JOBS_MAX]
        return [*told, f"reports of {more} more runs are ignored"] if more > 0 else told

    def require_all_read(self, plan: RunPlan) -> None:
        """Require all objects of a run (an unread one may be a lost host's last report); raises StoreUnavailable."""
        claims, run_objects = self._folders.claims.unknown, self._folders.run_objects.unknown
        if not (claims or run_objects):
            return
        known = (run_objects[name] for name in plan.objects() if name in run_objects)
        problem = claims.get(plan.claim) or next(known, "")
        if problem:
            raise StoreUnavailable(f"objects of its hosts could not be read: {problem}")

    def claim(self, plan: RunPlan) -> Claim | None:
        """The run's claim. One that is not valid counts as foreign: no host passes, and it cannot be closed."""
        claims, name = self._folders.claims, plan.claim
        if name in claims.values:
            return claims.values[name]
        if plan.attempt.running_since is not None and is_proven(plan):
            return Claim(run=plan.run, signature=_SEEN_BEFORE)  # whoever replaced or deleted it: hosts have passed
        return Claim(run=plan.run) if name in claims.problems else None

    def reports(self, plan: RunPlan) -> tuple[dict[int, Report], dict[int, float]]:
        """Return the last valid report of each host, and when it was first seen."""
        reports, seen_at = {}, {}
        start, last = f"{plan.run}/reports/", self._folders.proofs.report
        for host in range(plan.hosts):
            name = f"{start}{host}"
            report = last(name)
            if report is not None:
                reports[host] = report
                seen_at[host] = self._first_seen(name, report.sequence)
        problems = self._folders.run_objects.problems
        if problems and plan.attempt.public_key:
            name = next((f"{start}{host}" for host in range(plan.hosts) if f"{start}{host}" in problems), "")
            if name:
                self.ignored.append(f"{keys.RUNS}{name} of {plan.spec.name} is ignored: {problems[name]}")
        return reports, seen_at

    def silent_seconds(self, plan: RunPlan, reports: Mapping[int, Report]) -> dict[int, float]:
        """Silence by host. A host without a heartbeat is silent since we first saw it."""
        up = {0, *reports} if self.claim(plan) else set(reports)
        heartbeats = self._folders.heartbeats
        heard = heartbeats.silent_seconds(plan.run)
        # Only of hosts that came up: anybody can write a heartbeat of another, and fall silent.
        return {**{host: heard[host] for host in up if host in heard}, **heartbeats.never_heard(plan.run, up)}

    def _first_seen(self, name: str, sequence: int) -> float:
        """The time, on our own clock, at which this version of a report was first seen."""
        before = self._seen_before.get(name)
        seen = before if before is not None and before[0] == sequence else (sequence, self._clock.now())
        self._seen[name] = seen
        return seen[1]


def is_proven(plan: RunPlan) -> bool:
    """Whether this daemon knows the key of the run."""
    return plan.key.public == plan.attempt.public_key
