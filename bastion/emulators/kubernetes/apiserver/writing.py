"""create, update, patch, and a pod's binding.

Sources: apiserver pkg/registry/generic/registry/store.go, pkg/registry/rest/{create,update}.go, pkg/endpoints/handlers/
{create,update,patch}.go, and for bindings kubernetes pkg/registry/core/pod/storage/storage.go.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from bastion.emulators.kubernetes.apiserver import admission, deletion, metadata, patches
from bastion.emulators.kubernetes.apiserver.resources import JOB_SETS, NAMESPACES, SERVICE_ACCOUNTS, Resource
from bastion.emulators.kubernetes.apiserver.routes import Route
from bastion.emulators.kubernetes.apiserver.rules import kueue_jobsets, rules_of
from bastion.emulators.kubernetes.apiserver.statuses import (
    MODIFIED,
    ApiFailure,
    Problem,
    already_exists,
    bad_request,
    conflict,
    denied,
    internal,
    invalid,
    invalid_value,
    not_emulated,
    not_found,
    unsupported_media,
)
from bastion.emulators.kubernetes.apiserver.store import Object, Store, Stored, draft_of, key_of

# Tries of a generated name that exists already (apiserver registry/store.go, maxNameGenerationCreateAttempts).
_NAME_TRIES = 8


def create(store: Store, route: Route, document: Object, *, dry_run: bool) -> Stored:
    """Raises ApiFailure."""
    resource = route.resource
    rules = rules_of(resource)
    generated = not document["metadata"].get("name")
    for attempt in range(1, _NAME_TRIES + 1):
        candidate = {**document, "metadata": dict(document["metadata"])}
        metadata.complete(resource, candidate, route.namespace)
        name = candidate["metadata"].get("name", "")
        with store.lock:
            admission.check_namespace(store, resource, route.namespace, name)
            rules.default(candidate)
            rules.admit(candidate)
            if _kueue_sees(store, resource):
                kueue_jobsets.admit(store, candidate)
            admission.complete(resource, candidate)
            rules.prepare_create(candidate)
            _refuse(
                resource, candidate, metadata.problems(candidate, rules.name_rule) + rules.create_problems(candidate)
            )
            _deny(resource, candidate, rules.denials(candidate))
            if _kueue_sees(store, resource):
                _deny_plainly(kueue_jobsets.WEBHOOK, kueue_jobsets.denials(candidate))
            # Admission comes before the storage says that the name is taken.
            admission.admit(store, resource, candidate, charge=False)
            if store.get(resource, route.namespace, name) is not None:
                if generated and attempt < _NAME_TRIES:
                    continue
                raise already_exists(resource, name)
            if dry_run:
                key = key_of(route.namespace, name)
                return draft_of(resource, key, store.version, candidate)
            admission.admit(store, resource, candidate, charge=True)
            stored = store.put(resource, candidate)
            if resource is NAMESPACES:
                _fill_namespace(store, name)
            return stored
    raise AssertionError("unreachable")


def _fill_namespace(store: Store, name: str) -> None:
    """What the controller manager puts into each namespace: the service account of pods that name none."""
    account = {"kind": "ServiceAccount", "apiVersion": "v1", "metadata": {"name": "default"}}
    create(store, Route(resource=SERVICE_ACCOUNTS, namespace=name), account, dry_run=False)


def _refuse(resource: Resource, document: Object, problems: list[Problem]) -> None:
    if problems:
        name = document["metadata"].get("name", "")
        raise invalid(resource.kind, resource.group, name, problems)


def _deny(resource: Resource, document: Object, problems: list[Problem]) -> None:
    rules = rules_of(resource)
    if problems and rules.plain_denials:
        _deny_plainly(rules.webhook, problems)
    elif problems:
        name = document["metadata"].get("name", "")
        raise denied(rules.webhook, invalid(resource.kind, resource.group, name, problems))


def _kueue_sees(store: Store, resource: Resource) -> bool:
    return store.has_kueue and resource is JOB_SETS


def _deny_plainly(webhook: str, problems: list[Problem]) -> None:
    """controller-runtime pkg/webhook/admission/validator_custom.go, Denied; the text is an aggregate's."""
    if problems:
        texts = list(dict.fromkeys(problem.message() for problem in problems))
        text = texts[0] if len(texts) == 1 else f"[{', '.join(texts)}]"
        raise denied(webhook, ApiFailure(403, "Forbidden", text))


