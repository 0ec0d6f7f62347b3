"""Queued resources of one zone through the Cloud TPU API v2: all nodes of a gang in one request, which may wait.

Layer: adapters. A queued resource has no labels of its own; whose it is, the node in it tells. Invariants:

* `scheduling_config` is never set in it: the tier (`spot`, `guaranteed`) takes its place, and the two together are
  refused.
* One that is not ours is never listed and never deleted. One that is SUSPENDING is left to become SUSPENDED: deleting
  it by force then is known to leave it stuck.
* FAILED and SUSPENDED ones hold quota until they are deleted, and are deleted anew at each request while they last.
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
    """One queued resource. What it says of its run and token is empty unless it is ours.

    Attributes:
        state: Without regard to its nodes: READY means ACTIVE.
        word: Its state as the API spells it.
        error: If it is FAILED: a google.rpc.Code and the API's words.
    """

    name: str
    run: str
    token: str
    num_slices: int
    state: GangState
    word: str
    error: tuple[int, str] = (0, "")
    message: str
    labels: Mapping[str, str]


class ZoneQueue:
    """The queued resources of one zone. Thread-safe."""

    def __init__(self, settings: CloudTpuSettings, client: tpu_v2.TpuClient, zone: str) -> None:
        self._settings = settings
        self._client = client
        self._zone = zone
        self._location = f"projects/{settings.project}/locations/{zone}"
        self._label = label_value(settings.bastion)

    def create(self, request: GangRequest) -> Any:
        """Asks for all nodes of a gang; returns the operation. Errors are the client's."""
        return self._client.create_queued_resource(
            tpu_v2.CreateQueuedResourceRequest(
                parent=self._location, queued_resource_id=request.ref.name, queued_resource=self._message(request)
            ),
            timeout=self._settings.rpc_timeout_seconds,
        )

    def get(self, name: str) -> QueuedStatus | None:
        """The queued resource; None: the API says that it does not exist."""
        queued = self._queued(name)
        return None if queued is None else self._status(queued)

    def list(self) -> Sequence[QueuedStatus]:
        """Ours, in no order."""
        request = tpu_v2.ListQueuedResourcesRequest(parent=self._location, page_size=PAGE_SIZE)
        found = read(
            self._settings,
            self._zone,
            f"listing the queued resources of {self._zone}",
            lambda: [*self._client.list_queued_resources(request, timeout=self._settings.rpc_timeout_seconds)],
        )
        return [self._status(queued) for queued in found if self._is_ours(queued)]

    def delete(self, name: str) -> bool:
        """Deletes it with its nodes; success for one that is going, gone, or cannot go yet. Whether there was one.

        Raises:
            ProvisionerRefused: it has not this bastion's label, or we may not.
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
            # It began to be suspended, or something else happens to it since we looked.
            if not isinstance(error.__cause__, exceptions.FailedPrecondition):
                raise
        return True

    def _message(self, request: GangRequest) -> tpu_v2.QueuedResource:
        ref, place = request.ref, request.place
        spec = _Spec(parent=self._location, node=node_message(self._settings, request))
        if ref.num_slices == 1:
            spec.node_id = ref.node(0)
        else:
            # The nodes are `<prefix>-0` and so on, as `GangRef.node` has it.
            spec.multislice_params = _Spec.MultisliceParams(node_count=ref.num_slices, node_id_prefix=ref.name)
        queued = tpu_v2.QueuedResource(tpu=tpu_v2.QueuedResource.Tpu(node_spec=[spec]))
        match place.model:
            case CapacityModel.SPOT:
                queued.spot = tpu_v2.QueuedResource.Spot()
            case CapacityModel.RESERVED:
                queued.guaranteed = tpu_v2.QueuedResource.Guaranteed()
                if place.reservation:
                    full = "/" in place.reservation  # of another project that shares it
                    queued.reservation_name = (
                        place.reservation if full else f"{self._location}/reservations/{place.reservation}"
                    )
            case CapacityModel.ON_DEMAND:
                pass  # what a queued resource without a tier asks for
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
