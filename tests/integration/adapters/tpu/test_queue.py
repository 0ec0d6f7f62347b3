"""The Cloud TPU provisioner's queued resources: what it asks for, what it makes of each state, and how they end."""

from __future__ import annotations

import datetime
from collections.abc import Iterator
from dataclasses import replace

import grpc
import pytest
from google.cloud import tpu_v2

from bastion.adapters.tpu.provisioner import CloudTpuProvisioner
from bastion.core.errors import GangExists, ProvisionerRefused, ProvisionerUnavailable, Stockout
from bastion.core.model.gangs import CapacityModel, GangFailure, GangRef, GangRequest, GangState, Place
from bastion.emulators.tpu.server import Emulator, EmulatorSettings
from tests.support.cloud_tpu_api import (
    NAME,
    NOT_FOUND,
    NOT_NOW,
    REF,
    REQUEST,
    SETTINGS,
    UNAVAILABLE,
    ZONE,
    Refusal,
    ScriptedApi,
    node,
    operation,
    provisioner_of,
    queued,
    slice_node,
)
from tests.support.waiting import until

GANG = GangRef(name=NAME, num_slices=2)
READY, LOST, CREATING, DELETING = GangState.READY, GangState.LOST, GangState.CREATING, GangState.DELETING
PATIENCE_SECONDS = 20.0


def place(model: CapacityModel, **fields: str) -> Place:
    return Place(model=model, runtime_version="tpu-ubuntu2204-base", **fields)


SPOT = replace(REQUEST, place=place(CapacityModel.SPOT))


@pytest.fixture
def api() -> Iterator[ScriptedApi]:
    api = ScriptedApi()
    yield api
    api.stop()


@pytest.fixture
def scripted(api: ScriptedApi) -> Iterator[CloudTpuProvisioner]:
    with provisioner_of(api) as provisioner:
        yield provisioner


# -- what is asked for ------------------------------------------------------------------------------------------------


def asked(api: ScriptedApi, scripted: CloudTpuProvisioner, request: GangRequest) -> tpu_v2.QueuedResource:
    """What is sent for a gang, as a queued resource."""
    api.will("CreateQueuedResource", operation("op", NAME, kind="queuedResources", done=False))
    scripted.create(request)
    assert api.calls == ["CreateQueuedResource"]
    sent = api.requests[-1]
    assert (sent.parent, sent.queued_resource_id) == (ZONE, NAME)
    return tpu_v2.QueuedResource(sent.queued_resource)


def test_one_spot_slice_is_a_queued_resource_with_labels_and_token_in_its_node(
    api: ScriptedApi, scripted: CloudTpuProvisioner
) -> None:
    sent = asked(api, scripted, replace(SPOT, valid_until_seconds=900.0))
    (spec,) = sent.tpu.node_spec
    assert (spec.parent, spec.node_id, "multislice_params" in spec) == (ZONE, NAME, False)
    assert ("spot" in sent, "guaranteed" in sent, sent.reservation_name) == (True, False, "")
    assert sent.queueing_policy.valid_until_duration == datetime.timedelta(seconds=900)
    assert dict(spec.node.labels) == {"bastion-managed": "team-bastion", "bastion-run": "aaaaaaaaaa-1"}
    assert spec.node.metadata["bastion-token"] == "a-run-token"
    assert spec.node.metadata["startup-script"] == "true"
    assert "scheduling_config" not in spec.node  # it breaks the request


def test_reserved_slices_name_their_reservation_and_wait_for_ever(
    api: ScriptedApi, scripted: CloudTpuProvisioner
) -> None:
    sent = asked(api, scripted, replace(REQUEST, place=place(CapacityModel.RESERVED, reservation="ours")))
    assert ("spot" in sent, "guaranteed" in sent) == (False, True)
    assert sent.reservation_name == f"{ZONE}/reservations/ours"
    assert "queueing_policy" not in sent
    assert "scheduling_config" not in sent.tpu.node_spec[0].node


def test_a_reservation_of_another_project_is_taken_as_it_is_named(
    api: ScriptedApi, scripted: CloudTpuProvisioner
) -> None:
    shared = "projects/another/locations/us-central2-b/reservations/theirs"
    sent = asked(api, scripted, replace(REQUEST, place=place(CapacityModel.RESERVED, reservation=shared)))
    assert sent.reservation_name == shared


