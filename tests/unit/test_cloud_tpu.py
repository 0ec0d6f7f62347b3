"""The Cloud TPU provisioner where the contract suite does not look: what it sends, whom it leaves alone, outages."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import grpc
import pytest
from google.cloud import tpu_v2
from google.longrunning import operations_pb2

from bastion.adapters.cloud_tpu import CloudTpuProvisioner, CloudTpuSettings, make_client
from bastion.core.errors import (
    ProvisionerError,
    ProvisionerRefused,
    ProvisionerUnavailable,
    SliceExists,
    Stockout,
)
from bastion.core.slices import CapacityModel, Place, SliceRef, SliceRequest, SliceState
from bastion.emulator.tpu.methods import METHODS
from bastion.emulator.tpu.server import Emulator, EmulatorSettings

NODE = "b-aaaaaaaaaa-1"
REF = SliceRef(name=NODE)
REQUEST = SliceRequest(
    ref=REF,
    bastion="team-bastion",
    run="aaaaaaaaaa-1",
    token="a-run-token",
    accelerator_type="v4-8",
    place=Place(runtime_version="tpu-ubuntu2204-base"),
    agent_arguments='{"job":"a"}',
)


@pytest.fixture(scope="module")
def emulator(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Emulator]:
    emulator = Emulator(EmulatorSettings(state_dir=tmp_path_factory.mktemp("emulator")))
    emulator.open()
    yield emulator
    emulator.close()


def _settings(emulator: Emulator, **changes: Any) -> CloudTpuSettings:
    settings = CloudTpuSettings(
        project="a-project",
        zone="us-central2-b",
        bastion="team-bastion",
        startup_script="true",
        endpoint=emulator.address.endpoint,
        token=emulator.address.token,
    )
    return replace(settings, **changes)


@pytest.fixture
def connect(emulator: Emulator) -> Iterator[Callable[..., CloudTpuProvisioner]]:
    made: list[CloudTpuProvisioner] = []

    def client(**changes: Any) -> CloudTpuProvisioner:
        made.append(CloudTpuProvisioner(_settings(emulator, **changes)))
        return made[-1]

    yield client
    for node in emulator.fleet.nodes("projects/a-project/locations/-"):
        emulator.fleet.delete(node.name)
    while emulator.fleet.nodes("projects/a-project/locations/-"):
        time.sleep(0.01)
    for provisioner in made:
        provisioner.close()


@dataclass(frozen=True)
class _Error:
    code: grpc.StatusCode
    words: str


class _Api:
    """A real gRPC server that answers as a test says; for what no emulator does on demand."""

    def __init__(self) -> None:
        self._answers: dict[str, list[Any]] = {}
        self.calls: list[str] = []
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
        def answer(_request: Any, context: Any) -> Any:
            self.calls.append(name)
            # A call without a deadline has years.
            if not 0 < context.time_remaining() < 60:
                context.abort(grpc.StatusCode.FAILED_PRECONDITION, "the call has no deadline")
            answer = self._answers[name].pop(0)
            if isinstance(answer, _Error):
                context.abort(answer.code, answer.words)
            return answer

        return answer

    def will(self, method: str, *answers: Any) -> None:
        self._answers.setdefault(method, []).extend(answers)

    def stop(self) -> None:
        self._server.stop(None).wait()


@pytest.fixture
def api() -> Iterator[_Api]:
    api = _Api()
    yield api
    api.stop()


@pytest.fixture
def scripted(api: _Api) -> Iterator[CloudTpuProvisioner]:
    """A provisioner that takes the scripted API for the real service."""
    settings = CloudTpuSettings(
        project="a-project", zone="us-central2-b", bastion="team-bastion", startup_script="true"
    )
    provisioner = CloudTpuProvisioner(settings, client=make_client(replace(settings, endpoint=api.endpoint)))
    yield provisioner
    provisioner.close()


UNAVAILABLE = _Error(grpc.StatusCode.UNAVAILABLE, "try again")


def _operation(name: str, node_id: str, *, created: int = 1, code: int = 0, done: bool = True, verb: str = "create"):
    metadata = tpu_v2.OperationMetadata(target=f"projects/a-project/locations/z/nodes/{node_id}", verb=verb)
    metadata.create_time = f"2026-01-01T00:00:{created:02d}Z"
    operation = operations_pb2.Operation(name=name, done=done)
    operation.metadata.Pack(tpu_v2.OperationMetadata.pb(metadata))
    if code:
        operation.error.code = code
        operation.error.message = "the words"
    return operation


def test_a_node_is_created_with_labels_token_arguments_and_the_constant_script(connect, emulator: Emulator) -> None:
    place = Place(
        model=CapacityModel.SPOT,
        network="a-network",
        external_ips=False,
        service_account="a@b.c",
        runtime_version="tpu-ubuntu2204-base",
    )
    connect().create(replace(REQUEST, place=place))
    node = connect()._client.get_node(name=f"projects/a-project/locations/us-central2-b/nodes/{NODE}", timeout=5)
    assert dict(node.labels) == {"bastion-managed": "team-bastion", "bastion-run": "aaaaaaaaaa-1"}
    assert dict(node.metadata) == {
        "startup-script": "true",
        "bastion-agent": '{"job":"a"}',
        "bastion-token": "a-run-token",
    }
    assert (node.network_config.network, node.network_config.enable_external_ips) == ("a-network", False)
    assert node.scheduling_config.spot
    assert node.service_account.email == "a@b.c"


def test_another_bastions_nodes_are_not_listed_not_known_and_not_deleted(connect) -> None:
    theirs = connect(bastion="other-bastion")
    theirs.create(REQUEST)
    ours = connect()
    assert list(ours.list()) == []
    status = ours.get(REF)
    assert status is not None
    assert (status.run, status.token) == ("", "")
    with pytest.raises(ProvisionerRefused, match="is not this bastion's"):
        ours.delete(REF)
    with pytest.raises(SliceExists):
        ours.create(REQUEST)
    assert [s.ref.name for s in theirs.list()] == ["b-aaaaaaaaaa-1"]
    assert theirs.get(REF).state is not SliceState.DELETING


def test_a_name_that_no_label_can_hold_still_owns_its_nodes(connect) -> None:
    ours = connect(bastion="Team.Bastion")
    ours.create(REQUEST)
    assert [s.ref.name for s in ours.list()] == ["b-aaaaaaaaaa-1"]
    assert list(connect(bastion="Team-Bastion").list()) == []


def test_a_wrong_token_is_refused_and_an_absent_emulator_is_unavailable(connect) -> None:
    with pytest.raises(ProvisionerRefused, match="token was refused"):
        connect(token="wrong").list()
    nowhere = connect(endpoint="127.0.0.1:1", rpc_timeout_seconds=1.0)
    with pytest.raises(ProvisionerUnavailable, match=r"the local Cloud TPU emulator at 127\.0\.0\.1:1 "):
        nowhere.list()
    with pytest.raises(ProvisionerUnavailable):
        nowhere.create(REQUEST)


def test_a_restarted_emulator_is_spoken_to_again_by_the_same_client(tmp_path: Path) -> None:
    def emulator() -> Emulator:
        return Emulator(EmulatorSettings(state_dir=tmp_path))

    first = emulator()
    before = first.open()
    client = CloudTpuProvisioner(_settings(first))
    assert list(client.list()) == []
    first.close()
    with pytest.raises(ProvisionerUnavailable):
        client.list()
    second = emulator()
    try:
        assert second.open() == before
        deadline = time.monotonic() + 10
        while not _answers(client):
            assert time.monotonic() < deadline
    finally:
        client.close()
        second.close()


def _answers(client: CloudTpuProvisioner) -> bool:
    try:
        return list(client.list()) == []
    except ProvisionerUnavailable:
        return False


def test_a_read_is_tried_a_few_times_and_then_given_up(api: _Api, scripted: CloudTpuProvisioner) -> None:
    api.will("GetNode", UNAVAILABLE, UNAVAILABLE, tpu_v2.Node(name="projects/p/locations/z/nodes/b-x", state=2))
    status = scripted.get(SliceRef(name="b-x"))
    assert status is not None
    assert status.state is SliceState.READY
    api.will("ListNodes", UNAVAILABLE, UNAVAILABLE, UNAVAILABLE)
    with pytest.raises(ProvisionerUnavailable, match="listing the nodes of us-central2-b"):
        scripted.list()
    assert api.calls == ["GetNode"] * 3 + ["ListNodes"] * 3


def test_a_write_is_never_repeated(api: _Api, scripted: CloudTpuProvisioner) -> None:
    api.will("CreateNode", UNAVAILABLE)
    with pytest.raises(ProvisionerUnavailable):
        scripted.create(REQUEST)
    assert api.calls == ["CreateNode"]


@pytest.mark.parametrize(
    ("code", "words", "kind", "told"),
    [
        (
            grpc.StatusCode.PERMISSION_DENIED,
            "Permission 'tpu.nodes.create' denied",
            ProvisionerRefused,
            "roles/tpu.admin",
        ),
        (
            grpc.StatusCode.PERMISSION_DENIED,
            "Permission 'tpu.nodes.create' denied",
            ProvisionerRefused,
            "is not open to",
        ),
        (grpc.StatusCode.INVALID_ARGUMENT, "invalid AcceleratorType", ProvisionerRefused, "invalid AcceleratorType"),
        (grpc.StatusCode.FAILED_PRECONDITION, "no such network", ProvisionerRefused, "no such network"),
        (grpc.StatusCode.ALREADY_EXISTS, "already exists", SliceExists, "already exists"),
        (grpc.StatusCode.RESOURCE_EXHAUSTED, "Quota limit 'X' has been exceeded. Limit: 64 in region", Stockout, "'X'"),
        (grpc.StatusCode.RESOURCE_EXHAUSTED, "Quota limit 'X' exceeded. Limit: 0 in region", ProvisionerRefused, "'X'"),
        (grpc.StatusCode.DEADLINE_EXCEEDED, "slow", ProvisionerUnavailable, "slow"),
        (grpc.StatusCode.INTERNAL, "oops", ProvisionerUnavailable, "oops"),
        (grpc.StatusCode.ABORTED, "conflict", ProvisionerUnavailable, "busy"),
    ],
)
def test_what_the_api_says_to_a_creation_becomes_the_ports_error(
    api: _Api, scripted: CloudTpuProvisioner, code: grpc.StatusCode, words: str, kind: type[Exception], told: str
) -> None:
    api.will("CreateNode", _Error(code, words))
    with pytest.raises(ProvisionerError, match=told) as raised:
        scripted.create(REQUEST)
    assert type(raised.value) is kind
    assert "creating b-aaaaaaaaaa-1" in str(raised.value)


def test_being_told_to_slow_down_is_no_stockout(api: _Api, scripted: CloudTpuProvisioner) -> None:
    exhausted = _Error(grpc.StatusCode.RESOURCE_EXHAUSTED, "Quota exceeded for 'Read requests per minute'")
    api.will("ListNodes", exhausted, exhausted, exhausted)
    with pytest.raises(ProvisionerUnavailable):
        scripted.list()


def test_a_running_creation_costs_one_call_a_look_and_a_finished_one_none(
    api: _Api, scripted: CloudTpuProvisioner
) -> None:
    api.will("CreateNode", _operation("op", NODE, done=False))
    scripted.create(REQUEST)
    api.will("GetOperation", _operation("op", NODE, done=False), _operation("op", NODE))
    for _ in range(4):
        assert scripted.failure(REF) is None
    assert api.calls == ["CreateNode", "GetOperation", "GetOperation"]


def test_a_look_at_a_creation_during_an_outage_is_one_call_and_unavailable(
    api: _Api, scripted: CloudTpuProvisioner
) -> None:
    api.will("CreateNode", _operation("op", NODE, done=False))
    scripted.create(REQUEST)
    api.will("GetOperation", UNAVAILABLE, _operation("op", NODE, code=8))
    with pytest.raises(ProvisionerUnavailable):
        scripted.failure(REF)
    assert isinstance(scripted.failure(REF), Stockout)
    assert api.calls == ["CreateNode", "GetOperation", "GetOperation"]


def test_an_operation_that_the_service_has_forgotten_is_no_failure(api: _Api, scripted: CloudTpuProvisioner) -> None:
    api.will("CreateNode", _operation("op", NODE, done=False))
    scripted.create(REQUEST)
    api.will("GetOperation", _Error(grpc.StatusCode.NOT_FOUND, "no such operation"))
    assert scripted.failure(REF) is None
    assert scripted.failure(REF) is None


def test_a_new_daemon_finds_old_creations_page_by_page_and_then_asks_no_more(
    api: _Api, scripted: CloudTpuProvisioner
) -> None:
    pages = [
        [_operation("1", "b-x", created=1), _operation("2", "b-y", created=1, code=8)],
        [_operation("3", "b-x", created=2, code=13), _operation("4", "b-z", created=3, code=8, verb="delete")],
    ]
    api.will(
        "ListOperations",
        operations_pb2.ListOperationsResponse(operations=pages[0], next_page_token="more"),
        operations_pb2.ListOperationsResponse(operations=pages[1]),
    )
    assert scripted.failure(SliceRef(name="b-z")) is None
    assert scripted.failure(SliceRef(name="b-x")) is None
    assert scripted.failure(SliceRef(name="b-z")) is None
    assert isinstance(scripted.failure(SliceRef(name="b-y")), Stockout)
    assert scripted.failure(SliceRef(name="b-z")) is None
    assert "(code 13)" in str(scripted.failure(SliceRef(name="b-x")))
    assert api.calls == ["ListOperations", "ListOperations"]


def test_a_creation_whose_reply_was_lost_is_looked_for_among_the_operations(
    api: _Api, scripted: CloudTpuProvisioner
) -> None:
    api.will("ListOperations", operations_pb2.ListOperationsResponse())
    assert scripted.failure(REF) is None
    api.will("CreateNode", UNAVAILABLE)
    with pytest.raises(ProvisionerUnavailable):
        scripted.create(REQUEST)
    lost = operations_pb2.ListOperationsResponse(operations=[_operation("9", NODE, code=8)])
    api.will("ListOperations", lost)
    assert isinstance(scripted.failure(REF), Stockout)
    assert api.calls == ["ListOperations", "CreateNode", "ListOperations"]


def test_a_node_that_goes_between_the_look_and_the_deletion_is_deleted(
    api: _Api, scripted: CloudTpuProvisioner
) -> None:
    node = tpu_v2.Node(name="projects/p/locations/z/nodes/b-x", state=2, labels={"bastion-managed": "team-bastion"})
    api.will("GetNode", node)
    api.will("DeleteNode", _Error(grpc.StatusCode.NOT_FOUND, "no such node"))
    scripted.delete(SliceRef(name="b-x"))
    assert api.calls == ["GetNode", "DeleteNode"]


def test_a_node_of_a_gang_that_cannot_be_deleted_keeps_no_other(api: _Api, scripted: CloudTpuProvisioner) -> None:
    nodes = [
        tpu_v2.Node(name=f"projects/p/locations/z/nodes/b-x-{k}", state=2, labels={"bastion-managed": "team-bastion"})
        for k in range(2)
    ]
    api.will("GetNode", *nodes)
    api.will("DeleteNode", UNAVAILABLE, _operation("op", "b-x-1", verb="delete"))
    with pytest.raises(ProvisionerUnavailable, match="b-x-0"):
        scripted.delete(SliceRef(name="b-x", num_slices=2))
    assert api.calls == ["GetNode", "DeleteNode", "GetNode", "DeleteNode"]


def test_a_gang_whose_creation_was_cut_short_has_failed_and_what_there_is_of_it_is_known(
    api: _Api, scripted: CloudTpuProvisioner
) -> None:
    node = tpu_v2.Node(
        name="projects/p/locations/z/nodes/b-x-0",
        state=2,
        labels={"bastion-managed": "team-bastion"},
        metadata={"bastion-slices": "2"},
    )
    api.will("ListNodes", tpu_v2.ListNodesResponse(nodes=[node]))
    api.will("GetNode", _Error(grpc.StatusCode.NOT_FOUND, "no such node"))
    api.will("ListOperations", operations_pb2.ListOperationsResponse())
    (status,) = scripted.list()
    assert (status.ref, status.state) == (SliceRef(name="b-x", num_slices=2), SliceState.FAILED)
    assert status.failure == ("infrastructure", "b-x-1 was never created")
    assert dict(status.nodes) == {"b-x-0": SliceState.READY}


def test_each_zone_is_asked_for_its_own(connect) -> None:
    client = connect()
    elsewhere = SliceRef(name=NODE, zone="europe-west4-b")
    client.create(replace(REQUEST, ref=elsewhere, accelerator_type="v5litepod-4"))
    assert [status.ref for status in client.list("europe-west4-b")] == [elsewhere]
    assert list(client.list()) == []
    assert client.get(REF) is None
    client.delete(elsewhere)
