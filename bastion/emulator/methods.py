"""The methods of the Cloud TPU API v2 that the emulator serves, with their messages, as a literal table.

The client library registers messages but no service descriptors, so the table is written by hand;
`tests/unit/test_emulator_methods.py` pins it against the stubs of the installed client.
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
    """How a method's messages are read and written."""

    request: Callable[[bytes], Any]
    response: Callable[[Any], bytes]


def _plain(request: Any, response: Any) -> Method:
    return Method(request.FromString, response.SerializeToString)


def _tpu(request: Any, response: Any) -> Method:
    """Requests are proto-plus; some responses are plain protobuf."""
    return Method(request.deserialize, getattr(response, "serialize", None) or response.SerializeToString)


METHODS: dict[str, dict[str, Method]] = {
    TPU: {
        "ListNodes": _tpu(tpu_v2.ListNodesRequest, tpu_v2.ListNodesResponse),
        "GetNode": _tpu(tpu_v2.GetNodeRequest, tpu_v2.Node),
        "CreateNode": _tpu(tpu_v2.CreateNodeRequest, operations_pb2.Operation),
        "DeleteNode": _tpu(tpu_v2.DeleteNodeRequest, operations_pb2.Operation),
        "ListAcceleratorTypes": _tpu(tpu_v2.ListAcceleratorTypesRequest, tpu_v2.ListAcceleratorTypesResponse),
        "GetAcceleratorType": _tpu(tpu_v2.GetAcceleratorTypeRequest, tpu_v2.AcceleratorType),
    },
    OPERATIONS: {
        "GetOperation": _plain(operations_pb2.GetOperationRequest, operations_pb2.Operation),
        "ListOperations": _plain(operations_pb2.ListOperationsRequest, operations_pb2.ListOperationsResponse),
        "CancelOperation": _plain(operations_pb2.CancelOperationRequest, empty_pb2.Empty),
        "DeleteOperation": _plain(operations_pb2.DeleteOperationRequest, empty_pb2.Empty),
    },
}

# What the client can ask and the emulator answers with UNIMPLEMENTED.
UNIMPLEMENTED: dict[str, tuple[str, ...]] = {
    TPU: (
        "StopNode",
        "StartNode",
        "UpdateNode",
        "ListQueuedResources",
        "GetQueuedResource",
        "CreateQueuedResource",
        "DeleteQueuedResource",
        "ResetQueuedResource",
        "GenerateServiceIdentity",
        "ListRuntimeVersions",
        "GetRuntimeVersion",
        "GetGuestAttributes",
    ),
    LOCATIONS: ("ListLocations", "GetLocation"),
}
