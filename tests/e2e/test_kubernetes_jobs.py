"""Whole jobs on an emulated cluster: JobSets, pods, agents, and what the bucket shows of them."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from bastion.adapters.kms import keyring
from bastion.benchmark.results import read_values
from bastion.client.jobs.results import read_result
from bastion.core.bucket import keys
from tests.support.cluster_bastion import ClusterBastion, causes, cluster_bastion
from tests.support.storage_process import StorageProcess
from tests.support.waiting import until

pytest.importorskip("kubernetes")
pytestmark = [pytest.mark.e2e, pytest.mark.timeout(300)]

KEY = "projects/p/locations/global/keyRings/r/cryptoKeys/k"
SECRET = "the weights are 42 and 43"
# From the submission to the first line: on a machine with nothing else to do, and in process starts where there is.
FIRST_LINE_SECONDS, FIRST_LINE_STARTS = 5.0, 10.0
COLD_SECONDS, COLD_STARTS = 8.0, 20.0
LINES = 400

# Every host stores an object through its proxy and an output file, with what the setup made.
STORES = f"""
import os
from google.auth.credentials import AnonymousCredentials
from google.cloud import storage
from model import size

me = os.environ["BASTION_HOST_INDEX"]
bucket = storage.Client(project="p", credentials=AnonymousCredentials()).bucket("lake")
blob = bucket.blob(f"ckpt/{{me}}")
blob.upload_from_string({SECRET!r})
assert blob.download_as_text() == {SECRET!r}
open("out/result", "w").write(f"{{size}} by {{me}}, set up: {{open('made').read()}}")
with open(os.environ["BASTION_RESULTS_FILE"], "a") as file:
    file.write('{{"metric": "size", "value": 7}}')
print("stored")
"""


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
    folder = tmp_path_factory.mktemp("cluster")
    with pytest.MonkeyPatch.context() as patch:
        # The first job finds no agent, as in a new cluster.
        patch.setenv("BASTION_AGENT_DIR", str(folder / "agents"))
        with cluster_bastion(folder, "v4-8=2", "v4-16=2", "v5litepod-16=1") as bastion:
            yield bastion


def seconds_of_starts() -> float:
    """How long this machine takes now to start the two programs of a pod, one after the other."""
    began = time.monotonic()
    for module in ("bastion.emulators.kubernetes.kubelet.pod", "bastion.wiring.agent"):
        subprocess.run([sys.executable, "-I", "-c", f"import {module}"], check=True)
    return time.monotonic() - began


def test_the_first_line_comes_soon_and_nothing_stays(bastion: ClusterBastion) -> None:
    """The cold one waits for the daemon, and for the agent to be packed and unpacked."""
    starts = [seconds_of_starts()]
    limits = {"cold": (COLD_SECONDS, COLD_STARTS), "warm": (FIRST_LINE_SECONDS, FIRST_LINE_STARTS)}
    for name, (limit, limit_in_starts) in limits.items():
        began = time.monotonic()
        job = bastion.job(name, "echo hello")
        job.await_line("hello")
        took = time.monotonic() - began
        starts.append(seconds_of_starts())
        print(f"{name}: {took:.2f} s; the starts of its programs: {starts[-2]:.2f} s before, {starts[-1]:.2f} s after")
        assert took < max(limit, limit_in_starts * max(starts[-2:])), f"{name}: {took:.1f} s; starts: {starts}"
        result = job.ended()
        assert (result["outcome"], result["exit_code"], causes(result)) == ("succeeded", 0, ["succeeded"])
    until(lambda: bastion.cluster.everything() == [])


def test_logs_of_four_hosts_are_whole(bastion: ClusterBastion) -> None:
    command = (
        f'for i in $(seq {LINES}); do echo "$BASTION_HOST_INDEX: $i"; [ $((i % 100)) = 0 ] && sleep 0.1; done; true'
    )
    job = bastion.job("lines", command, instance_type="tpu-v5litepod-16")
    assert job.ended()["outcome"] == "succeeded"
    (run,) = job.runs()
    for host in range(4):
        assert job.output(run, host) == [f"{host}: {number}" for number in range(1, LINES + 1)]


def test_code_setup_outputs_and_the_proxy(bastion: ClusterBastion, lake: Path, tmp_path: Path) -> None:
    ring = tmp_path / "keyring.json"
    keyring.create(ring, KEY)
    code = tmp_path / "code"
    code.mkdir()
    (code / "model.py").write_text("size = 'huge'\n")
    (code / "train.py").write_text(STORES)
    done = bastion.cli(
        *("launch", "--name=stores", "--wait", "--instance_type=tpu-v4-16", f"--bundle={code}"),
        *("--setup=echo -n yes > made", "--output_dir=out", f"--proxy=lake/ckpt/:{KEY}"),
        *(f"--env=GCS_PROXY_KEYRING={ring}", "--", "python3", "train.py"),
        folder=tmp_path,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.count("stored") == 2
    stored = {path.name: path.read_bytes() for path in (lake / "ckpt").iterdir() if path.is_file()}
    assert {"0", "1"} <= set(stored)
    assert not any(b"the weights" in data for data in stored.values())
    job = bastion.known("stores")
    for host in (0, 1):
        assert job.outputs(host) == {"result": f"huge by {host}, set up: yes".encode()}
    job.ended()
    result = read_result(bastion.root.store.get(keys.complete("stores")).data, name="stores")
    measured = read_values(bastion.root.store, "stores", 2, result.public_keys)
    assert [each.value for each in measured.values["size"]] == [7, 7]
    assert (measured.problems, measured.environment.accelerator) == ((), "emulated v4-16")
    assert measured.environment.place.startswith("k8s:")


def test_a_cancelled_job_leaves_no_object_behind(bastion: ClusterBastion) -> None:
    job = bastion.job("cancelled", "echo up; sleep 600", num_replicas=2)
    for host in range(2):
        job.await_line("up", host=host)
    assert len(bastion.cluster.everything()) == 1 + 2 + 2 + 1  # JobSet, Jobs, pods, and the service with their names
    assert bastion.cli("cancel", "cancelled").returncode == 0
    assert job.ended()["outcome"] == "cancelled"
    until(lambda: bastion.cluster.everything() == [])