def update(store: Store, route: Route, document: Object, *, dry_run: bool) -> tuple[Stored, bool]:
    """The object, and whether it is new. Raises ApiFailure."""
    resource, given = route.resource, document["metadata"]
    if (name := given.get("name") or "") != route.name:
        if name:
            raise bad_request(f"the name of the object ({name}) does not match the name on the URL ({route.name})")
        given = {**given, "name": route.name}
    metadata.check_namespace(given, route.namespace)
    with store.lock:
        if rules_of(resource).creates_on_update and store.get(resource, route.namespace, route.name) is None:
            return create(store, route, {**document, "metadata": dict(given)}, dry_run=dry_run), True
        stored = _existing(store, route)
        if not given.get("resourceVersion") and not rules_of(resource).unconditional_update:
            # Upstream names the resource here, not the kind.
            problem = invalid_value("metadata.resourceVersion", 0, "must be specified for an update")
            raise invalid(resource.plural, resource.group, route.name, [problem])
        if (uid := given.get("uid")) and uid != stored.object["metadata"]["uid"]:
            raise conflict(resource, route.name, _other_uid(stored, uid))
        return _replace(store, route, stored, {**document, "metadata": dict(given)}, dry_run=dry_run), False


def _other_uid(stored: Stored, uid: str) -> str:
    """apiserver pkg/storage/errors.go, NewInvalidObjError, as it reaches the client."""
    precondition = f"UID in precondition: {uid}, UID in object meta: {stored.object['metadata']['uid']}"
    key = f"/registry/{stored.resource.plural}/{stored.key}"
    return (
        f"StorageError: invalid object, Code: 4, Key: {key}, ResourceVersion: 0, AdditionalErrorMsg: Precondition"
        f" failed: {precondition}"
    )


def _existing(store: Store, route: Route) -> Stored:
    stored = store.get(route.resource, route.namespace, route.name)
    if stored is None:
        raise not_found(route.resource, route.name)
    return stored


def _replace(store: Store, route: Route, stored: Stored, document: Object, *, dry_run: bool) -> Stored:
    """Replace an object, or its status; remove it if it waited for this change only."""
    resource, old, given = route.resource, stored.copy(), document["metadata"]
    version, uid = given.get("resourceVersion") or "", given.get("uid") or ""
    if version and not version.isdigit():
        raise internal(f'strconv.ParseUint: parsing "{version}": invalid syntax')
    if version and version != old["metadata"]["resourceVersion"]:
        raise conflict(resource, route.name, MODIFIED)
    given["resourceVersion"] = old["metadata"]["resourceVersion"]
    rules = rules_of(resource)
    metadata.carry_over(document, old)
    if route.subresource == "status":
        document = rules.prepare_status(document, old)
        problems = []
    else:
        rules.default(document)
        rules.prepare_update(document, old)
        problems = rules.update_problems(document, old)
        if resource.generation and _intent(resource, document) != _intent(resource, old):
            document["metadata"]["generation"] = old["metadata"].get("generation", 0) + 1
    _refuse(resource, document, metadata.change_problems(document, old, uid=uid, custom=resource.custom) + problems)
    if route.subresource != "status":
        _deny(resource, document, rules.update_denials(document, old))
        if _kueue_sees(store, resource):
            _deny_plainly(kueue_jobsets.WEBHOOK, kueue_jobsets.update_denials(store, document, old))
    if deletion.is_over(document) and not dry_run:
        return deletion.remove(store, stored, document)
    return deletion.save(store, stored, document, dry_run=dry_run)


