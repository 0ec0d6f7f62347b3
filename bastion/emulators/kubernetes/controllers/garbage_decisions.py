"""The garbage collector's decisions (pkg/controller/garbagecollector/garbagecollector.go).

It knows the kinds that the emulator's controllers watch; an owner of another kind counts as existing.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Literal

from bastion.emulators.kubernetes.client import Obj
from bastion.emulators.kubernetes.client.requests import Propagation
from bastion.emulators.kubernetes.controllers.api_objects import (
    FOREGROUND_FINALIZER,
    ORPHAN_FINALIZER,
    has_finalizer,
    is_deleting,
    owners_of,
    path_of,
    uid_of,
    without_finalizer,
)
from bastion.emulators.kubernetes.controllers.cluster import NOTHING, Outcome, Write, delete

# Of an owner reference: solid, dangling (its owner is gone), or waiting for the deletion of its dependents.
Reference = Literal["solid", "dangling", "waiting"]


def is_deleting_dependents(obj: Obj) -> bool:
    return is_deleting(obj) and has_finalizer(obj, FOREGROUND_FINALIZER)


def is_orphaning(obj: Obj) -> bool:
    return is_deleting(obj) and has_finalizer(obj, ORPHAN_FINALIZER)


def blocking(owner: Obj, dependents: Sequence[Obj]) -> list[Obj]:
    """The dependents that a foreground deletion of their owner waits for."""
    return [
        dependent
        for dependent in dependents
        if any(each["uid"] == uid_of(owner) and each.get("blockOwnerDeletion") for each in owners_of(dependent))
    ]


def collect(obj: Obj, dependents: Sequence[Obj], classify: Callable[[Obj], Reference]) -> Outcome:
    """What to do for an object: attemptToDeleteItem, processDeletingDependentsItem and orphanDependents.

    Args:
        dependents: The objects that name it as an owner.
        classify: Of an owner reference.
    """
    if is_orphaning(obj):
        freed = [_without_owners(dependent, {uid_of(obj)}) for dependent in dependents]
        return Outcome(writes=(*freed, _without_finalizer(obj, ORPHAN_FINALIZER)))
    if is_deleting_dependents(obj):
        if blocking(obj, dependents):
            return NOTHING
        return Outcome(writes=(_without_finalizer(obj, FOREGROUND_FINALIZER),))
    if is_deleting(obj) or not owners_of(obj):
        return NOTHING
    classes = {reference["uid"]: classify(reference) for reference in owners_of(obj)}
    gone = {uid for uid, each in classes.items() if each != "solid"}
    if not gone:
        return NOTHING
    if len(gone) < len(classes):
        return Outcome(writes=(_without_owners(obj, gone),))
    propagation: Propagation = "Background"
    if has_finalizer(obj, ORPHAN_FINALIZER):
        propagation = "Orphan"
    elif has_finalizer(obj, FOREGROUND_FINALIZER) or (dependents and "waiting" in classes.values()):
        propagation = "Foreground"
    return Outcome(writes=(delete(obj, propagation=propagation),))


def _without_owners(obj: Obj, uids: set[str]) -> Write:
    left = [reference for reference in owners_of(obj) if reference["uid"] not in uids]
    body = {"metadata": {"uid": uid_of(obj), "ownerReferences": left or None}}
    return Write(method="patch", path=path_of(obj), body=body)


def _without_finalizer(obj: Obj, finalizer: str) -> Write:
    return Write(method="patch", path=path_of(obj), body=without_finalizer(obj, finalizer))
