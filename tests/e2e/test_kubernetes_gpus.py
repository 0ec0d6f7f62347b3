"""Jobs on emulated hosts with GPUs: the frameworks find the hosts, without a word about ranks."""

from __future__ import annotations

import importlib.util
import json
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.cluster_bastion import ClusterBastion, cluster_bastion

pytest.importorskip("kubernetes")
pytestmark = [pytest.mark.e2e, pytest.mark.timeout(300)]

EXAMPLES = Path(__file__).parents[2] / "examples" / "gpu"


@pytest.fixture(scope="module")
def bastion(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ClusterBastion]:
    with cluster_bastion(tmp_path_factory.mktemp("cluster"), "gpu-a100-1=2", "gpu-a100-2=2") as bastion:
        yield bastion


def test_jax_and_every_launcher_find_the_hosts(bastion: ClusterBastion) -> None:
    pytest.importorskip("jax")
    names = "PET_NNODES PET_NPROC_PER_NODE PET_NODE_RANK MASTER_ADDR RANK WORLD_SIZE TF_CONFIG"
    show = f'for name in {names}; do echo "$name=${{!name}}"; done; cat "$BASTION_HOSTFILE"'
    command = f"{show}; exec python3 {EXAMPLES / 'jax_train.py'}"
    job = bastion.job("jax", command, instance_type="gpu-a100-2", num_replicas=2)
    assert job.ended(120)["outcome"] == "succeeded", job.output(job.runs()[-1], 0)
    lines = [job.output(job.runs()[-1], host) for host in (0, 1)]
    losses = [[line for line in each if line.startswith("step ")] for each in lines]
    assert len(losses[0]) == 2
    assert losses[0] == losses[1]
    for host in (0, 1):
        assert f"process {host} of 2: 4 devices" in lines[host]
        found = dict(line.split("=", 1) for line in lines[host] if re.match(r"[A-Z_]+=", line))
        assert (found["PET_NNODES"], found["PET_NPROC_PER_NODE"], found["PET_NODE_RANK"]) == ("2", "2", str(host))
        # Two processes a host: their numbers are the launcher's.
        assert (found["RANK"], found["WORLD_SIZE"]) == ("", "")
        config = json.loads(found["TF_CONFIG"])
        assert config["task"] == {"type": "worker", "index": host}
        addresses = [worker.rpartition(":")[0] for worker in config["cluster"]["worker"]]
        assert [line for line in lines[host] if " slots=" in line] == [f"{address} slots=2" for address in addresses]
        assert found["MASTER_ADDR"] == addresses[0] != addresses[1]


@pytest.mark.skipif(importlib.util.find_spec("torch") is None, reason="PyTorch is not installed: make torch")
def test_torchrun_finds_the_hosts(bastion: ClusterBastion) -> None:
    command = f"torchrun {EXAMPLES / 'ddp_train.py'}"
    job = bastion.job("ddp", command, instance_type="gpu-a100-1", num_replicas=2)
    assert job.ended(200)["outcome"] == "succeeded", job.output(job.runs()[-1], 0)
    lines = [job.output(job.runs()[-1], host) for host in (0, 1)]
    losses = [[line for line in each if line.startswith("step ")] for each in lines]
    assert len(losses[0]) == 2
    assert losses[0] == losses[1]
    weights = [re.findall(rf"rank {host} of 2: weights (\S+)", "\n".join(lines[host])) for host in (0, 1)]
    assert len(weights[0]) == 1
    assert weights[0] == weights[1]


def test_jobs_of_one_node_fetch_their_input_once(bastion: ClusterBastion, tmp_path: Path) -> None:
    (tmp_path / "tokens").mkdir()
    (tmp_path / "tokens" / "a").write_bytes(b"t" * 100_000)
    inputs = [{"url": str(tmp_path / "tokens"), "dir": "data"}]
    said = []
    for name in ("first", "second"):
        job = bastion.job(name, "wc -c < data/a; echo mine > data/a", instance_type="gpu-a100-1", inputs=inputs)
        end = job.ended(60)
        assert end["outcome"] == "succeeded", end["message"]
        lines = job.output(job.runs()[-1], 0)
        assert "100000" in lines
        said.append(next(line for line in lines if "bastion: input" in line))
    assert "(97.7 KiB fetched in" in said[0]
    assert "(0 B fetched in" in said[1]
