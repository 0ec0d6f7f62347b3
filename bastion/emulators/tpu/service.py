"""The Cloud TPU API: translates between messages and the fleet, and errors to gRPC statuses.

Intended differences from the real service: every zone offers every accelerator type, and a node is READY when its
hosts' supervisors run (the real one: when its VMs run).
"""

from __future__ import annotations

import hmac
from collections.abc import Callable
from typing import Any

import grpc
from google.cloud import tpu_v2
from google.longrunning import operations_pb2
from google.protobuf import empty_pb2

from bastion.core.model import instance_types
from bastion.emulators.tpu.fleet import Fleet
from bastion.emulators.tpu.messages import instant, new_node, packed, page, restored
from bastion.emulators.tpu.methods import METHODS, UNIMPLEMENTED
from bastion.emulators.tpu.queue_service import QueueMethods, queued_message
from bastion.emulators.tpu.records import ApiError, Code, NodeRecord, NodeState, OperationRecord

_STATUS = {status.value[0]: status for status in grpc.StatusCode}


class TokenGuard(grpc.ServerInterceptor):  # type: ignore[misc] # grpc has no types
    """Refuses every call without the emulator's token: a startup script is arbitrary code."""

    def __init__(self, token: str) -> None:
        self._expected = f"Bearer {token}".encode()

        def refuse(_request: object, context: Any) -> None:
            context.abort(
                grpc.StatusCode.UNAUTHENTICATED,
                "this emulator requires 'authorization: Bearer TOKEN' with the token in its emulator.json",
            )

        self._refusal = grpc.unary_unary_rpc_method_handler(refuse)

    def intercept_service(self, continuation: Callable[[Any], Any], details: Any) -> Any:
        given = [value for key, value in details.invocation_metadata if key == "authorization"]
        text = given[0] if len(given) == 1 else ""
        if hmac.compare_digest(text.encode("utf-8", "surrogateescape"), self._expected):
            return continuation(details)
        return self._refusal


class TpuService:
    """Each public method is the RPC of that name; `methods.py` has the tables."""

    def __init__(self, fleet: Fleet) -> None:
        self._fleet = fleet
        self._ledger = fleet.ledger
        self._queue = QueueMethods(fleet.queue, self._operation)

    def handlers(self) -> list[Any]:
        """Generic handlers for a `grpc.Server`."""
        names = {*METHODS, *UNIMPLEMENTED}
        return [grpc.method_handlers_generic_handler(name, self._of(name)) for name in sorted(names)]

    def _of(self, service: str) -> dict[str, Any]:
        found = {
            name: grpc.unary_unary_rpc_method_handler(
                _answering(getattr(self._queue if "QueuedResource" in name else self, name)), method.read, method.write
            )
            for name, method in METHODS.get(service, {}).items()
        }
        for name in UNIMPLEMENTED.get(service, ()):
            found[name] = grpc.unary_unary_rpc_method_handler(_answering(_unimplemented(f"{service}/{name}")))
        return found

    # The names are the API's.
    def CreateNode(self, request: tpu_v2.CreateNodeRequest) -> operations_pb2.Operation:  # noqa: N802
        tier = request.node.scheduling_config
        spot = tier.spot or tier.preemptible
        new = new_node(request.parent, request.node_id, request.node, spot=spot, reserved=tier.reserved)
        return self._operation(self._fleet.create(new))

    def _node(self, record: NodeRecord) -> tpu_v2.Node:
        node = _node(record)
        if record.state is NodeState.READY and not record.health_description:
            # The real service does not show a startup script's output, but users cannot log in to these hosts.
            node.health_description = self._fleet.host_problem(record)
        return node

    def GetNode(self, request: tpu_v2.GetNodeRequest) -> tpu_v2.Node:  # noqa: N802
        return self._node(self._fleet.get(request.name))

    def ListNodes(self, request: tpu_v2.ListNodesRequest) -> tpu_v2.ListNodesResponse:  # noqa: N802
        nodes, token = page(self._fleet.nodes(request.parent), lambda node: node.name, request)
        return tpu_v2.ListNodesResponse(nodes=[self._node(node) for node in nodes], next_page_token=token)

    def DeleteNode(self, request: tpu_v2.DeleteNodeRequest) -> operations_pb2.Operation:  # noqa: N802
        return self._operation(self._fleet.delete(request.name))

    def ListAcceleratorTypes(  # noqa: N802
        self, request: tpu_v2.ListAcceleratorTypesRequest
    ) -> tpu_v2.ListAcceleratorTypesResponse:
        offered = _accelerator_types(request.parent)
        accelerator_types, token = page(
            sorted(offered.values(), key=lambda offer: offer.name), lambda offer: offer.name, request
        )
        return tpu_v2.ListAcceleratorTypesResponse(accelerator_types=accelerator_types, next_page_token=token)

    def GetAcceleratorType(self, request: tpu_v2.GetAcceleratorTypeRequest) -> tpu_v2.AcceleratorType:  # noqa: N802
        offered = _accelerator_types(request.name.partition("/acceleratorTypes/")[0])
        if request.name not in offered:
            raise ApiError(Code.NOT_FOUND, f"Resource '{request.name}' was not found")
        return offered[request.name]

    def GetOperation(self, request: Any) -> operations_pb2.Operation:  # noqa: N802
        return self._operation(self._ledger.operation(request.name))

    def ListOperations(self, request: Any) -> operations_pb2.ListOperationsResponse:  # noqa: N802
        found = self._ledger.operations(str(request.name).removesuffix("/operations"))
        operations, token = page(found, lambda operation: operation.name, request)
        return operations_pb2.ListOperationsResponse(
            operations=[self._operation(operation) for operation in operations], next_page_token=token
        )

    def CancelOperation(self, request: Any) -> empty_pb2.Empty:  # noqa: N802
        self._ledger.cancel(request.name)
        return empty_pb2.Empty()

    def DeleteOperation(self, request: Any) -> empty_pb2.Empty:  # noqa: N802
        self._ledger.forget(request.name)
        return empty_pb2.Empty()

    def _operation(self, record: OperationRecord) -> operations_pb2.Operation:
        metadata = tpu_v2.OperationMetadata(
            create_time=instant(record.created),
            target=record.target,
            verb=record.verb,
            cancel_requested=record.cancel_requested,
            api_version="v2",
        )
        if record.ended is not None:
            metadata.end_time = instant(record.ended)
        message = operations_pb2.Operation(name=record.name, done=record.ended is not None)
        message.metadata.CopyFrom(packed(tpu_v2.OperationMetadata.pb(metadata)))
        if record.error_code:
            message.error.code = record.error_code
            message.error.message = record.error_message
        elif record.ended is not None and record.verb != "delete":
            message.response.CopyFrom(packed(self._target(record.target)))
        elif record.ended is not None:
            message.response.CopyFrom(packed(empty_pb2.Empty()))
        return message

    def _target(self, name: str) -> Any:
        """The result of an operation as plain protobuf."""
        if "/queuedResources/" in name:
            queued = self._ledger.find_queued(name)
            found = tpu_v2.QueuedResource(name=name) if queued is None else queued_message(queued)
            return tpu_v2.QueuedResource.pb(found)
        node = self._ledger.find_node(name)
        return tpu_v2.Node.pb(tpu_v2.Node(name=name) if node is None else self._node(node))  # None: deleted since