def test_flex_start_is_for_clusters_only(api: ScriptedApi, scripted: CloudTpuProvisioner) -> None:
    with pytest.raises(ProvisionerRefused, match="Cloud TPU has no flex-start"):
        scripted.create(replace(REQUEST, place=place(CapacityModel.FLEX_START)))
    assert api.calls == []


def test_several_slices_on_demand_are_one_queued_resource_without_a_tier(
    api: ScriptedApi, scripted: CloudTpuProvisioner
) -> None:
    sent = asked(api, scripted, replace(REQUEST, ref=GANG))
    (spec,) = sent.tpu.node_spec
    assert (spec.node_id, spec.multislice_params.node_count) == ("", 2)
    assert spec.multislice_params.node_id_prefix == NAME
    assert ("spot" in sent, "guaranteed" in sent) == (False, False)


@pytest.mark.parametrize(
    ("code", "words", "kind"),
    [
        (grpc.StatusCode.ALREADY_EXISTS, "already exists", GangExists),
        (grpc.StatusCode.RESOURCE_EXHAUSTED, "Quota limit 'X' has been exceeded. Limit: 64 in region", Stockout),
        (grpc.StatusCode.RESOURCE_EXHAUSTED, "Quota limit 'X' exceeded. Limit: 0 in region", ProvisionerRefused),
        (
            grpc.StatusCode.RESOURCE_EXHAUSTED,
            "Quota exceeded for quota metric 'Writes' and limit 'Writes per minute'",
            ProvisionerUnavailable,
        ),
        (grpc.StatusCode.FAILED_PRECONDITION, "Insufficient reserved capacity", Stockout),
        (grpc.StatusCode.INVALID_ARGUMENT, "no such reservation", ProvisionerRefused),
        (grpc.StatusCode.UNAVAILABLE, "try again", ProvisionerUnavailable),
    ],
    ids=["exists", "quota", "no-quota", "calls", "reservation", "invalid", "away"],
)
def test_what_the_api_says_to_a_request_becomes_the_ports_error(
    api: ScriptedApi, scripted: CloudTpuProvisioner, code: grpc.StatusCode, words: str, kind: type[Exception]
) -> None:
    api.will("CreateQueuedResource", Refusal(code, words))
    with pytest.raises(kind, match="creating b-aaaaaaaaaa-1") as raised:
        scripted.create(SPOT)
    assert type(raised.value) is kind
    assert api.calls == ["CreateQueuedResource"]


# -- what each state means --------------------------------------------------------------------------------------------

STATES = [
    ("CREATING", (), GangState.WAITING, "CREATING"),
    ("ACCEPTED", (), GangState.WAITING, "ACCEPTED"),
    ("WAITING_FOR_RESOURCES", (), GangState.WAITING, "WAITING_FOR_RESOURCES"),
    ("PROVISIONING", (), CREATING, ""),
    ("PROVISIONING", (2,), CREATING, ""),
    ("PROVISIONING", (1, 2), CREATING, ""),
    ("PROVISIONING", (2, 2), READY, ""),
    ("PROVISIONING", (2, 11), LOST, ""),
    ("ACTIVE", (2, 2), READY, ""),
    ("ACTIVE", (2, 1), CREATING, ""),
    ("ACTIVE", (2, 6), LOST, ""),
    ("ACTIVE", (2, 12), LOST, ""),
    ("ACTIVE", (5, 2), LOST, ""),
    ("ACTIVE", (5, 5), LOST, ""),
    ("SUSPENDING", (2, 2), LOST, ""),
    ("SUSPENDED", (11, 11), LOST, ""),
    ("SUSPENDED", (), LOST, ""),
    ("FAILED", (), GangState.FAILED, ""),
    ("FAILED", (2,), GangState.FAILED, ""),
    ("DELETING", (2, 5), DELETING, ""),
    ("DELETING", (), DELETING, ""),
    ("STATE_UNSPECIFIED", (), CREATING, ""),
]


