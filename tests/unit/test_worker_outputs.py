"""A host's output folder over several runs of its job: real commands on a store in memory."""

from pathlib import Path

import pytest

from bastion.core import keys, outputs
from bastion.core.protocol import HostPhase
from tests.unit.worker_stage import Stage, until

UID = "abcdefghij"
SECOND, THIRD = f"{UID}-2", f"{UID}-3"


@pytest.fixture
def stage(tmp_path: Path):
    stage = Stage(tmp_path / "state")
    yield stage
    stage.end()


def manifests(stage: Stage, worker: int = 0) -> list[outputs.Manifest]:
    folder = keys.outputs("job", UID, worker)
    return [outputs.read(stage.memory.get(meta.key).data) for meta in stage.memory.list(f"{folder}manifest-")]


def test_a_file_that_a_stopped_command_saved_is_there_in_the_next_attempt(stage: Stage):
    stage.order(
        "trap 'echo 41 > $BASTION_OUTPUT_DIR/step; exit 0' TERM; echo up; while :; do sleep 0.05; done",
        output_dir="out",
    )
    stage.start(stage.host(on_vm=True))
    until(lambda: "stdout F up" in stage.log())
    stage.order(stop="evicted", output_dir="out")
    assert stage.final().phase is HostPhase.STOPPED
    (manifest,) = manifests(stage)
    assert list(manifest.files) == ["step"]

    stage.order("cat out/step", output_dir="out", run=SECOND)
    stage.start(stage.host(on_vm=True, run=SECOND, state_dir=stage.state_dir / "other"))
    assert stage.final(run=SECOND).exit_code == 0
    assert stage.log(run=SECOND) == [
        f"stderr F bastion: outputs of {UID}-1 are restored: 1 files, 3 bytes (sync {manifest.seq})",
        "stdout F 41",
    ]
