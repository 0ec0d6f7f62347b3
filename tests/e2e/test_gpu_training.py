"""The trainings of `examples/gpu` on two emulated hosts with GPUs: crashed, stuck and pre-empted once each."""

from __future__ import annotations

import datetime
import importlib.util
import json
import os
import re
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from bastion.core.bucket import keys
from bastion.emulators.kubernetes.controllers import node_faults
from bastion.wiring.buckets import open_bucket
from tests.support.cluster_bastion import ClusterBastion, ClusterJob, causes, cluster_bastion
from tests.support.extras import needs
from tests.support.moe_training import DISTURBED, EXAMPLES, QUICK_XLA, SIZES, check_same, make_data
from tests.support.storage_process import StorageProcess
from tests.support.waiting import until

if TYPE_CHECKING:
    from tests.support.s3_server import S3Server  # boto3 takes a quarter of a second to import

needs("kubernetes", "jax")
REPOSITORY = Path(__file__).parents[2]
pytestmark = [pytest.mark.e2e, pytest.mark.timeout(900)]
LONG = pytest.mark.skipif(
    not os.environ.get("BASTION_EXAMPLES"), reason="`make acceptance` runs it: BASTION_EXAMPLES=1"
)
# Longer than a busy machine takes to import PyTorch.
STUCK_AFTER_SECONDS = 40
GRACE_SECONDS = 12  # less is left to a command: its host reports, too
KILLED_AT, STUCK_AT, SLOW_FROM = 7, 12, 16