@pytest.mark.parametrize(
    ("state", "nodes", "means", "waiting"),
    STATES,
    ids=["-".join([state.lower(), *(str(n) for n in nodes)]) for state, nodes, _, _ in STATES],
)
def test_a_gang_is_what_its_queued_resource_and_its_nodes_say_whether_listed_or_looked_at(
    api: ScriptedApi,
    scripted: CloudTpuProvisioner,
    state: str,
    nodes: tuple[int, ...],
    means: GangState,
    waiting: str,
) -> None:
    resource = queued(state=state, slices=2, error=(8, "no more capacity") if state == "FAILED" else None)
    members = [slice_node(index, number) for index, number in enumerate(nodes)]
    api.lists(nodes=members, queued=[resource])
    (listed,) = scripted.list()
    assert api.calls == []  # nothing but the two listings
    assert (listed.ref, listed.run, listed.token) == (GANG, "aaaaaaaaaa-1", "a-run-token")
    assert (listed.state, listed.waiting) == (means, waiting)
    out_of_capacity = GangFailure(cause="capacity", message="no more capacity (code 8)")
    assert listed.failure == (out_of_capacity if state == "FAILED" else None)
    assert len(listed.nodes) == len(nodes)
    api.will("GetQueuedResource", resource)
    if means is not GangState.WAITING:
        api.will("GetNode", *members, *[NOT_FOUND] * (2 - len(nodes)))
    assert scripted.get(GANG) == listed


@pytest.mark.parametrize("state", [state for state in tpu_v2.QueuedResourceState.State if state.value])
def test_every_state_of_a_queued_resource_is_in_the_table(state: tpu_v2.QueuedResourceState.State) -> None:
    assert state.name in {row[0] for row in STATES}


@pytest.mark.filterwarnings("ignore:Unrecognized")
def test_a_state_of_a_later_version_of_the_api_stops_no_listing(
    api: ScriptedApi, scripted: CloudTpuProvisioner
) -> None:
    later = queued(state="ACTIVE")
    tpu_v2.QueuedResource.pb(later).state.state = 99
    api.lists(queued=[later])
    [status] = scripted.list()
    assert (status.state, status.ref.name) == (GangState.CREATING, NAME)


def test_a_gang_that_was_taken_back_says_so(api: ScriptedApi, scripted: CloudTpuProvisioner) -> None:
    by_user = tpu_v2.QueuedResourceState.StateInitiator.USER
    api.lists(
        nodes=[slice_node(0, 11), slice_node(1)],
        queued=[queued(state="SUSPENDING", slices=2), queued("b-z-1", "SUSPENDED", state_initiator=by_user)],
    )
    first, second = scripted.list()
    assert "is SUSPENDING: it was preempted" in first.message
    assert "b-aaaaaaaaaa-1-0: the node is PREEMPTED" in first.message
    assert second.message == "the queued resource is SUSPENDED: its nodes were deleted by a user"


def test_a_node_that_an_active_gang_lacks_in_a_listing_is_looked_for(
    api: ScriptedApi, scripted: CloudTpuProvisioner
) -> None:
    api.lists(nodes=[slice_node(0)], queued=[queued(slices=2)])
    api.will("GetQueuedResource", queued(slices=2))
    api.will("GetNode", slice_node(0), slice_node(1))
    assert [status.state for status in scripted.list()] == [READY]
    api.will("GetQueuedResource", queued(slices=2))
    api.will("GetNode", slice_node(0), NOT_FOUND)
    (status,) = scripted.list()
    assert (status.state, status.message) == (LOST, "b-aaaaaaaaaa-1-1 does not exist")


def test_nodes_without_their_queued_resource_are_a_gang_that_is_lost_until_they_go(
    api: ScriptedApi, scripted: CloudTpuProvisioner
) -> None:
    api.lists(nodes=[slice_node(1)])
    api.will("GetQueuedResource", NOT_FOUND)
    api.will("GetNode", NOT_FOUND, slice_node(1))
    (status,) = scripted.list()
    assert (status.ref, status.run, status.state) == (GANG, "aaaaaaaaaa-1", LOST)
    api.lists(nodes=[slice_node(1, 5)])
    assert [status.state for status in scripted.list()] == [DELETING]


