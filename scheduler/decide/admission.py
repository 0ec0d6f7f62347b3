"""Which pending jobs compete for capacity, and why the others do not.

Covers reasons that no capacity could fix; `scheduler.explain` has the others. Checks follow the order of `ReasonCode`.
"""

from __future__ import annotations

from datetime import datetime, timezone

from quota import Policy
from quota.permissions import Asked, Denial, denial, restricts
from scheduler.decide.capacity import amounts_of
from scheduler.decide.cooldown import cooldown_until
from scheduler.model import Job, Reason, ReasonCode

_PRECEDENCE = tuple(ReasonCode)


class Admission:
    def __init__(self, policy: Policy | None, *, check_membership: bool = True, held: bool = False) -> None:
        self._given = policy
        self.policy = policy or Policy(tiers=(), weights={}, members={})
        self._check_membership = check_membership
        self._held = held
        self._projects = frozenset(self.policy.projects)
        rules = (self.policy.default_rules, *self.policy.project_rules.values())
        # Most files have no such rules; then the checks are skipped.
        self._holds = any(each.hold for each in rules)
        self._limits = any(each.borrowing_limit or each.lending_limit for each in rules)
        self._restricts = any(restricts(each) for each in rules)
        self._members: dict[tuple[str, str], bool] = {}

    def refuses(self, job: Job) -> bool:
        """Whether the job cannot start at any capacity; ignores its backoff."""
        return (
            self._given is None
            or (self._check_membership and not self._is_member(job))
            or any(resource not in self.policy.resource_types for resource, _ in amounts_of(job.demand))
            or self._denial(job) is not None
            or self._is_held(job.project_id)
            or bool(job.hold)
        )

    def refusal(self, job: Job, now: float) -> Reason:
        since, policy = waiting_since(job), self.policy
        if self._given is None:
            return Reason(
                code=ReasonCode.QUOTA_FILE_INVALID,
                message="no valid quota file has been read, so no job starts",
                since=since,
                unblock="an admin uploads a quota file that `bastion quota check` accepts",
                also=self._later(job, ReasonCode.QUOTA_FILE_INVALID, now),
            )
        if self._check_membership and not self._is_member(job):
            return self._not_member(job, now)
        unknown = [resource for resource, _ in amounts_of(job.demand) if resource not in policy.resource_types]
        if unknown:
            return Reason(
                code=ReasonCode.UNKNOWN_TYPE,
                message=f"needs {', '.join(unknown)}, which the quota file does not have; it has "
                + (", ".join(policy.resource_types) or "no resource types"),
                since=since,
                unblock=f"an admin adds {', '.join(unknown)} to total_resources, or the job asks for another type",
                also=self._later(job, ReasonCode.UNKNOWN_TYPE, now),
            )
        denied = self._denial(job)
        if denied is not None:
            return Reason(
                code=ReasonCode.NOT_ALLOWED,
                message=denied.problem,
                since=since,
                unblock=f"an admin {denied.change} for project {job.project_id} in the quota file, or the job is "
                f"submitted {denied.instead}",
                also=self._later(job, ReasonCode.NOT_ALLOWED, now),
            )
        if job.hold and not self._is_held(job.project_id):
            message, unblock = job.hold, job.released_by or "an operator changes the daemon's settings"
        elif self._held:
            message, unblock = "an operator holds the pool, so no job starts", "an operator releases the pool"
        else:
            project = job.project_id
            message = f"project {project} is on hold in the quota file (hold = true)"
            unblock = f"an admin sets hold = false for project {project} in the quota file"
        also = self._later(job, ReasonCode.HELD, now)
        return Reason(code=ReasonCode.HELD, message=message, since=since, unblock=unblock, also=also)

    def exceeds_pool(self, job: Job) -> bool:
        return any(amount > self.policy.total(resource) for resource, amount in job.demand.items())

    def exceeds_project(self, job: Job) -> bool:
        """Whether the job could not run even with its project and the pool empty."""
        return self._limits and any(
            amount > self.policy.ceiling(job.project_id, resource) for resource, amount in amounts_of(job.demand)
        )

    def project_ceiling_reason(self, job: Job, now: float) -> Reason:
        policy, parts, changes = self.policy, list[str](), list[str]()
        project = job.project_id
        for resource, amount in amounts_of(job.demand):
            ceiling = policy.ceiling(project, resource)
            if amount <= ceiling:
                continue
            own = policy.entitlement(project, resource)
            limit = policy.rules(project).borrowing_limit.get(resource)
            text = f"needs {amount} {resource}; project {project} can use at most {ceiling}: its share of {own}"
            if limit is None or own + limit > ceiling:
                text += f" and what other projects lend of their {policy.total(resource) - own}"
                changes.append(f"raises the lending_limit of other projects for {resource} by {amount - ceiling}")
            else:
                text += f" and a borrowing_limit of {limit}"
            if limit is not None and amount > own + limit:
                changes.append(f"raises the borrowing_limit of project {project} for {resource} to {amount - own}")
            parts.append(text)
        return Reason(
            code=ReasonCode.EXCEEDS_PROJECT_MAX,
            message="; ".join(parts),
            since=waiting_since(job),
            unblock=f"an admin {' and '.join(changes)}, or the job asks for less",
            also=(backoff_code(job),) if backs_off(job, now) else (),
        )

    def _denial(self, job: Job) -> Denial | None:
        if not (self._restricts or job.root):
            return None  # nearly every job
        asked = Asked(instance_type=job.instance_type, priority=job.priority, root=job.root, cleanup=job.cleanup)
        return denial(job.project_id, self.policy.rules(job.project_id), asked)

    def _is_held(self, project: str) -> bool:
        return self._held or (self._holds and self.policy.rules(project).hold)

    def _is_member(self, job: Job) -> bool:
        key = (job.user_id, job.project_id)
        member = self._members.get(key)
        if member is None:
            member = self._members[key] = self.policy.is_member(*key)
        return member

    def _not_member(self, job: Job, now: float) -> Reason:
        user, project = job.user_id, job.project_id
        own = self.policy.projects_of(user)
        if project in self._projects:
            problem = f"user {user} is not a member of project {project}"
            change = f"an admin adds {user} to {project} in the quota file"
        else:
            problem = f"the quota file has no project {project}"
            change = f"an admin adds project {project} to the quota file, with {user} among its members"
        return Reason(
            code=ReasonCode.NOT_MEMBER,
            message=f"{problem}; {user} is a member of {', '.join(own) if own else 'no project'}",
            since=waiting_since(job),
            unblock=change + (f", or the job is submitted under {' or '.join(own)}" if own else ""),
            also=self._later(job, ReasonCode.NOT_MEMBER, now),
        )

    def _later(self, job: Job, headline: ReasonCode, now: float) -> tuple[ReasonCode, ...]:
        """Lower-precedence reasons that apply as well and do not depend on free capacity."""
        codes = []
        if self._given is not None and headline is not ReasonCode.UNKNOWN_TYPE:
            if any(resource not in self.policy.resource_types for resource, _ in amounts_of(job.demand)):
                codes.append(ReasonCode.UNKNOWN_TYPE)
            elif self.exceeds_pool(job):
                codes.append(ReasonCode.EXCEEDS_POOL)
            elif job.project_id in self._projects and self.exceeds_project(job):
                codes.append(ReasonCode.EXCEEDS_PROJECT_MAX)
        if headline is not ReasonCode.NOT_ALLOWED and self._given is not None and self._denial(job) is not None:
            codes.append(ReasonCode.NOT_ALLOWED)
        if headline is not ReasonCode.HELD and (job.hold or self._is_held(job.project_id)):
            codes.append(ReasonCode.HELD)
        if job.after:
            codes.append(ReasonCode.WAITING_FOR_DEPENDENCY)
        if backs_off(job, now):
            codes.append(backoff_code(job))
        return tuple(sorted(codes, key=_PRECEDENCE.index))


