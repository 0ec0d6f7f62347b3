"""The contract of `bastion.ports.Provisioner`, sentence by sentence, on every adapter and on the fake.

An adapter joins by an entry in `BACKENDS`: a context manager that makes a zone without nodes and says how to use it.
The Cloud TPU adapter is there twice, since one slice is a plain node or a queued resource; several are the latter.
"""

from __future__ import annotations

import contextlib
import functools
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from bastion.adapters.bastion_host import BastionHostProvisioner
from bastion.adapters.kubernetes.provisioner import KubernetesProvisioner
from bastion.adapters.system_clock import SystemClock
from bastion.adapters.tpu.provisioner import CloudTpuProvisioner, CloudTpuSettings
from bastion.core.bucket.protocol import AgentArguments
from bastion.core.errors import GangExists, ProvisionerRefused
from bastion.core.model.gangs import (
    CapacityModel,
    GangFailure,
    GangRef,
    GangRequest,
    GangState,
    GangStatus,
    Place,
    failure_of,
)
from bastion.emulators.tpu.server import Emulator, EmulatorSettings
from bastion.ports import Provisioner
from bastion.testing.fake_provisioner import FakeProvisioner
from bastion.testing.manual_clock import ManualClock
from tests.kube.real_server import missing
from tests.support.emulated_cluster import EmulatedCluster, cluster_on_real_server, emulated_cluster

BASTION = "team-bastion"
FIRST = GangRef(name="b-aaaaaaaaaa-1")
SECOND = GangRef(name="b-aaaaaaaaaa-2")
GANG = GangRef(name="b-aaaaaaaaaa-1", num_slices=3)
# Long enough for the slowest backend on a busy machine; nobody waits it out unless the test fails.
PATIENCE_SECONDS = 20.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Zone:
    """Where nodes are made.

    Attributes:
        open: Another client of the same zone, which knows nothing of what earlier ones did.
        wait: Lets a moment pass.
        accelerator_type: Of a node of one host; empty where nodes have none.
        model: What single slices are asked for as.
        no_capacity: Makes the next creation fail for want of capacity; None where that cannot happen later.
        capacity_again: Undoes `no_capacity`, where it does not end by itself.
        impatient: What a request is given so that a want of capacity ends it.
        lose: Takes a ready node away, by its gang and its index in it; None where nobody can: a gang is one host there.
        lost_words: What the platform then says.
        keeps_the_rest: Whether the other nodes of a lost gang stay as they are until it is deleted (ADR 43).
    """

    open: Callable[[], Provisioner]
    wait: Callable[[], None]
    accelerator_type: str = "v4-8"
    model: CapacityModel = CapacityModel.ON_DEMAND
    no_capacity: Callable[[], None] | None = None
    capacity_again: Callable[[], None] = lambda: None
    impatient: Mapping[str, Any] = field(default_factory=dict)
    lose: Callable[[GangRef, int], None] | None = None
    lost_words: str = "preempted"
    keeps_the_rest: bool = True


@contextlib.contextmanager
def _fake(folder: Path) -> Iterator[Zone]:
    clock = ManualClock()
    fake = FakeProvisioner(clock)
    fake.ready_seconds = 3.0
    fake.delete_seconds = 2.0

    def no_capacity() -> None:
        fake.stockouts += 1

    yield Zone(
        open=lambda: fake,
        wait=lambda: clock.advance(1.0),
        no_capacity=no_capacity,
        lose=lambda ref, index: fake.lose(ref.name, slice_index=index),
    )


