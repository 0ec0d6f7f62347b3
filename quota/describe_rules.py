"""Rules by key as in a quota file, and as text. Limits and weights have a key per type or user: `lending_limit.v4`."""

from __future__ import annotations

from collections.abc import Mapping

from quota.rules import DEFAULT_USER_WEIGHT, ProjectRules

# A rule's value; None: no limit.
RuleValue = bool | float | tuple[str, ...] | None

_DURATIONS = {
    "half_life_hours": ("half-life of past usage", "h"),
    "minimum_runtime_minutes": ("minimum runtime", "min"),
    "keep_idle_seconds": ("kept idle after use", "s"),
    "grace_seconds": ("grace", "s"),
    "maximum_runtime_hours": ("maximum runtime", "h"),
}


def rule_values(rules: ProjectRules) -> dict[str, RuleValue]:
    """By key, in the file's units; limits and weights only where set."""
    longest = rules.maximum_runtime_seconds
    return {
        "half_life_hours": rules.half_life_seconds / 3600,
        "minimum_runtime_minutes": rules.minimum_runtime_seconds / 60,
        "keep_idle_seconds": rules.keep_idle_seconds,
        "grace_seconds": rules.grace_seconds,
        "maximum_runtime_hours": None if longest is None else longest / 3600,
        "fifo": rules.fifo,
        "hold": rules.hold,
        "max_queued_jobs": rules.max_queued_jobs,
        "max_queued_jobs_per_user": rules.max_queued_jobs_per_user,
        "highest_priority": rules.highest_priority,
        "instance_types": rules.instance_types,
        "allow_bastion_jobs": rules.allow_bastion_jobs,
        "allow_root": rules.allow_root,
        **{f"borrowing_limit.{resource}": units for resource, units in sorted(rules.borrowing_limit.items())},
        **{f"lending_limit.{resource}": units for resource, units in sorted(rules.lending_limit.items())},
        **{f"user_weights.{user}": weight for user, weight in sorted(rules.user_weights.items())},
    }


def rule_value(rules: Mapping[str, RuleValue], key: str) -> RuleValue:
    """The key's value in `rule_values`, or its default."""
    return rules.get(key, DEFAULT_USER_WEIGHT if key.startswith("user_weights.") else None)


def rule_label(key: str) -> str:
    """The label of the rule, to be followed by its value."""
    if key in _DURATIONS:
        return _DURATIONS[key][0]
    rule, _, which = key.partition(".")
    names = {
        "fifo": "FIFO order:",
        "hold": "on hold:",
        "max_queued_jobs": "queued jobs:",
        "max_queued_jobs_per_user": "queued jobs per user:",
        "highest_priority": "highest priority:",
        "instance_types": "instance types:",
        "allow_bastion_jobs": "jobs on the bastion's host:",
        "allow_root": "jobs as root:",
        "borrowing_limit": f"borrows {which}:",
        "lending_limit": f"lends {which}:",
        "user_weights": f"weight of user {which}:",
    }
    return names[rule]


def format_value(key: str, value: RuleValue) -> str:
    """The value as text, to follow the label."""
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, tuple):
        return ", ".join(value) or "none"
    if key == "highest_priority" and value is not None:
        return f"{value:g}"
    rule = key.partition(".")[0]
    if key == "keep_idle_seconds" and value is None:
        return "as long as a restart takes"
    if value is None:
        names = {"borrowing_limit": "all idle units", "lending_limit": "all", "instance_types": "all"}
        return names.get(rule, "unlimited")
    if rule == "user_weights":
        return f"{value:g}"
    if key in _DURATIONS:
        return f"{value:g} {_DURATIONS[key][1]}"
    return f"at most {value}" if value else "nothing"
