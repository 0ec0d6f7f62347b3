"""The emulator's gRPC API as the unmodified client sees it, its refusals in the API's own codes."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Iterator
from pathlib import Path

import grpc
import pytest
from google.api_core import exceptions
from google.cloud import tpu_v2
from google.longrunning import operations_pb2

from bastion.adapters.tpu.provisioner import CloudTpuSettings, make_client
from bastion.core.errors import Refused
from bastion.emulators.state_folder import EmulatorRunning
from bastion.emulators.tpu.messages import new_node
from bastion.emulators.tpu.records import ApiError
from bastion.emulators.tpu.server import Emulator, EmulatorSettings
from tests.support.emulated_queue import PATIENCE_SECONDS

ZONE = "projects/a-project/locations/us-central2-b"


@pytest.fixture(scope="module")
def state_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("emulator")


@pytest.fixture(scope="module")
def emulator(state_dir: Path) -> Iterator[Emulator]:
    emulator = Emulator(EmulatorSettings(state_dir=state_dir))
    emulator.open()
    yield emulator
    emulator.close()


@pytest.fixture(scope="module")
def client(emulator: Emulator) -> Iterator[tpu_v2.TpuClient]:
    client = _client(emulator, emulator.address.token)
    yield client
    client.transport.close()


@pytest.fixture(autouse=True)
def no_nodes_left(client: tpu_v2.TpuClient) -> Iterator[None]:
    yield
    for node in client.list_nodes(parent="projects/a-project/locations/-"):
        with contextlib.suppress(exceptions.NotFound):  # it was going already
            _delete(client, node.name)


def _client(emulator: Emulator, token: str) -> tpu_v2.TpuClient:
    return make_client(
        CloudTpuSettings(
            project="a-project",
            zone="us-central2-b",
            bastion="a-bastion",
            startup_script="",
            endpoint=emulator.address.endpoint,
            token=token,
        )
    )


def _node(accelerator_type: str = "v4-8", **fields: object) -> tpu_v2.Node:
    return tpu_v2.Node(accelerator_type=accelerator_type, runtime_version="tpu-ubuntu2204-base", **fields)


def _create(client: tpu_v2.TpuClient, node_id: str, node: tpu_v2.Node | None = None, parent: str = ZONE):
    return client.create_node(parent=parent, node_id=node_id, node=node or _node(), timeout=PATIENCE_SECONDS)


def _delete(client: tpu_v2.TpuClient, name: str) -> None:
    operation = client.delete_node(name=name, timeout=PATIENCE_SECONDS).operation.name
    while not client.get_operation(operations_pb2.GetOperationRequest(name=operation), timeout=PATIENCE_SECONDS).done:
        time.sleep(0.01)


def _done(client: tpu_v2.TpuClient, name: str) -> operations_pb2.Operation:
    deadline = time.monotonic() + PATIENCE_SECONDS
    while not (
        operation := client.get_operation(operations_pb2.GetOperationRequest(name=name), timeout=PATIENCE_SECONDS)
    ).done:
        assert time.monotonic() < deadline
        time.sleep(0.01)
    return operation


def test_a_node_comes_back_as_it_was_sent_with_what_the_service_adds(client: tpu_v2.TpuClient) -> None:
    sent = _node(
        "v4-16",
        labels={"a": "b"},
        metadata={"startup-script": "true", "k": "v"},
        description="mine",
        network_config=tpu_v2.NetworkConfig(network="default", enable_external_ips=True),
        scheduling_config=tpu_v2.SchedulingConfig(spot=True),
    )
    ready = _create(client, "b-x-1", sent).result(timeout=PATIENCE_SECONDS)
    assert ready.name == f"{ZONE}/nodes/b-x-1"
    assert ready.state is tpu_v2.Node.State.READY
    assert ready.health is tpu_v2.Node.Health.HEALTHY
    assert (dict(ready.labels), dict(ready.metadata)) == (dict(sent.labels), dict(sent.metadata))
    assert (ready.description, ready.network_config, ready.scheduling_config) == (
        "mine",
        sent.network_config,
        sent.scheduling_config,
    )
    addresses = [endpoint.ip_address for endpoint in ready.network_endpoints]
    assert len(addresses) == 2
    assert all(address.startswith("127.100.") for address in addresses)
    assert addresses[0].rpartition(".")[0] == addresses[1].rpartition(".")[0]
    assert client.get_node(name=ready.name) == ready


def test_the_operations_of_a_node_tell_its_story(client: tpu_v2.TpuClient) -> None:
    created = _create(client, "b-x-1")
    created.result(timeout=PATIENCE_SECONDS)
    _delete(client, f"{ZONE}/nodes/b-x-1")
    page = client.list_operations(operations_pb2.ListOperationsRequest(name=ZONE), timeout=PATIENCE_SECONDS)
    story = []
    for operation in page.operations:
        metadata = tpu_v2.OperationMetadata()
        assert operation.metadata.Unpack(tpu_v2.OperationMetadata.pb(metadata))
        assert operation.done
        story.append((metadata.verb, metadata.target))
    assert story[-2:] == [("create", f"{ZONE}/nodes/b-x-1"), ("delete", f"{ZONE}/nodes/b-x-1")]
    name = created.operation.name
    client.cancel_operation(operations_pb2.CancelOperationRequest(name=name), timeout=PATIENCE_SECONDS)
    client.delete_operation(operations_pb2.DeleteOperationRequest(name=name), timeout=PATIENCE_SECONDS)
    with pytest.raises(exceptions.NotFound):
        client.get_operation(operations_pb2.GetOperationRequest(name=name), timeout=PATIENCE_SECONDS)


def test_a_ledger_that_cannot_be_written_stops_no_node_and_is_written_later(
    emulator: Emulator, client: tpu_v2.TpuClient, state_dir: Path
) -> None:
    name = f"{ZONE}/nodes/b-full-1"
    in_the_way = state_dir / f".state.json.{os.getpid()}"  # where the next version is drafted

    def fill_the_disk() -> None:
        """Drafts cannot be written from now on; the one under way still is."""
        with emulator.fleet.ledger.lock:
            in_the_way.mkdir()

    fill_the_disk()
    assert _create(client, "b-full-1").result(timeout=PATIENCE_SECONDS).state is tpu_v2.Node.State.READY
    assert name not in (state_dir / "state.json").read_text()
    in_the_way.rmdir()
    deadline = time.monotonic() + PATIENCE_SECONDS
    while name not in (state_dir / "state.json").read_text():
        assert time.monotonic() < deadline
        time.sleep(0.01)
    fill_the_disk()
    _delete(client, name)
    assert list(client.list_nodes(parent=ZONE)) == []
    in_the_way.rmdir()


def test_a_fault_file_that_cannot_be_removed_does_not_end_the_watch_over_hosts(
    client: tpu_v2.TpuClient, state_dir: Path
) -> None:
    _create(client, "b-x-1").result(timeout=PATIENCE_SECONDS)
    strange = state_dir / "faults" / "preempt.b-x-1"
    strange.parent.mkdir(mode=0o700, exist_ok=True)
    strange.mkdir()
    time.sleep(0.6)  # two looks of the watcher, which has stumbled over the folder then
    strange.rmdir()
    strange.touch()
    deadline = time.monotonic() + PATIENCE_SECONDS
    while client.get_node(name=f"{ZONE}/nodes/b-x-1").state is not tpu_v2.Node.State.PREEMPTED:
        assert time.monotonic() < deadline
        time.sleep(0.01)


@pytest.mark.parametrize("token", ["", "wrong"])
def test_without_the_token_nothing_is_answered_and_nothing_happens(
    emulator: Emulator, client: tpu_v2.TpuClient, token: str
) -> None:
    stub = grpc.insecure_channel(emulator.address.endpoint).unary_unary
    for path in (
        "/google.cloud.tpu.v2.Tpu/CreateNode",
        "/google.cloud.tpu.v2.Tpu/StopNode",
        "/google.longrunning.Operations/ListOperations",
        "/no.such.Service/Method",
    ):
        call = stub(path)
        metadata = [("authorization", f"Bearer {token}".encode())] if token else None
        with pytest.raises(grpc.RpcError) as refused:
            call(b"", timeout=PATIENCE_SECONDS, metadata=metadata)
        assert refused.value.code() is grpc.StatusCode.UNAUTHENTICATED
    assert list(client.list_nodes(parent=ZONE)) == []


def test_a_name_that_exists_is_refused_also_while_it_is_being_deleted(
    emulator: Emulator, client: tpu_v2.TpuClient
) -> None:
    node = new_node(ZONE, "b-x-1", _node(), spot=False, reserved=False)
    _create(client, "b-x-1").result(timeout=PATIENCE_SECONDS)
    with pytest.raises(exceptions.AlreadyExists):
        _create(client, "b-x-1")
    fleet = emulator.fleet
    with fleet.ledger.lock:  # it is not gone meanwhile
        deleted = fleet.delete(node.name)
        with pytest.raises(ApiError, match="already exists"):
            fleet.create(node)
        assert fleet.delete(node.name) == deleted
    assert _done(client, deleted.name).WhichOneof("result") == "response"


def test_what_is_not_there_is_not_found(client: tpu_v2.TpuClient) -> None:
    with pytest.raises(exceptions.NotFound):
        client.get_node(name=f"{ZONE}/nodes/b-x-1")
    with pytest.raises(exceptions.NotFound):
        client.delete_node(name=f"{ZONE}/nodes/b-x-1")
    with pytest.raises(exceptions.NotFound):
        client.get_operation(operations_pb2.GetOperationRequest(name=f"{ZONE}/operations/o"))
    with pytest.raises(exceptions.NotFound):
        client.get_accelerator_type(name=f"{ZONE}/acceleratorTypes/v99-8")


@pytest.mark.parametrize(
    ("node_id", "node", "parent", "words"),
    [
        (
            "b-x-1",
            _node("v3-7"),
            ZONE,
            r'invalid AcceleratorType "v3-7" for zone "us-central2-b". Valid values are: v2-8',
        ),
        ("b-x-1", _node("tpu7x-8"), ZONE, "invalid AcceleratorType"),
        ("b-x-1", tpu_v2.Node(accelerator_type="v4-8"), ZONE, "runtime_version"),
        ("b-x-1", _node(metadata={"k": "x" * (256 * 1024 + 1)}), ZONE, "metadata is too large"),
        ("b-x-1", _node("v4-4096"), ZONE, "has 512 hosts.*at most 16.*BASTION_EMULATOR_HOSTS_MAX=512"),
        ("../escape", _node(), ZONE, "not a node id"),
        ("b-" + "x" * 62, _node(), ZONE, "not a node id"),
        ("", _node(), ZONE, "not a node id"),
        ("b-x-1", _node(), "projects/../locations/z", "is not projects/PROJECT/locations/ZONE"),
    ],
)
def test_a_wrong_request_is_an_invalid_argument_and_makes_no_node(
    client: tpu_v2.TpuClient, node_id: str, node: tpu_v2.Node, parent: str, words: str
) -> None:
    with pytest.raises(exceptions.InvalidArgument, match=words):
        _create(client, node_id, node, parent)
    assert list(client.list_nodes(parent="projects/a-project/locations/-")) == []


def test_a_stockout_comes_through_the_operation_and_leaves_no_node(
    emulator: Emulator, client: tpu_v2.TpuClient
) -> None:
    emulator.fleet.faults.fail_creations(1)
    operation = _done(client, _create(client, "b-x-1").operation.name)
    assert operation.error.code == 8
    assert "no more capacity in the zone" in operation.error.message
    with pytest.raises(exceptions.NotFound):
        client.get_node(name=f"{ZONE}/nodes/b-x-1")


def test_a_node_deleted_while_it_is_created_cancels_its_creation(emulator: Emulator, client: tpu_v2.TpuClient) -> None:
    emulator.fleet.faults.delay_creations(60)
    try:
        created = _create(client, "b-x-1")
        assert client.get_node(name=f"{ZONE}/nodes/b-x-1").state is tpu_v2.Node.State.CREATING
        _delete(client, f"{ZONE}/nodes/b-x-1")
        assert _done(client, created.operation.name).error.code == 1
    finally:
        emulator.fleet.faults.delay_creations(0)


def test_listing_goes_page_by_page_in_order_and_stays_in_its_zone(client: tpu_v2.TpuClient) -> None:
    names = ["b-a", "b-b", "b-c"]
    for node_id in reversed(names):
        _create(client, node_id)
    other = ZONE.replace("us-central2-b", "europe-west4-b")
    _create(client, "b-d", _node("v5litepod-1"), other)
    pages = [
        [node.name.rpartition("/")[2] for node in page.nodes]
        for page in client.list_nodes(tpu_v2.ListNodesRequest(parent=ZONE, page_size=2)).pages
    ]
    assert pages == [["b-a", "b-b"], ["b-c"]]
    assert [node.name for node in client.list_nodes(parent=other)] == [f"{other}/nodes/b-d"]
    everywhere = [node.name.rpartition("/")[2] for node in client.list_nodes(parent="projects/a-project/locations/-")]
    assert sorted(everywhere) == [*names, "b-d"]
    with pytest.raises(exceptions.InvalidArgument):
        client.list_nodes(tpu_v2.ListNodesRequest(parent=ZONE, page_token="%%%"))


def test_the_accelerator_types_are_those_that_the_api_serves(client: tpu_v2.TpuClient) -> None:
    offered = {kind.type_ for kind in client.list_accelerator_types(parent=ZONE)}
    assert {"v2-8", "v4-32", "v5litepod-8", "v5p-8", "v6e-8"} <= offered
    assert not any(kind.startswith(("tpu7x", "a100", "h100")) for kind in offered)
    assert client.get_accelerator_type(name=f"{ZONE}/acceleratorTypes/v4-32").type_ == "v4-32"


def test_what_the_emulator_does_not_serve_says_so(client: tpu_v2.TpuClient) -> None:
    with pytest.raises(exceptions.MethodNotImplemented, match=r"does not serve google\.cloud\.tpu\.v2\.Tpu/StopNode"):
        client.stop_node(tpu_v2.StopNodeRequest(name=f"{ZONE}/nodes/b-x-1"))


def test_one_folder_has_one_emulator_and_its_folder_is_private(emulator: Emulator) -> None:
    folder = emulator._folder
    with pytest.raises(EmulatorRunning, match=r"already serves"):
        Emulator(EmulatorSettings(state_dir=folder)).open()
    assert folder.stat().st_mode & 0o777 == 0o700
    assert all(path.stat().st_mode & 0o077 == 0 for path in folder.iterdir())


def test_a_port_that_is_taken_is_refused_and_the_folder_stays_free(emulator: Emulator, tmp_path: Path) -> None:
    port = int(emulator.address.endpoint.rpartition(":")[2])
    second = Emulator(EmulatorSettings(state_dir=tmp_path, port=port))
    with pytest.raises(Refused, match=f"port {port}"):
        second.open()
    second.close()
    third = Emulator(EmulatorSettings(state_dir=tmp_path))
    third.open()
    third.close()


def test_more_hosts_than_addresses_cannot_be_asked_for(tmp_path: Path) -> None:
    with pytest.raises(Refused, match="250"):
        Emulator(EmulatorSettings(state_dir=tmp_path, hosts_max=251))
