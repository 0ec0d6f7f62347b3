"""Metadata of created and changed objects.

Sources: apiserver pkg/registry/rest/{create,update,meta}.go, pkg/storage/names/generate.go, apimachinery
pkg/api/validation/objectmeta.go.
"""

from __future__ import annotations

import datetime
import secrets
import uuid
from collections.abc import Callable
from typing import Any

from bastion.emulators.kubernetes.apiserver import names
from bastion.emulators.kubernetes.apiserver.resources import Resource
from bastion.emulators.kubernetes.apiserver.statuses import (
    Problem,
    bad_request,
    forbidden_field,
    internal,
    invalid_value,
    required,
)

Object = dict[str, Any]
NameRule = Callable[[str], list[str]]

# Without vowels, and without characters that look alike.
_SUFFIX_CHARACTERS = "bcdfghjklmnpqrstvwxz2456789"
_SUFFIX_LENGTH = 5
_PREFIX_MAX = 63 - _SUFFIX_LENGTH

_SYSTEM_FIELDS = ("uid", "creationTimestamp", "deletionTimestamp", "deletionGracePeriodSeconds", "selfLink")


def now_text(after_seconds: float = 0.0) -> str:
    now = datetime.datetime.now(datetime.timezone.utc) + datetime.timedelta(seconds=after_seconds)
    return now.strftime("%Y-%m-%dT%H:%M:%SZ")


def generated_name(prefix: str) -> str:
    suffix = "".join(secrets.choice(_SUFFIX_CHARACTERS) for _ in range(_SUFFIX_LENGTH))
    return prefix[:_PREFIX_MAX] + suffix


def complete(resource: Resource, document: Object, namespace: str) -> None:
    """Complete the metadata of a new object in place. Raises ApiFailure."""
    metadata = document["metadata"]
    check_namespace(metadata, namespace)
    if metadata.get("resourceVersion"):
        raise internal("resourceVersion should not be set on objects to be created")
    for field in ("resourceVersion", "managedFields", *_SYSTEM_FIELDS):
        metadata.pop(field, None)
    if namespace:
        metadata["namespace"] = namespace
    if not metadata.get("name") and metadata.get("generateName"):
        metadata["name"] = generated_name(metadata["generateName"])
    metadata["uid"] = str(uuid.uuid4())
    metadata["creationTimestamp"] = now_text()
    if resource.generation:
        metadata["generation"] = 1
    drop_empty(metadata)


def drop_empty(metadata: Object) -> None:
    """Optional fields that are empty are not stored."""
    for field in ("labels", "annotations", "ownerReferences", "finalizers", "generateName"):
        if not metadata.get(field):
            metadata.pop(field, None)


def check_namespace(metadata: Object, namespace: str) -> None:
    """apiserver pkg/registry/rest/create.go, EnsureObjectNamespaceMatchesRequestNamespace. Raises ApiFailure."""
    given = metadata.get("namespace") or ""
    if given and given != namespace:
        raise bad_request("the namespace of the provided object does not match the namespace sent on the request")


def problems(document: Object, rule: NameRule) -> list[Problem]:
    """What is wrong in metadata, of new and changed objects."""
    metadata = document["metadata"]
    found: list[Problem] = []
    if not metadata.get("name"):
        found.append(required("metadata.name", "name or generateName is required"))
    else:
        found += names.name_problems(metadata["name"], "metadata.name", rule(metadata["name"]))
    return found + common_problems(document)


def common_problems(document: Object) -> list[Problem]:
    """What is wrong in metadata but the name."""
    metadata = document["metadata"]
    found = names.labels_problems(metadata.get("labels") or {}, "metadata.labels")
    found += names.annotations_problems(metadata.get("annotations") or {}, "metadata.annotations")
    found += names.owners_problems(metadata.get("ownerReferences") or [], "metadata.ownerReferences")
    for finalizer in metadata.get("finalizers") or []:
        found += [invalid_value("metadata.finalizers", finalizer, why) for why in names.qualified(finalizer)]
        if not names.qualified(finalizer) and "/" not in finalizer and finalizer not in _STANDARD_FINALIZERS:
            text = "name is neither a standard finalizer name nor is it fully qualified"
            found.append(invalid_value("metadata.finalizers", finalizer, text))
    return found


_STANDARD_FINALIZERS = ("orphan", "foregroundDeletion", "kubernetes")


def carry_over(document: Object, old: Object) -> None:
    """Restore what a client cannot change, in place."""
    metadata, before = document["metadata"], old["metadata"]
    metadata.pop("managedFields", None)
    metadata.pop("selfLink", None)
    for field in ("uid", "creationTimestamp", "generation", "deletionTimestamp", "deletionGracePeriodSeconds"):
        if field in before:
            metadata[field] = before[field]
        else:
            metadata.pop(field, None)
    for field in ("namespace", "generateName"):
        if before.get(field) and not metadata.get(field):
            metadata[field] = before[field]
    drop_empty(metadata)


def change_problems(document: Object, old: Object, *, uid: str, custom: bool) -> list[Problem]:
    """ValidateObjectMetaUpdate, which upstream calls twice: for all kinds, and for the kind. `uid`: as given.

    Built-in kinds then check new metadata once more (`ValidateObjectMeta`).
    """
    found = _new_finalizers(document, old)
    if uid and uid != old["metadata"]["uid"]:
        found.append(invalid_value("metadata.uid", uid, "field is immutable"))
    return common_problems(document) * (2 if custom else 3) + found * 2


def _new_finalizers(document: Object, old: Object) -> list[Problem]:
    metadata, before = document["metadata"], old["metadata"]
    if not before.get("deletionTimestamp"):
        return []
    new = [text for text in metadata.get("finalizers") or [] if text not in (before.get("finalizers") or [])]
    if not new:
        return []
    shown = ", ".join(f'"{text}"' for text in new)
    text = f"no new finalizers can be added if the object is being deleted, found new finalizers []string{{{shown}}}"
    return [forbidden_field("metadata.finalizers", text)]
