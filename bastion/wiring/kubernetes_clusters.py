"""The Kubernetes clusters of the operator settings; loads the `kubernetes` package for the first of them only.

Invariant: a cluster's identity and namespace stay while the daemon runs, or a job has a gang there. In another one the
gangs would not be found, and their jobs would be started twice. Its address and credentials may change.
"""

from __future__ import annotations

import importlib.resources
import math
import threading
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Protocol

from bastion.adapters.loading import LIBRARIES
from bastion.core.bucket import keys
from bastion.core.errors import ProvisionerUnavailable, Refused
from bastion.core.model.clusters import ClusterSettings, cluster_of
from bastion.core.model.provisioning import Provisioning
from bastion.ports import Clock, Provisioner


class ClusterProvisioner(Provisioner, Protocol):
    def close(self) -> None: ...


class KubernetesClusters:
    """Applies settings, and makes a provisioner for each cluster when it is first asked for.

    Args:
        connect: Makes a provisioner; see `connector`.
    """

    def __init__(self, connect: Callable[[ClusterSettings], ClusterProvisioner]) -> None:
        self._connect = connect
        self._settings: dict[str, ClusterSettings] = {}
        self._made: dict[str, tuple[ClusterSettings, ClusterProvisioner]] = {}
        self._lock = threading.Lock()

    def apply_settings(self, settings: Provisioning) -> str:
        """Apply the settings in force; return a message about what cannot be applied, or ""."""
        problems = []
        with self._lock:
            for name, wanted in settings.clusters.items():
                present = self._settings.setdefault(name, wanted)
                if wanted.identity != present.identity:
                    problems.append(
                        f"cluster {name} is still the one with the uid {present.uid} and the namespace "
                        f"{present.namespace}; give another cluster another name, or restart the daemon when no slice "
                        f"is left in k8s:{name}"
                    )
                else:
                    # A cluster that was removed from the settings may still have gangs.
                    self._settings[name] = wanted
        return "; ".join(problems)

    def keep(self, in_use: Mapping[str, str]) -> None:
        """Stay with the clusters that live attempts are in, if the settings changed before this daemon started.

        Args:
            in_use: `ClusterSettings.identity` by place.
        """
        with self._lock:
            for place, identity in in_use.items():
                name = cluster_of(place)
                settings = self._settings.get(name)
                if settings is not None and name not in self._made and settings.identity != identity:
                    uid, _, namespace = identity.partition("/")
                    self._settings[name] = replace(settings, uid=uid, namespace=namespace)

    def close(self) -> None:
        """End all watches."""
        with self._lock:
            for _, provisioner in self._made.values():
                provisioner.close()
            self._made.clear()

    def provisioner(self, name: str) -> Provisioner:
        """Return a cluster's provisioner. Raises ProvisionerUnavailable if the settings never named it."""
        with self._lock:
            settings = self._settings.get(name)
            if settings is None:
                raise ProvisionerUnavailable(
                    f"{keys.DAEMON_SETTINGS} has no cluster {name}, where jobs may have slices; "
                    f"add [clusters.{name}] again"
                )
            made = self._made.get(name)
            if made is not None and made[0] == settings:
                return made[1]
            if made is not None:
                made[1].close()
            provisioner = self._connect(settings)
            self._made[name] = (settings, provisioner)
            return provisioner


def connector(
    bastion: str, clock: Clock, *, call_seconds: float = math.inf
) -> Callable[[ClusterSettings], ClusterProvisioner]:
    """Return the function that connects to a cluster.

    Args:
        bastion: The value of the label that marks objects as this bastion's.
        call_seconds: The longest that one call may hold up the caller.
    """
    startup_script = importlib.resources.files("bastion.agent").joinpath("startup.sh").read_text("utf-8")

    def connect(settings: ClusterSettings) -> ClusterProvisioner:
        try:
            with LIBRARIES:
                from bastion.adapters.kubernetes.provisioner import KubernetesProvisioner
        except ModuleNotFoundError as error:
            raise Refused(
                f"the Python package {error.name} is missing, which clusters need; install bastion[kubernetes]"
            ) from error
        return KubernetesProvisioner(
            settings, bastion=bastion, startup_script=startup_script, clock=clock, call_seconds=call_seconds
        )

    return connect
