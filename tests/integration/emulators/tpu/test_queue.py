"""Queued resources as the unmodified client sees them: every state, every refusal, and restarts.

Nodes have no hosts here, but for the one test that says so.
"""

from __future__ import annotations

import json
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from google.api_core import exceptions
from google.cloud import tpu_v2

from bastion.core.errors import Refused
from bastion.emulators.loopback import METADATA_PORT
from bastion.emulators.tpu.capacity import parse_limits
from tests.support.emulated_queue import (
    LABELS,
    PATIENCE_SECONDS,
    ZONE,
    NodeState,
    Service,
    State,
    asked,
    started,
    valid_for,
)
from tests.support.waiting import until


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Callable[..., Service]]:
    yield from started(tmp_path / "emulator")


def test_a_queued_resource_becomes_active_and_its_node_carries_its_name(start) -> None:
    service = start()
    operation = service.create(spot=tpu_v2.QueuedResource.Spot())
    queued = service.becomes(State.ACTIVE)
    assert operation.result(timeout=PATIENCE_SECONDS).name == queued.name == f"{ZONE}/queuedResources/q"
    assert "active_data" in queued.state
    assert "spot" in queued
    (spec,) = queued.tpu.node_spec
    assert (spec.parent, spec.node_id, dict(spec.node.labels)) == (ZONE, "b-x", LABELS)
    assert spec.node.metadata["bastion-token"] == "t"
    node = service.client.get_node(name=f"{ZONE}/nodes/b-x")
    assert node.state is NodeState.READY
    assert (node.queued_resource, node.multislice_node) == (queued.name, False)
    assert (dict(node.labels), node.metadata["startup-script"]) == (LABELS, "x" * 5000)
    assert (node.scheduling_config.spot, node.scheduling_config.reserved) == (True, False)


def test_it_goes_through_every_state_in_order_and_the_event_log_tells_so(start) -> None:
    service = start()
    service.create(slices=2)
    service.becomes(State.ACTIVE)
    service.delete(force=True).result(timeout=PATIENCE_SECONDS)
    with pytest.raises(exceptions.NotFound):
        service.get()
    assert service.nodes() == {}
    events = service.events()
    story = [(event["event"], event["units"]) for event in events if event["name"].endswith("/queuedResources/q")]
    assert story == [
        ("accepted", 16),
        ("waiting_for_resources", 16),
        ("provisioning", 16),
        ("active", 16),
        ("deleting", 16),
        ("gone", 0),
    ]
    of_node = [(event["event"], event["units"]) for event in events if event["name"].endswith("/nodes/b-x-1")]
    assert of_node == [("accepted", 0), ("ready", 0), ("deleting", 0), ("gone", 0)]
    assert {event["type"] for event in events if event["name"]} == {"v4-8"}
    assert [event["at"] for event in events] == sorted(event["at"] for event in events)


def test_a_multislice_has_one_node_for_each_slice_named_by_the_prefix_or_by_itself(start) -> None:
    service = start()
    service.create(slices=3)
    service.create(queued_id="alone", node_id="", slices=2)
    service.becomes(State.ACTIVE)
    service.becomes(State.ACTIVE, "alone")
    assert sorted(service.nodes()) == ["alone-0", "alone-1", "b-x-0", "b-x-1", "b-x-2"]
    nodes = [node for node in service.client.list_nodes(parent=ZONE) if "/b-x-" in node.name]
    assert all(node.multislice_node for node in nodes)
    assert len({json.dumps(dict(node.metadata), sort_keys=True) for node in nodes}) == 1


def test_without_force_only_what_has_no_nodes_is_deleted(start) -> None:
    service = start(exists={("us-central2-b", "v4-8"): 2})
    service.emulator.fleet.faults.delay_creations(3600)
    service.create("slow", node_id="b-s")
    service.becomes(State.PROVISIONING, "slow")
    with pytest.raises(exceptions.FailedPrecondition, match="PROVISIONING"):
        service.delete("slow")
    service.emulator.fleet.faults.delay_creations(0)
    service.create()
    service.becomes(State.ACTIVE)
    with pytest.raises(exceptions.FailedPrecondition, match=r"ACTIVE.*force"):
        service.delete()
    service.create("waiting", node_id="b-y")
    service.becomes(State.WAITING_FOR_RESOURCES, "waiting")
    service.delete("waiting").result(timeout=PATIENCE_SECONDS)
    service.delete("slow", force=True).result(timeout=PATIENCE_SECONDS)
    assert service.states() == {"q": State.ACTIVE}


