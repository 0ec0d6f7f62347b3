"""How the commands phrase ages, resources and progress. Pure; texts from the bucket are made plain."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from bastion.cli.output import plain
from bastion.core.instants import duration as duration
from bastion.core.instants import from_rfc3339

NOT_PICKED_UP = "submitted; waiting for the scheduler to pick it up"


def age(instant: object, now: float) -> str:
    """The time since an RFC 3339 instant; `-` if it is not valid."""
    try:
        return duration(now - from_rfc3339(str(instant)))
    except ValueError:
        return "-"


def two_units(seconds: float) -> str:
    """A duration of at least a minute in its two largest units: `1d2h`, `1h30m`, `12m`."""
    minutes = max(0, round(seconds / 60))
    hours, days = minutes // 60, minutes // 1440
    parts = ((days, "d"), (hours % 24, "h")) if days else ((hours, "h"), (minutes % 60, "m"))
    return "".join(f"{number}{unit}" for number, unit in parts if number) or "0m"


def count(number: object, noun: str) -> str:
    """`1 host`, `4 hosts`."""
    return f"{number} {noun}{'' if str(number) == '1' else 's'}"


def resources(entry: Mapping[str, Any]) -> str:
    """`tpu-v4-32`, `2 x tpu-v4-32`, `v4=8`, or `-` for a job that uses no quota."""
    kind = entry.get("instance_type")
    if kind:
        replicas = entry.get("num_replicas")
        return plain(kind if replicas in (None, 1) else f"{replicas} x {kind}")
    amounts = entry.get("resources")
    if not isinstance(amounts, Mapping) or not amounts:
        return "-"
    return plain(",".join(f"{name}={amount}" for name, amount in sorted(amounts.items())))


def needs(entry: Mapping[str, Any]) -> str:
    """As `resources`, but `no slice` for a job that uses no quota."""
    text = resources(entry)
    return "no slice" if text == "-" else text


def reason(entry: Mapping[str, Any]) -> str:
    """`WaitingForPool: need 32 v4; 16 of 512 free`; empty if the job does not wait."""
    why = entry.get("reason")
    if not isinstance(why, Mapping):
        return ""
    return plain(f"{why.get('code')}: {why.get('message')}")


def ending(outcome: str, message: str) -> str:
    """`failed: <message>`, but `cancelled by alice` rather than `cancelled: cancelled by alice`."""
    outcome, message = plain(outcome), plain(message)
    if message.startswith(outcome):
        return message
    return f"{outcome}: {message}" if message else outcome


def backlog(entry: Mapping[str, Any]) -> str:
    """Why jobs are not queued yet, with numbers and advice; takes an entry of `Client.backlog`."""
    jobs, queued, limit, rule = (plain(entry.get(name)) for name in ("jobs", "queued", "limit", "rule"))
    user, project = plain(entry.get("user_id")), plain(entry.get("project_id"))
    if entry.get("rule") is None:
        whose = "users who are not in any project"
        who, verb = whose, "have"
        advice = "ask an admin to add them to [project_membership] in the quota file"
    else:
        whose, verb = f"user {user} in project {project}", "has"
        who = f"project {project}" if rule == "max_queued_jobs" else whose
        advice = f"cancel queued jobs, or ask an admin to raise {rule} in the quota file"
    return (
        f"{count(jobs, 'job')} of {whose} {'is' if jobs == '1' else 'are'} not in the queue yet: {who} {verb} {queued} "
        f"queued, and the limit is {limit}; the oldest enter as others start or end; to enter sooner, {advice}"
    )


def waiting(entry: Mapping[str, Any], now: float) -> str:
    """`WAITING_FOR_RESOURCES for 12 min in us-central2-b`; empty if the job does not wait for capacity."""
    what = entry.get("waiting")
    if not isinstance(what, Mapping):
        return ""
    where = f" in {what['zone']}" if what.get("zone") else ""
    return plain(f"{what.get('state')} for {age(what.get('since'), now)}{where}")


def _again(entry: Mapping[str, Any]) -> str:
    """` (attempt 2, try 2 of 3)`; empty for the first attempt and try."""
    attempt, number = entry.get("attempt"), entry.get("try_number")
    parts = [f"attempt {attempt}"] if isinstance(attempt, int) and attempt > 1 else []
    parts += [f"try {number} of {plain(entry.get('max_tries'))}"] if isinstance(number, int) and number > 1 else []
    return f" ({', '.join(parts)})" if parts else ""


def progress(phase: str, entry: Mapping[str, Any] | None, now: float, *, kept_out: bool = False) -> str:
    """A job's progress: `provisioning 3/4 hosts`, `provisioning: WAITING_FOR_RESOURCES for 12 min`."""
    if entry is None:
        return "submitted, but not queued yet" if kept_out else NOT_PICKED_UP
    again = _again(entry)
    hosts = entry.get("hosts")
    match phase:
        case "queued":
            why = reason(entry)
            return f"queued: {why}" if why else "queued"
        case "provisioning" if entry.get("waiting"):
            return f"provisioning: {waiting(entry, now)}{again}"
        case "provisioning":
            up = entry.get("hosts_up") or 0
            problem = entry.get("host_problem")
            why = f": {plain(problem)}" if problem else ""
            return f"provisioning {up}/{hosts} hosts{again}{why}" if hosts else f"provisioning{again}{why}"
        case "running":
            return f"running on {count(hosts, 'host')}{again}" if hosts else f"running{again}"
        case "stopping":
            if not entry.get("stopping"):
                return "stopping"
            cause, _, message = str(entry["stopping"]).partition(": ")
            # A job whose commands have ended is not being stopped.
            return f"{'ending' if cause in ('succeeded', 'failed') else 'stopping'}: {ending(cause, message)}"
        case "cleaning":
            return "cleaning up"
        case _:
            return plain(phase)
