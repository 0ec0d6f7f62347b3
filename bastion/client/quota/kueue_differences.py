"""What Kueue does not do as a quota file says, one sentence each, only for what the file uses."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence

from bastion.client.quota.kueue_flavors import Flavor
from quota import Policy
from quota.rules import DEFAULT_RULES, ProjectRules

_SHOWN = 5
_NO_PLACE = "no job of it can run; add zones to [types.{}] in config/daemon.toml, or remove it from the quota file"
# Which projects a rule concerns, and what Kueue does instead.
_RULES: Sequence[tuple[Callable[[ProjectRules], bool], str]] = (
    (
        lambda rules: not rules.fifo,
        "users of a project are not balanced: Kueue orders its jobs by priority and age, whatever half_life_hours and "
        "user_weights say",
    ),
    (
        lambda rules: rules.minimum_runtime_seconds > 0,
        "minimum_runtime_minutes has no effect: Kueue reclaims from any borrower, and priorities never evict within a "
        "project",
    ),
    (
        lambda rules: rules.keep_idle_seconds is not None,
        "keep_idle_seconds has no effect: Kueue lends what a project returns at once",
    ),
    (
        lambda rules: rules.grace_seconds != DEFAULT_RULES.grace_seconds,
        "grace_seconds has no effect on evictions: set grace_seconds in [types.X.pod] of the operator settings",
    ),
)


def notes(policy: Policy, flavors: Sequence[Flavor], elsewhere: Mapping[str, Sequence[str]]) -> Iterator[str]:
    """Yield the sentences.

    Args:
        policy: The quota file.
        flavors: What is exported of it.
        elsewhere: Places of each type of the quota file outside of the cluster.
    """
    for flavor in flavors:
        if flavor.units % flavor.units_per_chip:
            left = flavor.units - flavor.chips * flavor.units_per_chip
            yield (
                f"{flavor.units} {flavor.resource_type} in tier {flavor.tier} are {flavor.chips} chips; {left} "
                f"{flavor.resource_type} are left out, because Kueue counts whole chips"
            )
    exported = {flavor.resource_type for flavor in flavors}
    for resource_type, places in elsewhere.items():
        if resource_type not in exported and any(tier.get(resource_type) for tier in policy.tiers):
            where = f"its jobs run in {', '.join(places)}" if places else _NO_PLACE.format(resource_type)
            yield f"{resource_type} is left out, because it is not in this cluster: {where}"
        elif places:
            yield (
                f"{resource_type} is also in {', '.join(places)}: this cluster gets all of its quota, and so may each "
                "other one; lower total_resources to what one cluster has, or use one cluster per type"
            )
    split = sorted({each.resource_type for each in flavors if _tiers(flavors, each.resource_type) > 1})
    if split:
        yield (
            f"a job runs in one tier ({', '.join(split)}): Kueue does not add up tiers, so a job that is larger than "
            "each tier never starts"
        )
    for rule in ("borrowing_limit", "lending_limit"):
        limited = [
            project
            for project in policy.projects
            if any(resource_type in split for resource_type in getattr(policy.rules(project), rule))
        ]
        if limited:
            yield f"{rule} is split between the tiers of a type{_of(policy, limited)}"
    for concerns, sentence in _RULES:
        projects = [project for project in policy.projects if concerns(policy.rules(project))]
        if projects:
            yield sentence + _of(policy, projects)


def _tiers(flavors: Sequence[Flavor], resource_type: str) -> int:
    return sum(flavor.resource_type == resource_type for flavor in flavors)


def _of(policy: Policy, projects: Sequence[str]) -> str:
    if len(projects) == len(policy.projects):
        return ""
    more = f" and {len(projects) - _SHOWN} more" if len(projects) > _SHOWN else ""
    return f" (project {', '.join(projects[:_SHOWN])}{more})"