@contextlib.contextmanager
def _cloud_tpu(folder: Path, model: CapacityModel = CapacityModel.ON_DEMAND) -> Iterator[Zone]:
    emulator = Emulator(EmulatorSettings(state_dir=folder / "emulator", watch_seconds=0.05))
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

    def lose(ref: GangRef, index: int) -> None:
        # A pre-emption takes all of a gang; a host that dies, one of its nodes.
        fault = emulator.fleet.faults.preempt if ref.num_slices == 1 else emulator.fleet.faults.crash
        fault(ref.node(index))

    try:
        emulator.open()
        yield Zone(
            open=client,
            wait=lambda: time.sleep(0.01),
            no_capacity=lambda: emulator.fleet.faults.fail_creations(1),
            lose=lose,
            model=model,
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
            last.delete(status.ref)
        _eventually(lambda: not last.list(), lambda: time.sleep(0.01))


@contextlib.contextmanager
def _kubernetes(
    folder: Path, cluster_of: Callable[..., AbstractContextManager[EmulatedCluster]] = emulated_cluster
) -> Iterator[Zone]:
    with cluster_of(folder / "cluster", "v4-8=4") as cluster:
        clients: list[KubernetesProvisioner] = []

        def client() -> KubernetesProvisioner:
            clients.append(
                KubernetesProvisioner(
                    cluster.settings,
                    bastion=BASTION,
                    # Kubernetes' SIGTERM has no effect on a first process that does not ask for it.
                    startup_script="trap exit TERM; sleep 1000 & wait",
                    clock=SystemClock(),
                )
            )
            return clients[-1]

        try:
            yield Zone(
                open=client,
                wait=lambda: time.sleep(0.01),
                no_capacity=cluster.cordon,
                capacity_again=cluster.uncordon,
                impatient={"valid_until_seconds": 0.0},
                lose=lambda ref, index: cluster.preempt(f"{ref.name}-slice-{index}"),
                lost_words="imminent node shutdown",
                keeps_the_rest=False,
            )
        finally:
            for made in clients:
                made.close()


BACKENDS: dict[str, Callable[[Path], AbstractContextManager[Zone]]] = {
    "fake": _fake,
    "cloud-tpu-node": _cloud_tpu,
    "cloud-tpu-queued-resource": functools.partial(_cloud_tpu, model=CapacityModel.SPOT),
    "bastion-host": _bastion_host,
    "kubernetes": _kubernetes,
    "kubernetes-real-server": functools.partial(_kubernetes, cluster_of=cluster_on_real_server),
}


@pytest.fixture(
    params=[
        pytest.param(name, marks=pytest.mark.kube) if name == "kubernetes-real-server" else name for name in BACKENDS
    ]
)
def zone(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Zone]:
    if request.param == "kubernetes-real-server":
        if "kube" not in request.config.getoption("markexpr"):
            pytest.skip("the real API server is asked for by: pytest -m kube")
        if absent := missing():
            pytest.skip(absent)
    with BACKENDS[request.param](tmp_path) as made:
        yield made


@pytest.fixture
def ask(zone: Zone, tmp_path: Path) -> Callable[..., GangRequest]:
    """Requests that every backend can really start."""

    def request(attempt: int = 1, *, token: str = "a-run-token", num_slices: int = 1, **changes: Any) -> GangRequest:
        run = f"aaaaaaaaaa-{attempt}"
        arguments = AgentArguments(
            root=str(tmp_path / BASTION),
            bastion=BASTION,
            job="a-job",
            run=run,
            token=token,
            accelerator_type=zone.accelerator_type,
            num_slices=num_slices,
            poll_seconds=0.1,
            interpreter=sys.executable,
        )
        place = Place(model=zone.model, runtime_version="tpu-ubuntu2204-base" if zone.accelerator_type else "")
        fields = {
            "ref": GangRef(name=f"b-{run}", num_slices=num_slices),
            "bastion": BASTION,
            "run": run,
            "token": token,
            "accelerator_type": zone.accelerator_type,
            "place": place,
            "image": "registry.example/train:v1",
            "agent_arguments": arguments.to_bytes().decode(),
        }
        return GangRequest(**{**fields, **changes})

    return request


def _eventually(condition: Callable[[], bool], wait: Callable[[], None]) -> None:
    deadline = time.monotonic() + PATIENCE_SECONDS
    while not condition():
        assert time.monotonic() < deadline, "waited in vain"
        wait()


def _is(zone: Zone, client: Provisioner, ref: GangRef, state: GangState) -> GangStatus:
    seen: list[GangStatus | None] = []

    def there() -> bool:
        seen.append(client.get(ref))
        return seen[-1] is not None and seen[-1].state is state

    _eventually(there, zone.wait)
    assert seen[-1] is not None
    return seen[-1]


def _gone(zone: Zone, client: Provisioner, ref: GangRef) -> None:
    _eventually(lambda: client.get(ref) is None, zone.wait)


def _deleted(zone: Zone, client: Provisioner, ref: GangRef) -> None:
    """Asks again for as long as it is there: what is being taken away already may not be deleted meanwhile."""

    def gone() -> bool:
        client.delete(ref)
        return client.get(ref) is None

    _eventually(gone, zone.wait)


def test_a_zone_without_nodes_lists_nothing(zone: Zone) -> None:
    assert list(zone.open().list()) == []


def test_a_name_that_was_never_created_does_not_exist_and_did_not_fail(zone: Zone) -> None:
    client = zone.open()
    assert client.get(FIRST) is None
    assert client.failure(FIRST) is None


def test_a_created_node_becomes_ready_and_carries_its_run_and_token(zone: Zone, ask) -> None:
    client = zone.open()
    client.create(ask())
    status = _is(zone, client, FIRST, GangState.READY)
    assert (status.ref.name, status.run, status.token) == ("b-aaaaaaaaaa-1", "aaaaaaaaaa-1", "a-run-token")
    assert client.failure(FIRST) is None
    _eventually(lambda: [s.ref.name for s in client.list()] == ["b-aaaaaaaaaa-1"], zone.wait)


def test_a_client_that_did_not_create_a_node_sees_it_whole(zone: Zone, ask) -> None:
    zone.open().create(ask())
    other = zone.open()
    status = _is(zone, other, FIRST, GangState.READY)
    assert (status.run, status.token) == ("aaaaaaaaaa-1", "a-run-token")
    assert other.failure(FIRST) is None


def test_creating_a_name_that_exists_is_refused_and_changes_nothing(zone: Zone, ask) -> None:
    client = zone.open()
    client.create(ask(token="first"))
    with pytest.raises(GangExists):
        client.create(ask(token="second"))
    assert _is(zone, client, FIRST, GangState.READY).token == "first"
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
    assert _is(zone, zone.open(), FIRST, GangState.READY).token == winners[0]


def test_nodes_are_listed_in_order_of_their_ids(zone: Zone, ask) -> None:
    client = zone.open()
    for attempt in (2, 10, 1):
        client.create(ask(attempt))
    expected = ["b-aaaaaaaaaa-1", "b-aaaaaaaaaa-10", "b-aaaaaaaaaa-2"]
    _eventually(lambda: [s.ref.name for s in client.list()] == expected, zone.wait)


def test_a_deleted_node_disappears_and_its_name_can_be_used_again(zone: Zone, ask) -> None:
    client = zone.open()
    client.create(ask(token="first"))
    _is(zone, client, FIRST, GangState.READY)
    client.delete(FIRST)
    _gone(zone, client, FIRST)
    assert list(client.list()) == []
    client.create(ask(token="second"))
    assert _is(zone, client, FIRST, GangState.READY).token == "second"


def test_deleting_is_success_for_a_node_that_is_going_or_gone(zone: Zone, ask) -> None:
    client = zone.open()
    client.delete(FIRST)
    client.create(ask())
    _is(zone, client, FIRST, GangState.READY)
    client.delete(FIRST)
    client.delete(FIRST)
    zone.open().delete(FIRST)
    _gone(zone, client, FIRST)
    client.delete(FIRST)


def test_a_node_can_be_deleted_before_it_is_ready(zone: Zone, ask) -> None:
    client = zone.open()
    client.create(ask())
    client.delete(FIRST)
    _gone(zone, client, FIRST)
    assert list(client.list()) == []


def test_deleting_one_node_leaves_the_others(zone: Zone, ask) -> None:
    client = zone.open()
    client.create(ask(1))
    client.create(ask(2))
    _is(zone, client, SECOND, GangState.READY)
    client.delete(FIRST)
    _gone(zone, client, FIRST)
    assert _is(zone, client, SECOND, GangState.READY).run == "aaaaaaaaaa-2"


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
    _eventually(lambda: _failure(client, FIRST) is not None, zone.wait)
    for _ in range(2):
        failure = _failure(client, FIRST)
        assert failure is not None and failure.cause == "capacity"
        assert "no more capacity" in failure.message
    assert _failure(client, SECOND) is None
    zone.capacity_again()
    client.delete(FIRST)
    _gone(zone, client, FIRST)
    client.create(ask())
    assert _failure(client, FIRST) is None
    _is(zone, client, FIRST, GangState.READY)


def test_a_client_that_did_not_create_a_node_learns_of_its_failure_too(zone: Zone, ask) -> None:
    if zone.no_capacity is None:
        pytest.skip("here a creation fails at once or not at all")
    zone.no_capacity()
    first = zone.open()
    first.create(ask(**zone.impatient))
    _eventually(lambda: _failure(first, FIRST) is not None, zone.wait)
    assert (failure := _failure(zone.open(), FIRST)) is not None and failure.cause == "capacity"


def test_a_node_that_was_taken_away_is_lost_until_it_is_deleted(zone: Zone, ask) -> None:
    if zone.lose is None:
        pytest.skip("nobody takes this one away")
    client = zone.open()
    client.create(ask())
    _is(zone, client, FIRST, GangState.READY)
    zone.lose(FIRST, 0)
    assert zone.lost_words in _is(zone, client, FIRST, GangState.LOST).message.lower().replace("-", "")
    _deleted(zone, client, FIRST)


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
    status = _is(gangs, client, GANG, GangState.READY)
    assert (status.ref, status.run, status.token) == (GANG, "aaaaaaaaaa-1", "a-run-token")
    assert dict(status.nodes) == {GANG.node(k): GangState.READY for k in range(3)}
    _is(gangs, client, SECOND, GangState.READY)
    other = gangs.open()
    _eventually(lambda: [s.ref for s in other.list()] == [GANG, SECOND], gangs.wait)
    assert other.get(GANG) == status
    with pytest.raises(GangExists):
        other.create(ask(num_slices=3))


def test_a_deleted_gang_is_there_until_the_last_of_its_nodes_is_gone(gangs: Zone, ask) -> None:
    client = gangs.open()
    client.create(ask(num_slices=3))
    _is(gangs, client, GANG, GangState.READY)
    client.delete(GANG)
    _gone(gangs, gangs.open(), GANG)
    assert [client.get(GangRef(name=GANG.node(k))) for k in range(3)] == [None] * 3
    assert list(client.list()) == []


def test_a_gang_that_lost_one_node_is_lost_and_tells_which(gangs: Zone, ask) -> None:
    assert gangs.lose is not None
    client = gangs.open()
    client.create(ask(num_slices=3))
    _is(gangs, client, GANG, GangState.READY)
    gangs.lose(GANG, 1)
    status = _is(gangs, client, GANG, GangState.LOST)
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
    _gone(gangs, client, GANG)


def test_a_gang_without_capacity_for_all_of_it_is_told_as_failed_until_it_is_deleted(gangs: Zone, ask) -> None:
    assert gangs.no_capacity is not None
    client = gangs.open()
    gangs.no_capacity()
    client.create(ask(num_slices=3, **gangs.impatient))

    _eventually(lambda: _failure(client, GANG) is not None, gangs.wait)
    assert (failure := _failure(client, GANG)) is not None and failure.cause == "capacity"
    gangs.capacity_again()
    client.delete(GANG)
    _gone(gangs, client, GANG)
    client.create(ask(num_slices=3))
    _is(gangs, client, GANG, GangState.READY)
