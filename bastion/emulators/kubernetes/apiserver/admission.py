"""What a cluster's admission adds to the rules of kinds.

Sources: apiserver pkg/admission/plugin/namespace/lifecycle; kubernetes plugin/pkg/admission/{serviceaccount,
defaulttolerationseconds,priority,resourcequota}.
"""

from __future__ import annotations

from fractions import Fraction

from bastion.emulators.kubernetes.apiserver import quantities
from bastion.emulators.kubernetes.apiserver.resources import (
    NAMESPACES,
    PODS,
    QUOTAS,
    SERVICE_ACCOUNTS,
    Resource,
)
from bastion.emulators.kubernetes.apiserver.statuses import forbidden, not_found
from bastion.emulators.kubernetes.apiserver.store import Object, Store

_TOLERATED_SECONDS = 300
_NODE_TAINTS = ("node.kubernetes.io/not-ready", "node.kubernetes.io/unreachable")
_ENDED = ("Failed", "Succeeded")


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


def complete(resource: Resource, document: Object) -> None:
    """Fill in what admission adds to a new object, in place, before it is validated."""
    if resource is not PODS:
        return
    spec = document["spec"]
    if not spec.get("serviceAccountName"):
        spec["serviceAccountName"] = spec["serviceAccount"] = "default"
    spec.setdefault("priority", 0)
    spec.setdefault("preemptionPolicy", "PreemptLowerPriority")
    tolerations = list(spec.get("tolerations") or [])
    for taint in _NODE_TAINTS:
        if not any(_tolerates(toleration, taint) for toleration in tolerations):
            tolerations.append(
                {"key": taint, "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": _TOLERATED_SECONDS}
            )
    spec["tolerations"] = tolerations


def _tolerates(toleration: Object, taint: str) -> bool:
    return toleration.get("key", "") in (taint, "") and toleration.get("effect", "") in ("NoExecute", "")


def admit(store: Store, resource: Resource, document: Object, *, charge: bool) -> None:
    """Check a new object; `charge` it to the namespace's quotas. Raises ApiFailure (403)."""
    metadata = document["metadata"]
    namespace, name = metadata.get("namespace", ""), metadata["name"]
    if resource is PODS:
        account = document["spec"]["serviceAccountName"]
        if store.get(SERVICE_ACCOUNTS, namespace, account) is None:
            why = f'error looking up service account {namespace}/{account}: serviceaccount "{account}" not found'
            raise forbidden(resource, name, why)
    if resource.namespaced and resource is not QUOTAS:
        _quota(store, resource, document, charge=charge)


def _quota(store: Store, resource: Resource, document: Object, *, charge: bool) -> None:
    namespace, name = document["metadata"]["namespace"], document["metadata"]["name"]
    asked = _usage(resource, document)
    for quota in store.items(QUOTAS, namespace):
        hard = quota.object.get("spec", {}).get("hard") or {}
        limited = [kind for kind in hard if kind in asked]
        if not limited:
            continue
        used = {kind: _used(store, resource, namespace, kind) for kind in limited}
        over = [kind for kind in limited if used[kind] + asked[kind] > quantities.parse(hard[kind])]
        if over:
            parts = (
                ("requested", {kind: asked[kind] for kind in over}),
                ("used", {kind: used[kind] for kind in over}),
                ("limited", {kind: quantities.parse(hard[kind]) for kind in over}),
            )
            text = ", ".join(f"{label}: {_amounts(amounts)}" for label, amounts in parts)
            raise forbidden(resource, name, f"exceeded quota: {quota.name}, {text}")
        if charge:
            changed = quota.copy()
            status = changed.setdefault("status", {})
            status["hard"] = dict(hard)
            status["used"] = {**status.get("used", {}), **{kind: _text(used[kind] + asked[kind]) for kind in limited}}
            store.put(QUOTAS, changed)


def _amounts(amounts: dict[str, Fraction]) -> str:
    return ",".join(f"{kind}={_text(amount)}" for kind, amount in sorted(amounts.items()))


def _text(amount: Fraction) -> str:
    return str(int(amount)) if amount.denominator == 1 else f"{int(amount * 1000)}m"


def _used(store: Store, resource: Resource, namespace: str, kind: str) -> Fraction:
    """What the present objects use; pods that have ended use nothing but their place in `count/`."""
    zero = Fraction(0)
    return sum((_usage(resource, item.object).get(kind, zero) for item in store.items(resource, namespace)), zero)


def _usage(resource: Resource, document: Object) -> dict[str, Fraction]:
    """What an object takes of a quota: pkg/quota/v1/evaluator/core."""
    one = Fraction(1)
    usage = {f"count/{resource.qualified}": one}
    if resource is PODS and (document.get("status") or {}).get("phase") in _ENDED:
        return usage
    if not resource.group:
        usage[resource.plural] = one
    if resource is PODS:
        for container in document["spec"].get("containers") or []:
            _add_container(container.get("resources") or {}, usage)
    return usage


def _add_container(resources: Object, usage: dict[str, Fraction]) -> None:
    for part in ("requests", "limits"):
        for kind, amount in (resources.get(part) or {}).items():
            keys = (f"{part}.{kind}", kind) if part == "requests" else (f"{part}.{kind}",)
            for key in keys:
                usage[key] = usage.get(key, Fraction(0)) + quantities.parse(amount)
