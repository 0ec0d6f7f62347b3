"""Deletion: propagation by finalizers, grace, preconditions, and the end of a namespace.

Sources: apiserver pkg/registry/generic/registry/store.go, pkg/registry/rest/delete.go, and for namespaces kubernetes
pkg/registry/core/namespace/storage/storage.go and pkg/controller/namespace.
"""

from __future__ import annotations

from bastion.emulators.kubernetes.apiserver import metadata
from bastion.emulators.kubernetes.apiserver.decoding import DeleteOptions
from bastion.emulators.kubernetes.apiserver.resources import ALL, NAMESPACES
from bastion.emulators.kubernetes.apiserver.rules import rules_of
from bastion.emulators.kubernetes.apiserver.statuses import ApiFailure, unmet
from bastion.emulators.kubernetes.apiserver.store import Object, Store, Stored, draft_of

FOREGROUND = "foregroundDeletion"
ORPHAN = "orphan"
# Namespaces that no client may delete.
_LASTING = ("default", "kube-system")


def delete(store: Store, stored: Stored, options: DeleteOptions) -> tuple[Stored, bool]:
    """Delete, or mark for deletion; return the last state and whether the object is gone. Raises ApiFailure."""
    _check_preconditions(stored, options)
    document = stored.copy()
    was_marked = bool(document["metadata"].get("deletionTimestamp"))
    if stored.resource is NAMESPACES:
        return _delete_namespace(store, stored, options)
    document["metadata"]["finalizers"] = _finalizers(stored, options)
    metadata.drop_empty(document["metadata"])
    grace = rules_of(stored.resource).grace_seconds(document, options.grace_seconds)
    waits = _begin_grace(document, grace, was_marked=was_marked)
    pending = bool(document["metadata"].get("finalizers"))
    if pending and not was_marked and grace is None:
        _mark(document, 0)
    if not pending and not waits:
        if options.dry_run:
            return draft_of(stored.resource, stored.key, stored.version, document), True
        if grace is not None:
            # Upstream writes a graceful deletion, here one of no seconds, before it removes the object.
            stored = save(store, stored, document, dry_run=False)
        return remove(store, stored, document), True
    return save(store, stored, document, dry_run=options.dry_run), False


def save(store: Store, stored: Stored, document: Object, *, dry_run: bool) -> Stored:
    """Store a changed object; nothing if it is unchanged."""
    if document == stored.copy():
        return stored
    if dry_run:
        return draft_of(stored.resource, stored.key, stored.version, document)
    return store.put(stored.resource, document)


def _check_preconditions(stored: Stored, options: DeleteOptions) -> None:
    found = stored.object["metadata"]
    if options.uid is not None and options.uid != found["uid"]:
        text = (
            f"the UID in the precondition ({options.uid}) does not match the UID in record ({found['uid']})."
            " The object might have been deleted and then recreated"
        )
        raise unmet(stored.resource, stored.name, text)
    if options.version is not None and options.version != found["resourceVersion"]:
        text = (
            f"the ResourceVersion in the precondition ({options.version}) does not match the ResourceVersion in record"
            f" ({found['resourceVersion']}). The object might have been modified"
        )
        raise unmet(stored.resource, stored.name, text)


def _finalizers(stored: Stored, options: DeleteOptions) -> list[str]:
    """deletionFinalizersForGarbageCollection: the given policy replaces an earlier one, which replaces the kind's."""
    present = list(stored.object["metadata"].get("finalizers") or [])
    policy = options.propagation
    if policy is None and options.orphan_dependents is not None:
        policy = "Orphan" if options.orphan_dependents else "Background"
    if policy is None and stored.resource.orphans and FOREGROUND not in present:
        policy = "Orphan"
    if policy is None:
        return present
    kept = [name for name in present if name not in (FOREGROUND, ORPHAN)]
    if policy == "Foreground":
        return [*kept, FOREGROUND]
    if policy == "Orphan":
        return [*kept, ORPHAN]
    return kept


def _mark(document: Object, seconds: int) -> None:
    document["metadata"]["deletionTimestamp"] = metadata.now_text(seconds)
    document["metadata"]["deletionGracePeriodSeconds"] = seconds
    if document["metadata"].get("generation"):
        document["metadata"]["generation"] += 1


def _begin_grace(document: Object, grace: int | None, *, was_marked: bool) -> bool:
    """Mark for a graceful deletion, or shorten a running one; whether the object has to wait (BeforeDelete)."""
    if grace is None:
        return False
    found = document["metadata"]
    if not was_marked:
        _mark(document, grace)
        return grace > 0
    running = found.get("deletionGracePeriodSeconds") or 0
    if not running:
        return False
    if grace >= running:
        return True
    found["deletionGracePeriodSeconds"] = grace
    found["deletionTimestamp"] = metadata.now_text(grace)
    return grace > 0


def is_over(document: Object) -> bool:
    """Whether a marked object has nothing left to wait for (`deleteWithoutFinalizers`)."""
    found = document["metadata"]
    return (
        bool(found.get("deletionTimestamp"))
        and not found.get("finalizers")
        and not found.get("deletionGracePeriodSeconds")
    )


def remove(store: Store, stored: Stored, document: Object) -> Stored:
    """Remove an object in its last state, and its namespace if that waited for it."""
    # The last event shows the last change too, with one version for both.
    last = store.remove(draft_of(stored.resource, stored.key, stored.version, document))
    if namespace := stored.object["metadata"].get("namespace"):
        end_namespace(store, namespace)
    return last


def _delete_namespace(store: Store, stored: Stored, options: DeleteOptions) -> tuple[Stored, bool]:
    """Mark it Terminating and delete what is in it; it goes with its last object."""
    if stored.name in _LASTING:
        raise ApiFailure(
            403,
            "Forbidden",
            f'namespaces "{stored.name}" is forbidden: this namespace may not be deleted',
            details={"name": stored.name, "kind": "namespaces"},
        )
    document = stored.copy()
    if not document["metadata"].get("deletionTimestamp"):
        document["metadata"]["deletionTimestamp"] = metadata.now_text()
        document["status"] = {**document.get("status", {}), "phase": "Terminating"}
    if options.dry_run:
        return draft_of(stored.resource, stored.key, stored.version, document), False
    marked = save(store, stored, document, dry_run=False)
    for resource in ALL:
        if resource.namespaced:
            for item in store.items(resource, stored.name):
                if not item.object["metadata"].get("deletionTimestamp"):
                    delete(store, item, DeleteOptions(propagation="Background"))
    end_namespace(store, stored.name)
    return marked, False


def end_namespace(store: Store, name: str) -> None:
    """Remove a Terminating namespace that is empty."""
    stored = store.get(NAMESPACES, "", name)
    if stored is None or not stored.object["metadata"].get("deletionTimestamp"):
        return
    if not any(store.items(resource, name) for resource in ALL if resource.namespaced):
        store.remove(stored)
