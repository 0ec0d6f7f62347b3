"""Plain nodes of one zone through the Cloud TPU API v2.

Layer: adapters. No long-running operation is ever awaited: a creation's operation is remembered by name and looked at
once per `failure`. A daemon that restarted, or whose creation got no answer, does not know the name; then the
operations of the zone are listed, one page per `failure`, until the newest creation of each node is known.

Invariant: a node without this bastion's label is never listed and never deleted.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from google.api_core import exceptions
from google.cloud import tpu_v2
from google.longrunning import operations_pb2

from bastion.adapters.cloud_tpu_client import CloudTpuSettings, Missing, read, translated
from bastion.adapters.cloud_tpu_words import creation_failure, label_value, slice_state, status_message
from bastion.core.errors import ProvisionerRefused, ProvisionerUnavailable, Stockout
from bastion.core.slices import CapacityModel, SliceRequest, SliceState

LABEL_BASTION = "bastion-managed"
LABEL_RUN = "bastion-run"
METADATA_TOKEN = "bastion-token"
METADATA_AGENT = "bastion-agent"
# Of how many slices a node's gang consists, if it is not the only one.
METADATA_SLICES = "bastion-slices"
_PAGE_SIZE = 500


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeStatus:
    """One node. What it says of its run, token and gang is empty, or 1, unless it is ours."""

    name: str
    run: str
    token: str
    num_slices: int
    state: SliceState
    message: str
    labels: Mapping[str, str]


class ZoneNodes:
    """The nodes of one zone. Thread-safe."""

    def __init__(self, settings: CloudTpuSettings, client: tpu_v2.TpuClient, zone: str) -> None:
        self._settings = settings
        self._client = client
        self._zone = zone
        self._location = f"projects/{settings.project}/locations/{zone}"
        self._label = label_value(settings.bastion)
        self._creations = _Creations()

    def create(self, node_id: str, request: SliceRequest) -> None:
        """One node of a gang; errors are the port's."""
        settings, place = self._settings, request.place
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
            labels={LABEL_BASTION: self._label, LABEL_RUN: label_value(request.run)},
            metadata=metadata,
            network_config=tpu_v2.NetworkConfig(
                network=place.network,
                subnetwork=place.subnetwork,
                enable_external_ips=place.external_ips,
            ),
            scheduling_config=tpu_v2.SchedulingConfig(
                spot=place.model is CapacityModel.SPOT, reserved=place.model is CapacityModel.RESERVED
            ),
        )
        if place.service_account:
            node.service_account = tpu_v2.ServiceAccount(email=place.service_account)
        self._creations.begin(node_id)
        try:
            with translated(settings, self._zone, f"creating {node_id}"):
                operation = self._client.create_node(
                    tpu_v2.CreateNodeRequest(parent=self._location, node_id=node_id, node=node),
                    timeout=settings.rpc_timeout_seconds,
                )
        except ProvisionerUnavailable as error:
            if isinstance(error.__cause__, exceptions.TooManyRequests):
                # Here it is quota for chips, not for calls: waiting helps unless there is none at all.
                kind = ProvisionerRefused if "Limit: 0" in str(error) else Stockout
                raise kind(str(error)) from error.__cause__
            self._creations.lost(node_id)
            raise
        self._creations.accepted(node_id, operation.operation.name)

    def failure(self, node_id: str) -> Exception | None:
        """Why the node's last creation failed; at most one call to the API, not repeated.

        Raises:
            ProvisionerUnavailable: the API did not answer.
        """
        creation = self._creations.get(node_id)
        if isinstance(creation, Exception):
            return creation
        if creation is None:
            self._look_for_creations()
            return self._creations.failed(node_id)
        if not creation:
            return None  # it succeeded
        try:
            with translated(self._settings, self._zone, f"looking at the creation of {node_id}"):
                operation = self._client.get_operation(
                    operations_pb2.GetOperationRequest(name=creation), timeout=self._settings.rpc_timeout_seconds
                )
        except Missing:
            # The service forgets old operations; whatever came of this one, the node itself tells now.
            self._creations.ended(node_id, creation, None)
            return None
        self._note(node_id, operation)
        return self._creations.failed(node_id)

    def may_come(self, node_id: str) -> bool:
        """Whether a node that does not exist may still be created, as far as is known; asks nobody."""
        creation = self._creations.get(node_id)
        return self._creations.search is not None if creation is None else isinstance(creation, str) and creation != ""

    def was_created(self, node_id: str) -> bool:
        """Whether the node's last creation is known to have succeeded; asks nobody."""
        return self._creations.get(node_id) == ""

    def get(self, node_id: str) -> NodeStatus | None:
        """The node; None: the API says that it does not exist."""
        node = self._node(node_id)
        return None if node is None else self._status(node)

    def list(self) -> Sequence[NodeStatus]:
        """Ours, in no order."""
        request = tpu_v2.ListNodesRequest(parent=self._location, page_size=_PAGE_SIZE)
        nodes = read(
            self._settings,
            self._zone,
            f"listing the nodes of {self._zone}",
            lambda: [*self._client.list_nodes(request, timeout=self._settings.rpc_timeout_seconds)],
        )
        return [self._status(node) for node in nodes if node.labels.get(LABEL_BASTION) == self._label]

    def delete(self, node_id: str) -> None:
        """Success for a node that is going or gone.

        Raises:
            ProvisionerRefused: the node has not this bastion's label, or we may not.
        """
        node = self._node(node_id)
        if node is None or slice_state(node.state) is SliceState.DELETING:
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
        return NodeStatus(
            name=node.name.rpartition("/")[2],
            run=node.labels.get(LABEL_RUN, "") if ours else "",
            token=node.metadata.get(METADATA_TOKEN, "") if ours else "",
            num_slices=_count(node.metadata.get(METADATA_SLICES, "")) if ours else 1,
            state=slice_state(node.state),
            message=status_message(node),
            labels=dict(node.labels),
        )

    def _look_for_creations(self) -> None:
        """Reads the next page of the zone's operations, if an unknown creation may be among them."""
        page_token = self._creations.search
        if page_token is None:
            return
        request = operations_pb2.ListOperationsRequest(name=self._location, page_size=_PAGE_SIZE, page_token=page_token)
        with translated(self._settings, self._zone, f"listing the operations of {self._zone}"):
            page = self._client.list_operations(request, timeout=self._settings.rpc_timeout_seconds)
        for operation in page.operations:
            metadata = tpu_v2.OperationMetadata()
            if operation.metadata.Unpack(tpu_v2.OperationMetadata.pb(metadata)) and metadata.verb == "create":
                node_id = metadata.target.rpartition("/")[2]
                if self._creations.found(node_id, operation.name, metadata.create_time.timestamp()):
                    self._note(node_id, operation)
        self._creations.searched(page_token, page.next_page_token or None)

    def _note(self, node_id: str, operation: operations_pb2.Operation) -> None:
        if operation.done:
            error = operation.error
            failure = creation_failure(error.code, error.message) if error.code else None
            self._creations.ended(node_id, operation.name, failure)


