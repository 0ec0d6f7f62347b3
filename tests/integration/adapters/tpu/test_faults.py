"""The Cloud TPU provisioner while all goes wrong that the emulator can do, by seed: nothing is lost or leaked."""

from __future__ import annotations

import time
from dataclasses import dataclass, field, replace
from pathlib import Path

import pytest
from google.cloud import tpu_v2

from bastion.adapters.tpu.provisioner import CloudTpuProvisioner
from bastion.core.errors import GangExists, ProvisionerError, ProvisionerRefused, Stockout
from bastion.core.model.gangs import CapacityModel, GangRef, GangRequest, GangState, GangStatus, Place
from bastion.emulators.tpu.fault_plan import FaultPlan
from bastion.emulators.tpu.messages import new_node
from bastion.emulators.tpu.server import Emulator, EmulatorSettings
from tests.support.cloud_tpu_api import REQUEST, SETTINGS, ZONE

RATES = {
    "stockout": 0.3,
    "hang": 0.1,
    "preempt": 0.4,
    "maintenance": 0.1,
    "unavailable": 0.05,
    "throttled": 0.05,
    "lost-reply": 0.2,
}
PATIENCE_SECONDS = 60.0
GANGS = 12


@dataclass(slots=True)
class Gang:
    """What a caller that follows the port's contract knows of one gang.

    Attributes:
        seen: What it was, in order.
        looks: In how many rounds it was wanted.
        unwanted: It is being deleted.
    """

    request: GangRequest
    seen: list[GangState] = field(default_factory=list)
    looks: int = 0
    unwanted: bool = False
    over: bool = False
    problems: list[str] = field(default_factory=list)

    def turn(self, client: CloudTpuProvisioner, listed: dict[str, GangStatus]) -> None:
        """One tick of it: an error means that it is looked at again."""
        ref = self.request.ref
        status = listed.get(ref.name) or client.get(ref)
        if status is not None and self.seen[-1:] != [status.state]:
            self.seen.append(status.state)
        if self.unwanted:
            if status is None:
                self.over = True
            elif status.state is not GangState.DELETING:
                client.delete(ref)
            return
        self.looks += 1
        if status is not None:
            assert status.token == self.request.token, status
            done = status.state in (GangState.LOST, GangState.FAILED)
            self.unwanted = done or self.looks > 25
            return
        failure = client.failure(ref)
        if failure is not None or GangState.READY in self.seen:
            self.unwanted = True
            return
        try:
            client.create(self.request)
        except GangExists:
            pass  # an earlier request landed
        except (Stockout, ProvisionerRefused) as error:
            self.problems.append(str(error))
            self.unwanted = True


def gang(number: int) -> Gang:
    model = list(CapacityModel)[number % 3]
    ref = GangRef(name=f"b-job{number}-1", num_slices=1 + number % 2)
    place = Place(model=model, runtime_version="tpu-ubuntu2204-base")
    return Gang(replace(REQUEST, ref=ref, run=f"job{number}-1", token=f"token-{number}", place=place))


@pytest.mark.parametrize("seed", [2, 3])
def test_every_gang_comes_to_an_end_and_a_strangers_node_is_left_alone(tmp_path: Path, seed: int) -> None:
    plan = FaultPlan(rates=RATES, seed=seed, seconds=0.1)
    emulator = Emulator(
        EmulatorSettings(state_dir=tmp_path, boot=False, watch_seconds=0.02, create_seconds=0.05, plan=plan)
    )
    address = emulator.open()
    client = CloudTpuProvisioner(replace(SETTINGS, endpoint=address.endpoint, token=address.token))
    gangs = [gang(number) for number in range(GANGS)]
    try:
        theirs = tpu_v2.Node(accelerator_type="v4-8", runtime_version="tpu-ubuntu2204-base")
        emulator.fleet.create(new_node(ZONE, "stranger", theirs, spot=False, reserved=False))
        deadline = time.monotonic() + PATIENCE_SECONDS
        while not all(each.over for each in gangs):
            assert time.monotonic() < deadline, [each for each in gangs if not each.over]
            try:
                listed = {status.ref.name: status for status in client.list()}
            except ProvisionerError:
                continue
            for each in gangs:
                if not each.over:
                    try:
                        each.turn(client, listed)
                    except ProvisionerError as error:
                        each.problems.append(str(error))
            time.sleep(0.01)
        assert [node.node_id for node in emulator.fleet.nodes(ZONE)] == ["stranger"]
        assert emulator.fleet.queue.list(ZONE) == []
        seen = {state for each in gangs for state in each.seen}
        assert seen >= {GangState.READY, GangState.LOST, GangState.FAILED}
        assert not [text for each in gangs for text in each.problems if "left alone" in text]
    finally:
        client.close()
        emulator.close()
