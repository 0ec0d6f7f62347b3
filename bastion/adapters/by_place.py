"""Slices in zones of Cloud TPU and in Kubernetes clusters, side by side: a router by place."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from bastion.core.model.clusters import cluster_of
from bastion.core.model.gangs import GangRef, GangRequest, GangStatus
from bastion.ports import Provisioner


class ByPlace:
    """Behind the `Provisioner` port.

    Args:
        zones: Of every place that is not a cluster.
        cluster: Returns the provisioner of the cluster with that name; raises ProvisionerUnavailable if there is none.
    """

    def __init__(self, *, zones: Provisioner, cluster: Callable[[str], Provisioner]) -> None:
        self._zones = zones
        self._cluster = cluster

    def create(self, request: GangRequest) -> None:
        self._of(request.ref.zone).create(request)

    def failure(self, ref: GangRef) -> Exception | None:
        return self._of(ref.zone).failure(ref)

    def get(self, ref: GangRef) -> GangStatus | None:
        return self._of(ref.zone).get(ref)

    def list(self, zone: str = "") -> Sequence[GangStatus]:
        return self._of(zone).list(zone)

    def delete(self, ref: GangRef) -> None:
        self._of(ref.zone).delete(ref)

    def _of(self, zone: str) -> Provisioner:
        name = cluster_of(zone)
        return self._cluster(name) if name else self._zones
