"""Kubernetes clusters as places of gangs: `k8s:NAME` is the cluster of `[clusters.NAME]` in the operator settings."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Provider = Literal["gke", "eks", "generic"]
PROVIDER_NAMES: dict[Provider, str] = {"gke": "GKE", "eks": "EKS", "generic": "a generic cluster"}

_PREFIX = "k8s:"


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterSettings:
    """One cluster: how to reach it, and who its pods are.

    Without `server` and `kubeconfig`, it is the cluster that the daemon itself runs in.
    """

    name: str
    provider: Provider = "generic"
    server: str = ""  # URL of the API server
    kubeconfig: str = ""  # file on the daemon's machine, with `context`; empty: its current one
    context: str = ""
    token_file: str = ""  # both for `server`; read again when they change
    ca_file: str = ""
    # Of namespace kube-system. Another cluster at the same address would look as if every gang were gone.
    uid: str = ""
    namespace: str = "default"
    service_account: str = ""  # of the pods; empty: the namespace's default
    agent_image: str = ""  # an image with Bastion that brings the agent to pods; empty: pods fetch it themselves
    # Of a Google workload identity pool that trusts the cluster; empty: pods have a metadata server, or need none.
    workload_identity_provider: str = ""
    # LocalQueue of each project, `bastion-{project}`: Kueue decides what runs here; empty: the scheduler does.
    queue: str = ""
    # Names of Secrets in the namespace that jobs may take with --secret NAME=k8s:secret/NAME/KEY.
    job_secrets: tuple[str, ...] = ()

    @property
    def identity(self) -> str:
        """Where its gangs are: `uid/namespace`."""
        return f"{self.uid}/{self.namespace}"


def place_of(cluster: str) -> str:
    return f"{_PREFIX}{cluster}"


def cluster_of(zone: str) -> str:
    """Return the name of the cluster that a place is in; empty for a zone of Cloud TPU."""
    return zone[len(_PREFIX) :] if zone.startswith(_PREFIX) else ""


def shown(zone: str) -> str:
    """Return a place as people read it: `us-central2-b`, `cluster training`."""
    cluster = cluster_of(zone)
    return f"cluster {cluster}" if cluster else zone


def where(zone: str) -> str:
    """Return ` in <place>` for a sentence; empty for the provisioner's own zone."""
    return f" in {shown(zone)}" if zone else ""
