"""Which hosts a bastion can have whose ROOT is on S3 (ADR 51)."""

from __future__ import annotations

from bastion.core.model.clusters import cluster_of, shown
from bastion.core.model.provisioning import Provisioning


def problems_on_s3(settings: Provisioning) -> tuple[str, ...]:
    """What is wrong with the settings of such a bastion, and what to do."""
    places = settings.zones()
    # Without settings, the only zone has no name: there are no slices.
    zones = sorted({shown(place) for place in places if place and not cluster_of(place)})
    found = []
    if zones:
        found.append(
            f"TPU VMs in {', '.join(zones)} have no credentials for a ROOT on S3; name clusters (k8s:NAME) as zones, "
            "or use a ROOT on Cloud Storage"
        )
    found += [
        f"[clusters.{name}] has no agent_image, and pods cannot fetch the agent from S3; set agent_image to an image "
        "with Bastion (the one of the daemon)"
        for name in sorted({cluster_of(place) for place in places} - {""})
        if name in settings.clusters and not settings.clusters[name].agent_image
    ]
    return tuple(found)