def test_the_only_node_deleted_by_its_user_suspends_it_and_it_can_go_then(start) -> None:
    service = start()
    service.create()
    service.becomes(State.ACTIVE)
    service.client.delete_node(name=f"{ZONE}/nodes/b-x", timeout=PATIENCE_SECONDS).result(timeout=PATIENCE_SECONDS)
    suspended = service.becomes(State.SUSPENDED)
    assert suspended.state.state_initiator is tpu_v2.QueuedResourceState.StateInitiator.USER
    assert service.nodes() == {}
    service.delete().result(timeout=PATIENCE_SECONDS)
    assert service.states() == {}


def test_a_node_of_a_multislice_or_of_one_under_way_cannot_be_deleted_alone(start) -> None:
    service = start()
    service.create(slices=2)
    service.becomes(State.ACTIVE)
    with pytest.raises(exceptions.FailedPrecondition, match="one of 2"):
        service.client.delete_node(name=f"{ZONE}/nodes/b-x-0", timeout=PATIENCE_SECONDS)
    service.emulator.fleet.faults.delay_creations(3600)
    service.create("other", node_id="b-y")
    service.becomes(State.PROVISIONING, "other")
    with pytest.raises(exceptions.FailedPrecondition, match="PROVISIONING"):
        service.client.delete_node(name=f"{ZONE}/nodes/b-y", timeout=PATIENCE_SECONDS)


def test_a_preemption_takes_the_whole_gang_after_its_notice_and_keeps_its_nodes_in_sight(start) -> None:
    service = start(notice_seconds=3600.0)
    service.create(slices=2, spot=tpu_v2.QueuedResource.Spot())
    service.becomes(State.ACTIVE)
    service.emulator.fleet.faults.preempt("b-x-1")
    suspending = service.becomes(State.SUSPENDING)
    assert suspending.state.state_initiator is tpu_v2.QueuedResourceState.StateInitiator.SERVICE
    assert set(service.nodes().values()) == {NodeState.READY}
    for force in (False, True):
        with pytest.raises(exceptions.FailedPrecondition, match="SUSPENDING"):
            service.delete(force=force)
    service.end_notices()
    service.becomes(State.SUSPENDED)
    assert service.nodes() == {"b-x-0": NodeState.PREEMPTED, "b-x-1": NodeState.PREEMPTED}
    service.delete().result(timeout=PATIENCE_SECONDS)
    assert (service.nodes(), service.states()) == ({}, {})


def test_a_preempted_node_gives_its_capacity_to_the_next_in_the_queue(start) -> None:
    service = start(exists={("us-central2-b", "v4-8"): 1})
    service.create("first", node_id="b-a")
    service.create("next", node_id="b-b")
    service.becomes(State.ACTIVE, "first")
    service.emulator.fleet.preempt(f"{ZONE}/nodes/b-a")
    service.becomes(State.ACTIVE, "next")
    assert service.get("first").state.state is State.SUSPENDED


def test_a_reset_starts_the_nodes_anew_under_their_names(start) -> None:
    service = start()
    service.create(slices=2)
    service.becomes(State.ACTIVE)
    before = {node.name: node.id for node in service.client.list_nodes(parent=ZONE)}
    reset = service.reset().result(timeout=PATIENCE_SECONDS)
    assert reset.state.state is State.ACTIVE
    after = {node.name: node.id for node in service.client.list_nodes(parent=ZONE)}
    assert before.keys() == after.keys()
    assert not set(before.values()) & set(after.values())
    service.emulator.fleet.preempt(f"{ZONE}/nodes/b-x-0")
    service.becomes(State.SUSPENDED)
    with pytest.raises(exceptions.FailedPrecondition, match="SUSPENDED"):
        service.reset()


def test_deleting_again_gives_the_same_operation_and_what_is_gone_is_not_found(start) -> None:
    service = start(exists={("us-central2-b", "v4-8"): 0})
    service.create()
    service.becomes(State.WAITING_FOR_RESOURCES)
    with service.emulator.fleet.ledger.lock:  # nothing moves meanwhile
        fleet = service.emulator.fleet
        name = f"{ZONE}/queuedResources/q"
        assert fleet.queue.delete(name, force=False) == fleet.queue.delete(name, force=True)
    until(lambda: service.states() == {})
    for call in (service.get, service.delete, service.reset):
        with pytest.raises(exceptions.NotFound):
            call()