def test_a_gang_is_gone_only_when_the_queued_resource_and_every_node_is(
    api: ScriptedApi, scripted: CloudTpuProvisioner
) -> None:
    api.always("GetQueuedResource", NOT_FOUND)
    api.will("GetNode", NOT_FOUND, slice_node(1, 5))
    status = scripted.get(GANG)
    assert status is not None
    assert status.state is DELETING
    api.will("GetNode", NOT_FOUND, NOT_FOUND)
    assert scripted.get(GANG) is None
    api.will("GetNode", NOT_FOUND, UNAVAILABLE, UNAVAILABLE, UNAVAILABLE)
    with pytest.raises(ProvisionerUnavailable):
        scripted.get(GANG)


def test_everything_with_our_label_is_listed_under_a_name_that_deletes_it(
    api: ScriptedApi, scripted: CloudTpuProvisioner
) -> None:
    stray = node("odd-7", metadata={"bastion-slices": "2"})
    api.lists(
        nodes=[node("plain"), stray, node("theirs", labels={"bastion-managed": "other-bastion"})],
        queued=[
            queued("failed", "FAILED", error=(9, "no such network")),
            queued("suspended", "SUSPENDED"),
            queued("foreign", labels={"bastion-managed": "other-bastion"}),
            tpu_v2.QueuedResource(name=f"{ZONE}/queuedResources/empty"),
        ],
    )
    api.always("GetQueuedResource", NOT_FOUND)
    api.will("GetNode", stray, NOT_FOUND)
    found = {status.ref.name: status for status in scripted.list()}
    assert sorted(found) == ["failed", "odd-7", "plain", "suspended"]
    assert found["odd-7"].ref.node(0) == "odd-7"
    failure = found["failed"].failure
    assert failure is not None
    assert (failure.cause, failure.message.partition(";")[0]) == ("refused", "no such network (code 9)")


def test_internal_errors_are_stock_outs_up_to_a_number_of_attempts_of_a_job(
    api: ScriptedApi, scripted: CloudTpuProvisioner
) -> None:
    def cause(name: str) -> str:
        api.lists(queued=[queued(name, "FAILED", error=(13, "an internal error has occurred"))])
        for _ in range(3):  # seen again and again, counted once
            (status,) = scripted.list()
        assert status.failure is not None
        return status.failure.cause

    assert [cause(f"b-x-{attempt}") for attempt in range(7)] == ["capacity"] * 5 + ["infrastructure"] * 2
    assert cause("b-y-1") == "capacity"
    api.lists(nodes=[node("b-x-8")], queued=[queued("b-x-8")])
    assert [status.state for status in scripted.list()] == [READY]
    assert cause("b-x-9") == "capacity"


# -- how they end -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "state", ["ACCEPTED", "WAITING_FOR_RESOURCES", "PROVISIONING", "ACTIVE", "FAILED", "SUSPENDED"]
)
def test_a_queued_resource_is_deleted_with_its_nodes_and_again_while_it_lasts(
    api: ScriptedApi, scripted: CloudTpuProvisioner, state: str
) -> None:
    for _ in range(2):
        api.will("GetQueuedResource", queued(state=state))
        api.will("DeleteQueuedResource", operation("op", NAME, kind="queuedResources", verb="delete"))
        scripted.delete(REF)
    assert api.calls == ["GetQueuedResource", "DeleteQueuedResource"] * 2
    assert (api.requests[-1].name, api.requests[-1].force) == (f"{ZONE}/queuedResources/{NAME}", True)


@pytest.mark.parametrize("state", ["SUSPENDING", "DELETING"])
def test_one_that_is_on_its_way_out_is_left_alone(api: ScriptedApi, scripted: CloudTpuProvisioner, state: str) -> None:
    api.will("GetQueuedResource", queued(state=state))
    scripted.delete(REF)
    assert api.calls == ["GetQueuedResource"]


@pytest.mark.parametrize("answer", [NOT_FOUND, NOT_NOW], ids=["gone", "suspending"])
def test_one_that_goes_between_the_look_and_the_deletion_is_deleted(
    api: ScriptedApi, scripted: CloudTpuProvisioner, answer: Refusal
) -> None:
    api.will("GetQueuedResource", queued())
    api.will("DeleteQueuedResource", answer)
    scripted.delete(REF)


def test_a_deletion_that_gets_no_answer_is_not_repeated_by_itself(
    api: ScriptedApi, scripted: CloudTpuProvisioner
) -> None:
    api.will("GetQueuedResource", queued())
    api.will("DeleteQueuedResource", UNAVAILABLE)
    with pytest.raises(ProvisionerUnavailable):
        scripted.delete(REF)
    assert api.calls == ["GetQueuedResource", "DeleteQueuedResource"]


