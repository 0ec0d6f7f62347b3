"""The contract of `bastion.ports.Provisioner`, sentence by sentence, on every adapter and on the fake.

An adapter joins by an entry in `BACKENDS`: a context manager that makes a zone without nodes and says how to use it.
"""

from __future__ import annotations

import contextlib
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path

import pytest

from bastion.adapters.bastion_host import BastionHostProvisioner
from bastion.adapters.cloud_tpu import CloudTpuProvisioner, CloudTpuSettings
from bastion.core.errors import ProvisionerRefused, SliceExists, Stockout
from bastion.core.protocol import AgentArguments
from bastion.core.slices import SliceRequest, SliceState, SliceStatus
from bastion.emulator.tpu.server import Emulator, EmulatorSettings
from bastion.ports import Provisioner
from bastion.testing.fake_provisioner import FakeProvisioner
from bastion.testing.manual_clock import ManualClock

BASTION = "team-bastion"
# Long enough for the slowest backend on a busy machine; nobody waits it out unless the test fails.
PATIENCE_SECONDS = 20.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Zone:
    """Where nodes are made.

    Attributes:
        open: Another client of the same zone, which knows nothing of what earlier ones did.
        wait: Lets a moment pass.
        accelerator_type: Of a node of one host; empty where nodes have none.
        no_capacity: Makes the next creation fail for want of capacity; None where that cannot happen later.
        lose: Takes a ready node away; None where nobody can.
    """

    open: Callable[[], Provisioner]
    wait: Callable[[], None]
    accelerator_type: str = "v4-8"
    no_capacity: Callable[[], None] | None = None
    lose: Callable[[str], None] | None = None


@contextlib.contextmanager
def _fake(folder: Path) -> Iterator[Zone]:
    clock = ManualClock()
    fake = FakeProvisioner(clock)
    fake.ready_seconds = 3.0
    fake.delete_seconds = 2.0

    def no_capacity() -> None:
        fake.stockouts += 1

    yield Zone(open=lambda: fake, wait=lambda: clock.advance(1.0), no_capacity=no_capacity, lose=fake.lose)


@contextlib.contextmanager
def _cloud_tpu(folder: Path) -> Iterator[Zone]:
    emulator = Emulator(EmulatorSettings(state_dir=folder / "emulator"))
    clients: list[CloudTpuProvisioner] = []

    def client() -> CloudTpuProvisioner:
        settings = CloudTpuSettings(
            project="a-project",
            zone="us-central2-b",
            bastion=BASTION,
            endpoint=emulator.address.endpoint,
            token=emulator.address.token,
            startup_script="sleep 1000",
        )
        clients.append(CloudTpuProvisioner(settings))
        return clients[-1]

    try:
        emulator.open()
        yield Zone(
            open=client,
            wait=lambda: time.sleep(0.01),
            no_capacity=lambda: emulator.fleet.faults.fail_creations(1),
            lose=emulator.fleet.faults.preempt,
        )
    finally:
        for made in clients:
            made.close()
        emulator.close()


@contextlib.contextmanager
def _bastion_host(folder: Path) -> Iterator[Zone]:
    def client() -> BastionHostProvisioner:
        return BastionHostProvisioner(folder / "hosts", interpreter=sys.executable, delete_grace_seconds=3.0)

    try:
        yield Zone(open=client, wait=lambda: time.sleep(0.01), accelerator_type="")
    finally:
        last = client()
        for status in last.list():
            last.delete(status.node_id)
        _eventually(lambda: not last.list(), lambda: time.sleep(0.01))


BACKENDS: dict[str, Callable[[Path], AbstractContextManager[Zone]]] = {
    "fake": _fake,
    "cloud-tpu-emulator": _cloud_tpu,
    "bastion-host": _bastion_host,
}


@pytest.fixture(params=BACKENDS)
def zone(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Zone]:
    with BACKENDS[request.param](tmp_path) as made:
        yield made


