"""Messages for waiting jobs: one case for all jobs of a project with the same request.

`scheduler.explain.waits` adds what depends on the jobs ahead in the queue.
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from quota import Policy
from scheduler.decide.admission import time_of_day, waiting_since
from scheduler.decide.deadline import TOO_LONG
from scheduler.decide.ledger import Ledger, Promise
from scheduler.decide.lending import KeptBack
from scheduler.decide.project_queue import Request
from scheduler.decide.replicas import units_of
from scheduler.model import Job, JobStatus, Reason, ReasonCode

_HOLDERS_SHOWN = 10
_PROJECTS_SHOWN = 3


@dataclass(frozen=True, slots=True)
class Case:
    """What the jobs of one project with the same request have in common."""

    code: ReasonCode
    also: tuple[ReasonCode, ...]
    text: str
    holders: tuple[str, ...]
    unblock: str
    # Per type: units that must be left for it, and the size up to which jobs ahead must start first.
    wanted: Mapping[str, tuple[int, int]]
    # End of the reservations for projects, if nothing else blocks it; else empty.
    reserved_until: str = ""


class Cases:
    def __init__(self, policy: Policy, ledger: Ledger) -> None:
        self._policy = policy
        self._ledger = ledger
        # Free units per type that are not reserved.
        self.unreserved = {
            resource: min(ledger.now.free(resource), ledger.later.free(resource)) for resource in policy.resource_types
        }
        self._cases: dict[tuple[str, int, Request], Case] = {}
        self._largest: dict[str, list[tuple[str, str]]] = {}
        self._promised_to: dict[str, list[Promise]] = {}
        for promise in ledger.promises.values():
            self._promised_to.setdefault(promise.job.project_id, []).append(promise)

    def of(self, job: Job, request: Request) -> Case:
        project = job.project_id
        # Priority matters only if jobs of its project have a promise.
        key = (project, job.priority if project in self._promised_to else 0, request)
        case = self._cases.get(key)
        if case is None:
            case = self._cases[key] = self._case(job, request)
        return case

    def wanted(self, project: str, request: Request) -> dict[str, tuple[int, int]]:
        """Per type: units to leave for the request, and the size up to which its project's jobs must start first.

        A project with a promise on capacity that is being freed does not borrow.
        """
        first: dict[str, int] = {}
        for promise in self._promised_to.get(project, ()):
            if not promise.claim:
                for resource, amount in promise.amounts:
                    first[resource] = max(first.get(resource, 0), amount)
        amounts = dict(request.amounts)
        return {resource: (amounts.get(resource, 0), first.get(resource, 0)) for resource in sorted({*amounts, *first})}

    def _case(self, job: Job, request: Request) -> Case:
        ledger, shares, project = self._ledger, self._ledger.shares, job.project_id
        covered = shares.covers(project, request.amounts)
        unlent = {resource: 0 if covered else ledger.unlent(project, resource) for resource, _ in request.amounts}
        available = {resource: self.unreserved[resource] - unlent[resource] for resource, _ in request.amounts}
        lacking = [resource for resource, amount in request.amounts if amount > available[resource]]
        code, also, unblock = ReasonCode.WAITING_FOR_POOL, list[ReasonCode](), ""
        parts = [self._arithmetic(project, resource, amount, unlent[resource]) for resource, amount in request.amounts]
        holders = self.holding(lacking[0], None) if lacking else ()
        within = all(amount <= shares.entitlement(project, resource) for resource, amount in request.amounts)
        awaited = [promise for promise in self._promised_to.get(project, ()) if not promise.claim]
        if not lacking and awaited:
            code = ReasonCode.BEHIND_HIGHER_PRIORITY
            holders = tuple(promise.job.name for promise in awaited)
            parts.append(
                f"behind {', '.join(holders[:_HOLDERS_SHOWN])} of its project, for which capacity is being freed"
            )
            unblock = f"{', '.join(holders[:_HOLDERS_SHOWN])} starts, or "
        elif lacking and self._behind(job, request, available):
            code = ReasonCode.BEHIND_HIGHER_PRIORITY
            holders = tuple(promise.job.name for promise in self._promised_to[project])
            unblock = f"{', '.join(holders[:_HOLDERS_SHOWN])} starts and ends, or "
        elif lacking and within and not covered:
            code, also = ReasonCode.WAITING_FOR_PROJECT_SHARE, [ReasonCode.WAITING_FOR_POOL]
            holders = self.holding(lacking[0], project) or holders
            unblock = f"jobs of project {project} end, or "
        alone = code is not ReasonCode.BEHIND_HIGHER_PRIORITY and ledger.has_slot(request)
        if not ledger.has_slot(request):  # `waits` adds the number of missing slots
            full = not ledger.slots or ledger.slots < 0
            parts.append(self._no_slot(request))
            slots = sorted(
                name
                for name, other in ledger.holders.items()
                if other.on_bastion and (full or other.user_id == request.user)
            )
            if lacking:
                holders = (*dict.fromkeys((*holders, *slots)),)
            else:
                holders, unblock = (*slots,), ""
        return Case(
            code=code,
            also=tuple(also),
            text="; ".join(parts),
            holders=holders[:_HOLDERS_SHOWN],
            unblock=unblock,
            wanted=self.wanted(project, request),
            reserved_until=self._reserved_until(request, available) if lacking and alone else "",
        )

    def _no_slot(self, request: Request) -> str:
        free, held = max(0, self._ledger.slots or 0), self._ledger.slots_of[request.user]
        if not free:
            return "all slots of the bastion's own host are in use"
        return (
            f"user {request.user} is using {held} slot{'s' * (held > 1)} of the bastion's own host, and {free} "
            f"{'is' if free == 1 else 'are'} free; another one requires more free slots than the user has"
        )

    def _behind(self, job: Job, request: Request, available: Mapping[str, int]) -> bool:
        """Whether only capacity reserved for higher-priority jobs of the same project blocks it."""
        for resource, amount in request.amounts:
            kept = sum(
                units
                for promise in self._promised_to.get(job.project_id, ())
                if promise.job.priority < job.priority
                for other, units in promise.amounts
                if other == resource
            )
            if amount > min(self._free(resource), available[resource] + kept):
                return False
        return True

    def claim(self, promise: Promise) -> Reason:
        """The reason of a job that others were evicted for."""
        own = self._ledger.leaving_for.get(promise.job.name, ())
        names = {job.name for job in own}
        for resource, amount in promise.amounts:
            if amount > self._free(resource) + sum(job.charged.get(resource, 0) for job in own):
                names.update(self._stopping({resource}))  # it also counts on spare units of others
        stopping, shrinking = self._apart(names)
        how = [f"by stopping {count_jobs(len(stopping))}"] if stopping else []
        if shrinking:
            how.append(f"by taking back extra replicas of {count_jobs(len(shrinking))}")
        return Reason(
            code=ReasonCode.WAITING_FOR_PREEMPTED,
            message=f"capacity is being freed for it {' and '.join(how)}; {self._needs(promise)}",
            since=waiting_since(promise.job),
            holders=(*stopping, *shrinking)[:_HOLDERS_SHOWN],
            unblock=_are_gone(stopping, shrinking),
        )

    def awaiting(self, promise: Promise, claimed: Mapping[str, int]) -> Reason:
        """The reason of a job for which enough is being freed anyway.

        `claimed`: what all promises take of the free units.
        """
        stopping, shrinking = self._apart(self._stopping({resource for resource, _ in promise.amounts}))
        by = [count_jobs(len(stopping))] if stopping else []
        if shrinking:
            by.append(f"extra replicas of {count_jobs(len(shrinking))}")
        missing = {
            resource: lacking
            for resource, _ in promise.amounts
            if (lacking := claimed[resource] - self._ledger.now.free(resource)) > 0
        }
        return Reason(
            code=ReasonCode.WAITING_FOR_POOL,
            message=f"the capacity it needs is being freed by {' and '.join(by)}; {self._needs(promise)}",
            since=waiting_since(promise.job),
            holders=(*stopping, *shrinking)[:_HOLDERS_SHOWN],
            unblock=f"{_are_gone(stopping, shrinking)}, or {more_free(missing)}",
            missing=missing,
        )

    def too_large(self, job: Job, request: Request, missing: Mapping[str, int]) -> Reason:
        over = [(resource, amount) for resource, amount in request.amounts if amount > self._policy.total(resource)]
        parts = [
            f"needs {amount} {resource}; the whole pool has {self._policy.total(resource)}" for resource, amount in over
        ]
        needed = [f"{amount} {resource}" for resource, amount in over]
        return Reason(
            code=ReasonCode.EXCEEDS_POOL,
            message="; ".join(parts),
            since=waiting_since(job),
            unblock=f"an admin raises total_resources to at least {' and '.join(needed)}, or the job asks for less",
            missing=missing,
        )

    def _stopping(self, resource_types: set[str]) -> set[str]:
        """Names of jobs that free units of one of the types, by stopping or by giving back replicas."""
        return {
            name
            for name, job in self._ledger.holders.items()
            if (
                resource_types & job.charged.keys()
                if job.status is JobStatus.STOPPING or name in self._ledger.evictions
                else name in self._ledger.extra and resource_types & self._given_back(job).keys()
            )
        }

    def _given_back(self, job: Job) -> Counter[str]:
        leaving = Counter(job.charged)
        leaving.subtract(job.owned)
        leaving.subtract(dict(units_of(job, self._ledger.extra[job.name])))
        return +leaving

    def _apart(self, names: set[str]) -> tuple[list[str], list[str]]:
        """Names of stopping jobs and of elastic jobs that give back replicas, each sorted."""
        return sorted(names - self._ledger.extra.keys()), sorted(names & self._ledger.extra.keys())

    def _needs(self, promise: Promise) -> str:
        parts = [
            f"needs {amount} {resource}; {self._free(resource)} of {self._policy.total(resource)} are free"
            for resource, amount in promise.amounts
        ]
        return "; ".join(parts)

    def _arithmetic(self, project: str, resource_type: str, amount: int, unlent: int) -> str:
        shares, free = self._ledger.shares, self._free(resource_type)
        ordered = shares.ordered(project, resource_type)
        text = (
            f"needs {amount} {resource_type}; project {project} is using {shares.held(project, resource_type)} and its "
            f"share is {shares.entitlement(project, resource_type)}"
            + (f", with {ordered} promised to its waiting jobs" if ordered else "")
            + f"; {free} of {self._policy.total(resource_type)} are free"
        )
        available = max(self.unreserved[resource_type], 0)
        reserved, unlent = free - available, min(unlent, available)
        projects = min(reserved, self.reserved(resource_type))
        if projects > 0:
            text += f", {projects} of them reserved for {self._kept_for(resource_type)}"
        if reserved > projects:
            text += f", {reserved - projects} of them reserved for jobs that start soon"
        if unlent > 0:
            text += f", {unlent} of them not lent by other projects (lending_limit)"
        return text

    def _kept(self, resource_type: str) -> list[tuple[str, KeptBack]]:
        return [
            (project, back) for (project, each), back in sorted(self._ledger.kept_back.items()) if each == resource_type
        ]

    def _kept_for(self, resource_type: str) -> str:
        kept = self._kept(resource_type)
        names = [project for project, _ in kept[:_PROJECTS_SHOWN]]
        others = f" and {len(kept) - len(names)} more" if len(kept) > len(names) else ""
        until = time_of_day(max(back.until for _, back in kept))
        return f"project{'s' if len(kept) > 1 else ''} {', '.join(names)}{others} until {until}"

    def reserved(self, resource_type: str) -> int:
        return sum(back.units for _, back in self._kept(resource_type))

    def reservations_end(self, resource_types: Iterable[str]) -> str:
        """The end of the last reservation for projects; empty if none."""
        ends = [back.until for resource in resource_types for _, back in self._kept(resource)]
        return time_of_day(max(ends)) if ends else ""

    def _reserved_until(self, request: Request, available: Mapping[str, int]) -> str:
        """The end of the reservations if only they block the request; else empty."""
        ends = [0.0]
        for resource, amount in request.amounts:
            kept = self._kept(resource)
            if amount > available[resource] + self.reserved(resource):
                return ""
            if amount > available[resource]:
                ends.append(max(back.until for _, back in kept))
        return time_of_day(max(ends)) if max(ends) else ""

    def _free(self, resource_type: str) -> int:
        return max(0, self._policy.total(resource_type) - self._ledger.taken[resource_type])

    def holding(self, resource_type: str, project: str | None) -> tuple[str, ...]:
        """Names of at most ten jobs (of that project) that hold most of the type, the largest first."""
        largest = self._largest.get(resource_type)
        if largest is None:
            amounts = [
                (
                    -(job.demand if job.status is JobStatus.PENDING else job.charged).get(resource_type, 0),
                    name,
                    job.project_id,
                )
                for name, job in self._ledger.holders.items()
            ]
            largest = self._largest[resource_type] = [
                (name, owner) for amount, name, owner in sorted(amounts) if amount
            ]
        names = (name for name, owner in largest if project is None or owner == project)
        return tuple(itertools.islice(names, _HOLDERS_SHOWN))


def behind_first(reason: Reason, project: str, first: str, missing: Mapping[str, int]) -> Reason:
    """The reason of a job behind another one in a FIFO project; `missing`: units that must become free as well."""
    return replace(
        reason,
        code=ReasonCode.BEHIND_HIGHER_PRIORITY,
        message=f"behind {first}, because project {project} starts its jobs in order (fifo); " + reason.message,
        holders=(first,),
        unblock=starts(first, missing),
        also=(),
    )


def behind_overdue(first: str, message: str) -> str:
    return f"behind {first} of the same project, which has a higher priority and has waited for {TOO_LONG}; {message}"


def starts(first: str, missing: Mapping[str, int]) -> str:
    return f"{first} starts" + (f" and {more_free(missing)}" if missing else "")


def count_jobs(count: int) -> str:
    return "1 job" if count == 1 else f"{count} jobs"


def _are_gone(stopping: Sequence[str], shrinking: Sequence[str]) -> str:
    gone = [_gone(stopping, "is" if len(stopping) == 1 else "are")] if stopping else []
    if shrinking:
        gone.append(_gone([f"extra replicas of {name}" for name in shrinking], "are"))
    return " and ".join(gone)


def _gone(names: Sequence[str], verb: str) -> str:
    more = len(names) - _HOLDERS_SHOWN
    others = f" and {more} other{'s' if more > 1 else ''}" if more > 0 else ""
    return f"{', '.join(names[:_HOLDERS_SHOWN])}{others} {verb} gone"


def more_slots(slots: int, own: int, user: str) -> str:
    """What lets a user take a slot: `slots` more, or the end of `own` jobs of the user there."""
    free = "1 more slot" if slots == 1 else f"{slots} more slots"
    text = f"{free} of the bastion's own host become{'s' * (slots == 1)} free"
    return f"{text} or {count_jobs(own)} of user {user} end{'s' * (own == 1)} there" if own else text


def more_free(missing: Mapping[str, int]) -> str:
    return f"{' and '.join(f'{amount} more {resource}' for resource, amount in missing.items())} become free"
