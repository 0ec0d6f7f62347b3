"""The queued resources of one zone through the Cloud TPU API v2: all nodes of a gang in one request, which may wait.

A queued resource has no labels; the node in it tells the owner. Invariants:

* `scheduling_config` is never set: the tier (`spot`, `guaranteed`) replaces it, and the API refuses both together.
* A foreign one is never listed or deleted. A SUSPENDING one is left to become SUSPENDED: forced deletion is known to
  leave it stuck.
* FAILED and SUSPENDED ones hold quota until they are deleted, and are deleted again at each request while they exist.
"""

from __future__ import annotations

import contextlib
import datetime
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from google.api_core import exceptions
from google.cloud import tpu_v2

from bastion.adapters.tpu.api_terms import label_value, queued_message, queued_state, queued_word
from bastion.adapters.tpu.client import PAGE_SIZE, CloudTpuSettings, Missing, read, translated
from bastion.adapters.tpu.nodes import LABEL_BASTION, LABEL_RUN, METADATA_TOKEN, node_message
from bastion.core.errors import ProvisionerRefused
from bastion.core.model.gangs import CapacityModel, GangRequest, GangState

_State = tpu_v2.QueuedResourceState.State
_Spec = tpu_v2.QueuedResource.Tpu.NodeSpec


@dataclass(frozen=True, slots=True, kw_only=True)
class QueuedStatus:
    """One queued resource. Run and token are empty unless it is ours."""

    name: str
    run: str
    token: str
    num_slices: int
    state: GangState  # regardless of its nodes: READY means ACTIVE
    word: str  # the API's name of its state
    error: tuple[int, str] = (0, "")  # if FAILED: a google.rpc.Code and message
    message: str
    labels: Mapping[str, str]


class ZoneQueue:
    """The queued resources of one zone; thread-safe."""

    def __init__(self, settings: CloudTpuSettings, client: tpu_v2.TpuClient, zone: str) -> None:
        self._settings = settings
        self._client = client
        self._zone = zone
        self._location = f"projects/{settings.project}/locations/{zone}"
        self._label = label_value(settings.bastion)

    def create(self, request: GangRequest) -> Any:
        """Ask for all nodes of a gang; return the operation. Raises the client's errors."""
        return self._client.create_queued_resource(
            tpu_v2.CreateQueuedResourceRequest(
                parent=self._location, queued_resource_id=request.ref.name, queued_resource=self._message(request)
            ),
            timeout=self._settings.rpc_timeout_seconds,
        )

    def get(self, name: str) -> QueuedStatus | None:
        queued = self._queued(name)
        return None if queued is None else self._status(queued)

    def list(self) -> Sequence[QueuedStatus]:
        """Return ours, unordered."""
        request = tpu_v2.ListQueuedResourcesRequest(parent=self._location, page_size=PAGE_SIZE)
        found = read(
            self._settings,
            self._zone,
            f"listing the queued resources of {self._zone}",
            lambda: [*self._client.list_queued_resources(request, timeout=self._settings.rpc_timeout_seconds)],
        )
        return [self._status(queued) for queued in found if self._is_ours(queued)]

    def delete(self, name: str) -> bool:
        """Delete it with its nodes; return whether it existed. Success if it is going, gone, or cannot go yet.

        Raises ProvisionerRefused for a foreign one, or without permission.
        """
        queued = self._queued(name)
        if queued is None:
            return False
        if not self._is_ours(queued):
            raise ProvisionerRefused(
                f"the queued resource {name} asks for nodes without the label {LABEL_BASTION}={self._label}, so it is "
                "not this bastion's and is left alone; delete it by hand if it is in the way"
            )
        if queued.state.state in (_State.SUSPENDING, _State.DELETING):
            return True
        request = tpu_v2.DeleteQueuedResourceRequest(name=queued.name, force=True)
        try:
            with contextlib.suppress(Missing), translated(self._settings, self._zone, f"deleting {name}"):
                self._client.delete_queued_resource(request, timeout=self._settings.rpc_timeout_seconds)
        except ProvisionerRefused as error:
            # Its suspension began, or it changed, since the lookup.
            if not isinstance(error.__cause__, exceptions.FailedPrecondition):
                raise
        return True

    def _message(self, request: GangRequest) -> tpu_v2.QueuedResource:
        ref, place = request.ref, request.place
        spec = _Spec(parent=self._location, node=node_message(self._settings, request))
        if ref.num_slices == 1:
            spec.node_id = ref.node(0)
        else:
            # The nodes are `<prefix>-0` and so on, like `GangRef.node`.
            spec.multislice_params = _Spec.MultisliceParams(node_count=ref.num_slices, node_id_prefix=ref.name)
        queued = tpu_v2.QueuedResource(tpu=tpu_v2.QueuedResource.Tpu(node_spec=[spec]))
        match place.model:
            case CapacityModel.SPOT:
                queued.spot = tpu_v2.QueuedResource.Spot()
            case CapacityModel.RESERVED:
                queued.guaranteed = tpu_v2.QueuedResource.Guaranteed()
                if place.reservation:
                    full = "/" in place.reservation  # another project's, shared with it
                    queued.reservation_name = (
                        place.reservation if full else f"{self._location}/reservations/{place.reservation}"
                    )
            case CapacityModel.FLEX_START:
                raise ProvisionerRefused(
                    f"Cloud TPU has no flex-start, only clusters have; in config/daemon.toml name a cluster (k8s:NAME) "
                    f"for this tier instead of {self._zone}, or give the tier another model"
                )
            case CapacityModel.ON_DEMAND:
                pass  # the default without a tier
        if request.valid_until_seconds is not None:
            queued.queueing_policy = tpu_v2.QueuedResource.QueueingPolicy(
                valid_until_duration=datetime.timedelta(seconds=request.valid_until_seconds)
            )
        return queued

    def _queued(self, name: str) -> tpu_v2.QueuedResource | None:
        request = tpu_v2.GetQueuedResourceRequest(name=f"{self._location}/queuedResources/{name}")
        try:
            return read(
                self._settings,
                self._zone,
                f"looking at {name}",
                lambda: self._client.get_queued_resource(request, timeout=self._settings.rpc_timeout_seconds),
            )
        except Missing:
            return None

    def _is_ours(self, queued: tpu_v2.QueuedResource) -> bool:
        return _node(queued).labels.get(LABEL_BASTION) == self._label

    def _status(self, queued: tpu_v2.QueuedResource) -> QueuedStatus:
        node, state = _node(queued), queued.state
        ours = self._is_ours(queued)
        error = state.failed_data.error
        params = queued.tpu.node_spec[0].multislice_params if queued.tpu.node_spec else _Spec.MultisliceParams()
        return QueuedStatus(
            name=queued.name.rpartition("/")[2],
            run=node.labels.get(LABEL_RUN, "") if ours else "",
            token=node.metadata.get(METADATA_TOKEN, "") if ours else "",
            num_slices=max(1, params.node_count),
            state=queued_state(state.state),
            word=queued_word(state.state),
            error=(error.code, error.message),
            message=queued_message(state),
            labels=dict(node.labels),
        )


def _node(queued: tpu_v2.QueuedResource) -> tpu_v2.Node:
    return queued.tpu.node_spec[0].node if queued.tpu.node_spec else tpu_v2.Node()
