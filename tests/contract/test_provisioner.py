"""The contract of `bastion.ports.Provisioner`, sentence by sentence, on every adapter and on the fake.

The adapters are in `tests.support.provisioner_zones`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from bastion.core.errors import GangExists, ProvisionerRefused
from bastion.core.model.gangs import GangFailure, GangRef, GangRequest, GangState, failure_of
from bastion.ports import Provisioner
from bastion.testing.fake_provisioner import FakeProvisioner
from tests.kube.real_server import missing
from tests.support.provisioner_zones import (
    BACKENDS,
    REAL_SERVER,
    Zone,
    asking,
    eventually,
    until_deleted,
    until_gone,
    until_is,
)

FIRST = GangRef(name="b-aaaaaaaaaa-1")
SECOND = GangRef(name="b-aaaaaaaaaa-2")
GANG = GangRef(name="b-aaaaaaaaaa-1", num_slices=3)


@pytest.fixture(
    params=[pytest.param(name, marks=pytest.mark.kube) if name == REAL_SERVER else name for name in BACKENDS]
)
def zone(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Zone]:
    if request.param == REAL_SERVER:
        if "kube" not in request.config.getoption("markexpr"):
            pytest.skip("the real API server is asked for by: pytest -m kube")
        if absent := missing():
            pytest.skip(absent)
    with BACKENDS[request.param](tmp_path) as made:
        yield made


@pytest.fixture
def ask(zone: Zone, tmp_path: Path) -> Callable[..., GangRequest]:
    return asking(zone, tmp_path)


def test_a_zone_without_nodes_lists_nothing(zone: Zone) -> None:
    assert list(zone.open().list()) == []


def test_a_name_that_was_never_created_does_not_exist_and_did_not_fail(zone: Zone) -> None:
    client = zone.open()
    assert client.get(FIRST) is None
    assert client.failure(FIRST) is None


def test_a_created_node_becomes_ready_and_carries_its_run_and_token(zone: Zone, ask) -> None:
    client = zone.open()
    client.create(ask())
    status = until_is(zone, client, FIRST, GangState.READY)
    assert (status.ref.name, status.run, status.token) == ("b-aaaaaaaaaa-1", "aaaaaaaaaa-1", "a-run-token")
    assert client.failure(FIRST) is None
    eventually(lambda: [s.ref.name for s in client.list()] == ["b-aaaaaaaaaa-1"], zone.wait)


def test_a_client_that_did_not_create_a_node_sees_it_whole(zone: Zone, ask) -> None:
    zone.open().create(ask())
    other = zone.open()
    status = until_is(zone, other, FIRST, GangState.READY)
    assert (status.run, status.token) == ("aaaaaaaaaa-1", "a-run-token")
    assert other.failure(FIRST) is None


def test_creating_a_name_that_exists_is_refused_and_changes_nothing(zone: Zone, ask) -> None:
    client = zone.open()
    client.create(ask(token="first"))
    with pytest.raises(GangExists):
        client.create(ask(token="second"))
    assert until_is(zone, client, FIRST, GangState.READY).token == "first"
    assert client.failure(FIRST) is None


def test_of_many_that_create_one_name_at_once_exactly_one_does(zone: Zone, ask) -> None:
    def create(number: int) -> str:
        try:
            zone.open().create(ask(token=f"token-{number}"))
        except GangExists:
            return ""
        return f"token-{number}"

    with ThreadPoolExecutor(6) as pool:
        winners = [token for token in pool.map(create, range(6)) if token]
    assert len(winners) == 1
    assert until_is(zone, zone.open(), FIRST, GangState.READY).token == winners[0]


def test_nodes_are_listed_in_order_of_their_ids(zone: Zone, ask) -> None:
    client = zone.open()
    for attempt in (2, 10, 1):
        client.create(ask(attempt))
    expected = ["b-aaaaaaaaaa-1", "b-aaaaaaaaaa-10", "b-aaaaaaaaaa-2"]
    eventually(lambda: [s.ref.name for s in client.list()] == expected, zone.wait)


def test_a_deleted_node_disappears_and_its_name_can_be_used_again(zone: Zone, ask) -> None:
    client = zone.open()
    client.create(ask(token="first"))
    until_is(zone, client, FIRST, GangState.READY)
    client.delete(FIRST)
    until_gone(zone, client, FIRST)
    eventually(lambda: not client.list(), zone.wait)
    client.create(ask(token="second"))
    assert until_is(zone, client, FIRST, GangState.READY).token == "second"


def test_deleting_is_success_for_a_node_that_is_going_or_gone(zone: Zone, ask) -> None:
    client = zone.open()
    client.delete(FIRST)
    client.create(ask())
    until_is(zone, client, FIRST, GangState.READY)
    client.delete(FIRST)
    client.delete(FIRST)
    zone.open().delete(FIRST)
    until_gone(zone, client, FIRST)
    client.delete(FIRST)


def test_a_node_can_be_deleted_before_it_is_ready(zone: Zone, ask) -> None:
    client = zone.open()
    client.create(ask())
    client.delete(FIRST)
    until_gone(zone, client, FIRST)
    eventually(lambda: not client.list(), zone.wait)


def test_deleting_one_node_leaves_the_others(zone: Zone, ask) -> None:
    client = zone.open()
    client.create(ask(1))
    client.create(ask(2))
    until_is(zone, client, SECOND, GangState.READY)
    client.delete(FIRST)
    until_gone(zone, client, FIRST)
    assert until_is(zone, client, SECOND, GangState.READY).run == "aaaaaaaaaa-2"


def _failure(client: Provisioner, ref: GangRef) -> GangFailure | None:
    """Why a gang was not created, wherever that is told."""
    status = client.get(ref)
    if status is not None:
        return status.failure if status.state is GangState.FAILED else None
    error = client.failure(ref)
    return None if error is None else failure_of(error)


def test_a_creation_without_capacity_is_told_until_it_is_tried_again(zone: Zone, ask) -> None:
    if zone.no_capacity is None:
        pytest.skip("here a creation fails at once or not at all")
    client = zone.open()
    zone.no_capacity()
    client.create(ask(**zone.impatient))
    eventually(lambda: _failure(client, FIRST) is not None, zone.wait)
    for _ in range(2):
        failure = _failure(client, FIRST)
        assert failure is not None and failure.cause == "capacity"
        assert "no more capacity" in failure.message
    assert _failure(client, SECOND) is None
    zone.capacity_again()
    client.delete(FIRST)
    until_gone(zone, client, FIRST)
    client.create(ask())
    assert _failure(client, FIRST) is None
    until_is(zone, client, FIRST, GangState.READY)


def test_a_client_that_did_not_create_a_node_learns_of_its_failure_too(zone: Zone, ask) -> None:
    if zone.no_capacity is None:
        pytest.skip("here a creation fails at once or not at all")
    zone.no_capacity()
    first = zone.open()
    first.create(ask(**zone.impatient))
    eventually(lambda: _failure(first, FIRST) is not None, zone.wait)
    assert (failure := _failure(zone.open(), FIRST)) is not None and failure.cause == "capacity"


def test_a_node_that_was_taken_away_is_lost_until_it_is_deleted(zone: Zone, ask) -> None:
    if zone.lose is None:
        pytest.skip("nobody takes this one away")
    client = zone.open()
    client.create(ask())
    until_is(zone, client, FIRST, GangState.READY)
    zone.lose(FIRST, 0)
    assert zone.lost_words in until_is(zone, client, FIRST, GangState.LOST).message.lower().replace("-", "")
    until_deleted(zone, client, FIRST)


def test_what_can_never_be_created_is_refused_in_words(zone: Zone, ask) -> None:
    if zone.open().__class__ is FakeProvisioner:
        pytest.skip("the fake refuses only what a test tells it to")
    with pytest.raises(ProvisionerRefused, match="v99-8"):
        zone.open().create(ask(accelerator_type="v99-8"))
    assert list(zone.open().list()) == []


@pytest.fixture
def gangs(zone: Zone) -> Zone:
    if zone.lose is None:
        pytest.skip("here a gang is one host")
    return zone


def test_a_gang_is_ready_when_each_of_its_nodes_is_and_is_listed_once(gangs: Zone, ask) -> None:
    client = gangs.open()
    client.create(ask(num_slices=3))
    client.create(ask(2))
    status = until_is(gangs, client, GANG, GangState.READY)
    assert (status.ref, status.run, status.token) == (GANG, "aaaaaaaaaa-1", "a-run-token")
    assert dict(status.nodes) == {GANG.node(k): GangState.READY for k in range(3)}
    until_is(gangs, client, SECOND, GangState.READY)
    other = gangs.open()
    eventually(lambda: [s.ref for s in other.list()] == [GANG, SECOND], gangs.wait)
    assert other.get(GANG) == status
    with pytest.raises(GangExists):
        other.create(ask(num_slices=3))


def test_a_deleted_gang_is_there_until_the_last_of_its_nodes_is_gone(gangs: Zone, ask) -> None:
    client = gangs.open()
    client.create(ask(num_slices=3))
    until_is(gangs, client, GANG, GangState.READY)
    client.delete(GANG)
    until_gone(gangs, gangs.open(), GANG)
    assert [client.get(GangRef(name=GANG.node(k))) for k in range(3)] == [None] * 3
    eventually(lambda: not client.list(), gangs.wait)


def test_a_gang_that_lost_one_node_is_lost_and_tells_which(gangs: Zone, ask) -> None:
    assert gangs.lose is not None
    client = gangs.open()
    client.create(ask(num_slices=3))
    until_is(gangs, client, GANG, GangState.READY)
    gangs.lose(GANG, 1)
    status = until_is(gangs, client, GANG, GangState.LOST)
    if gangs.keeps_the_rest:
        assert [status.nodes[GANG.node(k)] for k in range(3)] == [GangState.READY, GangState.LOST, GangState.READY]
    else:
        # Its name stays; the platform may take the rest away.
        assert status.nodes[GANG.node(1)] is GangState.LOST
        for _ in range(20):
            gangs.wait()
            still = client.get(GANG)
            assert still is not None and still.state is GangState.LOST
    client.delete(GANG)
    until_gone(gangs, client, GANG)


def test_a_gang_without_capacity_for_all_of_it_is_told_as_failed_until_it_is_deleted(gangs: Zone, ask) -> None:
    if gangs.no_capacity is None:
        pytest.skip("here a creation fails at once or not at all")
    client = gangs.open()
    gangs.no_capacity()
    client.create(ask(num_slices=3, **gangs.impatient))

    eventually(lambda: _failure(client, GANG) is not None, gangs.wait)
    assert (failure := _failure(client, GANG)) is not None and failure.cause == "capacity"
    gangs.capacity_again()
    client.delete(GANG)
    until_gone(gangs, client, GANG)
    client.create(ask(num_slices=3))
    until_is(gangs, client, GANG, GangState.READY)
