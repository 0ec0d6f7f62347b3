"""What a bastion needs inside a Kubernetes cluster, as plain objects: accounts, permissions, and the daemon.

`bastion kubernetes manifest` prints them. The permissions are those of `bastion.adapters.kubernetes.permissions`.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any, Final, Literal

from pydantic import ValidationError

from bastion.adapters.kubernetes import google_identity, permissions
from bastion.adapters.kubernetes.permissions import Permission
from bastion.core.errors import Refused
from bastion.core.model.clusters import Provider
from bastion.core.model.job_spec_format import check_image
from bastion.core.model.settings_tables import ClusterTable

Object = dict[str, Any]

_PROVIDER = re.compile(r"projects/[0-9]+/locations/global/workloadIdentityPools/[a-z0-9-]+/providers/[a-z0-9-]+")
_LABEL = re.compile(r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?")
# Where the cloud of a provider reads which of its accounts a service account stands for.
_IDENTITY_ANNOTATIONS: Final[dict[Provider, str]] = {
    "gke": "iam.gke.io/gcp-service-account",
    "eks": "eks.amazonaws.com/role-arn",
}
_IDENTITIES: Final[dict[Provider, tuple[re.Pattern[str], str]]] = {
    "gke": (re.compile(r"[^@\s]+@[^@\s]+\.[^@\s]+"), "daemon@my-project.iam.gserviceaccount.com"),
    "eks": (re.compile(r"arn:[^:\s]+:iam::[0-9]+:role/\S+"), "arn:aws:iam::123456789012:role/daemon"),
}
_RBAC = "rbac.authorization.k8s.io"
# Of the image (`Dockerfile`).
_USER = 10001
_HOME = "/var/lib/bastion"


@dataclass(frozen=True, slots=True, kw_only=True)
class Installation:
    """One bastion in a cluster.

    Attributes:
        name: Of the Deployment and of the daemon's account.
        service_account: Of the jobs' pods: `service_account` of the cluster's settings.
        daemon_identity: The account of the provider's cloud that the daemon acts as; empty: none.
        worker_identity: The same, of the jobs' pods.
        workload_identity_provider: As in the cluster's settings, for the daemon's own pod.
        queue: As in the cluster's settings: with it, the daemon may read what Kueue says of its jobs.
    """

    name: str
    namespace: str
    image: str
    root: str
    quota_root: str = ""
    service_account: str = "bastion-worker"
    provider: Provider = "generic"
    daemon_identity: str = ""
    worker_identity: str = ""
    workload_identity_provider: str = ""
    queue: str = ""


def objects(wanted: Installation) -> list[Object]:
    """Return the objects in the order in which to create them. Raises Refused for what Kubernetes would not accept."""
    _check(wanted)
    identity = f"{wanted.namespace}-{wanted.name}-identity"  # of the whole cluster
    inside = (*permissions.IN_NAMESPACE, *(permissions.WITH_QUEUE if wanted.queue else ()))
    rules = [_rule(permission) for permission in inside]
    one = {**_rule(permissions.IDENTITY), "resourceNames": [permissions.IDENTITY_NAMESPACE]}
    return [
        {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": wanted.namespace}},
        _account(wanted, wanted.name, wanted.daemon_identity),
        # Kubernetes gives it no permission, and its pods no token.
        _account(wanted, wanted.service_account, wanted.worker_identity) | {"automountServiceAccountToken": False},
        _role("Role", _metadata(wanted, wanted.name), rules),
        _binding("Role", _metadata(wanted, wanted.name), wanted),
        _role("ClusterRole", {"name": identity, "labels": _labels(wanted)}, [one]),
        _binding("ClusterRole", {"name": identity, "labels": _labels(wanted)}, wanted),
        _deployment(wanted),
    ]


def settings(wanted: Installation, cluster: str = "here") -> str:
    """Return the table for `config/daemon.toml` that names the daemon's own cluster."""
    lines = [
        f"[clusters.{cluster}]",
        f'provider = "{wanted.provider}"',
        f'uid = "..."  # kubectl get namespace {permissions.IDENTITY_NAMESPACE} -o jsonpath={{.metadata.uid}}',
        f'namespace = "{wanted.namespace}"',
        f'service_account = "{wanted.service_account}"',
    ]
    if wanted.workload_identity_provider:
        lines.append(f'workload_identity_provider = "{wanted.workload_identity_provider}"')
    if wanted.queue:
        lines.append(f'queue = "{wanted.queue}"')
    if wanted.provider != "gke" or wanted.root.startswith("s3://"):
        lines.append(f'agent_image = "{wanted.image}"')
    return "\n".join(lines) + "\n"