def test_deleting_one_under_way_cancels_its_creation(start) -> None:
    service = start(create_seconds=3600)
    service.create(slices=2)
    service.becomes(State.PROVISIONING)
    assert set(service.nodes().values()) == {NodeState.CREATING}
    service.delete(force=True).result(timeout=PATIENCE_SECONDS)
    assert (service.nodes(), service.states()) == ({}, {})


WRONG: dict[str, tuple[tpu_v2.QueuedResource, str]] = {
    "no-node-spec": (tpu_v2.QueuedResource(), "exactly one node_spec, not 0"),
    "two-node-specs": (
        tpu_v2.QueuedResource(
            tpu=tpu_v2.QueuedResource.Tpu(node_spec=[asked().tpu.node_spec[0], asked("b-y").tpu.node_spec[0]])
        ),
        "exactly one node_spec, not 2",
    ),
    "no-name": (asked(""), "node_id or multislice_params"),
    "one-slice": (
        tpu_v2.QueuedResource(
            tpu={"node_spec": [{"parent": ZONE, "multislice_params": {"node_count": 1}, "node": {}}]}
        ),
        "greater than 1",
    ),
    "another-zone": (asked(parent=ZONE.replace("-b", "-a")), "parent"),
    "unknown-type": (asked(accelerator_type="v4-9"), "invalid AcceleratorType"),
    "scheduling-config": (
        tpu_v2.QueuedResource(
            tpu={
                "node_spec": [
                    {
                        "parent": ZONE,
                        "node_id": "b-x",
                        "node": {
                            "accelerator_type": "v4-8",
                            "runtime_version": "r",
                            "scheduling_config": {"spot": True},
                        },
                    }
                ]
            }
        ),
        "scheduling_config",
    ),
    "strange-reservation": (asked(reservation_name="r1"), "is not .*/reservations/RESERVATION"),
    "spot-and-reservation": (
        asked(reservation_name=f"{ZONE}/reservations/r1", spot=tpu_v2.QueuedResource.Spot()),
        "spot",
    ),
}


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    service = Service(tmp_path_factory.mktemp("emulator"))
    yield service
    service.close()


@pytest.mark.parametrize("case", sorted(WRONG))
def test_a_wrong_request_is_an_invalid_argument_and_makes_nothing(service: Service, case: str) -> None:
    queued, words = WRONG[case]
    with pytest.raises(exceptions.InvalidArgument, match=words):
        service.create("wrong", queued=queued)
    assert "wrong" not in service.states()


def test_a_strange_id_is_refused_and_none_is_made_up(service: Service) -> None:
    with pytest.raises(exceptions.InvalidArgument, match="not a queued resource id"):
        service.create("a/b")
    operation = service.create("", node_id="b-made-up")
    assert operation.result(timeout=PATIENCE_SECONDS).name.startswith(f"{ZONE}/queuedResources/qr-")


def test_a_reservation_is_taken_as_it_is_given(service: Service) -> None:
    service.create(
        "reserved",
        node_id="b-r",
        reservation_name=f"{ZONE}/reservations/r1",
        guaranteed=tpu_v2.QueuedResource.Guaranteed(),
    )
    queued = service.becomes(State.ACTIVE, "reserved")
    assert queued.reservation_name == f"{ZONE}/reservations/r1"
    assert service.client.get_node(name=f"{ZONE}/nodes/b-r").scheduling_config.reserved


def test_a_name_that_exists_is_refused_whether_the_queued_resources_or_a_nodes(service: Service) -> None:
    service.create("twice", node_id="b-twice")
    service.becomes(State.ACTIVE, "twice")
    with pytest.raises(exceptions.AlreadyExists, match="queuedResources/twice"):
        service.create("twice", node_id="b-other")
    with pytest.raises(exceptions.AlreadyExists, match="nodes/b-twice"):
        service.create("other", node_id="b-twice")


def test_listing_goes_page_by_page_in_order_and_stays_in_its_zone(service: Service) -> None:
    zone = "projects/a-project/locations/europe-west4-b"
    for queued_id in ("c", "a", "b"):
        service.create(queued_id, parent=zone, node_id=f"b-{queued_id}", accelerator_type="v6e-1")
    request = tpu_v2.ListQueuedResourcesRequest(parent=zone, page_size=2)
    pages = [
        [queued.name.rpartition("/")[2] for queued in page.queued_resources]
        for page in service.client.list_queued_resources(request).pages
    ]
    assert pages == [["a", "b"], ["c"]]
    everywhere = service.client.list_queued_resources(parent="projects/a-project/locations/-")
    assert [f"{zone}/queuedResources/{queued_id}" for queued_id in "abc"] == [
        queued.name for queued in everywhere if queued.name.startswith(zone)
    ]