@pytest.fixture
def ask(zone: Zone, tmp_path: Path) -> Callable[..., SliceRequest]:
    """Requests that every backend can really start."""

    def request(attempt: int = 1, *, token: str = "a-run-token", **changes: str) -> SliceRequest:
        run = f"aaaaaaaaaa-{attempt}"
        arguments = AgentArguments(
            root=str(tmp_path / BASTION),
            bastion=BASTION,
            job="a-job",
            run=run,
            token=token,
            accelerator_type=zone.accelerator_type,
            poll_seconds=0.1,
            interpreter=sys.executable,
        )
        fields = {
            "node_id": f"b-{run}",
            "bastion": BASTION,
            "run": run,
            "token": token,
            "accelerator_type": zone.accelerator_type,
            "runtime_version": "tpu-ubuntu2204-base" if zone.accelerator_type else "",
            "agent_arguments": arguments.to_bytes().decode(),
        }
        return SliceRequest(**{**fields, **changes})

    return request


def _eventually(condition: Callable[[], bool], wait: Callable[[], None]) -> None:
    deadline = time.monotonic() + PATIENCE_SECONDS
    while not condition():
        assert time.monotonic() < deadline, "waited in vain"
        wait()


def _is(zone: Zone, client: Provisioner, node_id: str, state: SliceState) -> SliceStatus:
    seen: list[SliceStatus | None] = []

    def there() -> bool:
        seen.append(client.get(node_id))
        return seen[-1] is not None and seen[-1].state is state

    _eventually(there, zone.wait)
    assert seen[-1] is not None
    return seen[-1]


def _gone(zone: Zone, client: Provisioner, node_id: str) -> None:
    _eventually(lambda: client.get(node_id) is None, zone.wait)


def test_a_zone_without_nodes_lists_nothing(zone: Zone) -> None:
    assert list(zone.open().list()) == []


def test_a_name_that_was_never_created_does_not_exist_and_did_not_fail(zone: Zone) -> None:
    client = zone.open()
    assert client.get("b-aaaaaaaaaa-1") is None
    assert client.failure("b-aaaaaaaaaa-1") is None


def test_a_created_node_becomes_ready_and_carries_its_run_and_token(zone: Zone, ask) -> None:
    client = zone.open()
    client.create(ask())
    status = _is(zone, client, "b-aaaaaaaaaa-1", SliceState.READY)
    assert (status.node_id, status.run, status.token) == ("b-aaaaaaaaaa-1", "aaaaaaaaaa-1", "a-run-token")
    assert client.failure("b-aaaaaaaaaa-1") is None
    _eventually(lambda: [s.node_id for s in client.list()] == ["b-aaaaaaaaaa-1"], zone.wait)


def test_a_client_that_did_not_create_a_node_sees_it_whole(zone: Zone, ask) -> None:
    zone.open().create(ask())
    other = zone.open()
    status = _is(zone, other, "b-aaaaaaaaaa-1", SliceState.READY)
    assert (status.run, status.token) == ("aaaaaaaaaa-1", "a-run-token")
    assert other.failure("b-aaaaaaaaaa-1") is None


def test_creating_a_name_that_exists_is_refused_and_changes_nothing(zone: Zone, ask) -> None:
    client = zone.open()
    client.create(ask(token="first"))
    with pytest.raises(SliceExists):
        client.create(ask(token="second"))
    assert _is(zone, client, "b-aaaaaaaaaa-1", SliceState.READY).token == "first"
    assert client.failure("b-aaaaaaaaaa-1") is None


def test_of_many_that_create_one_name_at_once_exactly_one_does(zone: Zone, ask) -> None:
    def create(number: int) -> str:
        try:
            zone.open().create(ask(token=f"token-{number}"))
        except SliceExists:
            return ""
        return f"token-{number}"

    with ThreadPoolExecutor(6) as pool:
        winners = [token for token in pool.map(create, range(6)) if token]
    assert len(winners) == 1
    assert _is(zone, zone.open(), "b-aaaaaaaaaa-1", SliceState.READY).token == winners[0]


def test_nodes_are_listed_in_order_of_their_ids(zone: Zone, ask) -> None:
    client = zone.open()
    for attempt in (2, 10, 1):
        client.create(ask(attempt))
    expected = ["b-aaaaaaaaaa-1", "b-aaaaaaaaaa-10", "b-aaaaaaaaaa-2"]
    _eventually(lambda: [s.node_id for s in client.list()] == expected, zone.wait)


