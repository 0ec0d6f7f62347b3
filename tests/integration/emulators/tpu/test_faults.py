"""Faults of the emulator, on demand and by seed, as the unmodified client and the hosts meet them."""

from __future__ import annotations

import http.client
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from google.api_core import exceptions
from google.cloud import tpu_v2
from google.longrunning import operations_pb2

from bastion.core.errors import Refused
from bastion.emulators.loopback import METADATA_PORT
from bastion.emulators.tpu.fault_plan import FAULT_TYPES, FaultPlan, parse_rates
from bastion.emulators.tpu.faults import Faults
from tests.support.emulated_queue import PATIENCE_SECONDS, ZONE, NodeState, Service, State, started
from tests.support.waiting import until

SPOT = tpu_v2.QueuedResource.Spot()


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Callable[..., Service]]:
    yield from started(tmp_path / "emulator")


@pytest.fixture
def faults(tmp_path: Path) -> Faults:
    """As another process has them: of the folder alone."""
    return Faults(tmp_path / "emulator" / "faults")


def ask(address: str, path: str, last_etag: str = "", *, wait: bool = False) -> tuple[str, str]:
    """The value and its tag, from a host's metadata server."""
    query = f"?wait_for_change=true&timeout_sec=20&last_etag={last_etag}" if wait else ""
    connection = http.client.HTTPConnection(address, METADATA_PORT, timeout=30)
    try:
        connection.request("GET", f"/computeMetadata/v1/instance/{path}{query}", headers={"Metadata-Flavor": "Google"})
        answer = connection.getresponse()
        return answer.read().decode(), answer.headers["ETag"]
    finally:
        connection.close()


def host_at(address: str) -> str:
    """Who answers there, empty for nobody; a host of another emulator may take an address that is free again."""
    try:
        return ask(address, "id")[0]
    except (OSError, http.client.HTTPException):  # also one that dies while it answers
        return ""


def test_a_creation_that_hangs_never_ends_also_after_a_restart_and_can_be_deleted(start, faults: Faults) -> None:
    service = start()
    faults.hang_creations(2)
    operation = service.create_node("b-a")
    service.create()
    service.becomes(State.PROVISIONING)
    service.crash()
    service.open()
    time.sleep(0.2)
    request = operations_pb2.GetOperationRequest(name=operation.name)
    assert not service.client.get_operation(request, timeout=PATIENCE_SECONDS).done
    assert service.states() == {"q": State.PROVISIONING}
    assert service.nodes() == {"b-a": NodeState.CREATING, "b-x": NodeState.CREATING}
    service.delete(force=True).result(timeout=PATIENCE_SECONDS)
    service.client.delete_node(name=f"{ZONE}/nodes/b-a", timeout=PATIENCE_SECONDS).result(timeout=PATIENCE_SECONDS)


def test_a_reply_is_lost_after_the_call_was_carried_out(start, faults: Faults) -> None:
    service = start()
    faults.lose_replies("CreateQueuedResource")
    with pytest.raises(exceptions.ServiceUnavailable):
        service.create()
    service.becomes(State.ACTIVE)
    with pytest.raises(exceptions.AlreadyExists):
        service.create()
    faults.lose_replies("DeleteQueuedResource")
    with pytest.raises(exceptions.ServiceUnavailable):
        service.delete(force=True)
    until(lambda: service.states() == {})


def test_a_call_fails_as_often_as_it_is_told_and_does_nothing(start, faults: Faults) -> None:
    service = start()
    faults.fail_calls("CreateNode", 2)
    faults.fail_calls("ListNodes", code=8, message="too many requests")
    for _ in range(2):
        with pytest.raises(exceptions.ServiceUnavailable):
            service.create_node("b-a")
    with pytest.raises(exceptions.TooManyRequests, match="too many requests"):
        service.nodes()
    assert service.nodes() == {}
    service.create_node("b-a")


def test_the_hosts_are_told_of_a_preemption_before_it_happens(start, faults: Faults) -> None:
    service = start(boot=True, notice_seconds=3600.0)
    service.create(spot=SPOT)
    service.becomes(State.ACTIVE)
    address = service.client.get_node(name=f"{ZONE}/nodes/b-x").network_endpoints[0].ip_address
    host = host_at(address)
    assert host
    assert ask(address, "preempted")[0] == "FALSE"
    faults.preempt("b-x")
    until(lambda: ask(address, "preempted")[0] == "TRUE")
    assert service.nodes() == {"b-x": NodeState.READY}
    service.end_notices()
    service.becomes(State.SUSPENDED)
    assert host_at(address) != host


def test_a_maintenance_is_told_to_whoever_waits_for_a_change_and_then_ends_the_node(start, faults: Faults) -> None:
    service = start(boot=True, notice_seconds=3600.0)
    service.create()
    service.becomes(State.ACTIVE)
    address = service.client.get_node(name=f"{ZONE}/nodes/b-x").network_endpoints[0].ip_address
    calm, tag = ask(address, "maintenance-event")
    assert calm == "NONE"
    faults.maintain("b-x")
    event, changed = ask(address, "maintenance-event", tag, wait=True)
    assert event == "TERMINATE_ON_HOST_MAINTENANCE"
    assert ask(address, "maintenance-event", tag, wait=True) == (event, changed)  # it has changed since: at once
    assert service.nodes() == {"b-x": NodeState.READY}
    service.end_notices()
    until(lambda: service.nodes() == {"b-x": NodeState.TERMINATED})
    assert service.states() == {"q": State.ACTIVE}


