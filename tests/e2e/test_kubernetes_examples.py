"""`examples/kubernetes`: each script is one command; here they run on an emulated cluster."""

from __future__ import annotations

import importlib.util
import os
import subprocess
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from bastion.adapters.kms import keyring
from tests.support.cluster_bastion import ClusterBastion, cluster_bastion
from tests.support.storage_process import StorageProcess

pytest.importorskip("kubernetes")
pytest.importorskip("jax")
pytestmark = [pytest.mark.e2e, pytest.mark.timeout(600)]

EXAMPLES = Path(__file__).parents[2] / "examples" / "kubernetes"
KEY = "projects/p/locations/global/keyRings/r/cryptoKeys/k"
LONG = pytest.mark.skipif(
    not os.environ.get("BASTION_EXAMPLES"), reason="`make acceptance` runs it: BASTION_EXAMPLES=1"
)


@pytest.fixture(scope="module")
def lake(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """The folder of a bucket that jobs find."""
    folder = tmp_path_factory.mktemp("storage") / "buckets"
    storage = StorageProcess(folder, bucket="lake")
    storage.start()
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("STORAGE_EMULATOR_HOST", storage.url)
        yield folder / "lake"
    storage.stop()


@pytest.fixture(scope="module")
def bastion(lake: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ClusterBastion]:
    pools = ("v4-16=3", "v4-32=1", "gpu-a100-4=1")
    with cluster_bastion(tmp_path_factory.mktemp("cluster"), *pools) as bastion:
        yield bastion


def lines_of(bastion: ClusterBastion, script: str, **environment: str) -> list[str]:
    """What the user sees of a job that succeeds; each line begins with its host if there are several."""
    done = subprocess.run(
        [str(EXAMPLES / script)],
        env=bastion.environment | environment,
        capture_output=True,
        text=True,
        timeout=500,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return sorted(line.partition("] ")[2] or line for line in done.stdout.splitlines())


def test_one_slice_and_two_slices_see_all_their_devices(bastion: ClusterBastion) -> None:
    with ThreadPoolExecutor(2) as pool:
        one, two = pool.map(lambda script: lines_of(bastion, script), ("one_slice.sh", "two_slices.sh"))
    for lines, hosts in ((one, 2), (two, 4)):
        assert [line for line in lines if line.startswith("process")] == [
            f"process {host} of {hosts}" for host in range(hosts)
        ]
        assert lines.count(f"4 local devices, {4 * hosts} in the job, sum {4 * hosts}") == hosts


@LONG
def test_a_transformer_stores_encrypted_checkpoints_and_goes_on_from_them(
    bastion: ClusterBastion, lake: Path, tmp_path: Path
) -> None:
    ring = tmp_path / "keyring.json"
    keyring.create(ring, KEY)
    small = {
        "BUCKET": "lake",
        "KEY": KEY,
        "GCS_PROXY_KEYRING": str(ring),
        "WIDTH": "64",
        "LAYERS": "1",
        "SAVE_EVERY": "2",
    }
    lines = lines_of(bastion, "encrypted.sh", **small, STEPS="4")
    assert any("begins at step 0" in line for line in lines)
    again = lines_of(bastion, "encrypted.sh", **small, STEPS="6")
    assert any("Restored state from ckpt at step 4" in line for line in again)
    stored = [path.read_bytes() for path in lake.rglob("*") if path.is_file()]
    assert stored
    assert not any(b"tree_metadata" in data or b"weights" in data for data in stored)


@pytest.mark.skipif(importlib.util.find_spec("torch") is None, reason="PyTorch is not installed: make torch")
def test_torch_on_four_gpus_stores_its_output(bastion: ClusterBastion) -> None:
    lines = lines_of(bastion, "torch_job.sh")
    assert len([line for line in lines if line.startswith("step 20: loss ")]) == 1
    assert [line.partition(":")[0] for line in lines if line.startswith("rank ")] == [
        f"rank {rank} of 4" for rank in range(4)
    ]
    (name,) = {meta.key.split("/")[1] for meta in bastion.root.store.list("outputs/")}
    assert set(bastion.known(name).outputs(0)) == {"checkpoint.pt"}
