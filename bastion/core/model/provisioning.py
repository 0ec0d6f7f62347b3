"""The places where slices may be created; `bastion.core.model.daemon_settings` reads them from the operator's file."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace
from typing import TypeVar

from bastion.core import limits
from bastion.core.bucket import keys
from bastion.core.model import instance_types
from bastion.core.model.bastion_host_jobs import HostJobsMode
from bastion.core.model.budgets import Budgets
from bastion.core.model.clusters import PROVIDER_NAMES, ClusterSettings, Provider, cluster_of
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
    input_cache: str = ""  # folder on each host
    input_cache_gib: int = limits.INPUT_CACHE_GIB


@dataclass(frozen=True, slots=True, kw_only=True)
class Tier:
    """The capacity of a tier. `reservations` (names) and `zones` are by resource type; "" is for all others."""

    model: CapacityModel = CapacityModel.ON_DEMAND
    reservations: Mapping[str, str] = field(default_factory=dict)
    zones: Mapping[str, tuple[str, ...]] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class ProjectAccounts:
    """The identities of one project's hosts; empty: those of the type and of the cluster."""

    service_account: str = ""  # on Cloud TPU
    pod_service_account: str = ""  # in clusters


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
    host_job_user: str = ""  # whom commands run as on the hosts of slices: NAME or UID:GID; empty: as the agent
    record_ticks: int = 0  # number of ticks that the daemon keeps as files; 0: none
    bastion_host_jobs: HostJobsMode | None = None  # None: not set
    projects: Mapping[str, ProjectAccounts] = field(default_factory=dict)  # by the quota file's names
    without_slices: bool = False  # whether the file says nothing about slices, so that they are as without a file

    def places(
        self,
        instance_type: InstanceType,
        tier: int | None,
        *,
        has_image: bool = False,
        secrets: Collection[str] = (),
    ) -> tuple[Place, ...]:
        """Return the places for a gang, best first; none if its type is not provisioned.

        `secrets`: names of Secrets whose keys it takes; only clusters have them.

        Containers run in clusters only, and there a job needs an image: its own, or the operator's.
        `Place.queue` is the cluster's setting; the project's LocalQueue is `kueue.local_queue` of it.
        A reserved tier without zones of its own uses only the type's first zone, because a reservation is in one zone.
        """
        nodes = self.resource_types.get(instance_type.resource_type)
        if nodes is None:
            return ()
        capacity = self._capacity(instance_type.resource_type, tier)
        reserved = capacity.model is CapacityModel.RESERVED
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
                input_cache=nodes.input_cache,
                input_cache_bytes=nodes.input_cache_gib * 2**30 if nodes.input_cache else 0,
                identity=self.clusters[cluster_of(zone)].identity if cluster_of(zone) in self.clusters else "",
                queue=self.queue_of(zone),
            )
            for zone in self._zones_in(instance_type.resource_type, tier)
            if (bool(cluster_of(zone)) or not has_image) and (has_image or not _lacks_image(zone, nodes))
            if self._offers(zone, instance_type) and self._gives(zone, secrets)
        )

    def of_project(self, place: Place, project: str) -> Place:
        """Return the place with the identity of the project's hosts."""
        accounts = self.projects.get(project)
        if accounts is None:
            return place
        return replace(
            place,
            service_account=accounts.service_account or place.service_account,
            pod_service_account=accounts.pod_service_account,
        )

    def _gives(self, zone: str, secrets: Collection[str]) -> bool:
        cluster = self.clusters.get(cluster_of(zone))
        return not secrets or (cluster is not None and set(secrets).issubset(cluster.job_secrets))

    def why_no_secrets(self, runner: Runner) -> str:
        """The reason why no place gives the job its Secrets; empty if one does."""
        first, names, resource_type = runner.pod_secrets[0], runner.pod_secret_names, runner.instance_type.resource_type
        zones = [zone for zone in sorted(self._zones_of(resource_type)) if cluster_of(zone)]
        if not zones:
            return (
                f"its secret k8s:secret/{first.name}/{first.key} needs a Kubernetes cluster, and "
                f"{keys.DAEMON_SETTINGS} has none for {resource_type}; use another source, such as sm://PROJECT/SECRET"
            )
        if not any(self._gives(zone, names) for zone in zones):
            one = next((name for name in sorted(names) if not any(self._gives(zone, [name]) for zone in zones)), "")
            what = f"the Secret {one}" if one else f"all of the Secrets {', '.join(sorted(names))}"
            where = ", ".join(f"clusters.{cluster_of(zone)}.job_secrets" for zone in zones)
            return (
                f"no cluster of {resource_type} gives jobs {what}; an operator may name it in {where} of "
                f"{keys.DAEMON_SETTINGS}"
            )
        if not runner.has_image and not self.resource_types[resource_type].pod.image:
            return (
                "a job with a secret k8s: runs in a Kubernetes cluster, where it needs an image; name one with "
                f"--image, or set types.{resource_type}.pod.image in {keys.DAEMON_SETTINGS}"
            )
        return ""

    def is_delegated(self, resource_type: str) -> bool:
        """Whether Kueue decides which jobs of that type run. `load` accepts no type for which that depends."""
        nodes = self.resource_types.get(resource_type)
        return nodes is not None and bool(self.queue_of(nodes.zones[0]))

    @property
    def delegated(self) -> tuple[str, ...]:
        """The types that Kueue decides on."""
        return tuple(filter(self.is_delegated, self.resource_types))

    def queue_of(self, zone: str) -> str:
        """Return the `queue` setting of a place; empty if the scheduler decides there."""
        cluster = self.clusters.get(cluster_of(zone))
        return cluster.queue if cluster is not None else ""

    def _offers(self, zone: str, instance_type: InstanceType) -> bool:
        """Whether a place has slices of that size: providers sell some sizes only."""
        cluster = self.clusters.get(cluster_of(zone))
        return cluster is None or cluster.provider in instance_type.providers

    def lacks_size(self, instance_type: InstanceType) -> bool:
        """Whether no place of its resource type has slices of that size."""
        zones = self._zones_of(instance_type.resource_type)
        return not any(self._offers(zone, instance_type) for zone in zones)

    def needs_image(self, resource_type: str) -> bool:
        """Whether a job of that type without an image has no place in any tier."""
        nodes = self.resource_types[resource_type]
        return all(_lacks_image(zone, nodes) for zone in self._zones_of(resource_type))

    def takes_images(self, resource_type: str) -> bool:
        """Whether a job of that type with an image has a place in some tier."""
        return any(cluster_of(zone) for zone in self._zones_of(resource_type))

    def _zones_of(self, resource_type: str) -> frozenset[str]:
        tiers = range(len(self.tiers))
        return frozenset(zone for tier in tiers for zone in self._zones_in(resource_type, tier))

    def _zones_in(self, resource_type: str, tier: int | None) -> tuple[str, ...]:
        """Return the zones of a tier, best first, whatever a job needs. The type has settings."""
        capacity, nodes = self._capacity(resource_type, tier), self.resource_types[resource_type]
        reserved = capacity.model is CapacityModel.RESERVED
        return _of_type(capacity.zones, resource_type) or (nodes.zones[:1] if reserved else nodes.zones)

    def _capacity(self, resource_type: str, tier: int | None) -> Tier:
        if self.is_delegated(resource_type):
            return Tier()  # Kueue's flavors choose the capacity
        return self.tiers[min(tier or 0, len(self.tiers) - 1)]

    def zones(self) -> frozenset[str]:
        return frozenset(zone for nodes in self.resource_types.values() for zone in nodes.zones) | {
            zone for tier in self.tiers for zones in tier.zones.values() for zone in zones
        }