def test_a_new_emulator_on_the_same_folder_takes_over_every_state(start) -> None:
    service = start(create_seconds=0.0, exists={("us-central2-b", "v4-8"): 4})
    service.create("active", node_id="b-a", slices=2)
    service.create("suspended", node_id="b-s")
    service.create("failed", node_id="b-f", queueing_policy=valid_for(seconds=-1))
    service.becomes(State.ACTIVE, "active")
    service.becomes(State.ACTIVE, "suspended")
    service.becomes(State.FAILED, "failed")
    service.emulator.fleet.preempt(f"{ZONE}/nodes/b-s")
    service.becomes(State.SUSPENDED, "suspended")
    service.create("waiting", node_id="b-w", slices=3)
    service.becomes(State.WAITING_FOR_RESOURCES, "waiting")
    messages = list(service.client.list_queued_resources(parent=ZONE))
    nodes = list(service.client.list_nodes(parent=ZONE))

    service.crash()
    service.open()
    assert list(service.client.list_queued_resources(parent=ZONE)) == messages
    assert list(service.client.list_nodes(parent=ZONE)) == nodes
    known = [event["name"] for event in service.events()[-len(messages) - len(nodes) :]]
    assert sorted(known) == sorted(thing.name for thing in [*messages, *nodes])
    service.delete("active", force=True)
    service.becomes(State.ACTIVE, "waiting")


def test_a_new_emulator_goes_on_with_what_was_provisioned_suspended_or_deleted(start) -> None:
    service = start(notice_seconds=3600.0)
    service.emulator.fleet.faults.delay_creations(3600)
    service.create("provisioning", node_id="b-p", slices=2)
    service.becomes(State.PROVISIONING, "provisioning")
    service.emulator.fleet.faults.delay_creations(0)
    service.create("suspending", node_id="b-s")
    service.becomes(State.ACTIVE, "suspending")
    service.emulator.fleet.preempt(f"{ZONE}/nodes/b-s")
    service.crash()
    service.open()
    service.becomes(State.ACTIVE, "provisioning")
    assert service.get("suspending").state.state is State.SUSPENDING
    service.end_notices()
    service.becomes(State.SUSPENDED, "suspending")
    assert service.nodes() == {"b-p-0": NodeState.READY, "b-p-1": NodeState.READY, "b-s": NodeState.PREEMPTED}


def test_the_hosts_of_a_multislice_learn_their_slice_and_their_coordinator_from_tpu_env(start, tmp_path: Path) -> None:
    service = start(boot=True)
    service.create(slices=2, accelerator_type="v4-16")
    service.becomes(State.ACTIVE)
    nodes = {node.name.rpartition("/")[2]: node for node in service.client.list_nodes(parent=ZONE)}
    first = nodes["b-x-0"].network_endpoints[0].ip_address
    for index in (0, 1):
        for endpoint in nodes[f"b-x-{index}"].network_endpoints:
            told = metadata(endpoint.ip_address, "attributes/tpu-env")
            assert f"MEGASCALE_COORDINATOR_ADDRESS: '{first}:8080'" in told
            assert "MEGASCALE_NUM_SLICES: '2'" in told
            assert f"MEGASCALE_SLICE_ID: '{index}'" in told
    service.reset().result(timeout=PATIENCE_SECONDS)
    nodes = {node.name.rpartition("/")[2]: node for node in service.client.list_nodes(parent=ZONE)}
    anew = nodes["b-x-0"].network_endpoints[0].ip_address
    assert f"'{anew}:8080'" in metadata(nodes["b-x-1"].network_endpoints[1].ip_address, "attributes/tpu-env")
    assert len(list((tmp_path / "emulator" / "vms").iterdir())) == 2


def metadata(address: str, path: str) -> str:
    request = urllib.request.Request(
        f"http://{address}:{METADATA_PORT}/computeMetadata/v1/instance/{path}", headers={"Metadata-Flavor": "Google"}
    )
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    with opener.open(request, timeout=PATIENCE_SECONDS) as answer:
        return answer.read().decode()


def test_limits_are_read_as_a_shell_writes_them() -> None:
    assert parse_limits(["us-central2-b/v4-8=2", "us-central2/v4=64"]) == {
        ("us-central2-b", "v4-8"): 2,
        ("us-central2", "v4"): 64,
    }
    for wrong in ("v4-8=2", "z/v4-8", "z/v4-8=-1", "z/v4-8=x", "z/v4-9=1", "=1"):
        with pytest.raises(Refused, match="v4-8"):
            parse_limits([wrong])
