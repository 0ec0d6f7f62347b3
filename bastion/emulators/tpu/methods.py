"""The Cloud TPU API v2 methods that the emulator serves, with their messages.

The client library registers messages but no service descriptors; a test compares this table with the installed client.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from google.cloud import tpu_v2
from google.longrunning import operations_pb2
from google.protobuf import empty_pb2

TPU = "google.cloud.tpu.v2.Tpu"
OPERATIONS = "google.longrunning.Operations"
LOCATIONS = "google.cloud.location.Locations"


@dataclass(frozen=True, slots=True)
class Method:
    """A method's message classes: proto-plus, or plain protobuf."""

    request: Any
    response: Any

    @property
    def read(self) -> Callable[[bytes], Any]:
        return _either(self.request, "deserialize", "FromString")

    @property
    def write(self) -> Callable[[Any], bytes]:
        return _either(self.response, "serialize", "SerializeToString")


def _either(message: Any, proto_plus: str, plain: str) -> Callable[[Any], Any]:
    found: Callable[[Any], Any] = getattr(message, proto_plus, None) or getattr(message, plain)
    return found


METHODS: dict[str, dict[str, Method]] = {
    TPU: {
        "ListNodes": Method(tpu_v2.ListNodesRequest, tpu_v2.ListNodesResponse),
        "GetNode": Method(tpu_v2.GetNodeRequest, tpu_v2.Node),
        "CreateNode": Method(tpu_v2.CreateNodeRequest, operations_pb2.Operation),
        "DeleteNode": Method(tpu_v2.DeleteNodeRequest, operations_pb2.Operation),
        "ListQueuedResources": Method(tpu_v2.ListQueuedResourcesRequest, tpu_v2.ListQueuedResourcesResponse),
        "GetQueuedResource": Method(tpu_v2.GetQueuedResourceRequest, tpu_v2.QueuedResource),
        "CreateQueuedResource": Method(tpu_v2.CreateQueuedResourceRequest, operations_pb2.Operation),
        "DeleteQueuedResource": Method(tpu_v2.DeleteQueuedResourceRequest, operations_pb2.Operation),
        "ResetQueuedResource": Method(tpu_v2.ResetQueuedResourceRequest, operations_pb2.Operation),
        "ListAcceleratorTypes": Method(tpu_v2.ListAcceleratorTypesRequest, tpu_v2.ListAcceleratorTypesResponse),
        "GetAcceleratorType": Method(tpu_v2.GetAcceleratorTypeRequest, tpu_v2.AcceleratorType),
    },
    OPERATIONS: {
        "GetOperation": Method(operations_pb2.GetOperationRequest, operations_pb2.Operation),
        "ListOperations": Method(operations_pb2.ListOperationsRequest, operations_pb2.ListOperationsResponse),
        "CancelOperation": Method(operations_pb2.CancelOperationRequest, empty_pb2.Empty),
        "DeleteOperation": Method(operations_pb2.DeleteOperationRequest, empty_pb2.Empty),
    },
}

# Methods of the client that the emulator answers with UNIMPLEMENTED.
UNIMPLEMENTED: dict[str, tuple[str, ...]] = {
    TPU: (
        "StopNode",
        "StartNode",
        "UpdateNode",
        "GenerateServiceIdentity",
        "ListRuntimeVersions",
        "GetRuntimeVersion",
        "GetGuestAttributes",
    ),
    LOCATIONS: ("ListLocations", "GetLocation"),
}