def _check(wanted: Installation) -> None:
    for flag, name in (
        ("name", wanted.name),
        ("namespace", wanted.namespace),
        ("service_account", wanted.service_account),
    ):
        if not _LABEL.fullmatch(name):
            raise Refused(
                f"--{flag}={name!r} is not a valid Kubernetes name; use lowercase letters, digits and '-', 63 at most"
            )
    if wanted.namespace.startswith("kube-"):
        raise Refused(f"--namespace={wanted.namespace} is Kubernetes' own; give the bastion a namespace of its own")
    try:
        check_image(wanted.image)
    except ValueError as error:
        raise Refused(f"--image={wanted.image} is not valid: it {error}") from error
    if wanted.name == wanted.service_account:
        raise Refused(
            f"--name and --service_account are both {wanted.name}; users' commands run as the second, so give it "
            "another name"
        )
    if not wanted.root.startswith(("gs://", "s3://")):
        raise Refused(
            f"{wanted.root} is a folder; pods of several nodes need a bucket: use --root=gs://BUCKET/NAME-bastion or "
            "--root=s3://BUCKET/NAME-bastion"
        )
    provider = wanted.workload_identity_provider
    if provider and not _PROVIDER.fullmatch(provider):
        raise Refused(
            f"--workload_identity_provider={provider!r} is not a provider of a pool; use "
            "projects/NUMBER/locations/global/workloadIdentityPools/POOL/providers/NAME"
        )
    try:
        ClusterTable(uid="0" * 8, queue=wanted.queue)
    except ValidationError as error:
        raise Refused(
            f"--queue={wanted.queue!r} is not a LocalQueue's name; use lowercase letters, digits and '-', with "
            "{project} where the project's name belongs: bastion-{project}"
        ) from error
    if wanted.provider not in _IDENTITY_ANNOTATIONS and (wanted.daemon_identity or wanted.worker_identity):
        raise Refused("--daemon_identity and --worker_identity require --provider=gke or --provider=eks")
    for flag, identity in (("daemon_identity", wanted.daemon_identity), ("worker_identity", wanted.worker_identity)):
        form, example = _IDENTITIES.get(wanted.provider, (None, ""))
        if identity and form is not None and not form.fullmatch(identity):
            raise Refused(f"--{flag}={identity!r} is not an account of {wanted.provider}; use one such as {example}")


def _labels(wanted: Installation) -> dict[str, str]:
    return {"app.kubernetes.io/name": "bastion", "app.kubernetes.io/instance": wanted.name}


def _metadata(wanted: Installation, name: str) -> Object:
    return {"name": name, "namespace": wanted.namespace, "labels": _labels(wanted)}


def _account(wanted: Installation, name: str, identity: str) -> Object:
    metadata = _metadata(wanted, name)
    if identity:
        metadata["annotations"] = {_IDENTITY_ANNOTATIONS[wanted.provider]: identity}
    return {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": metadata}


def _rule(permission: Permission) -> Object:
    return {"apiGroups": [permission.group], "resources": [permission.resource], "verbs": [*permission.verbs]}


_RoleKind = Literal["Role", "ClusterRole"]


def _role(kind: _RoleKind, metadata: Object, rules: list[Object]) -> Object:
    return {"apiVersion": f"{_RBAC}/v1", "kind": kind, "metadata": metadata, "rules": rules}


def _binding(kind: _RoleKind, metadata: Object, wanted: Installation) -> Object:
    return {
        "apiVersion": f"{_RBAC}/v1",
        "kind": f"{kind}Binding",
        "metadata": metadata,
        "roleRef": {"apiGroup": _RBAC, "kind": kind, "name": metadata["name"]},
        "subjects": [{"kind": "ServiceAccount", "name": wanted.name, "namespace": wanted.namespace}],
    }


def _deployment(wanted: Installation) -> Object:
    arguments = [f"--root={wanted.root}", "--slices=cloud"]
    if wanted.quota_root:
        arguments.append(f"--quota_root={wanted.quota_root}")
    container: Object = {
        "name": "daemon",
        "image": wanted.image,
        "command": ["tini", "--", "bastion", "daemon", "run"],
        "args": arguments,
        "env": [{"name": "BASTION_HOME", "value": _HOME}],
        "resources": {"requests": {"cpu": "250m", "memory": "1Gi"}, "limits": {"memory": "2Gi"}},
        "securityContext": {
            "allowPrivilegeEscalation": False,
            "capabilities": {"drop": ["ALL"]},
            "readOnlyRootFilesystem": True,
        },
        "volumeMounts": [{"name": "home", "mountPath": _HOME}, {"name": "tmp", "mountPath": "/tmp"}],
    }
    pod: Object = {
        "serviceAccountName": wanted.name,
        "securityContext": {
            "runAsNonRoot": True,
            "runAsUser": _USER,
            "fsGroup": _USER,
            "seccompProfile": {"type": "RuntimeDefault"},
        },
        "containers": [container],
        "volumes": [{"name": "home", "emptyDir": {}}, {"name": "tmp", "emptyDir": {}}],
    }
    template: Object = {"metadata": {"labels": _labels(wanted)}, "spec": pod}
    if wanted.workload_identity_provider:
        provider = wanted.workload_identity_provider
        template["metadata"]["annotations"] = {google_identity.ANNOTATION: google_identity.credentials(provider)}
        pod["volumes"].append(google_identity.volume(provider))
        container["env"].append(google_identity.VARIABLE)
        container["volumeMounts"].append(google_identity.MOUNT)
    return {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": _metadata(wanted, wanted.name),
        "spec": {
            # One acts; the lease in the bucket makes a second one harmless, but it would only wait.
            "replicas": 1,
            "strategy": {"type": "Recreate"},
            "selector": {"matchLabels": _labels(wanted)},
            "template": template,
        },
    }
