"""The nodes of one zone through the Cloud TPU API v2.

Invariants: labels are sent with the creation, because a node that is being created takes none. A node without this
bastion's label is never listed or deleted.
"""

from __future__ import annotations

import contextlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from google.cloud import tpu_v2

from bastion.adapters.tpu.api_terms import label_value, slice_state, status_message, user_labels
from bastion.adapters.tpu.client import PAGE_SIZE, CloudTpuSettings, Missing, read, translated
from bastion.core.errors import ProvisionerRefused
from bastion.core.model.gangs import GangRef, GangRequest, GangState

LABEL_BASTION = "bastion-managed"
LABEL_RUN = "bastion-run"
METADATA_TOKEN = "bastion-token"
METADATA_AGENT = "bastion-agent"
# The number of slices of a node's gang, if more than one.
METADATA_SLICES = "bastion-slices"


def node_message(settings: CloudTpuSettings, request: GangRequest) -> tpu_v2.Node:
    """Return the message for each node of a gang. It has no `scheduling_config`: a plain node is always on demand."""
    place = request.place
    metadata = {
        "startup-script": settings.startup_script,
        METADATA_AGENT: request.agent_arguments,
        METADATA_TOKEN: request.token,
    }
    if request.ref.num_slices > 1:
        metadata[METADATA_SLICES] = str(request.ref.num_slices)
    node = tpu_v2.Node(
        accelerator_type=request.accelerator_type,
        runtime_version=place.runtime_version,
        labels={
            **user_labels(request.user_labels),
            LABEL_BASTION: label_value(settings.bastion),
            LABEL_RUN: label_value(request.run),
        },
        metadata=metadata,
        network_config=tpu_v2.NetworkConfig(
            network=place.network,
            subnetwork=place.subnetwork,
            enable_external_ips=place.external_ips,
        ),
    )
    if place.service_account:
        node.service_account = tpu_v2.ServiceAccount(email=place.service_account)
    return node


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeStatus:
    """One node. Its run, token and gang are empty, or itself, unless it is ours."""

    name: str
    run: str
    token: str
    gang: str  # the gang's name: the node's own, or the part before its slice index
    num_slices: int  # of the gang
    state: GangState
    message: str
    labels: Mapping[str, str]


class ZoneNodes:
    """The nodes of one zone; thread-safe."""

    def __init__(self, settings: CloudTpuSettings, client: tpu_v2.TpuClient, zone: str) -> None:
        self._settings = settings
        self._client = client
        self._zone = zone
        self._location = f"projects/{settings.project}/locations/{zone}"
        self._label = label_value(settings.bastion)

    def create(self, request: GangRequest) -> Any:
        """Ask for the one node of a gang; return its operation. Raises the client's errors."""
        node = node_message(self._settings, request)
        return self._client.create_node(
            tpu_v2.CreateNodeRequest(parent=self._location, node_id=request.ref.node(0), node=node),
            timeout=self._settings.rpc_timeout_seconds,
        )

    def get(self, node_id: str) -> NodeStatus | None:
        """Return the node; None if the API says that it does not exist."""
        node = self._node(node_id)
        return None if node is None else self._status(node)

    def list(self) -> Sequence[NodeStatus]:
        """Return our nodes, unordered."""
        request = tpu_v2.ListNodesRequest(parent=self._location, page_size=PAGE_SIZE)
        nodes = read(
            self._settings,
            self._zone,
            f"listing the nodes of {self._zone}",
            lambda: [*self._client.list_nodes(request, timeout=self._settings.rpc_timeout_seconds)],
        )
        return [self._status(node) for node in nodes if node.labels.get(LABEL_BASTION) == self._label]

    def delete(self, node_id: str) -> None:
        """Delete a node; success if it is going or gone.

        Raises ProvisionerRefused for a node without our label, or without permission.
        """
        node = self._node(node_id)
        if node is None or slice_state(node.state) is GangState.DELETING:
            return
        if node.labels.get(LABEL_BASTION) != self._label:
            raise ProvisionerRefused(
                f"the node {node_id} has no label {LABEL_BASTION}={self._label}, so it is not this bastion's and is "
                "left alone; rename or delete it by hand if it is in the way"
            )
        with contextlib.suppress(Missing), translated(self._settings, self._zone, f"deleting {node_id}"):
            self._client.delete_node(
                tpu_v2.DeleteNodeRequest(name=node.name), timeout=self._settings.rpc_timeout_seconds
            )

    def _node(self, node_id: str) -> tpu_v2.Node | None:
        request = tpu_v2.GetNodeRequest(name=f"{self._location}/nodes/{node_id}")
        try:
            return read(
                self._settings,
                self._zone,
                f"looking at {node_id}",
                lambda: self._client.get_node(request, timeout=self._settings.rpc_timeout_seconds),
            )
        except Missing:
            return None

    def _status(self, node: tpu_v2.Node) -> NodeStatus:
        ours = node.labels.get(LABEL_BASTION) == self._label
        name = node.name.rpartition("/")[2]
        num_slices = _count(node.metadata.get(METADATA_SLICES, "")) if ours else 1
        gang = GangRef(name=name.rpartition("-")[0], num_slices=num_slices)
        if num_slices == 1 or name not in (gang.node(index) for index in range(num_slices)):
            gang = GangRef(name=name)
        return NodeStatus(
            name=name,
            run=node.labels.get(LABEL_RUN, "") if ours else "",
            token=node.metadata.get(METADATA_TOKEN, "") if ours else "",
            gang=gang.name,
            num_slices=gang.num_slices,
            state=slice_state(node.state),
            message=status_message(node),
            labels=dict(node.labels),
        )


def _count(text: str) -> int:
    return max(1, int(text)) if text.isdecimal() and len(text) < 5 else 1
