"""Kubernetes clusters of the settings: `[clusters.NAME]`, the place `k8s:NAME`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterSettings:
    """One cluster, one namespace of it, and how to reach and recognize it.

    With `server`, `token_file` and `ca_file` apply; with `kubeconfig`, `context` does (empty: its current one). With
    neither, the process runs in a pod of the cluster.
    """

    name: str
    provider: Literal["gke", "eks", "generic"] = "generic"
    server: str = ""  # URL of the API server
    kubeconfig: str = ""
    context: str = ""
    token_file: str = ""  # read again before each request
    ca_file: str = ""  # PEM; empty: the machine's authorities
    uid: str = ""  # of namespace kube-system
    namespace: str = "default"
    service_account: str = ""  # of the pods
    agent_image: str = ""  # brings the agent where no Google metadata server is
