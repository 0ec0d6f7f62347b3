"""Clusters and pods of the operator settings, as `bastion daemon check-config` shows them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import asdict, fields
from typing import Any

from bastion.core.model.clusters import ClusterSettings, cluster_of
from bastion.core.model.pods import PodSettings, Toleration, Volume
from bastion.core.model.provisioning import Provisioning

_DEFAULT = PodSettings()


def in_clusters(settings: Provisioning, resource_type: str) -> bool:
    """Whether slices of that type may be in a cluster."""
    zones = settings.resource_types[resource_type].zones
    tiers = [tier.zones.get(resource_type, tier.zones.get("", ())) for tier in settings.tiers]
    return any(cluster_of(zone) for each in (zones, *tiers) for zone in each)


def on_cloud_tpu(settings: Provisioning, resource_type: str) -> bool:
    return not all(cluster_of(zone) for zone in settings.resource_types[resource_type].zones)


def lines(settings: Provisioning) -> Iterator[str]:
    for cluster in settings.clusters.values():
        yield _cluster(cluster)
    for resource_type, made in settings.resource_types.items():
        if in_clusters(settings, resource_type):
            yield f"pods of {resource_type}: {', '.join(_pod(made.pod))}"


def warnings(settings: Provisioning) -> Iterator[str]:
    """Probable mistakes: clusters that nothing uses, and types whose jobs must all name an image."""
    used = {cluster_of(zone) for zone in settings.zones()}
    for name in settings.clusters:
        if name not in used:
            yield f"no zones name k8s:{name}, so no job runs in cluster {name}"
    for resource_type in settings.resource_types:
        if settings.needs_image(resource_type):
            yield (
                f"{resource_type} is in Kubernetes clusters only, and types.{resource_type}.pod.image is not set; "
                "its jobs wait unless they name an image with --image"
            )


def document(cluster: ClusterSettings) -> dict[str, Any]:
    return {name: value for name, value in asdict(cluster).items() if name != "name"}


def pod_document(pod: PodSettings) -> dict[str, Any]:
    return asdict(pod)


def _cluster(cluster: ClusterSettings) -> str:
    if cluster.server:
        reached = cluster.server
    elif cluster.kubeconfig:
        reached = f"kubeconfig {cluster.kubeconfig}" + (f" with context {cluster.context}" if cluster.context else "")
    else:
        reached = "the cluster that the daemon runs in"
    return (
        f"cluster {cluster.name}: {cluster.provider}, {reached}, namespace {cluster.namespace}, uid {cluster.uid}, "
        f"pods as {cluster.service_account or 'the default service account'}, "
        + (f"agent from image {cluster.agent_image}" if cluster.agent_image else "agent from the bucket")
        + (f", Google identity by {cluster.workload_identity_provider}" if cluster.workload_identity_provider else "")
        + (f", Secrets {', '.join(cluster.job_secrets)} for jobs" if cluster.job_secrets else "")
        + (f", Kueue decides in queue {cluster.queue}" if cluster.queue else "")
    )


def _pod(pod: PodSettings) -> Iterator[str]:
    """Yield what is set, and what matters without being set."""
    yield f"image {pod.image}" if pod.image else "the job's own image"
    for field in fields(pod):
        value = getattr(pod, field.name)
        if field.name != "image" and value != getattr(_DEFAULT, field.name):
            yield f"{field.name.replace('_', ' ')} {_value(value)}"


def _value(value: object) -> str:
    match value:
        case bool():
            return "yes" if value else "no"
        case Mapping():
            return " ".join(f"{key}={each}" for key, each in value.items())
        case tuple():
            return " ".join(_value(each) for each in value)
        case Toleration():
            equal = f"={value.value}" if value.operator == "Equal" else ""
            return f"{value.key}{equal}" + (f":{value.effect}" if value.effect else "")
        case Volume():
            kinds = ("claim", "bucket", "secret", "host_path")
            source = next(f"{kind.replace('_', ' ')} {getattr(value, kind)}" for kind in kinds if getattr(value, kind))
            return f"{value.path} ({source}{', read-only' if value.read_only else ''})"
        case _:
            return str(value)