def backs_off(job: Job, now: float) -> bool:
    return job.not_before is not None and job.not_before > now


def waiting_since(job: Job) -> float:
    return job.queued_at if job.waiting_since is None else job.waiting_since


def backoff_code(job: Job) -> ReasonCode:
    return ReasonCode.STOCKOUT if job.stockout else ReasonCode.BACKOFF


def backoff_reason(job: Job) -> Reason:
    cooldown_end = cooldown_until(job)
    if cooldown_end is not None and cooldown_end > (job.not_before or 0.0):
        return _cooldown_reason(job, _instant(cooldown_end))
    until = _instant(job.not_before or 0.0)
    why = "the cloud had no capacity for it" if job.stockout else "its last attempt was lost"
    return Reason(
        code=backoff_code(job),
        message=f"{why}; the next attempt is at {until}",
        since=waiting_since(job),
        unblock=f"the backoff ends at {until}",
    )


def _cooldown_reason(job: Job, until: str) -> Reason:
    return Reason(
        code=ReasonCode.BACKOFF,
        message=f"evicted {job.futile_evictions} times in a row before it saved any work, so it does not borrow "
        f"before {until}; it can still start within the share of project {job.project_id}",
        since=waiting_since(job),
        unblock=f"the cooldown ends at {until}, or the share of project {job.project_id} covers it",
    )


def time_of_day(seconds: float) -> str:
    return _instant(seconds, "%H:%M:%S UTC")


def _instant(seconds: float, form: str = "%Y-%m-%dT%H:%M:%SZ") -> str:
    try:
        return datetime.fromtimestamp(seconds, timezone.utc).strftime(form)
    except (ValueError, OverflowError, OSError):
        return "a time beyond the calendar"
