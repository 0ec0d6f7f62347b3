"""What a request does, read from its path, in the terms of RBAC; for messages and permissions."""

from __future__ import annotations

from dataclasses import dataclass

# Verbs of RBAC.
_WRITES = frozenset({"create", "delete", "patch", "update"})
TRIED_AGAIN = "it is tried again"


@dataclass(frozen=True, slots=True, kw_only=True)
class Operation:
    """One request: `cannot create jobsets/b-x in namespace training of cluster west`.

    `remedy`: what follows if the API server does not serve it now.
    """

    cluster: str  # its name in the settings
    verb: str  # of RBAC
    group: str  # API group; empty: core
    resource: str  # plural, with its subresource: pods/log
    namespace: str = ""
    name: str = ""
    remedy: str = TRIED_AGAIN

    @property
    def writes(self) -> bool:
        return self.verb in _WRITES

    @property
    def kind(self) -> str:
        """The resource as API servers name it: `jobsets.jobset.x-k8s.io`."""
        return f"{self.resource}.{self.group}" if self.group else self.resource

    @property
    def permission(self) -> str:
        """What an operator grants: `list jobsets.jobset.x-k8s.io in namespace training`."""
        scope = f"in namespace {self.namespace}" if self.namespace else "in the cluster"
        return f"{self.verb} {self.kind} {scope}"

    def __str__(self) -> str:
        target = f"{self.resource}/{self.name}" if self.name else self.resource
        scope = f" in namespace {self.namespace}" if self.namespace else ""
        return f"cannot {self.verb} {target}{scope} of cluster {self.cluster}"


def operation(cluster: str, verb: str, path: str, *, name: str = "", remedy: str = TRIED_AGAIN) -> Operation:
    """Read an API path such as `/apis/batch/v1/namespaces/default/jobs/x`; `name`: of an object that is posted.

    Raises ValueError for a path without a resource.
    """
    parts = path.strip("/").split("/")
    if parts[0] == "api" and len(parts) >= 3:
        group, rest = "", parts[2:]
    elif parts[0] == "apis" and len(parts) >= 4:
        group, rest = parts[1], parts[3:]
    else:
        raise ValueError(f"{path!r} names no resource of a Kubernetes API")
    namespace = ""
    if rest[0] == "namespaces" and len(rest) >= 3:
        namespace, rest = rest[1], rest[2:]
    resource, found, subresource = [*rest, "", ""][:3]
    return Operation(
        cluster=cluster,
        verb=verb,
        group=group,
        resource=f"{resource}/{subresource}" if subresource else resource,
        namespace=namespace,
        name=found or name,
        remedy=remedy,
    )
