"""Zones without gangs behind each adapter of `Provisioner`, for its contract.

An adapter joins by an entry in `BACKENDS`: a context manager that makes a zone without nodes and says how to use it.
The Cloud TPU adapter is there twice, since one slice is a plain node or a queued resource; several are the latter.
"""

from __future__ import annotations

import contextlib
import functools
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from bastion.adapters.bastion_host import BastionHostProvisioner
from bastion.adapters.kubernetes.provisioner import KubernetesProvisioner
from bastion.adapters.system_clock import SystemClock
from bastion.adapters.tpu.provisioner import CloudTpuProvisioner, CloudTpuSettings
from bastion.core.bucket.protocol import AgentArguments
from bastion.core.model.gangs import CapacityModel, GangRef, GangRequest, GangState, GangStatus, Place
from bastion.core.model.kueue import priority_class
from bastion.emulators.tpu.server import Emulator, EmulatorSettings
from bastion.ports import Provisioner
from bastion.testing.fake_provisioner import FakeProvisioner
from bastion.testing.manual_clock import ManualClock
from quota import Policy
from tests.support.emulated_cluster import EmulatedCluster, cluster_on_real_server, emulated_cluster

BASTION = "team-bastion"
# Long enough for the slowest backend on a busy machine; nobody waits it out unless the test fails.
_PATIENCE_SECONDS = 20.0


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
        queue: Of Kueue, if it decides there.
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
    queue: str = ""


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
        eventually(lambda: not last.list(), lambda: time.sleep(0.01))


# All of the cluster below.
_POLICY = Policy(tiers=({"v4": 32},), weights={"team": {"v4": 1.0}}, members={"team": (".*",)})


@contextlib.contextmanager
def _kubernetes(
    folder: Path,
    cluster_of: Callable[..., AbstractContextManager[EmulatedCluster]] = emulated_cluster,
    *,
    queue: str = "",
) -> Iterator[Zone]:
    """`queue`: gangs are in this queue of Kueue."""
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
                wait=lambda: time.sleep(0.05),
                # In a queue, a gang waits for as long as it takes.
                no_capacity=None if queue else cluster.cordon,
                capacity_again=cluster.uncordon,
                impatient={"valid_until_seconds": 0.0},
                lose=lambda ref, index: cluster.preempt(f"{ref.name}-slice-{index}"),
                lost_words="imminent node shutdown",
                keeps_the_rest=False,
                queue=queue,
            )
        finally:
            for made in clients:
                made.close()


REAL_SERVER = "kubernetes-real-server"
BACKENDS: dict[str, Callable[[Path], AbstractContextManager[Zone]]] = {
    "fake": _fake,
    "cloud-tpu-node": _cloud_tpu,
    "cloud-tpu-queued-resource": functools.partial(_cloud_tpu, model=CapacityModel.SPOT),
    "bastion-host": _bastion_host,
    "kubernetes": _kubernetes,
    "kubernetes-kueue": functools.partial(
        _kubernetes, cluster_of=functools.partial(emulated_cluster, policy=_POLICY), queue="bastion-team"
    ),
    REAL_SERVER: functools.partial(_kubernetes, cluster_of=cluster_on_real_server),
}


def asking(zone: Zone, folder: Path) -> Callable[..., GangRequest]:
    """Requests that every backend can really start."""

    def request(attempt: int = 1, *, token: str = "a-run-token", num_slices: int = 1, **changes: Any) -> GangRequest:
        run = f"aaaaaaaaaa-{attempt}"
        arguments = AgentArguments(
            root=str(folder / BASTION),
            bastion=BASTION,
            job="a-job",
            run=run,
            run_key="ab" * 32,
            accelerator_type=zone.accelerator_type,
            num_slices=num_slices,
            poll_seconds=0.1,
            interpreter=sys.executable,
        )
        runtime_version = "tpu-ubuntu2204-base" if zone.accelerator_type else ""
        place = Place(model=zone.model, runtime_version=runtime_version, queue=zone.queue)
        fields = {
            "ref": GangRef(name=f"b-{run}", num_slices=num_slices),
            "bastion": BASTION,
            "run": run,
            "token": token,
            "accelerator_type": zone.accelerator_type,
            "place": place,
            "image": "registry.example/train:v1",
            "priority_class": priority_class(5, again=attempt > 1) if zone.queue else "",
            "agent_arguments": arguments.to_bytes().decode(),
        }
        return GangRequest(**{**fields, **changes})

    return request


def eventually(condition: Callable[[], bool], wait: Callable[[], None]) -> None:
    deadline = time.monotonic() + _PATIENCE_SECONDS
    while not condition():
        assert time.monotonic() < deadline, "waited in vain"
        wait()


def until_is(zone: Zone, client: Provisioner, ref: GangRef, state: GangState) -> GangStatus:
    seen: list[GangStatus | None] = []

    def there() -> bool:
        seen.append(client.get(ref))
        return seen[-1] is not None and seen[-1].state is state

    eventually(there, zone.wait)
    assert seen[-1] is not None
    return seen[-1]


def until_gone(zone: Zone, client: Provisioner, ref: GangRef) -> None:
    eventually(lambda: client.get(ref) is None, zone.wait)


def until_deleted(zone: Zone, client: Provisioner, ref: GangRef) -> None:
    """Asks again for as long as it is there: what is being taken away already may not be deleted meanwhile."""

    def gone() -> bool:
        client.delete(ref)
        return client.get(ref) is None

    eventually(gone, zone.wait)