def _answering(method: Callable[[Any], Any]) -> Callable[[Any, Any], Any]:
    def answer(request: Any, context: Any) -> Any:
        try:
            return method(request)
        except ApiError as error:
            context.abort(_STATUS[error.code], error.message)

    return answer


def _unimplemented(name: str) -> Callable[[Any], Any]:
    def refuse(_request: object) -> None:
        raise ApiError(Code.UNIMPLEMENTED, f"the local Cloud TPU emulator does not serve {name}")

    return refuse


def _node(record: NodeRecord) -> tpu_v2.Node:
    node: tpu_v2.Node = restored(tpu_v2.Node, record.sent)
    node.name = record.name
    node.id = int.from_bytes(record.key.encode()[-7:], "big")
    node.metadata = record.metadata
    node.state = tpu_v2.Node.State(int(record.state))
    node.health_description = record.health_description
    if record.health_description:
        node.health = tpu_v2.Node.Health(tpu_v2.Node.Health.UNHEALTHY_MAINTENANCE)
    elif record.state is NodeState.READY:
        node.health = tpu_v2.Node.Health(tpu_v2.Node.Health.HEALTHY)
    node.create_time = instant(record.created)
    node.network_endpoints = [tpu_v2.NetworkEndpoint(ip_address=host.ip, port=8470) for host in record.hosts]
    if record.queued:
        node.queued_resource = record.queued
        node.multislice_node = record.slices > 1
        node.scheduling_config = tpu_v2.SchedulingConfig(spot=record.spot, reserved=record.reserved)
    node.api_version = tpu_v2.Node.ApiVersion(tpu_v2.Node.ApiVersion.V2)
    return node


def _accelerator_types(location: str) -> dict[str, tpu_v2.AcceleratorType]:
    accelerator_types = [
        tpu_v2.AcceleratorType(
            name=f"{location}/acceleratorTypes/{offer.accelerator_type}", type_=offer.accelerator_type
        )
        for offer in instance_types.table().values()
        if offer.on_cloud_tpu
    ]
    return {offer.name: offer for offer in accelerator_types}
