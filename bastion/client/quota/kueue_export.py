"""A quota file as Kueue's objects for one cluster: flavors, queues, priorities.

Kueue's quotas are in chips, so they are what the quota file means in units, rounded down. What rounding leaves is the
Cohort's own quota, which any ClusterQueue may borrow: for each flavor, all quotas add up to the pool exactly.

Facts about Kueue are those of kubernetes-sigs/kueue: apis/kueue/v1beta2, pkg/webhooks/clusterqueue_webhook.go.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from types import MappingProxyType
from typing import Any

from bastion.adapters.kubernetes import terms
from bastion.client.quota import kueue_differences
from bastion.client.quota.kueue_flavors import Flavor, flavors, other_resources, places_of
from bastion.core import limits
from bastion.core.errors import Refused
from bastion.core.model import kueue
from bastion.core.model.clusters import ClusterSettings, place_of
from bastion.core.model.provisioning import Provisioning
from quota import Policy

Object = dict[str, Any]
# More than a cluster has: only accelerators are shared by quota.
_AMPLE_BYTES, _AMPLE = "1Pi", "1000000"
# Between the values of two priorities, there is one for those who were evicted.
_PRIORITY_STEP = 10


@dataclass(frozen=True, slots=True, kw_only=True)
class Export:
    """`notes`: what Kueue does not do as the quota file says, a sentence each."""

    objects: tuple[Object, ...]
    notes: tuple[str, ...]


def name_of(bastion: str) -> str:
    """Return the bastion's name in what Kubernetes accepts, for `export`."""
    return re.sub(r"[^a-z0-9-]+", "-", bastion.lower()).strip("-") or "bastion"


def export(policy: Policy, settings: Provisioning, *, cluster: str, label: str, name: str) -> Export:
    """Return the objects for a cluster, in the order in which to create them.

    Args:
        policy: The quota file.
        settings: The operator settings.
        cluster: Its name in the settings.
        label: The value of the label that marks objects as this bastion's.
        name: Of the Cohort, and the beginning of the flavors' names.

    Raises:
        Refused: Kueue does not decide there, or its objects cannot say what the quota file says.
    """
    where = _cluster(settings, cluster)
    found = flavors(policy, settings, where, prefix=name)
    if not found:
        raise Refused(
            f"no resource type of the quota file is in k8s:{cluster}; add it to the zones of a type in "
            "config/daemon.toml"
        )
    quotas = _Quotas(policy, found)
    others = other_resources(settings, where, tuple(dict.fromkeys(flavor.resource_type for flavor in found)))
    rest = f"{name}-other"
    made = [
        *(_flavor(flavor.name, flavor.labels, flavor.tolerations, flavor.taints) for flavor in found),
        _flavor(rest),
        _object("Cohort", name, {"resourceGroups": quotas.groups(None)}),
    ]
    queues = {project: kueue.local_queue(where.queue, project) for project in policy.projects}
    for project, queue in queues.items():
        groups = [*quotas.groups(project), _rest(rest, others)]
        made.append(_cluster_queue(policy, project, queue, groups, cohort=name, namespace=where.namespace))
    made += [
        *(
            _object("LocalQueue", queue, {"clusterQueue": queue, "stopPolicy": "None"}, where.namespace)
            for queue in queues.values()
        ),
        *_priorities(),
    ]
    for each in made:
        each["metadata"]["labels"] = {terms.LABEL_BASTION: label}
    elsewhere = {
        resource_type: sorted(zone for zone in places_of(settings, resource_type) if zone != place_of(cluster))
        for resource_type in policy.resource_types
    }
    return Export(objects=tuple(made), notes=tuple(kueue_differences.notes(policy, found, elsewhere)))


def choose_cluster(settings: Provisioning, wanted: str) -> str:
    """Return the name of the wanted cluster, or of the only one where Kueue decides. Raises Refused."""
    found = sorted(name for name, each in settings.clusters.items() if each.queue)
    if wanted:
        if wanted not in settings.clusters:
            known = ", ".join(sorted(settings.clusters)) or "none"
            raise Refused(f"the operator settings have no cluster {wanted} (clusters: {known})")
        return wanted
    if len(found) == 1:
        return found[0]
    if not found:
        raise Refused(
            'Kueue decides in no cluster of the operator settings; set queue = "bastion-{project}" in the table of one'
        )
    raise Refused(f"Kueue decides in several clusters; choose one with --cluster: {', '.join(found)}")


def _cluster(settings: Provisioning, name: str) -> ClusterSettings:
    found = settings.clusters[name]
    if not found.queue:
        raise Refused(
            f'the scheduler decides in cluster {name}, not Kueue; set queue = "bastion-{{project}}" in '
            f"[clusters.{name}], or choose another --cluster"
        )
    if "{project}" not in found.queue:
        raise Refused(
            f"all projects share the LocalQueue {found.queue} of cluster {name}, so there are no shares to export; set "
            f'queue = "{found.queue}-{{project}}"'
        )
    return found


