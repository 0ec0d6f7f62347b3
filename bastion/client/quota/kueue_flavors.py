"""The flavors of a quota file: one for each resource type and tier in a cluster, with labels that tell it from others.

Kueue compares a pod's node selectors with a flavor's labels by the keys of that flavor only, and adds the labels and
tolerations to the pods that it admits in it (kueue: pkg/scheduler/flavorassigner/flavorassigner.go,
checkFlavorForPodSets and flavorSelector; pkg/podset/podset.go). So a flavor has what the pods of all sizes of its type
have in common, and what its tier adds.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction

from bastion.adapters.kubernetes import hardware, terms
from bastion.core.errors import ProvisionerRefused, Refused
from bastion.core.model import instance_types
from bastion.core.model.clusters import ClusterSettings, place_of
from bastion.core.model.gangs import CapacityModel, GangRef, GangRequest, Place
from bastion.core.model.instance_types import InstanceType
from bastion.core.model.provisioning import Provisioning, Tier
from quota import Policy

# Kueue's status of a ClusterQueue has room for as many (ClusterQueueStatus.flavorsUsage), and a group, too.
FLAVORS_MAX = 64
# What pods request besides their accelerators.
_PLAIN = ("cpu", "memory", "ephemeral-storage")


@dataclass(frozen=True, slots=True, kw_only=True)
class Flavor:
    """Capacity of a resource type in a tier.

    Attributes:
        resource: What its pods request of it: `google.com/tpu`.
        units: In the quota file's units; `chips` are as many, rounded down.
        units_per_chip: 2 where units are TensorCores.
        labels: Of its nodes.
        tolerations: That Kueue adds to its pods.
        taints: Of the flavor only: pods of other types do not tolerate them.
    """

    name: str
    resource_type: str
    tier: int
    resource: str
    units: int
    units_per_chip: Fraction
    labels: Mapping[str, str]
    tolerations: Sequence[Mapping[str, str]]
    taints: Sequence[Mapping[str, str]] = ()

    @property
    def chips(self) -> int:
        return self.to_chips(Fraction(self.units))

    def to_chips(self, units: Fraction) -> int:
        return int(units / self.units_per_chip)


def flavors(policy: Policy, settings: Provisioning, cluster: ClusterSettings, *, prefix: str) -> tuple[Flavor, ...]:
    """Return the flavors of what the quota file has in that cluster, the tiers of a type in their order.

    Raises Refused if there are too many.
    """
    found = tuple(
        _flavor(policy, settings, cluster, resource_type, number, prefix)
        for resource_type in policy.resource_types
        for number in range(len(policy.tiers))
        if policy.tiers[number].get(resource_type) and place_of(cluster.name) in _zones(settings, resource_type, number)
    )
    if len(found) > FLAVORS_MAX:
        raise Refused(
            f"the quota file has {len(found)} pairs of a resource type and a tier in cluster {cluster.name}; Kueue has "
            f"room for {FLAVORS_MAX}; use fewer tiers, or several clusters"
        )
    return tuple(_told_apart(flavor, found, cluster) for flavor in found)


def _told_apart(flavor: Flavor, all_of_them: Sequence[Flavor], cluster: ClusterSettings) -> Flavor:
    """Return it with a taint, if Kueue would take pods of another type for its own, as where machines have no label
    in common.
    """
    others = {each.resource_type for each in all_of_them if each.resource == flavor.resource} - {flavor.resource_type}
    if not any(_admits(flavor, other, cluster) for other in others):
        return flavor
    taint = {"key": terms.TAINT_RESOURCE_TYPE, "value": flavor.resource_type, "effect": "NoSchedule"}
    return dataclasses.replace(flavor, taints=(taint,))


def other_resources(settings: Provisioning, cluster: ClusterSettings, types: Sequence[str]) -> tuple[str, ...]:
    """Return what pods of these types may request besides accelerators.

    Kueue admits no pod that requests what its ClusterQueue does not cover (flavorassigner.go, findFlavorForPodSets).
    """
    accelerators = {_accelerator(resource_type, cluster) for resource_type in types}
    found = {
        name
        for resource_type in types
        for each in _needs(resource_type, cluster, Place(pod=settings.resource_types[resource_type].pod))
        for name in each.requests
    }
    return (*_PLAIN, *sorted(found - accelerators - set(_PLAIN)))


def places_of(settings: Provisioning, resource_type: str) -> frozenset[str]:
    """Return all places of a resource type, in any tier."""
    return frozenset(zone for number in range(len(settings.tiers)) for zone in _zones(settings, resource_type, number))


def _zones(settings: Provisioning, resource_type: str, tier: int) -> tuple[str, ...]:
    nodes = settings.resource_types.get(resource_type)
    if nodes is None:
        return ()
    return _of_type(_tier(settings, tier).zones, resource_type) or nodes.zones


def _tier(settings: Provisioning, number: int) -> Tier:
    return settings.tiers[min(number, len(settings.tiers) - 1)]


def _flavor(
    policy: Policy, settings: Provisioning, cluster: ClusterSettings, resource_type: str, number: int, prefix: str
) -> Flavor:
    tier = _tier(settings, number)
    reserved = tier.model is CapacityModel.RESERVED
    reservation = (tier.reservations.get(resource_type) or tier.reservations.get("", "")) if reserved else ""
    place = Place(model=tier.model, reservation=reservation)
    plain = next(_needs(resource_type, cluster, Place()))
    here = next(_needs(resource_type, cluster, place))
    added = {key: value for key, value in here.node_selector.items() if plain.node_selector.get(key) != value}
    several = sum(bool(each.get(resource_type)) for each in policy.tiers) > 1
    size = next(_sizes(resource_type, cluster))
    return Flavor(
        name=f"{prefix}-{resource_type}" + (f"-tier-{number}" if several else ""),
        resource_type=resource_type,
        tier=number,
        resource=_accelerator(resource_type, cluster),
        units=policy.tiers[number][resource_type],
        units_per_chip=Fraction(size.amount, size.chips),
        labels=_base_labels(resource_type, cluster) | added,
        tolerations=tuple(each for each in here.tolerations if each not in plain.tolerations),
    )


def _admits(flavor: Flavor, other: str, cluster: ClusterSettings) -> bool:
    """Whether Kueue would count some size of another type as this flavor."""
    return any(
        all(flavor.labels[key] == value for key, value in each.node_selector.items() if key in flavor.labels)
        for each in _needs(other, cluster, Place())
    )


def _base_labels(resource_type: str, cluster: ClusterSettings) -> dict[str, str]:
    """Return the selectors that all sizes of a type have in common."""
    first, *rest = (each.node_selector for each in _needs(resource_type, cluster, Place()))
    return {key: value for key, value in first.items() if all(each.get(key) == value for each in rest)}


def _accelerator(resource_type: str, cluster: ClusterSettings) -> str:
    return next(name for name in next(_needs(resource_type, cluster, Place())).requests if name not in _PLAIN)


def _sizes(resource_type: str, cluster: ClusterSettings) -> Iterator[InstanceType]:
    """Yield the sizes that the cluster may have. Raises Refused if there is none."""
    found = False
    for size in instance_types.table().values():
        if size.resource_type == resource_type and _need(size, cluster, Place()) is not None:
            found = True
            yield size
    if not found:
        raise Refused(
            f"cluster {cluster.name} cannot have {resource_type}; remove k8s:{cluster.name} from its zones in "
            "config/daemon.toml"
        )


def _needs(resource_type: str, cluster: ClusterSettings, place: Place) -> Iterator[hardware.Needs]:
    for size in _sizes(resource_type, cluster):
        found = _need(size, cluster, place)
        assert found is not None
        yield found


def _need(size: InstanceType, cluster: ClusterSettings, place: Place) -> hardware.Needs | None:
    request = GangRequest(
        ref=GangRef(name="b-any", num_slices=2),  # several slices may need a network besides
        bastion="any",
        run="any",
        token="any",
        accelerator_type=size.accelerator_type,
        place=place,
        agent_arguments="{}",
    )
    try:
        return hardware.needs(request, cluster)
    except ProvisionerRefused:
        return None


def _of_type(table: Mapping[str, tuple[str, ...]], resource_type: str) -> tuple[str, ...]:
    return table.get(resource_type, table.get("", ()))