def _intent(resource: Resource, document: Object) -> Object:
    """What a change of counts as a new generation."""
    if not resource.custom:
        return {"spec": document.get("spec")}
    return {name: value for name, value in document.items() if name not in ("metadata", "status")}


def patch(
    store: Store, route: Route, content: Any, media: str, *, dry_run: bool, check: Callable[[Object], Object]
) -> Stored:
    """`check` looks at the fields of the changed object. Raises ApiFailure."""
    _check_patch(route.resource, media)
    if media != patches.JSON and not isinstance(content, dict):
        raise bad_request("the patch is no JSON object")
    with store.lock:
        stored = _existing(store, route)
        document = patched(stored.copy(), content, media)
        if not isinstance(document, dict) or not isinstance(document.get("metadata"), dict):
            raise bad_request("the patch leaves no object with metadata")
        if document["metadata"].get("name") != route.name:
            found = document["metadata"].get("name")
            raise bad_request(f"the name of the object ({found}) does not match the name on the URL ({route.name})")
        metadata.check_namespace(document["metadata"], route.namespace)
        if document.get("kind") != route.resource.kind or document.get("apiVersion") != route.resource.api_version:
            raise invalid("", "", "", [invalid_value("patch", content, "the patch changes the kind")])
        return _replace(store, route, stored, check(document), dry_run=dry_run)


def _check_patch(resource: Resource, media: str) -> None:
    if media in patches.APPLY:
        raise not_emulated("server-side apply", f"use {patches.MERGE}, or create the object")
    supported = [patches.JSON, patches.MERGE, *([] if resource.custom else [patches.STRATEGIC])]
    if media not in supported:
        raise unsupported_media([*supported, patches.APPLY[0]])


def patched(document: Object, content: Any, media: str) -> Any:
    if media == patches.JSON:
        return patches.applied(document, content)
    if media == patches.STRATEGIC:
        return patches.strategic(document, content)
    return patches.merged(document, content)


def bind(store: Store, route: Route, binding: Object, *, dry_run: bool) -> None:
    """Assign a pod to a node. Raises ApiFailure."""
    target = binding.get("target") if isinstance(binding, dict) else None
    node = target.get("name") if isinstance(target, dict) else None
    if not isinstance(target, dict) or not node or target.get("kind", "Node") not in ("", "Node"):
        problem = Problem("Required", "target.name") if not node else invalid_value("target.kind", "", "must be Node")
        raise invalid("Binding", "", route.name, [problem])
    with store.lock:
        stored = _existing(store, route)
        document = stored.copy()
        why = _why_unbindable(document)
        if why:
            text = f'Operation cannot be fulfilled on pods/binding "{route.name}": {why}'
            raise ApiFailure(409, "Conflict", text, details={"name": route.name, "kind": "pods/binding"})
        document["spec"]["nodeName"] = node
        conditions = document.setdefault("status", {}).get("conditions") or []
        others = [condition for condition in conditions if condition["type"] != "PodScheduled"]
        scheduled = {
            "type": "PodScheduled",
            "status": "True",
            "lastProbeTime": None,
            "lastTransitionTime": metadata.now_text(),
        }
        document["status"]["conditions"] = [*others, scheduled]
        if annotations := binding.get("metadata", {}).get("annotations"):
            document["metadata"]["annotations"] = {**document["metadata"].get("annotations", {}), **annotations}
        deletion.save(store, stored, document, dry_run=dry_run)


def _why_unbindable(pod: Object) -> str:
    name, spec = pod["metadata"]["name"], pod["spec"]
    if pod["metadata"].get("deletionTimestamp"):
        return f"pod {name} is being deleted, cannot be assigned to a host"
    if node := spec.get("nodeName"):
        return f'pod {name} is already assigned to node "{node}"'
    if spec.get("schedulingGates"):
        return f"pod {name} has non-empty .spec.schedulingGates"
    return ""
