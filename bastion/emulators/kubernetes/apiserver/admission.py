"""What a cluster's admission adds to the rules of kinds.

Sources: apiserver pkg/admission/plugin/namespace/lifecycle.
"""

from __future__ import annotations

from bastion.emulators.kubernetes.apiserver.resources import NAMESPACES, Resource
from bastion.emulators.kubernetes.apiserver.statuses import forbidden, not_found
from bastion.emulators.kubernetes.apiserver.store import Store


def check_namespace(store: Store, resource: Resource, namespace: str, name: str) -> None:
    """NamespaceLifecycle: 404 in a namespace that does not exist, 403 in one that ends. Raises ApiFailure."""
    if not namespace:
        return
    found = store.get(NAMESPACES, "", namespace)
    if found is None:
        raise not_found(NAMESPACES, namespace)
    if found.object["metadata"].get("deletionTimestamp"):
        cause = {
            "reason": "NamespaceTerminating",
            "message": f"namespace {namespace} is being terminated",
            "field": "metadata.namespace",
        }
        why = f"unable to create new content in namespace {namespace} because it is being terminated"
        raise forbidden(resource, name, why, [cause])