def test_a_maintenance_can_bring_the_node_back_on_new_hosts(start, faults: Faults) -> None:
    service = start()
    service.create()
    service.becomes(State.ACTIVE)
    before = service.client.get_node(name=f"{ZONE}/nodes/b-x").id
    service.done(service.create_node("b-slow"))
    faults.delay_creations(3600)
    faults.maintain("b-slow", recreate=True)
    until(lambda: service.nodes() == {"b-slow": NodeState.REPAIRING, "b-x": NodeState.READY})
    faults.delay_creations(0)
    faults.maintain("b-x", recreate=True)
    until(lambda: service.client.get_node(name=f"{ZONE}/nodes/b-x").id != before)
    until(lambda: service.nodes()["b-x"] is NodeState.READY)
    story = [event["event"] for event in service.events() if event["name"].endswith("/nodes/b-x")]
    assert story[-3:] == ["ready", "repairing", "ready"]
    assert service.states() == {"q": State.ACTIVE}


def test_a_host_that_crashes_is_gone_at_once_and_the_node_says_so_or_not(start, faults: Faults) -> None:
    service = start(boot=True)
    for node_id in ("b-loud", "b-silent"):
        service.done(service.create_node(node_id, "v4-16"))
    faults.crash("b-loud", worker=1)
    until(lambda: service.nodes()["b-loud"] is NodeState.TERMINATED)
    node = service.client.get_node(name=f"{ZONE}/nodes/b-loud")
    assert "worker 1 of 2 died" in node.health_description
    first, second = (e.ip_address for e in service.client.get_node(name=f"{ZONE}/nodes/b-silent").network_endpoints)
    dying, living = host_at(first), host_at(second)
    faults.crash("b-silent", silent=True)
    until(lambda: host_at(first) != dying)
    time.sleep(0.2)  # several looks of the watcher
    assert service.nodes()["b-silent"] is NodeState.READY
    assert host_at(second) == living != ""


def test_capacity_can_be_changed_while_it_runs(start, faults: Faults) -> None:
    service = start(exists={("us-central2-b", "v4-8"): 0})
    service.create()
    service.becomes(State.WAITING_FOR_RESOURCES)
    faults.set_capacity(["nonsense"])
    time.sleep(0.15)
    faults.set_capacity(["us-central2-b/v4-8=1"])
    service.becomes(State.ACTIVE)


def test_without_the_file_capacity_is_again_what_the_emulator_was_started_with(
    start, faults: Faults, tmp_path: Path
) -> None:
    faults.set_capacity(["us-central2-b/v4-8=0"])
    service = start()
    service.create()
    service.becomes(State.WAITING_FOR_RESOURCES)
    (tmp_path / "emulator" / "faults" / "capacity").unlink()
    service.becomes(State.ACTIVE)


def test_seeded_faults_of_nodes_happen_by_their_names_and_only_spot_nodes_are_preempted(start) -> None:
    plan = FaultPlan(rates={"preempt": 0.5, "stockout": 0.3}, seed=7, seconds=0.2)
    names = [f"b-{number}" for number in range(12)]
    fails = {name for name in names if plan.strikes("stockout", name)}
    taken = {name for name in names if plan.strikes("preempt", f"{name}#1")} - fails
    assert fails
    assert taken
    service = start(plan=plan)
    for name in names:
        service.create(name, node_id=name, spot=SPOT)
        service.create(f"od-{name}", node_id=f"od-{name}")
    expected = {
        name: State.FAILED if name in fails else State.SUSPENDED if name in taken else State.ACTIVE for name in names
    }
    until(lambda: {name: state for name, state in service.states().items() if name in expected} == expected)
    assert State.SUSPENDED not in {state for name, state in service.states().items() if name not in expected}


def test_seeded_faults_of_calls_are_the_same_after_a_restart_and_spare_no_kind(start) -> None:
    plan = FaultPlan(rates={"unavailable": 0.3, "throttled": 0.3, "lost-reply": 0.3}, seed=3)
    service = start(plan=plan)

    def story() -> list[str]:
        told = []
        for number in range(20):
            try:
                service.create_node(f"b-{number}")
            except exceptions.GoogleAPICallError as error:  # noqa: PERF203 - each call's fate is the point
                told.append(type(error).__name__)
            else:
                told.append("ok")
        return told

    first = story()
    assert {"ok", "ServiceUnavailable", "ResourceExhausted"} <= set(first)
    service.close()
    service.open()
    assert story() == first


def test_a_plan_strikes_about_as_often_as_it_says_and_differently_with_another_seed() -> None:
    names = [f"n{number}" for number in range(2000)]
    plans = [FaultPlan(rates={"crash": 0.25}, seed=seed, seconds=10.0) for seed in (1, 2)]
    struck = [{name for name in names if plan.strikes("crash", name)} for plan in plans]
    assert all(400 < len(each) < 600 for each in struck)
    assert struck[0] != struck[1]
    assert not any(plans[0].strikes("preempt", name) for name in names)
    delays = [plans[0].delay_seconds("crash", name) for name in names]
    assert 0.0 <= min(delays) < 1.0 < 9.0 < max(delays) < 10.0


def test_rates_are_read_as_a_shell_writes_them() -> None:
    assert parse_rates(["preempt:0.2", "hang:1"]) == {"preempt": 0.2, "hang": 1.0}
    assert parse_rates([f"{fault_type}:0" for fault_type in FAULT_TYPES]) == dict.fromkeys(FAULT_TYPES, 0.0)
    for wrong in ("preempt", "preempt:2", "preempt:-0.1", "preempt:x", "earthquake:0.1", "preempt:nan"):
        with pytest.raises(Refused, match="KIND:RATE"):
            parse_rates([wrong])