class _Quotas:
    """Each project's part of each flavor, in chips."""

    def __init__(self, policy: Policy, found: Sequence[Flavor]) -> None:
        self._policy = policy
        self._flavors = found
        self._nominal = {
            (project, flavor.name): flavor.to_chips(policy.share(project, flavor.resource_type) * flavor.units)
            for project in policy.projects
            for flavor in found
        }
        self._borrowing = self._split("borrowing_limit", lambda flavor, _project: flavor.chips)
        self._lending = self._split("lending_limit", lambda flavor, project: self._nominal[project, flavor.name])

    def groups(self, project: str | None) -> list[Object]:
        """Return the resource groups of a project's ClusterQueue; None: of the Cohort, with what is left."""
        return [
            {
                "coveredResources": [resource],
                "flavors": [
                    {"name": flavor.name, "resources": [self._quota(project, flavor)]}
                    for flavor in self._flavors
                    if flavor.resource == resource
                ],
            }
            for resource in dict.fromkeys(flavor.resource for flavor in self._flavors)
        ]

    def _quota(self, project: str | None, flavor: Flavor) -> Object:
        if project is None:
            given = sum(self._nominal[each, flavor.name] for each in self._policy.projects)
            return {"name": flavor.resource, "nominalQuota": str(flavor.chips - given)}
        key = project, flavor.name
        quota = {"name": flavor.resource, "nominalQuota": str(self._nominal[key])}
        if key in self._borrowing:
            quota["borrowingLimit"] = str(self._borrowing[key])
        if key in self._lending:
            quota["lendingLimit"] = str(self._lending[key])
        return quota

    def _split(self, rule: str, weight: Callable[[Flavor, str], int]) -> dict[tuple[str, str], int]:
        """Return a limit of the rules, which is one for all tiers, by project and flavor; it is never exceeded."""
        found: dict[tuple[str, str], int] = {}
        for project in self._policy.projects:
            for resource_type, units in getattr(self._policy.rules(project), rule).items():
                tiers = [flavor for flavor in self._flavors if flavor.resource_type == resource_type]
                weights = [weight(flavor, project) for flavor in tiers]
                for flavor, amount in zip(tiers, _parts(tiers, units, weights), strict=True):
                    # Kueue accepts no lending limit above the quota.
                    most = weight(flavor, project) if rule == "lending_limit" else amount
                    found[project, flavor.name] = min(amount, most)
        return found


def _parts(tiers: Sequence[Flavor], units: int, weights: Sequence[int]) -> list[int]:
    """Split a limit between tiers in proportion to the weights, in chips; the sum is exact."""
    total, before, parts = sum(weights), 0, []
    passed = 0
    for flavor, weight in zip(tiers, weights, strict=True):
        passed += weight
        until = flavor.to_chips(Fraction(units) * passed / total) if total else 0
        parts.append(until - before)
        before = until
    return parts


def _cluster_queue(
    policy: Policy, project: str, name: str, groups: list[Object], *, cohort: str, namespace: str
) -> Object:
    """All defaults are written, so that a change of one in the cluster is a difference."""
    rules = policy.rules(project)
    return _object(
        "ClusterQueue",
        name,
        {
            "cohortName": cohort,
            "queueingStrategy": "StrictFIFO" if rules.fifo else "BestEffortFIFO",
            "stopPolicy": "Hold" if rules.hold else "None",
            "namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": namespace}},
            # An owner reclaims what others borrow; priorities never evict within a project. LowerPriority would let
            # the priority class of those who were evicted evict their equals.
            "preemption": {
                "reclaimWithinCohort": "Any",
                "withinClusterQueue": "Never",
                "borrowWithinCohort": {"policy": "Never"},
            },
            # The best tier, borrowed if need be; a later tier rather than an eviction.
            "flavorFungibility": {"whenCanBorrow": "MayStopSearch", "whenCanPreempt": "TryNextFlavor"},
            "resourceGroups": groups,
        },
    )


def _rest(flavor: str, resources: Sequence[str]) -> Object:
    amounts = [
        {
            "name": name,
            "nominalQuota": _AMPLE_BYTES if re.match(r"memory$|ephemeral-storage$|hugepages-", name) else _AMPLE,
        }
        for name in resources
    ]
    return {"coveredResources": [*resources], "flavors": [{"name": flavor, "resources": amounts}]}


def _flavor(
    name: str,
    labels: Mapping[str, str] = MappingProxyType({}),
    tolerations: Sequence[Mapping[str, str]] = (),
    taints: Sequence[Mapping[str, str]] = (),
) -> Object:
    spec: Object = {"nodeLabels": dict(labels)} if labels else {}
    if taints:
        spec["nodeTaints"] = [dict(each) for each in taints]
    if tolerations:
        spec["tolerations"] = [dict(each) for each in tolerations]
    return _object("ResourceFlavor", name, spec)


def _priorities() -> list[Object]:
    found = []
    for priority in range(limits.PRIORITY_MIN, limits.PRIORITY_MAX + 1):
        value = (limits.PRIORITY_MAX - priority) * _PRIORITY_STEP
        for again in (False, True):
            made = _object("WorkloadPriorityClass", kueue.priority_class(priority, again=again), None)
            made["value"] = value + again * _PRIORITY_STEP // 2
            made["description"] = f"bastion: priority {priority}" + ", after an eviction or a failure" * again
            found.append(made)
    return found


def _object(kind: str, name: str, spec: Object | None, namespace: str = "") -> Object:
    metadata = {"name": name, **({"namespace": namespace} if namespace else {})}
    made: Object = {"apiVersion": terms.KUEUE_API, "kind": kind, "metadata": metadata}
    return made if spec is None else {**made, "spec": spec}