def test_a_deleted_node_disappears_and_its_name_can_be_used_again(zone: Zone, ask) -> None:
    client = zone.open()
    client.create(ask(token="first"))
    _is(zone, client, "b-aaaaaaaaaa-1", SliceState.READY)
    client.delete("b-aaaaaaaaaa-1")
    _gone(zone, client, "b-aaaaaaaaaa-1")
    assert list(client.list()) == []
    client.create(ask(token="second"))
    assert _is(zone, client, "b-aaaaaaaaaa-1", SliceState.READY).token == "second"


def test_deleting_is_success_for_a_node_that_is_going_or_gone(zone: Zone, ask) -> None:
    client = zone.open()
    client.delete("b-aaaaaaaaaa-1")
    client.create(ask())
    _is(zone, client, "b-aaaaaaaaaa-1", SliceState.READY)
    client.delete("b-aaaaaaaaaa-1")
    client.delete("b-aaaaaaaaaa-1")
    zone.open().delete("b-aaaaaaaaaa-1")
    _gone(zone, client, "b-aaaaaaaaaa-1")
    client.delete("b-aaaaaaaaaa-1")


def test_a_node_can_be_deleted_before_it_is_ready(zone: Zone, ask) -> None:
    client = zone.open()
    client.create(ask())
    client.delete("b-aaaaaaaaaa-1")
    _gone(zone, client, "b-aaaaaaaaaa-1")
    assert list(client.list()) == []


def test_deleting_one_node_leaves_the_others(zone: Zone, ask) -> None:
    client = zone.open()
    client.create(ask(1))
    client.create(ask(2))
    _is(zone, client, "b-aaaaaaaaaa-2", SliceState.READY)
    client.delete("b-aaaaaaaaaa-1")
    _gone(zone, client, "b-aaaaaaaaaa-1")
    assert _is(zone, client, "b-aaaaaaaaaa-2", SliceState.READY).run == "aaaaaaaaaa-2"


def test_a_creation_without_capacity_is_told_until_it_is_tried_again(zone: Zone, ask) -> None:
    if zone.no_capacity is None:
        pytest.skip("here a creation fails at once or not at all")
    client = zone.open()
    zone.no_capacity()
    client.create(ask())
    _eventually(lambda: client.failure("b-aaaaaaaaaa-1") is not None, zone.wait)
    for _ in range(2):
        failure = client.failure("b-aaaaaaaaaa-1")
        assert isinstance(failure, Stockout)
        assert "no more capacity" in str(failure)
    assert client.failure("b-aaaaaaaaaa-2") is None
    client.delete("b-aaaaaaaaaa-1")
    _gone(zone, client, "b-aaaaaaaaaa-1")
    client.create(ask())
    assert client.failure("b-aaaaaaaaaa-1") is None
    _is(zone, client, "b-aaaaaaaaaa-1", SliceState.READY)


def test_a_client_that_did_not_create_a_node_learns_of_its_failure_too(zone: Zone, ask) -> None:
    if zone.no_capacity is None:
        pytest.skip("here a creation fails at once or not at all")
    zone.no_capacity()
    first = zone.open()
    first.create(ask())
    _eventually(lambda: first.failure("b-aaaaaaaaaa-1") is not None, zone.wait)
    assert isinstance(zone.open().failure("b-aaaaaaaaaa-1"), Stockout)


def test_a_node_that_was_taken_away_is_lost_until_it_is_deleted(zone: Zone, ask) -> None:
    if zone.lose is None:
        pytest.skip("nobody takes this one away")
    client = zone.open()
    client.create(ask())
    _is(zone, client, "b-aaaaaaaaaa-1", SliceState.READY)
    zone.lose("b-aaaaaaaaaa-1")
    assert "preempted" in _is(zone, client, "b-aaaaaaaaaa-1", SliceState.LOST).message.lower().replace("-", "")
    client.delete("b-aaaaaaaaaa-1")
    _gone(zone, client, "b-aaaaaaaaaa-1")


def test_what_can_never_be_created_is_refused_in_words(zone: Zone, ask) -> None:
    if zone.open().__class__ is FakeProvisioner:
        pytest.skip("the fake refuses only what a test tells it to")
    with pytest.raises(ProvisionerRefused, match="v99-8"):
        zone.open().create(ask(accelerator_type="v99-8", runtime_version="r"))
    assert list(zone.open().list()) == []