def test_nodes_that_outlived_their_queued_resource_are_deleted_one_by_one(
    api: ScriptedApi, scripted: CloudTpuProvisioner
) -> None:
    api.will("GetQueuedResource", NOT_FOUND)
    api.will("GetNode", slice_node(0), slice_node(1, 5))
    api.will("DeleteNode", operation("op", f"{NAME}-0", verb="delete"))
    scripted.delete(GANG)
    assert api.calls == ["GetQueuedResource", "GetNode", "DeleteNode", "GetNode"]


def test_a_foreign_queued_resource_is_neither_known_nor_deleted_and_our_node_of_its_name_is(
    api: ScriptedApi, scripted: CloudTpuProvisioner
) -> None:
    foreign = queued(labels={"bastion-managed": "other-bastion"})
    api.will("GetQueuedResource", foreign, foreign)
    api.will("GetNode", NOT_FOUND, node())
    status = scripted.get(REF)
    assert status is not None
    assert (status.run, status.token) == ("", "")
    api.will("DeleteNode", operation("op", NAME, verb="delete"))
    with pytest.raises(ProvisionerRefused, match="not this bastion's and is left alone"):
        scripted.delete(REF)
    assert api.calls == ["GetQueuedResource", "GetNode", "GetQueuedResource", "GetNode", "DeleteNode"]


# -- against the emulator ---------------------------------------------------------------------------------------------


@pytest.fixture
def emulated(tmp_path) -> Iterator[tuple[Emulator, CloudTpuProvisioner]]:
    emulator = Emulator(
        EmulatorSettings(state_dir=tmp_path, boot=False, watch_seconds=0.02, exists={("us-central2-b", "v4-8"): 0})
    )
    address = emulator.open()
    client = CloudTpuProvisioner(replace(SETTINGS, endpoint=address.endpoint, token=address.token))
    yield emulator, client
    client.close()
    emulator.close()


def test_a_gang_that_waits_says_in_the_apis_words_what_for_and_comes_up_when_there_is_capacity(emulated) -> None:
    emulator, client = emulated
    client.create(replace(SPOT, ref=GANG))
    until(lambda: [status.waiting for status in client.list()] == ["WAITING_FOR_RESOURCES"])
    assert client.get(GANG).state is GangState.WAITING
    assert client.failure(GANG) is None
    emulator.fleet.faults.set_capacity(["us-central2-b/v4-8=2"])
    until(lambda: [status.state for status in client.list()] == [READY])


def test_a_gang_that_waits_can_be_taken_back(emulated) -> None:
    _, client = emulated
    client.create(SPOT)
    client.delete(REF)
    until(lambda: client.get(REF) is None)


def test_a_request_that_waited_long_enough_fails_for_want_of_capacity(emulated) -> None:
    _, client = emulated
    client.create(replace(SPOT, valid_until_seconds=0.05))
    until(lambda: client.list()[0].state is GangState.FAILED)
    failure = client.list()[0].failure
    assert failure.cause == "capacity"
    assert "expired" in failure.message
    client.delete(REF)
    until(lambda: client.get(REF) is None)


def test_a_request_whose_reply_was_lost_is_found_by_its_token(emulated) -> None:
    emulator, client = emulated
    emulator.fleet.faults.lose_replies("CreateQueuedResource")
    with pytest.raises(ProvisionerUnavailable):
        client.create(SPOT)
    with pytest.raises(GangExists):
        client.create(SPOT)
    assert [status.token for status in client.list()] == ["a-run-token"]
    assert client.failure(REF) is None


def test_a_pre_empted_gang_is_lost_from_the_notice_on_and_deleted_once_it_is_suspended(emulated) -> None:
    emulator, client = emulated
    emulator.fleet.faults.set_capacity(["us-central2-b/v4-8=2"])
    client.create(replace(SPOT, ref=GANG))
    until(lambda: [status.state for status in client.list()] == [READY])
    emulator.fleet.faults.preempt(GANG.node(1))
    until(lambda: client.list()[0].state is LOST)
    assert "preempted" in client.list()[0].message

    def gone() -> bool:
        client.delete(GANG)
        return client.get(GANG) is None

    until(gone)
