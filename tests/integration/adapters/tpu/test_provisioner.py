"""The Cloud TPU provisioner where the contract suite does not look: what it sends, whom it leaves alone, outages."""

from __future__ import annotations

import contextlib
import random
import socket
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import grpc
import pytest
from google.cloud import tpu_v2
from google.longrunning import operations_pb2

from bastion.adapters.tpu import creations
from bastion.adapters.tpu.provisioner import CloudTpuProvisioner, CloudTpuSettings
from bastion.core.errors import (
    GangExists,
    ProvisionerError,
    ProvisionerRefused,
    ProvisionerUnavailable,
    Stockout,
)
from bastion.core.model.gangs import GangFailure, GangRef, GangState, Place
from bastion.emulators.tpu.records import ApiError
from bastion.emulators.tpu.server import Emulator, EmulatorSettings
from tests.support.cloud_tpu_api import (
    NAME,
    NOT_FOUND,
    REF,
    REQUEST,
    UNAVAILABLE,
    ZONE,
    Refusal,
    ScriptedApi,
    node,
    operation,
    provisioner_of,
    slice_node,
)

NODE = NAME


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
    for left in emulator.fleet.nodes("projects/a-project/locations/-"):
        with contextlib.suppress(ApiError):  # it was going already
            emulator.fleet.delete(left.name)
    while emulator.fleet.nodes("projects/a-project/locations/-"):
        time.sleep(0.01)
    for provisioner in made:
        provisioner.close()


@pytest.fixture
def api() -> Iterator[ScriptedApi]:
    api = ScriptedApi()
    api.always("GetQueuedResource", NOT_FOUND)
    api.always("ListOperations", operations_pb2.ListOperationsResponse())
    api.lists()
    yield api
    api.stop()


@pytest.fixture
def scripted(api: ScriptedApi) -> Iterator[CloudTpuProvisioner]:
    with provisioner_of(api) as provisioner:
        yield provisioner


def test_a_node_is_created_with_labels_token_arguments_and_the_constant_script(connect, emulator: Emulator) -> None:
    place = Place(
        network="a-network",
        external_ips=False,
        service_account="a@b.c",
        runtime_version="tpu-ubuntu2204-base",
    )
    connect().create(replace(REQUEST, place=place))
    found = connect()._client.get_node(name=f"projects/a-project/locations/us-central2-b/nodes/{NODE}", timeout=20)
    assert dict(found.labels) == {"bastion-managed": "team-bastion", "bastion-run": "aaaaaaaaaa-1"}
    assert dict(found.metadata) == {
        "startup-script": "true",
        "bastion-agent": '{"job":"a"}',
        "bastion-token": "a-run-token",
    }
    assert (found.network_config.network, found.network_config.enable_external_ips) == ("a-network", False)
    assert found.service_account.email == "a@b.c"


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
    with pytest.raises(GangExists):
        ours.create(REQUEST)
    assert [s.ref.name for s in theirs.list()] == ["b-aaaaaaaaaa-1"]
    assert theirs.get(REF).state is not GangState.DELETING


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


