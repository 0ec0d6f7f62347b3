"""What every cluster has from the start: its namespaces. That of kube-system identifies the cluster by its uid."""

from __future__ import annotations

from bastion.emulators.kubernetes.apiserver import writing
from bastion.emulators.kubernetes.apiserver.resources import NAMESPACES
from bastion.emulators.kubernetes.apiserver.routes import Route
from bastion.emulators.kubernetes.apiserver.store import Store

_NAMES = ("default", "kube-node-lease", "kube-public", "kube-system")


def ensure(store: Store) -> None:
    for name in _NAMES:
        if store.get(NAMESPACES, "", name) is None:
            document = {"kind": "Namespace", "apiVersion": "v1", "metadata": {"name": name}}
            writing.create(store, Route(resource=NAMESPACES), document, dry_run=False)
