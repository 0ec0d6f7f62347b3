"""The API of queued resources: translates between messages and the queue."""

from __future__ import annotations

import datetime
import time
import uuid
from collections.abc import Callable

from google.cloud import tpu_v2
from google.longrunning import operations_pb2

from bastion.emulators.tpu.messages import instant, new_node, page, restored, stored
from bastion.emulators.tpu.queue import Queue
from bastion.emulators.tpu.records import ApiError, Code, OperationRecord, QueuedRecord, QueuedState
from bastion.emulators.tpu.requests import NewQueuedResource

_State = tpu_v2.QueuedResourceState


class QueueMethods:
    """Each public method is the RPC of that name."""

    def __init__(self, queue: Queue, operation: Callable[[OperationRecord], operations_pb2.Operation]) -> None:
        self._queue = queue
        self._operation = operation

    # The names are the API's.
    def CreateQueuedResource(  # noqa: N802
        self, request: tpu_v2.CreateQueuedResourceRequest
    ) -> operations_pb2.Operation:
        return self._operation(self._queue.create(_new(request)))

    def GetQueuedResource(self, request: tpu_v2.GetQueuedResourceRequest) -> tpu_v2.QueuedResource:  # noqa: N802
        return queued_message(self._queue.get(request.name))

    def ListQueuedResources(  # noqa: N802
        self, request: tpu_v2.ListQueuedResourcesRequest
    ) -> tpu_v2.ListQueuedResourcesResponse:
        found, token = page(self._queue.list(request.parent), lambda queued: queued.name, request)
        return tpu_v2.ListQueuedResourcesResponse(
            queued_resources=[queued_message(queued) for queued in found], next_page_token=token
        )

    def DeleteQueuedResource(  # noqa: N802
        self, request: tpu_v2.DeleteQueuedResourceRequest
    ) -> operations_pb2.Operation:
        return self._operation(self._queue.delete(request.name, force=request.force))

    def ResetQueuedResource(self, request: tpu_v2.ResetQueuedResourceRequest) -> operations_pb2.Operation:  # noqa: N802
        return self._operation(self._queue.reset(request.name))


def queued_message(record: QueuedRecord) -> tpu_v2.QueuedResource:
    """The queued resource in the API's form."""
    message: tpu_v2.QueuedResource = restored(tpu_v2.QueuedResource, record.sent)
    message.name = record.name
    message.create_time = instant(record.created)
    node = restored(tpu_v2.Node, record.node_sent)
    node.metadata = record.metadata
    message.tpu.node_spec[0].node = node
    state = _State(state=_State.State(int(record.state)), state_initiator=_State.StateInitiator(int(record.initiator)))
    match record.state:
        case QueuedState.ACCEPTED:
            state.accepted_data = _State.AcceptedData()
        case QueuedState.PROVISIONING:
            state.provisioning_data = _State.ProvisioningData()
        case QueuedState.FAILED:
            state.failed_data = _State.FailedData(error={"code": record.error_code, "message": record.error_message})
        case QueuedState.DELETING:
            state.deleting_data = _State.DeletingData()
        case QueuedState.ACTIVE:
            state.active_data = _State.ActiveData()
        case QueuedState.SUSPENDING:
            state.suspending_data = _State.SuspendingData()
        case QueuedState.SUSPENDED:
            state.suspended_data = _State.SuspendedData()
        case QueuedState.WAITING_FOR_RESOURCES:
            pass  # The API has no data for it.
    message.state = state
    return message


def _new(request: tpu_v2.CreateQueuedResourceRequest) -> NewQueuedResource:
    """The queued resource that a request asks for. Raises ApiError (INVALID_ARGUMENT)."""
    sent = request.queued_resource
    if len(sent.tpu.node_spec) != 1:
        raise _invalid(f"a queued resource must have exactly one node_spec, not {len(sent.tpu.node_spec)}")
    spec = sent.tpu.node_spec[0]
    if tpu_v2.SchedulingConfig.to_dict(spec.node.scheduling_config) != tpu_v2.SchedulingConfig.to_dict(
        tpu_v2.SchedulingConfig()
    ):
        raise _invalid("scheduling_config cannot be set in a queued resource; use its tier (spot, guaranteed) instead")
    queued_id = request.queued_resource_id or f"qr-{uuid.uuid4().hex[:12]}"
    spot, guaranteed = "spot" in sent, "guaranteed" in sent
    reserved = guaranteed or bool(sent.reservation_name)
    after, until = _window(sent.queueing_policy, time.time())
    without_node = tpu_v2.QueuedResource(sent)
    without_node.tpu.node_spec[0].node = tpu_v2.Node()
    return NewQueuedResource(
        location=request.parent,
        queued_id=queued_id,
        nodes=tuple(
            new_node(spec.parent, node_id, spec.node, spot=spot, reserved=reserved)
            for node_id in _node_ids(spec, queued_id)
        ),
        sent=stored(without_node),
        spot=spot,
        reserved=reserved,
        reservation=sent.reservation_name,
        valid_after=after,
        valid_until=until,
    )


def _node_ids(spec: tpu_v2.QueuedResource.Tpu.NodeSpec, queued_id: str) -> list[str]:
    """The ids of the nodes; the message cannot hold both a node id and multislice parameters."""
    if "multislice_params" not in spec:
        if not spec.node_id:
            raise _invalid("a node_spec requires a node_id or multislice_params")
        return [spec.node_id]
    count = spec.multislice_params.node_count
    if count < 2:
        raise _invalid(f"multislice_params.node_count must be greater than 1, not {count}; use node_id for one node")
    return [f"{spec.multislice_params.node_id_prefix or queued_id}-{index}" for index in range(count)]


def _window(policy: tpu_v2.QueuedResource.QueueingPolicy, now: float) -> tuple[float | None, float | None]:
    """The time window for provisioning, seconds since 1970; None: any time."""
    after: float | None = None
    until: float | None = None
    if "valid_until_duration" in policy:
        until = now + _seconds(policy.valid_until_duration)
    elif "valid_until_time" in policy:
        until = policy.valid_until_time.timestamp()
    elif "valid_after_duration" in policy:
        after = now + _seconds(policy.valid_after_duration)
    elif "valid_after_time" in policy:
        after = policy.valid_after_time.timestamp()
    elif "valid_interval" in policy:
        interval = policy.valid_interval
        after = interval.start_time.ToDatetime(datetime.timezone.utc).timestamp()
        until = interval.end_time.ToDatetime(datetime.timezone.utc).timestamp()
    return after, until


def _seconds(duration: datetime.timedelta) -> float:
    return duration.total_seconds()


def _invalid(message: str) -> ApiError:
    return ApiError(Code.INVALID_ARGUMENT, message)