def port_that_stays_free() -> int:
    """One below those that the kernel gives to whoever wants any, so that nobody has it between two emulators."""
    lowest = int(Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()[0])
    for port in random.sample(range(max(1024, lowest // 2), lowest), 50):
        with socket.socket() as probe, contextlib.suppress(OSError):
            probe.bind(("127.0.0.1", port))
            return port
    raise AssertionError("50 ports were taken")


def test_a_restarted_emulator_is_spoken_to_again_by_the_same_client(tmp_path: Path) -> None:
    def emulator(port: int = 0) -> Emulator:
        return Emulator(EmulatorSettings(state_dir=tmp_path, port=port))

    first = emulator(port_that_stays_free())
    before = first.open()
    client = CloudTpuProvisioner(_settings(first))
    assert list(client.list()) == []
    first.close()
    with pytest.raises(ProvisionerUnavailable):
        client.list()
    second = emulator()
    try:
        assert second.open() == before
        deadline = time.monotonic() + 30
        while not _answers(client):
            assert time.monotonic() < deadline
            time.sleep(0.01)
    finally:
        client.close()
        second.close()


def _answers(client: CloudTpuProvisioner) -> bool:
    try:
        return list(client.list()) == []
    except ProvisionerUnavailable:
        return False


def test_a_read_is_tried_a_few_times_and_then_given_up(api: ScriptedApi, scripted: CloudTpuProvisioner) -> None:
    api.will("GetNode", UNAVAILABLE, UNAVAILABLE, tpu_v2.Node(name="projects/p/locations/z/nodes/b-x", state=2))
    status = scripted.get(GangRef(name="b-x"))
    assert status is not None
    assert status.state is GangState.READY
    api.will("ListNodes", UNAVAILABLE, UNAVAILABLE, UNAVAILABLE)
    with pytest.raises(ProvisionerUnavailable, match="listing the nodes of us-central2-b"):
        scripted.list()
    assert api.calls == ["GetNode"] * 3 + ["ListNodes"] * 3


def test_a_write_is_never_repeated(api: ScriptedApi, scripted: CloudTpuProvisioner) -> None:
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
        (grpc.StatusCode.NOT_FOUND, "network 'nett' was not found", ProvisionerRefused, "correct network"),
        (grpc.StatusCode.ALREADY_EXISTS, "already exists", GangExists, "already exists"),
        (grpc.StatusCode.RESOURCE_EXHAUSTED, "Quota limit 'X' has been exceeded. Limit: 64 in region", Stockout, "'X'"),
        (grpc.StatusCode.RESOURCE_EXHAUSTED, "Quota limit 'X' exceeded. Limit: 0 in region", ProvisionerRefused, "'X'"),
        (grpc.StatusCode.DEADLINE_EXCEEDED, "slow", ProvisionerUnavailable, "slow"),
        (grpc.StatusCode.INTERNAL, "oops", ProvisionerUnavailable, "oops"),
        (grpc.StatusCode.ABORTED, "conflict", ProvisionerUnavailable, "busy"),
    ],
)
def test_what_the_api_says_to_a_creation_becomes_the_ports_error(
    api: ScriptedApi, scripted: CloudTpuProvisioner, code: grpc.StatusCode, words: str, kind: type[Exception], told: str
) -> None:
    api.will("CreateNode", Refusal(code, words))
    with pytest.raises(ProvisionerError, match=told) as raised:
        scripted.create(REQUEST)
    assert type(raised.value) is kind
    assert "creating b-aaaaaaaaaa-1" in str(raised.value)


def test_being_told_to_slow_down_is_no_stockout(api: ScriptedApi, scripted: CloudTpuProvisioner) -> None:
    exhausted = Refusal(grpc.StatusCode.RESOURCE_EXHAUSTED, "Quota exceeded for 'Read requests per minute'")
    api.will("ListNodes", exhausted, exhausted, exhausted)
    with pytest.raises(ProvisionerUnavailable):
        scripted.list()


def test_a_running_creation_costs_one_call_a_look_and_a_finished_one_none(
    api: ScriptedApi, scripted: CloudTpuProvisioner
) -> None:
    api.will("CreateNode", operation("op", NODE, done=False))
    scripted.create(REQUEST)
    api.will("GetOperation", operation("op", NODE, done=False), operation("op", NODE))
    for _ in range(4):
        assert scripted.failure(REF) is None
    assert api.calls == ["CreateNode", "GetOperation", "GetOperation"]


def test_a_look_at_a_creation_during_an_outage_is_one_call_and_unavailable(
    api: ScriptedApi, scripted: CloudTpuProvisioner
) -> None:
    api.will("CreateNode", operation("op", NODE, done=False))
    scripted.create(REQUEST)
    api.will("GetOperation", UNAVAILABLE, operation("op", NODE, code=8))
    with pytest.raises(ProvisionerUnavailable):
        scripted.failure(REF)
    assert isinstance(scripted.failure(REF), Stockout)
    assert api.calls == ["CreateNode", "GetOperation", "GetOperation"]


def test_what_is_listed_as_being_created_is_not_asked_after_one_by_one(
    api: ScriptedApi, scripted: CloudTpuProvisioner
) -> None:
    names = [f"b-aaaaaaaaaa-{attempt}" for attempt in (1, 2, 3)]
    for name in names:
        api.will("CreateNode", operation(f"op-{name}", name, done=False))
        scripted.create(replace(REQUEST, ref=GangRef(name=name)))
    api.lists(nodes=[node(name, 1) for name in names])
    asked = []
    for _ in range(4):
        api.will("GetOperation", operation("op", "x", done=False))
        assert [status.state for status in scripted.list()] == [GangState.CREATING] * 3
        assert [scripted.failure(GangRef(name=name)) for name in names] == [None] * 3
        asked.append(api.requests[-1].name)
    assert api.calls == ["CreateNode"] * 3 + ["GetOperation"] * 4  # one a listing, each in its turn
    assert asked == [f"op-{name}" for name in (*names, names[0])]


def test_a_creation_that_failed_and_left_its_node_is_failed(api: ScriptedApi, scripted: CloudTpuProvisioner) -> None:
    api.will("CreateNode", operation("op", NAME, done=False))
    scripted.create(REQUEST)
    api.lists(nodes=[node(state=1)])
    api.will("GetOperation", operation("op", NAME, code=8))
    (status,) = scripted.list()
    assert (status.state, status.failure) == (
        GangState.FAILED,
        GangFailure(cause="capacity", message="the words (code 8)"),
    )
    assert isinstance(scripted.failure(REF), Stockout)


def test_an_outage_of_the_operations_hides_no_node(api: ScriptedApi, scripted: CloudTpuProvisioner) -> None:
    api.will("CreateNode", operation("op", NAME, done=False))
    scripted.create(REQUEST)
    api.lists(nodes=[node(state=1)])
    api.will("GetOperation", UNAVAILABLE)
    assert [status.state for status in scripted.list()] == [GangState.CREATING]


def test_creations_that_came_to_an_end_are_forgotten(
    api: ScriptedApi, scripted: CloudTpuProvisioner, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(creations, "_KEPT_MAX", 20)
    refs = [GangRef(name=f"b-aaaaaaaaaa-{attempt}") for attempt in range(60)]
    for ref in refs:
        api.will("CreateNode", operation(ref.name, ref.name, done=False))
        scripted.create(replace(REQUEST, ref=ref))
    known = scripted._in("").creations._known
    assert len(known) == 60  # they run
    api.lists(nodes=[node(ref.name) for ref in refs[:30]])
    scripted.list()
    assert len(known) == 30
    for ref in refs[30:]:
        api.will("GetOperation", operation(ref.name, ref.name, code=8))
        assert isinstance(scripted.failure(ref), Stockout)
    api.will("CreateNode", operation("next", NAME, done=False))
    scripted.create(REQUEST)
    assert isinstance(scripted.failure(refs[-1]), Stockout)
    assert len(known) <= 20


def test_an_operation_that_the_service_has_forgotten_is_no_failure(
    api: ScriptedApi, scripted: CloudTpuProvisioner
) -> None:
    api.will("CreateNode", operation("op", NODE, done=False))
    scripted.create(REQUEST)
    api.will("GetOperation", Refusal(grpc.StatusCode.NOT_FOUND, "no such operation"))
    assert scripted.failure(REF) is None
    assert scripted.failure(REF) is None


def test_a_new_daemon_finds_old_creations_page_by_page_and_then_asks_no_more(
    api: ScriptedApi, scripted: CloudTpuProvisioner
) -> None:
    pages = [
        [operation("1", "b-x", created=1), operation("2", "b-y", created=1, code=8)],
        [operation("3", "b-x", created=2, code=13), operation("4", "b-z", created=3, code=8, verb="delete")],
    ]
    api.will(
        "ListOperations",
        operations_pb2.ListOperationsResponse(operations=pages[0], next_page_token="more"),
        operations_pb2.ListOperationsResponse(operations=pages[1]),
    )
    assert scripted.failure(GangRef(name="b-y")) is None  # the next page may have a newer one
    assert isinstance(scripted.failure(GangRef(name="b-y")), Stockout)
    assert scripted.failure(GangRef(name="b-z")) is None
    assert "(code 13)" in str(scripted.failure(GangRef(name="b-x")))
    assert api.calls == ["ListOperations", "ListOperations"]


def test_an_operation_without_a_time_is_older_than_all_others(api: ScriptedApi, scripted: CloudTpuProvisioner) -> None:
    timeless, metadata = operation("1", "b-x", code=8), tpu_v2.OperationMetadata(target=f"{ZONE}/nodes/b-x")
    metadata.verb = "create"
    timeless.metadata.Pack(tpu_v2.OperationMetadata.pb(metadata))
    operations = [operation("2", "b-x", code=3), timeless]
    api.will("ListOperations", operations_pb2.ListOperationsResponse(operations=operations))
    assert isinstance(scripted.failure(GangRef(name="b-x")), ProvisionerRefused)


def test_a_creation_whose_reply_was_lost_is_looked_for_among_the_operations(
    api: ScriptedApi, scripted: CloudTpuProvisioner
) -> None:
    api.will("ListOperations", operations_pb2.ListOperationsResponse())
    assert scripted.failure(REF) is None
    api.will("CreateNode", UNAVAILABLE)
    with pytest.raises(ProvisionerUnavailable):
        scripted.create(REQUEST)
    lost = operations_pb2.ListOperationsResponse(operations=[operation("9", NODE, code=8)])
    api.will("ListOperations", lost)
    assert isinstance(scripted.failure(REF), Stockout)
    assert api.calls == ["ListOperations", "CreateNode", "ListOperations"]


def test_a_node_that_goes_between_the_look_and_the_deletion_is_deleted(
    api: ScriptedApi, scripted: CloudTpuProvisioner
) -> None:
    api.will("GetNode", node())
    api.will("DeleteNode", NOT_FOUND)
    scripted.delete(REF)
    assert api.calls == ["GetNode", "DeleteNode"]


def test_a_node_of_a_gang_that_cannot_be_deleted_keeps_no_other(
    api: ScriptedApi, scripted: CloudTpuProvisioner
) -> None:
    api.will("GetNode", slice_node(0), slice_node(1))
    api.will("DeleteNode", UNAVAILABLE, operation("op", f"{NAME}-1", verb="delete"))
    with pytest.raises(ProvisionerUnavailable, match=f"{NAME}-0"):
        scripted.delete(GangRef(name=NAME, num_slices=2))
    assert api.calls == ["GetNode", "DeleteNode", "GetNode", "DeleteNode"]


def test_each_zone_is_asked_for_its_own(connect) -> None:
    client = connect()
    elsewhere = GangRef(name=NODE, zone="europe-west4-b")
    client.create(replace(REQUEST, ref=elsewhere, accelerator_type="v5litepod-4"))
    assert [status.ref for status in client.list("europe-west4-b")] == [elsewhere]
    assert list(client.list()) == []
    assert client.get(REF) is None
    client.delete(elsewhere)
