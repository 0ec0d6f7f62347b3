"""Rules as a quota file writes them, key by key, and the same in words.

Layer: quota, pure. Limits and weights are keys of their own, by type or user (`borrowing_limit.v4`).
"""

from __future__ import annotations

from collections.abc import Mapping

from quota.rules import DEFAULT_USER_WEIGHT, ProjectRules

# A rule's value; None: no limit.
RuleValue = bool | float | None

_DURATIONS = {
    "half_life_hours": ("half-life of past usage", "h"),
    "minimum_runtime_minutes": ("minimum runtime", "min"),
    "keep_idle_seconds": ("kept idle after use", "s"),
    "grace_seconds": ("grace", "s"),
    "maximum_runtime_hours": ("maximum runtime", "h"),
}


def rule_values(rules: ProjectRules) -> dict[str, RuleValue]:
    """By key, in the file's units; limits and weights only where there are some."""
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
        **{f"borrowing_limit.{resource}": units for resource, units in sorted(rules.borrowing_limit.items())},
        **{f"lending_limit.{resource}": units for resource, units in sorted(rules.lending_limit.items())},
        **{f"user_weights.{user}": weight for user, weight in sorted(rules.user_weights.items())},
    }


def rule_value(rules: Mapping[str, RuleValue], key: str) -> RuleValue:
    """The key's value among those that `written` gave; what its absence means if it is none of them."""
    return rules.get(key, DEFAULT_USER_WEIGHT if key.startswith("user_weights.") else None)


def rule_label(key: str) -> str:
    """What the rule is called, to be followed by its value."""
    if key in _DURATIONS:
        return _DURATIONS[key][0]
    rule, _, which = key.partition(".")
    names = {
        "fifo": "strict order inside (FIFO):",
        "hold": "hold, nothing starts:",
        "max_queued_jobs": "jobs queued:",
        "max_queued_jobs_per_user": "jobs queued per user:",
        "borrowing_limit": f"borrows {which}:",
        "lending_limit": f"lends {which}:",
        "user_weights": f"weight of user {which}:",
    }
    return names[rule]


def format_value(key: str, value: RuleValue) -> str:
    """The value, to follow the rule's name."""
    if isinstance(value, bool):
        return "yes" if value else "no"
    rule = key.partition(".")[0]
    if key == "keep_idle_seconds" and value is None:
        return "as long as a restart takes"
    if value is None:
        return "all that is idle" if rule == "borrowing_limit" else "all" if rule == "lending_limit" else "unlimited"
    if rule == "user_weights":
        return f"{value:g}"
    if key in _DURATIONS:
        return f"{value:g} {_DURATIONS[key][1]}"
    return f"at most {value}" if value else "nothing"