def _count(text: str) -> int:
    return max(1, int(text)) if text.isdecimal() else 1


class _Found(NamedTuple):
    """A creation's operation that the search met."""

    name: str
    created: float


class _Creations:
    """What is known of each node's last creation: nothing (None), its running operation, success (""), or its failure.

    `search` is the page of the zone's operations to read next; None when nothing unknown can be in them.
    """

    def __init__(self) -> None:
        self._known: dict[str, str | Exception] = {}
        self._found: dict[str, _Found] = {}
        self._own: set[str] = set()
        self._lock = threading.Lock()
        self._search: str | None = ""

    @property
    def search(self) -> str | None:
        with self._lock:
            return self._search

    def begin(self, node_id: str) -> None:
        with self._lock:
            self._known.pop(node_id, None)
            self._own.discard(node_id)

    def accepted(self, node_id: str, operation: str) -> None:
        with self._lock:
            self._known[node_id] = operation
            self._own.add(node_id)

    def lost(self, node_id: str) -> None:
        """The creation got no answer: if it landed, its operation is among the zone's."""
        with self._lock:
            self._found.pop(node_id, None)
            self._search = ""

    def found(self, node_id: str, operation: str, created: float) -> bool:
        """The search met a creation; whether it is the newest known one of its node."""
        with self._lock:
            best = self._found.get(node_id)
            if node_id in self._own or (best is not None and best.created > created):
                return False
            self._found[node_id] = _Found(operation, created)
            self._known[node_id] = operation
            return True

    def searched(self, page: str, following: str | None) -> None:
        with self._lock:
            if self._search == page:
                self._search = following

    def ended(self, node_id: str, operation: str, failure: Exception | None) -> None:
        with self._lock:
            if self._known.get(node_id) == operation:
                self._known[node_id] = failure or ""

    def get(self, node_id: str) -> str | Exception | None:
        with self._lock:
            return self._known.get(node_id)

    def failed(self, node_id: str) -> Exception | None:
        known = self.get(node_id)
        return known if isinstance(known, Exception) else None