def _lacks_image(zone: str, nodes: ResourceTypeSettings) -> bool:
    return bool(cluster_of(zone)) and not nodes.pod.image


def why_not_in(zone: str, resource_type: str, provider: Provider | None) -> str:
    """The reason why a place has no slices of that type; empty if it may have. `provider`: the cluster's."""
    if cluster_of(zone) and resource_type not in instance_types.kubernetes_types():
        return f"Kubernetes has no {resource_type}; use a zone of Cloud TPU instead of {zone}"
    if cluster_of(zone) and resource_type not in instance_types.kubernetes_types(provider):
        return (
            f"{PROVIDER_NAMES[provider] if provider else 'the cluster'} has no {resource_type}, only "
            f"{', '.join(instance_types.kubernetes_types(provider))}; use another place instead of {zone}"
        )
    if not cluster_of(zone) and resource_type not in instance_types.cloud_tpu_types():
        return f"Cloud TPU has no {resource_type}; use a cluster (k8s:NAME) instead of {zone}"
    return ""


def places_of(provisioning: Provisioning, runner: Runner, tier: int | None) -> tuple[Place, ...]:
    """Return the places for a job, best first."""
    return provisioning.places(runner.instance_type, tier, has_image=runner.has_image, secrets=runner.pod_secret_names)


def why_not_placed(provisioning: Provisioning | None, runner: Runner) -> str:
    """The reason why no slices can be created for such a job; empty if they can."""
    if provisioning is None:
        return f"there are no valid settings in {keys.DAEMON_SETTINGS}, so no slices are created"
    resource_type = runner.instance_type.resource_type
    if resource_type in provisioning.resource_types:
        if provisioning.lacks_size(runner.instance_type):
            zones = ", ".join(provisioning.resource_types[resource_type].zones)
            return (
                f"no place of {resource_type} in {keys.DAEMON_SETTINGS} ({zones}) has {runner.instance_type.name}; "
                f"`bastion instance-types {resource_type}` shows which providers sell which sizes"
            )
        if runner.has_image and not provisioning.takes_images(resource_type):
            return f"its image needs a Kubernetes cluster, and {keys.DAEMON_SETTINGS} has none for {resource_type}"
        if not runner.has_image and provisioning.needs_image(resource_type):
            return (
                f"{resource_type} is in Kubernetes clusters only, where a job needs an image; "
                f"name one with --image, or set types.{resource_type}.pod.image in {keys.DAEMON_SETTINGS}"
            )
        return provisioning.why_no_secrets(runner) if runner.has_pod_secrets else ""
    served = ", ".join(provisioning.resource_types) or "none"
    return f"{keys.DAEMON_SETTINGS} has no zones for {resource_type}, only for {served}"


def why_not_in_tier(provisioning: Provisioning, runner: Runner, tier: int) -> str:
    """The reason why such a job has no place in that tier, though it may have one in another; empty if it has."""
    if places_of(provisioning, runner, tier):
        return ""
    resource_type = runner.instance_type.resource_type
    needed = "a Kubernetes cluster, which its image needs" if runner.has_image else "a place that needs no image"
    if runner.has_pod_secrets:
        needed = f"a Kubernetes cluster with the Secrets {', '.join(sorted(runner.pod_secret_names))}"
    return f"{keys.DAEMON_SETTINGS} has no zone of {resource_type} in tier {tier} that is {needed}"


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
