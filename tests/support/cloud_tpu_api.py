"""A Cloud TPU API that answers as a test says, for what no emulator does on demand: a real gRPC server."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import Any

import grpc
from google.cloud import tpu_v2
from google.longrunning import operations_pb2

from bastion.adapters.tpu.provisioner import CloudTpuProvisioner, CloudTpuSettings, make_client
from bastion.core.model.gangs import GangRef, GangRequest, Place
from bastion.emulators.tpu.methods import METHODS

NAME = "b-aaaaaaaaaa-1"
REF = GangRef(name=NAME)
REQUEST = GangRequest(
    ref=REF,
    bastion="team-bastion",
    run="aaaaaaaaaa-1",
    token="a-run-token",
    accelerator_type="v4-8",
    place=Place(runtime_version="tpu-ubuntu2204-base"),
    agent_arguments='{"job":"a"}',
)
ZONE = "projects/a-project/locations/us-central2-b"
OURS = {"bastion-managed": "team-bastion", "bastion-run": "aaaaaaaaaa-1"}
SETTINGS = CloudTpuSettings(project="a-project", zone="us-central2-b", bastion="team-bastion", startup_script="true")


@dataclass(frozen=True)
class Refusal:
    """An answer that is none."""

    code: grpc.StatusCode
    words: str


UNAVAILABLE = Refusal(grpc.StatusCode.UNAVAILABLE, "try again")
NOT_FOUND = Refusal(grpc.StatusCode.NOT_FOUND, "not found")
NOT_NOW = Refusal(grpc.StatusCode.FAILED_PRECONDITION, "not in this state")


class ScriptedApi:
    """Answers each method with what `will` was told, in order, and after that with what `always` was told.

    Attributes:
        calls: The methods that were called, in order; those of `always` are left out.
        requests: What each was asked, in the same order.
    """

    def __init__(self) -> None:
        self._answers: dict[str, list[Any]] = {}
        self._always: dict[str, Any] = {}
        self.calls: list[str] = []
        self.requests: list[Any] = []
        self._server = grpc.server(
            ThreadPoolExecutor(2),
            handlers=[
                grpc.method_handlers_generic_handler(
                    service,
                    {
                        name: grpc.unary_unary_rpc_method_handler(self._method(name), method.read, method.write)
                        for name, method in methods.items()
                    },
                )
                for service, methods in METHODS.items()
            ],
        )
        self.endpoint = f"127.0.0.1:{self._server.add_insecure_port('127.0.0.1:0')}"
        self._server.start()

    def _method(self, name: str) -> Callable[[Any, Any], Any]:
        def answer(request: Any, context: Any) -> Any:
            # A call without a deadline has years.
            if not 0 < context.time_remaining() < 60:
                context.abort(grpc.StatusCode.FAILED_PRECONDITION, "the call has no deadline")
            answers = self._answers.get(name)
            if answers or name not in self._always:
                self.calls.append(name)
                self.requests.append(request)
            found = answers.pop(0) if answers else self._always[name]
            if isinstance(found, Refusal):
                context.abort(found.code, found.words)
            return found

        return answer

    def will(self, method: str, *answers: Any) -> None:
        self._answers.setdefault(method, []).extend(answers)

    def always(self, method: str, answer: Any) -> None:
        self._always[method] = answer

    def lists(self, *, nodes: Any = (), queued: Any = ()) -> None:
        """Answers every listing so from now on."""
        self.always("ListNodes", tpu_v2.ListNodesResponse(nodes=[*nodes]))
        self.always("ListQueuedResources", tpu_v2.ListQueuedResourcesResponse(queued_resources=[*queued]))

    def stop(self) -> None:
        self._server.stop(None).wait()


@contextlib.contextmanager
def provisioner_of(api: ScriptedApi) -> Iterator[CloudTpuProvisioner]:
    """A provisioner that takes the scripted API for the real service."""
    client = make_client(replace(SETTINGS, endpoint=api.endpoint))
    provisioner = CloudTpuProvisioner(SETTINGS, client=client)
    try:
        yield provisioner
    finally:
        provisioner.close()


def node(name: str = NAME, state: int = 2, **fields: Any) -> tpu_v2.Node:
    """A node of ours; 2 is READY."""
    metadata = {"bastion-token": "a-run-token", **fields.pop("metadata", {})}
    return tpu_v2.Node(name=f"{ZONE}/nodes/{name}", state=state, **{"labels": OURS, "metadata": metadata, **fields})


def slice_node(index: int, state: int = 2, *, slices: int = 2) -> tpu_v2.Node:
    """A node of a gang of ours."""
    return node(f"{NAME}-{index}", state, metadata={"bastion-slices": str(slices)})


def queued(name: str = NAME, state: str = "ACTIVE", *, slices: int = 1, error: Any = None, **fields: Any) -> Any:
    """A queued resource of ours."""
    spec = tpu_v2.QueuedResource.Tpu.NodeSpec(
        parent=ZONE,
        node=tpu_v2.Node(labels=fields.pop("labels", OURS), metadata={"bastion-token": "a-run-token"}),
    )
    if slices > 1:
        spec.multislice_params = tpu_v2.QueuedResource.Tpu.NodeSpec.MultisliceParams(
            node_count=slices, node_id_prefix=name
        )
    else:
        spec.node_id = name
    said = tpu_v2.QueuedResourceState(state=tpu_v2.QueuedResourceState.State[state], **fields)
    if error is not None:
        said.failed_data = tpu_v2.QueuedResourceState.FailedData(error={"code": error[0], "message": error[1]})
    return tpu_v2.QueuedResource(
        name=f"{ZONE}/queuedResources/{name}", tpu=tpu_v2.QueuedResource.Tpu(node_spec=[spec]), state=said
    )


def operation(
    name: str,
    of: str,
    *,
    created: int = 1,
    code: int = 0,
    done: bool = True,
    verb: str = "create",
    kind: str = "nodes",
) -> operations_pb2.Operation:
    """A long-running operation that makes or deletes a thing of that name."""
    metadata = tpu_v2.OperationMetadata(target=f"{ZONE}/{kind}/{of}", verb=verb)
    metadata.create_time = f"2026-01-01T00:00:{created:02d}Z"
    made = operations_pb2.Operation(name=name, done=done)
    made.metadata.Pack(tpu_v2.OperationMetadata.pb(metadata))
    if code:
        made.error.code = code
        made.error.message = "the words"
    return made
