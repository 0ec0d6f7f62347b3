"""The garbage collector: which object to look at when; `garbage_decisions` says what becomes of it."""

from __future__ import annotations

from bastion.emulators.kubernetes.client import ApiError, Obj
from bastion.emulators.kubernetes.controllers.api_objects import (
    CONFIG_MAP,
    JOB,
    JOB_SET,
    KINDS,
    POD,
    SECRET,
    SERVICE,
    WORKLOAD,
    is_deleting,
    name_of,
    namespace_of,
    owners_of,
    uid_of,
)
from bastion.emulators.kubernetes.controllers.cluster import Cluster, Index
from bastion.emulators.kubernetes.controllers.garbage_decisions import (
    Reference,
    collect,
    is_deleting_dependents,
    is_orphaning,
)
from bastion.emulators.kubernetes.controllers.reconcile_loop import Loop

_COLLECTED = (JOB_SET, JOB, POD, SERVICE, CONFIG_MAP, SECRET)
# Kind, namespace, name, uid.
_ObjectKey = tuple[str, str, str, str]


class GarbageCollector:
    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self._informers = {
            kind.kind: cluster.informer(kind) for kind in (*_COLLECTED, *((WORKLOAD,) if cluster.has_kueue else ()))
        }
        self._dependents = [
            Index(informer, lambda obj: [reference["uid"] for reference in owners_of(obj)])
            for informer in self._informers.values()
        ]
        self.loop: Loop[_ObjectKey] = Loop("garbage collector", self._reconcile)
        for informer in self._informers.values():
            informer.subscribe(self._changed)

    def _changed(self, old: Obj | None, new: Obj | None) -> None:
        if new is None:
            assert old is not None
            self._add(self._dependents_of(old))
            self._add_owners(old)
            return
        if is_deleting_dependents(new) or is_orphaning(new):
            self._add([new, *self._dependents_of(new)])
        elif owners_of(new) and not is_deleting(new) and (old is None or owners_of(old) != owners_of(new)):
            self._add([new])
        if old is not None and owners_of(old) != owners_of(new):
            self._add_owners(old)

    def _dependents_of(self, owner: Obj) -> list[Obj]:
        return [dependent for index in self._dependents for dependent in index.get(uid_of(owner))]

    def _add_owners(self, obj: Obj) -> None:
        """Owners that wait for the deletion of this object."""
        for reference in owners_of(obj):
            owner = self._cached(obj, reference)
            if owner is not None and is_deleting(owner):
                self._add([owner])

    def _add(self, objects: list[Obj]) -> None:
        for obj in objects:
            self.loop.add((obj["kind"], namespace_of(obj), name_of(obj), uid_of(obj)))

    def _cached(self, dependent: Obj, reference: Obj) -> Obj | None:
        informer = self._informers.get(reference["kind"])
        owner = informer.get(namespace_of(dependent), reference["name"]) if informer is not None else None
        return owner if owner is not None and uid_of(owner) == reference["uid"] else None

    def _reconcile(self, name: _ObjectKey) -> None:
        kind, namespace, object_name, uid = name
        obj = self._informers[kind].get(namespace, object_name)
        if obj is None or uid_of(obj) != uid:
            return
        self._cluster.apply(collect(obj, self._dependents_of(obj), lambda reference: self._classify(obj, reference)))

    def _classify(self, dependent: Obj, reference: Obj) -> Reference:
        kind = KINDS.get((reference["apiVersion"], reference["kind"]))
        if kind is None:
            return "solid"
        owner = self._cached(dependent, reference)
        if owner is None:
            # The cache may be behind; only the server's word deletes.
            try:
                owner = self._cluster.client.get(kind.path(namespace_of(dependent), reference["name"]))
            except ApiError as error:
                if error.code == 404:
                    return "dangling"
                raise
            if uid_of(owner) != reference["uid"]:
                return "dangling"
        return "waiting" if is_deleting_dependents(owner) else "solid"
