"""The places where slices may be created; `bastion.core.model.daemon_settings` reads them from the operator's file."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TypeVar

from bastion.core.bucket import keys
from bastion.core.model import instance_types
from bastion.core.model.budgets import Budgets
from bastion.core.model.clusters import ClusterSettings, cluster_of
from bastion.core.model.gangs import CapacityModel, Place
from bastion.core.model.instance_types import InstanceType
from bastion.core.model.job_spec import Runner
from bastion.core.model.pods import PodSettings
from quota import Policy

_T = TypeVar("_T")


@dataclass(frozen=True, slots=True, kw_only=True)
class ResourceTypeSettings:
    """Settings of the nodes of one resource type, otherwise as in `bastion.core.model.gangs.Place`.

    `zones` are in the order in which they are tried, never empty. An empty name is the provisioner's own zone.
    """

    zones: tuple[str, ...]
    network: str = ""
    subnetwork: str = ""
    external_ips: bool = True
    service_account: str = ""
    runtime_version: str = ""
    pod: PodSettings = field(default_factory=PodSettings)  # in clusters


@dataclass(frozen=True, slots=True, kw_only=True)
class Tier:
    """The capacity of a tier. `reservations` (names) and `zones` are by resource type; "" is for all others."""

    model: CapacityModel = CapacityModel.ON_DEMAND
    reservations: Mapping[str, str] = field(default_factory=dict)
    zones: Mapping[str, tuple[str, ...]] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Provisioning:
    """The settings in force."""

    project: str = ""  # the cloud project of the slices
    endpoint: str = ""  # `host:port` of an emulator of the Cloud TPU API; empty: the real one
    token_file: str = ""  # file on the daemon's machine with the emulator's token
    clusters: Mapping[str, ClusterSettings] = field(default_factory=dict)  # by name
    # Node settings by resource type; a missing type is not provisioned.
    resource_types: Mapping[str, ResourceTypeSettings]
    tiers: tuple[Tier, ...] = (Tier(),)  # by number; the last one also covers higher numbers; never empty
    budgets: Budgets = field(default_factory=Budgets)
    warnings: tuple[str, ...] = ()  # probable mistakes, for people
    record_ticks: int = 0  # number of ticks that the daemon keeps as files; 0: none

    def places(self, instance_type: InstanceType, tier: int | None, *, has_image: bool = False) -> tuple[Place, ...]:
        """Return the places for a gang, best first; none if its type is not provisioned.

        Containers run in clusters only, and there a job needs an image: its own, or the operator's.
        A reserved tier without zones of its own uses only the type's first zone, because a reservation is in one zone.
        """
        nodes = self.resource_types.get(instance_type.resource_type)
        if nodes is None:
            return ()
        capacity = self.tiers[min(tier or 0, len(self.tiers) - 1)]
        reserved = capacity.model is CapacityModel.RESERVED
        zones = _of_type(capacity.zones, instance_type.resource_type) or (nodes.zones[:1] if reserved else nodes.zones)
        return tuple(
            Place(
                zone=zone,
                model=capacity.model,
                reservation=(_of_type(capacity.reservations, instance_type.resource_type) or "") if reserved else "",
                network=nodes.network,
                subnetwork=nodes.subnetwork,
                external_ips=nodes.external_ips,
                service_account=nodes.service_account,
                runtime_version=nodes.runtime_version,
                pod=nodes.pod if cluster_of(zone) else None,
            )
            for zone in zones
            if (bool(cluster_of(zone)) or not has_image) and (has_image or not _lacks_image(zone, nodes))
        )

    def needs_image(self, resource_type: str) -> bool:
        """Whether a job of that type without an image has no place."""
        nodes = self.resource_types[resource_type]
        return all(_lacks_image(zone, nodes) for zone in nodes.zones)

    def zones(self) -> frozenset[str]:
        return frozenset(zone for nodes in self.resource_types.values() for zone in nodes.zones) | {
            zone for tier in self.tiers for zones in tier.zones.values() for zone in zones
        }


def _lacks_image(zone: str, nodes: ResourceTypeSettings) -> bool:
    return bool(cluster_of(zone)) and not nodes.pod.image


def why_not_in(zone: str, resource_type: str) -> str:
    """The reason why a place has no slices of that type; empty if it may have."""
    if cluster_of(zone) and resource_type not in instance_types.kubernetes_types():
        return f"Kubernetes has no {resource_type}; use a zone of Cloud TPU instead of {zone}"
    if not cluster_of(zone) and resource_type not in instance_types.cloud_tpu_types():
        return f"Cloud TPU has no {resource_type}; use a cluster (k8s:NAME) instead of {zone}"
    return ""


def why_not_placed(provisioning: Provisioning | None, runner: Runner) -> str:
    """The reason why no slices can be created for such a job; empty if they can."""
    if provisioning is None:
        return f"there are no valid settings in {keys.DAEMON_SETTINGS}, so no slices are created"
    resource_type = runner.instance_type.resource_type
    if resource_type in provisioning.resource_types:
        if runner.has_image and not provisioning.places(runner.instance_type, None, has_image=True):
            return f"its image needs a Kubernetes cluster, and {keys.DAEMON_SETTINGS} has none for {resource_type}"
        if not runner.has_image and provisioning.needs_image(resource_type):
            return (
                f"{resource_type} is in Kubernetes clusters only, where a job needs an image; "
                f"name one with --image, or set types.{resource_type}.pod.image in {keys.DAEMON_SETTINGS}"
            )
        return ""
    served = ", ".join(provisioning.resource_types) or "none"
    return f"{keys.DAEMON_SETTINGS} has no zones for {resource_type}, only for {served}"


def tiers_without_settings(provisioning: Provisioning, policy: Policy) -> str:
    """The alarm if the quota file has tiers that the settings do not describe; empty otherwise."""
    most, known = len(policy.tiers), len(provisioning.tiers)
    if most <= known:
        return ""
    return (
        f"the quota file has {most} tiers and {keys.DAEMON_SETTINGS} describes {known}: jobs on a later tier get "
        f"{provisioning.tiers[-1].model.value} capacity like tier {known - 1}; add [[tiers]] entries"
    )


def _of_type(table: Mapping[str, _T], resource_type: str) -> _T | None:
    return table.get(resource_type, table.get(""))


# For emulated slices, until an operator writes settings: every type, in the provisioner's own zone.
BUILT_IN = Provisioning(
    resource_types={each: ResourceTypeSettings(zones=("",)) for each in instance_types.cloud_tpu_types()}
)
