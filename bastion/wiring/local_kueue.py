"""The queues of a local bastion's cluster where Kueue decides: the quota file, as `bastion quota export` writes it."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any

from bastion.client.quota import kueue_drift, kueue_export
from bastion.core.bucket import keys
from bastion.core.errors import NotFound, Refused
from bastion.core.model import daemon_settings
from bastion.emulators.kubernetes.address import KubernetesAddress
from bastion.emulators.kubernetes.client.requests import ApiClient, ApiError
from bastion.ports import ObjectStore
from quota import QuotaFileError, load


def write_queues(
    store: ObjectStore, address: KubernetesAddress, *, cluster: str, label: str, name: str, say: Callable[[str], None]
) -> None:
    """Create what the quota file in the bucket is exported as, or bring it up to date; say why if that is impossible.

    `cluster`, `label` and `name` are those of `kueue_export.export`.
    """
    try:
        policy = load(store.get(keys.PROJECT_QUOTAS).data)
        settings = daemon_settings.load(store.get(keys.DAEMON_SETTINGS).data)
        exported = kueue_export.export(policy, settings, cluster=cluster, label=label, name=name)
    except (NotFound, QuotaFileError, daemon_settings.SettingsError, Refused) as error:
        say(f"the cluster's queues stay as they are: {error}")
        return
    namespace = settings.clusters[cluster].namespace
    with contextlib.closing(ApiClient.connect(address)) as client:
        for each in exported.objects:
            _put(client, each, namespace)
        present = kueue_drift.read(lambda path: client.list(path)["items"], namespace)
    kubectl = f"kubectl --kubeconfig={settings.clusters[cluster].kubeconfig}"
    for left in kueue_drift.differences(exported.objects, present, label=label):
        if left.kind == "ClusterQueue" and left.wanted is kueue_drift.ABSENT and not left.field:
            say(
                f"ClusterQueue {left.name} is of a project that the quota file has no more, and still lends its quota "
                f"to the others; when its jobs have ended: {kubectl} delete clusterqueue/{left.name}"
            )


def _put(client: ApiClient, wanted: dict[str, Any], namespace: str) -> None:
    path = kueue_drift.collection(wanted["kind"], namespace)
    try:
        client.create(path, wanted)
    except ApiError as error:
        if error.reason != "AlreadyExists":
            raise
        _replace(client, f"{path}/{wanted['metadata']['name']}", wanted)


def _replace(client: ApiClient, path: str, wanted: dict[str, Any], tries: int = 10) -> None:
    present = client.get(path)
    metadata = {**present["metadata"], "labels": wanted["metadata"].get("labels", {})}
    try:
        client.update(path, {**present, **wanted, "metadata": metadata})
    except ApiError as error:
        if error.reason != "Conflict" or tries == 1:
            raise
        _replace(client, path, wanted, tries - 1)  # its controller has written the status meanwhile