@pytest.fixture
def on_cloud_storage(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """The URL of the data in a bucket."""
    storage = StorageProcess(tmp_path / "buckets", bucket="lake")
    storage.start()
    monkeypatch.setenv("STORAGE_EMULATOR_HOST", storage.url)
    yield filled("gs://lake/tokens", tmp_path)
    storage.stop()


@pytest.fixture
def on_s3(s3_server: S3Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    for name, value in s3_server.env.items():
        monkeypatch.setenv(name, value)
    return filled(f"s3://{s3_server.new_bucket()}/tokens", tmp_path)


def filled(url: str, folder: Path) -> str:
    store, prefix = open_bucket(url)
    for file in make_data(folder / "data").iterdir():
        store.put(f"{prefix}/{file.name}", file.read_bytes(), generation=0)
    return url


@pytest.fixture(scope="module")
def bastion(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ClusterBastion]:
    with cluster_bastion(tmp_path_factory.mktemp("cluster"), "gpu-a100-1=4") as bastion:
        yield bastion


class Training:
    """A training, launched as `examples/gpu/README.md` says; `faults`: see `tests/support/disturbed_training.py`."""

    def __init__(self, bastion: ClusterBastion, name: str, command: str, data: str, faults: Path, *kinds: str) -> None:
        """`data`: URL; `faults`: a folder for them."""
        self.faults = faults / name
        self.faults.mkdir()
        for fault in kinds:
            (self.faults / fault).touch()
        changed = {
            "instance_type": "gpu-a100-1",
            "num_replicas": "2",
            "image": "this-machine",
            "input": f"{data}:data",
            "max_tries": "2",
            "stuck_after": f"{STUCK_AFTER_SECONDS}s",
        }
        flags = [f"--{flag}={value}" for flag, value in (readme_flags() | changed).items()]
        variables = {"FAULTS": str(self.faults), "OMP_NUM_THREADS": "1", "XLA_FLAGS": QUICK_XLA}
        flags += [f"--env={name}={value}" for name, value in variables.items()]
        done = bastion.cli("launch", f"--name={name}", *flags, "--", *command.split(), *SIZES, folder=REPOSITORY)
        assert done.returncode == 0, done.stderr
        self.job: ClusterJob = bastion.known(name)

    def began_at(self) -> list[int]:
        """The steps at which its tries began, on host 0."""
        return [int(step) for step in re.findall(r" begins at step (\d+)$", self.output(), re.MULTILINE)]

    def stopped_at(self) -> list[int]:
        return [int(step) for step in re.findall(r"^stops after step (\d+)$", self.output(), re.MULTILINE)]

    def stored_steps(self) -> list[int]:
        return [int(Path(path).name.removeprefix("step-")) for path in self.job.outputs(0) if "/step-" in path]

    def record(self) -> dict[str, Any]:
        """The daemon's own, while the job goes on."""
        found: dict[str, Any] = json.loads(self.job.store.get(keys.state(self.job.name)).data)["metadata"]["record"]
        return found

    def output(self, host: int = 0) -> str:
        return "\n".join(line for run in self.job.runs() for line in self.job.output(run, host))


def readme_flags() -> dict[str, str]:
    """Flags of the one command of the README."""
    text = (EXAMPLES / "README.md").read_text("utf-8").partition("\n## The example\n")[2]
    command = re.search(r"^bastion launch (.*?) -- torchrun moe_torch.py$", text, re.DOTALL | re.MULTILINE)
    assert command is not None
    words = shlex.split(command[1].replace("\\\n", " "))
    return dict(word.removeprefix("--").split("=", 1) for word in words)


def check(bastion: ClusterBastion, command: str, data: str, folder: Path, *, preempted: int) -> None:
    """Run a training twice, and disturb one of them; `preempted` is the host that it loses."""
    framework = "torch" if "torch" in command else "jax"
    undisturbed = Training(bastion, f"{framework}-undisturbed", command, data, folder)
    assert undisturbed.job.ended(200)["outcome"] == "succeeded", undisturbed.output()
    kinds = (f"kill-{KILLED_AT}-1", f"hang-{STUCK_AT}-1", f"pace-{SLOW_FROM}-0")
    disturbed = Training(bastion, f"{framework}-disturbed", command, data, folder, *kinds)
    # It was killed, went on from its last checkpoint, got stuck and went on.
    until(lambda: disturbed.job.result() or max(disturbed.stored_steps(), default=0) >= SLOW_FROM, 300)
    assert disturbed.job.result() is None, disturbed.output()
    node = disturbed.job.pods()[preempted]["spec"]["nodeName"]
    now = datetime.datetime.now(datetime.timezone.utc)
    node_faults.preempt_node(bastion.cluster.client, node, now=now, grace_seconds=GRACE_SECONDS)
    until(lambda: len(disturbed.began_at()) == 4 or disturbed.job.result(), 100)
    record = disturbed.record()
    (disturbed.faults / f"pace-{SLOW_FROM}-0").unlink()
    result = disturbed.job.ended(200)
    assert result["outcome"] == "succeeded", disturbed.output()
    check_same(disturbed.job.outputs(0), undisturbed.job.outputs(0))
    check_charges(result, record)
    begins = disturbed.began_at()
    assert begins[:3] == [0, 5, 10]
    assert begins[3] > SLOW_FROM
    assert begins[3] in disturbed.stopped_at(), "what it did before it stopped was not saved"
    assert " in disturb\n" in disturbed.output(1), "the log does not show where it hangs"


def check_charges(result: dict[str, Any], record: dict[str, Any]) -> None:
    """Each trouble was charged to its own budget, once; a second failure of the command would have ended the job."""
    assert causes(result) == ["infrastructure", "succeeded"]
    first, last = result["attempts"]
    assert [(each["number"], each["failed_worker"], each["stuck"]) for each in first["tries"]] == [
        (1, 1, False),
        (2, None, True),
    ]
    assert last["tries"] == []
    assert (record["failed_tries"], record["stuck_tries"], record["stuck_in_a_row"]) == (2, 1, 1)
    assert record["infrastructure_failures"] == 1


@pytest.mark.skipif(importlib.util.find_spec("torch") is None, reason="PyTorch is not installed: make torch")
def test_a_torch_training_ends_like_one_that_was_not_disturbed(
    bastion: ClusterBastion, on_cloud_storage: str, tmp_path: Path
) -> None:
    check(bastion, f"torchrun {DISTURBED} moe_torch.py", on_cloud_storage, tmp_path, preempted=0)


@LONG
def test_a_jax_training_ends_like_one_that_was_not_disturbed(
    bastion: ClusterBastion, on_s3: str, tmp_path: Path
) -> None:
    check(bastion, f"python3 {DISTURBED} moe_jax.py", on_s3, tmp_path, preempted=1)
