"""How the commands phrase ages, resources and progress. Pure; texts from the bucket are made plain."""

from __future__ import annotations

from collections.abc import Mapping

from bastion.cli.output import plain
from bastion.core.disk_limit import shown_part
from bastion.core.instants import duration as duration
from bastion.core.instants import to_rfc3339
from bastion.core.model.clusters import where
from bastion.core.plurals import count as count
from bastion.core.status.document import BacklogEntry, CapacityWait, JobEntry, Phase

NOT_PICKED_UP = "submitted; waiting for the scheduler to pick it up"


def age(instant: float | None, now: float) -> str:
    """The time since an instant; `-` if it is unknown."""
    return "-" if instant is None else duration(now - instant)


def instant(seconds: float | None) -> str:
    """RFC 3339; `-` if it is unknown."""
    return "-" if seconds is None else to_rfc3339(seconds)


def two_units(seconds: float) -> str:
    """A duration of at least a minute in its two largest units: `1d2h`, `1h30m`, `12m`."""
    minutes = max(0, round(seconds / 60))
    hours, days = minutes // 60, minutes // 1440
    parts = ((days, "d"), (hours % 24, "h")) if days else ((hours, "h"), (minutes % 60, "m"))
    return "".join(f"{number}{unit}" for number, unit in parts if number) or "0m"


def resources(instance_type: object, num_replicas: object, amounts: object) -> str:
    """`tpu-v4-32`, `2 x tpu-v4-32`, `v4=8`, or `-` for a job that uses no quota."""
    if instance_type:
        return plain(instance_type if num_replicas in (None, 1) else f"{num_replicas} x {instance_type}")
    if not isinstance(amounts, Mapping) or not amounts:
        return "-"
    return plain(",".join(f"{name}={amount}" for name, amount in sorted(amounts.items())))


def needs(entry: JobEntry) -> str:
    """As `resources`, but `no slice` for a job that uses no quota."""
    text = resources(entry.instance_type, entry.num_replicas, entry.resources)
    return "no slice" if text == "-" else text


def ending(outcome: str, message: str) -> str:
    """`failed: <message>`, but `cancelled by alice` rather than `cancelled: cancelled by alice`."""
    outcome, message = plain(outcome), plain(message)
    if message.lower().startswith(outcome):
        return message
    return f"{outcome}: {message}" if message else outcome


def backlog(entry: BacklogEntry) -> str:
    """Why jobs are not queued yet, with numbers and advice."""
    rule, user, project = plain(entry.rule), plain(entry.user_id), plain(entry.project_id)
    if entry.rule is None:
        whose, who = "users who are not in any project", "they have"
        advice = "ask an admin to add them to [project_membership] in the quota file"
    else:
        whose = f"user {user} in project {project}"
        who = "the project has" if rule == "max_queued_jobs" else "the user has"
        advice = f"cancel queued jobs, or ask an admin to raise {rule} in the quota file"
    return (
        f"{count(entry.jobs, 'job')} of {whose} {'is' if entry.jobs == 1 else 'are'} not in the queue yet: "
        f"{who} {entry.queued} queued, and the limit is {entry.limit}; the oldest enter as others "
        f"start or end; to enter sooner, {advice}"
    )


def _waiting(wait: CapacityWait, now: float) -> str:
    """`WAITING_FOR_RESOURCES for 12m in us-central2-b`, `in queue bastion-a for 12m in cluster training: Pending`."""
    if wait.queue:
        return plain(f"in queue {wait.queue} for {age(wait.since, now)}{where(wait.zone)}: {wait.state}")
    return plain(f"{wait.state} for {age(wait.since, now)}{where(wait.zone)}")


def labels(pairs: Mapping[str, str]) -> str:
    """`sweep=7, team=vision`."""
    return plain(", ".join(f"{key}={value}" for key, value in sorted(pairs.items())))


def _again(entry: JobEntry) -> str:
    """` (attempt 2, try 2 of 3)`; empty for the first attempt and try."""
    parts = [f"attempt {entry.attempt}"] if entry.attempt is not None and entry.attempt > 1 else []
    if entry.try_number is not None and entry.try_number > 1:
        parts.append(f"try {entry.try_number} of {entry.max_tries}")
    if entry.stuck_tries:
        parts.append(f"stuck {count(entry.stuck_tries, 'time')}")
    return f" ({', '.join(parts)})" if parts else ""


def progress(entry: JobEntry | None, now: float, *, kept_out: bool = False) -> str:
    """A job's progress: `provisioning 3/4 hosts`, `provisioning: WAITING_FOR_RESOURCES for 12m`."""
    if entry is None:
        return "submitted, but not queued yet" if kept_out else NOT_PICKED_UP
    again = _again(entry)
    hosts = entry.hosts
    why = f": {plain(entry.host_problem)}" if entry.host_problem else ""
    match entry.phase:
        case Phase.QUEUED:
            return plain(f"queued: {entry.reason.code}: {entry.reason.message}") if entry.reason else "queued"
        case Phase.PROVISIONING if entry.waiting is not None:
            return f"provisioning: {_waiting(entry.waiting, now)}{again}"
        case Phase.PROVISIONING | Phase.RUNNING if entry.input_bytes:
            return f"fetching inputs: {shown_part(entry.fetched_bytes or 0, entry.input_bytes)}{again}{why}"
        case Phase.PROVISIONING:
            up = f" {entry.hosts_up or 0}/{hosts} hosts" if hosts else ""
            return f"provisioning{up}{again}{why}"
        case Phase.RUNNING:
            return f"running on {count(hosts, 'host')}{again}{why}" if hosts else f"running{again}"
        case Phase.STOPPING:
            if not entry.stopping:
                return "stopping"
            cause, _, message = entry.stopping.partition(": ")
            # A job whose commands have ended is not being stopped.
            return f"{'ending' if cause in ('succeeded', 'failed') else 'stopping'}: {ending(cause, message)}"
        case Phase.CLEANING if entry.group_left:
            left = count(entry.group_left, "other job")
            return f"waiting for {left} of group {plain(entry.group or '')} before it cleans up"
        case Phase.CLEANING:
            return "cleaning up"
        case _:
            return plain(entry.phase)
