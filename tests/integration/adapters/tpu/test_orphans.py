"""Whatever carries our label is listed under a ref that deletes it, whichever state it is in; strangers stay."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from google.cloud import tpu_v2

from bastion.adapters.tpu.provisioner import CloudTpuProvisioner, CloudTpuSettings, make_client
from bastion.core.bucket import keys
from bastion.core.model.gangs import CapacityModel, GangRef, GangRequest, GangState, Place
from bastion.core.model.provisioning import BUILT_IN
from bastion.daemon.orphans import delete_orphan, find_orphans
from bastion.emulators.tpu.server import Emulator, EmulatorSettings
from bastion.testing.memory_store import MemoryStore
from tests.support.waiting import until

ZONE = "us-central2-b"
PARENT = f"projects/a-project/locations/{ZONE}"
PATIENCE_SECONDS = 20.0


@pytest.fixture
def emulator(tmp_path: Path) -> Iterator[Emulator]:
    emulator = Emulator(EmulatorSettings(state_dir=tmp_path, boot=False, grace_seconds=0.0, watch_seconds=0.02))
    emulator.open()
    yield emulator
    emulator.close()


def settings(emulator: Emulator, bastion: str) -> CloudTpuSettings:
    return CloudTpuSettings(
        project="a-project",
        zone=ZONE,
        bastion=bastion,
        startup_script="true",
        endpoint=emulator.address.endpoint,
        token=emulator.address.token,
    )


def request(run: str, model: CapacityModel = CapacityModel.ON_DEMAND, num_slices: int = 1) -> GangRequest:
    return GangRequest(
        ref=GangRef(name=keys.gang(run), num_slices=num_slices),
        bastion="team-bastion",
        run=run,
        token="t",
        accelerator_type="v4-8",
        place=Place(model=model, runtime_version="tpu-ubuntu2204-base"),
        agent_arguments="{}",
    )


def test_leftovers_in_every_state_are_swept_and_strangers_stay(emulator: Emulator) -> None:
    slices = CloudTpuProvisioner(settings(emulator, "team-bastion"))
    others = CloudTpuProvisioner(settings(emulator, "other-bastion"))
    client = make_client(settings(emulator, ""))
    faults = emulator.fleet.faults

    def states(provisioner: CloudTpuProvisioner) -> dict[str, GangState]:
        return {status.run: status.state for status in provisioner.list()}

    faults.fail_creations(1)
    slices.create(request("ffffffffff-1", CapacityModel.SPOT))
    until(lambda: states(slices) == {"ffffffffff-1": GangState.FAILED})
    slices.create(request("ssssssssss-1", CapacityModel.SPOT))
    until(lambda: states(slices).get("ssssssssss-1") is GangState.READY)
    faults.preempt(keys.gang("ssssssssss-1"))
    slices.create(request("mmmmmmmmmm-1", num_slices=3))
    slices.create(request("nnnnnnnnnn-1"))
    slices.create(request("tttttttttt-1"))
    until(lambda: states(slices).get("tttttttttt-1") is GangState.READY)
    faults.crash(keys.gang("tttttttttt-1"))
    others.create(request("oooooooooo-1"))
    others.create(request("pppppppppp-1", CapacityModel.SPOT))
    client.create_node(
        parent=PARENT,
        node_id="by-hand",
        node=tpu_v2.Node(accelerator_type="v4-8", runtime_version="x"),
        timeout=PATIENCE_SECONDS,
    )
    # Somebody made a node like one of ours, with its labels.
    copied = client.get_node(name=f"{PARENT}/nodes/{keys.gang('nnnnnnnnnn-1')}", timeout=PATIENCE_SECONDS)
    copy = tpu_v2.Node(accelerator_type="v4-8", runtime_version="x", labels=dict(copied.labels))
    client.create_node(parent=PARENT, node_id="my-copy", node=copy, timeout=PATIENCE_SECONDS)
    until(
        lambda: (
            states(slices)
            == {
                "ffffffffff-1": GangState.FAILED,
                "ssssssssss-1": GangState.LOST,
                "mmmmmmmmmm-1": GangState.READY,
                "nnnnnnnnnn-1": GangState.READY,
                "tttttttttt-1": GangState.LOST,
            }
        )
    )
    store = MemoryStore(now=time.time)
    found = find_orphans(store, slices, BUILT_IN)
    runs = [orphan.status.run[0] for orphan in found.orphans]
    assert (runs, found.current) == (list("fstmn"), 0), "what failed or was taken back comes first"
    (problem,) = found.problems
    assert "my-copy" in problem

    def swept() -> bool:
        """Once more, until all of it is gone, as a daemon does: what is SUSPENDING cannot be deleted yet."""
        left = find_orphans(store, slices, BUILT_IN).orphans
        assert [delete_orphan(store, slices, each) for each in left if not each.going] == [
            "" for each in left if not each.going
        ]
        return not left

    until(swept)
    assert sorted(states(others)) == ["oooooooooo-1", "pppppppppp-1"]
    nodes = {node.name.rpartition("/")[2] for node in client.list_nodes(parent=PARENT)}
    assert nodes == {"by-hand", "my-copy", keys.gang("oooooooooo-1"), keys.gang("pppppppppp-1")}
    queued = {each.name.rpartition("/")[2] for each in client.list_queued_resources(parent=PARENT)}
    assert queued == {keys.gang("pppppppppp-1")}
    for made in (slices, others):
        made.close()
    client.transport.close()
