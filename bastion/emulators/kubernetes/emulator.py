"""The emulated cluster: API server, controllers and kubelet in one process.

Controllers and kubelet are clients of the API server; there is no other way between them. Invariants:

* `kubernetes.json` exists only while the API answers.
* A restart keeps port, token, certificate and objects, so that connected clients continue.
* `close` (SIGTERM) ends every pod, like machines that are switched off; a crash (SIGKILL) ends none, and the next start
  adopts them.
"""

from __future__ import annotations

import contextlib
import logging

from bastion.emulators.kubernetes.address import KubernetesAddress
from bastion.emulators.kubernetes.apiserver import ApiServer
from bastion.emulators.kubernetes.client import ApiClient
from bastion.emulators.kubernetes.controllers.controllers import Controllers
from bastion.emulators.kubernetes.controllers.nodes import NODE_POOL
from bastion.emulators.kubernetes.faults import FaultFiles
from bastion.emulators.kubernetes.kubelet.kubelet import Kubelet
from bastion.emulators.kubernetes.kubelet.settings import KubeletSettings
from bastion.emulators.kubernetes.request_faults import RequestFaults
from bastion.emulators.kubernetes.seeded_faults import SeededFaults, pod_name
from bastion.emulators.kubernetes.settings import EmulatorSettings

_log = logging.getLogger(__name__)

_NODES = "/api/v1/nodes"


class Emulator:
    """A Kubernetes cluster on this machine. Call `open`, use `address`, call `close`."""

    def __init__(self, settings: EmulatorSettings) -> None:
        self._settings = settings
        self._folder = settings.state_dir.absolute()
        self.server = ApiServer(self._folder, port=settings.port, kueue=settings.kueue)
        self._parts = contextlib.ExitStack()

    @property
    def address(self) -> KubernetesAddress:
        return self.server.address

    def open(self) -> KubernetesAddress:
        """Start serving. Raises EmulatorRunning if the state folder is already served, Refused if it cannot be used."""
        settings = self._settings
        with contextlib.ExitStack() as parts:
            address = self.server.open()
            parts.callback(self.server.close)
            client = ApiClient.connect(address)
            parts.callback(client.close)
            _remove_other_pools(client, settings)
            kubelet = Kubelet(
                client,
                KubeletSettings(
                    state_dir=self._folder,
                    orphan_seconds=settings.orphan_seconds,
                    close_grace_seconds=settings.close_grace_seconds,
                    image_backoff_seconds=settings.image_backoff_seconds,
                    first_pull_fails=lambda pod: settings.plan.strikes("image-error", pod_name(pod) or "none"),
                ),
            )
            kubelet.open()
            parts.callback(kubelet.close)
            controllers = Controllers(
                client, settings.pools, repair_seconds=settings.repair_seconds, kueue=settings.kueue
            )
            # First, because a held pool gets no nodes.
            faults = FaultFiles(self._folder, self.server, client, controllers.node_pools)
            faults.open()
            parts.callback(faults.close)
            controllers.open()
            parts.callback(controllers.close)
            self.server.faults.plan(RequestFaults(self._folder, settings.plan))
            if settings.plan.rates:
                seeded = SeededFaults(
                    self._folder, self.server, client, settings.plan, notice_seconds=settings.notice_seconds
                )
                seeded.open()
                parts.callback(seeded.close)
            self._parts = parts.pop_all()
        _log.info("serving the Kubernetes API on %s, state in %s", address.server, self._folder)
        return address

    def close(self) -> None:
        """End every pod, stop serving, release the folder."""
        self._parts.close()


def _remove_other_pools(client: ApiClient, settings: EmulatorSettings) -> None:
    """Remove the nodes of an earlier run's pools. Raises ApiError."""
    pools = {name for pool in settings.pools for name in pool.names}
    for node in client.list(_NODES, labelSelector=NODE_POOL)["items"]:
        if node["metadata"]["labels"][NODE_POOL] not in pools:
            client.delete(f"{_NODES}/{node['metadata']['name']}")
