"""Is this still the cluster of the settings? At an address that leads to another one, every gang would look gone."""

from __future__ import annotations

from bastion.adapters.kubernetes.api import KubernetesApi
from bastion.core.errors import ProvisionerUnavailable
from bastion.core.model.clusters import ClusterSettings

_PATH = "/api/v1/namespaces/kube-system"


class ClusterIdentity:
    """Compares the uid of namespace kube-system with the settings'."""

    def __init__(self, api: KubernetesApi, settings: ClusterSettings) -> None:
        self._api = api
        self._settings = settings

    def check(self) -> None:
        """One request. Raises ProvisionerUnavailable if it is another cluster, or does not say."""
        found = self._api.get(_PATH)
        uid = str((found or {}).get("metadata", {}).get("uid", ""))
        if uid and uid == self._settings.uid:
            return
        raise ProvisionerUnavailable(
            f"the API server of cluster {self._settings.name} belongs to another cluster: its namespace kube-system "
            f"has uid {uid or '(none)'}, not {self._settings.uid or '(none)'}. Nothing is started or deleted there; "
            f"correct the address or the uid of [clusters.{self._settings.name}] in config/daemon.toml"
        )
