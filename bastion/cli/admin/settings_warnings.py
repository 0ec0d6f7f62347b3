"""Probable mistakes in valid operator settings, for `daemon check-config` and `doctor`."""

from __future__ import annotations

from collections.abc import Iterator

from bastion.cli.admin import cluster_settings
from bastion.core.model.provisioning import Provisioning, tiers_without_settings
from quota import Policy


def warnings(settings: Provisioning, policy: Policy | None) -> Iterator[str]:
    """`policy`: None if the quota file is elsewhere, unreadable or not valid."""
    yield from settings.warnings
    yield from cluster_settings.warnings(settings)
    if policy is None:
        return
    tiers = tiers_without_settings(settings, policy)
    if tiers:
        yield tiers
    for resource_type in policy.resource_types:
        if resource_type not in settings.resource_types:
            yield f"the quota file has {resource_type}, but the operator settings name no zones for it; its jobs wait"
