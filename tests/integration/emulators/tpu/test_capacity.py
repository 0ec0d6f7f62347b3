"""Capacity, quota and times of queued resources, as the unmodified client sees them. Nodes have no hosts here."""

from __future__ import annotations

import datetime
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from google.api_core import exceptions

from tests.support.emulated_queue import PATIENCE_SECONDS, ZONE, Service, State, started, valid_for
from tests.support.waiting import until


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Callable[..., Service]]:
    yield from started(tmp_path / "emulator")


def test_it_waits_for_capacity_and_takes_all_of_its_nodes_or_none(start) -> None:
    service = start(exists={("us-central2-b", "v4-8"): 2})
    service.create("first", node_id="b-a")
    service.becomes(State.ACTIVE, "first")
    service.create("pair", node_id="b-b", slices=2)
    service.create("second", node_id="b-c")
    service.becomes(State.ACTIVE, "second")
    assert service.get("pair").state.state is State.WAITING_FOR_RESOURCES
    assert sorted(service.nodes()) == ["b-a", "b-c"]
    service.delete("first", force=True)
    time.sleep(0.1)
    assert service.get("pair").state.state is State.WAITING_FOR_RESOURCES
    service.delete("second", force=True)
    service.becomes(State.ACTIVE, "pair")
    assert sorted(service.nodes()) == ["b-b-0", "b-b-1"]


def test_capacity_of_a_family_is_counted_in_units_and_other_zones_have_their_own(start) -> None:
    service = start(exists={("us-central2-b", "v4"): 24})
    service.create("big", node_id="b-a", accelerator_type="v4-16")
    service.create("small", node_id="b-b")
    service.create("late", node_id="b-c")
    service.becomes(State.ACTIVE, "big")
    service.becomes(State.ACTIVE, "small")
    elsewhere = ZONE.replace("us-central2-b", "us-central2-a")
    service.create("late", parent=elsewhere, node_id="b-c", accelerator_type="v4-32")
    until(lambda: len(service.nodes()) == 2 and len(list(service.client.list_nodes(parent=elsewhere))) == 1)
    assert service.get("late").state.state is State.WAITING_FOR_RESOURCES


def test_a_node_on_demand_beyond_capacity_is_a_stockout_inside_its_operation(start) -> None:
    service = start(exists={("us-central2-b", "v4-8"): 1})
    assert not service.done(service.create_node("b-a")).error.code
    error = service.done(service.create_node("b-b")).error
    assert error.code == 8
    assert 'no more capacity in the zone "us-central2-b"' in error.message
    assert list(service.nodes()) == ["b-a"]


def test_quota_counts_whatever_exists_and_its_refusal_names_the_limit(start) -> None:
    service = start(quota={("us-central2", "v4"): 24})
    service.create("failed", node_id="b-a", queueing_policy=valid_for(seconds=-1))
    service.becomes(State.FAILED, "failed")
    service.create("suspended", node_id="b-b")
    service.becomes(State.ACTIVE, "suspended")
    service.emulator.fleet.preempt(f"{ZONE}/nodes/b-b")
    service.becomes(State.SUSPENDED, "suspended")
    service.create_node("b-c")
    for beyond in (lambda: service.create("more", node_id="b-d"), lambda: service.create_node("b-d")):
        with pytest.raises(exceptions.ResourceExhausted, match=r"Limit: 24 in region us-central2"):
            beyond()
    service.create("other", node_id="b-e", accelerator_type="v6e-8")
    for held in ("failed", "suspended"):
        service.delete(held).result(timeout=PATIENCE_SECONDS)
        service.create(f"instead-of-{held}", node_id=f"b-{held}")


def test_one_that_is_not_served_in_its_time_fails(start) -> None:
    service = start(exists={("us-central2-b", "v4-8"): 0})
    hour = datetime.timedelta(hours=1)
    service.create("patient", queueing_policy={"valid_until_duration": hour})
    service.create("brief", node_id="b-y", queueing_policy={"valid_until_duration": datetime.timedelta(seconds=0.1)})
    failed = service.becomes(State.FAILED, "brief")
    assert "valid until" in failed.state.failed_data.error.message
    assert failed.queueing_policy.valid_until_duration == datetime.timedelta(seconds=0.1)
    assert service.get("patient").state.state is State.WAITING_FOR_RESOURCES


def test_one_is_not_served_before_its_time_nor_before_the_waiting_time_is_over(start) -> None:
    service = start()
    service.create("later", queueing_policy={"valid_after_duration": datetime.timedelta(hours=1)})
    service.create("now", node_id="b-y")
    service.becomes(State.ACTIVE, "now")
    assert service.get("later").state.state is State.WAITING_FOR_RESOURCES


def test_the_knobs_of_time_hold_it_in_waiting_and_in_provisioning(start) -> None:
    service = start(wait_seconds=0.3, create_seconds=0.6)
    service.create()
    service.becomes(State.ACTIVE)
    # As the event log has it: who asks again and again may miss a state.
    story = [event for event in service.events() if event["name"].endswith("/queuedResources/q")]
    assert [event["event"] for event in story] == ["accepted", "waiting_for_resources", "provisioning", "active"]
    accepted, _, provisioning, active = (event["at"] for event in story)
    assert provisioning - accepted >= 0.3
    assert active - provisioning >= 0.59  # two clocks


def test_a_stockout_while_it_is_provisioned_fails_it_and_leaves_no_node(start) -> None:
    service = start()
    service.emulator.fleet.faults.fail_creations(1)
    service.create(slices=3)
    failed = service.becomes(State.FAILED)
    assert failed.state.failed_data.error.code == 8
    assert "no more capacity" in failed.state.failed_data.error.message
    until(lambda: service.nodes() == {})
    with pytest.raises(exceptions.AlreadyExists):
        service.create(slices=3)
    service.delete().result(timeout=PATIENCE_SECONDS)
    assert service.states() == {}
