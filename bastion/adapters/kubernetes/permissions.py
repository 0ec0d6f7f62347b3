"""What the daemon may do in a cluster, in the terms of RBAC: exactly the calls of this package.

`bastion kubernetes manifest` grants them, and a test compares them with the requests of a gang's life.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final


@dataclass(frozen=True, slots=True, kw_only=True)
class Permission:
    group: str  # API group; empty: core
    resource: str  # plural
    verbs: tuple[str, ...]


IN_NAMESPACE: Final = (
    Permission(group="jobset.x-k8s.io", resource="jobsets", verbs=("create", "delete", "get", "list", "watch")),
    # Deleted only where someone deleted their JobSet without them.
    Permission(group="batch", resource="jobs", verbs=("delete", "list", "watch")),
    Permission(group="", resource="pods", verbs=("delete", "list", "watch")),
    # As above: the service that JobSet made for the pods' names.
    Permission(group="", resource="services", verbs=("delete", "get")),
    # Why a Job cannot create its pods.
    Permission(group="", resource="events", verbs=("list",)),
)
# Where gangs are in queues of Kueue: what it says of them.
WITH_QUEUE: Final = (Permission(group="kueue.x-k8s.io", resource="workloads", verbs=("list", "watch")),)
# The namespace whose uid identifies the cluster; nothing else outside of the bastion's own namespace.
IDENTITY: Final = Permission(group="", resource="namespaces", verbs=("get",))
IDENTITY_NAMESPACE: Final = "kube-system"
