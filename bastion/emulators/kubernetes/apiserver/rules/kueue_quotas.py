"""Resource groups of ClusterQueues and cohorts: the definitions' rules, and those of Kueue's webhooks
(kueue v0.19.2 pkg/webhooks/clusterqueue_webhook.go, validateResourceGroups).
"""

from __future__ import annotations

import re
from fractions import Fraction

from bastion.emulators.kubernetes.apiserver import names, quantities
from bastion.emulators.kubernetes.apiserver.rules.base import Object
from bastion.emulators.kubernetes.apiserver.statuses import Problem, duplicate, invalid_value

SUBDOMAIN = r"^[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*$"


def pattern_problems(holder: Object, field: str, path: str, form: str) -> list[Problem]:
    value = holder.get(field)
    if value is None or re.search(form, value):
        return []
    where = f"{path}.{field}"
    return [invalid_value(where, value, f"{where} in body should match '{form}'")]


def group_problems(groups: list[Object]) -> list[Problem]:
    """The CRD's rules of resource groups."""
    found = []
    for index, group in enumerate(groups):
        path = f"spec.resourceGroups[{index}]"
        for field in ("coveredResources", "flavors"):
            if not group[field]:
                text = f"{path}.{field} in body should have at least 1 items"
                found.append(invalid_value(f"{path}.{field}", len(group[field]), text))
        if any(len(flavor["resources"]) != len(group["coveredResources"]) for flavor in group["flavors"]):
            text = "flavors must have the same number of resources as the coveredResources"
            found.append(Problem("Rule", path, text))
        listed = [flavor["name"] for flavor in group["flavors"]]
        for place, flavor in enumerate(group["flavors"]):
            where = f"{path}.flavors[{place}]"
            if flavor["name"] in listed[:place]:
                found.append(duplicate(where, {"name": flavor["name"]}))
            found += pattern_problems(flavor, "name", where, SUBDOMAIN)
    return found


def group_denials(groups: list[Object], *, parent: str, lend_at_most_own: bool) -> list[Problem]:
    """The webhook's rules of resource groups; `parent`: what is missing, of which limits speak."""
    found: list[Problem] = []
    resources: list[str] = []
    flavors: list[str] = []
    for index, group in enumerate(groups):
        path = f"spec.resourceGroups[{index}]"
        for place, name in enumerate(group["coveredResources"]):
            where = f"{path}.coveredResources[{place}]"
            found += [invalid_value(where, name, why) for why in names.qualified(name)]
            if name in resources:
                found.append(duplicate(where, name))
            resources.append(name)
        for place, flavor in enumerate(group["flavors"]):
            where = f"{path}.flavors[{place}]"
            for number, quota in enumerate(flavor["resources"][: len(group["coveredResources"])]):
                covered = group["coveredResources"][number]
                found += _quota_denials(
                    quota, f"{where}.resources[{number}]", covered, parent, lend_at_most_own=lend_at_most_own
                )
            if flavor["name"] in flavors:
                found.append(duplicate(f"{where}.name", flavor["name"]))
            flavors.append(flavor["name"])
    return found


def _quota_denials(quota: Object, path: str, covered: str, parent: str, *, lend_at_most_own: bool) -> list[Problem]:
    found = []
    if quota["name"] != covered:
        text = "must match the name in coveredResources"
        found.append(invalid_value(f"{path}.name", quota["name"], text))
    nominal = quantities.parse(quota["nominalQuota"])
    for field in ("nominalQuota", "borrowingLimit", "lendingLimit"):
        if field not in quota:
            continue
        amount, where = quantities.parse(quota[field]), f"{path}.{field}"
        if field != "nominalQuota" and parent:
            found.append(invalid_value(where, str(quota[field]), f"must be nil when {parent} is empty"))
        if amount < Fraction(0):
            found.append(invalid_value(where, str(quota[field]), "must be greater than or equal to 0"))
        if field == "lendingLimit" and lend_at_most_own and amount > nominal:
            text = "must be less than or equal to the nominalQuota"
            found.append(invalid_value(where, str(quota[field]), text))
    return found
