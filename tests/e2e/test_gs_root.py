"""The whole path with the bucket on Cloud Storage's API, and jobs that use gs:// themselves."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.storage_machine import StorageMachine
from tests.support.waiting import until

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(300)]
ROOT = "gs://team/e2e-bastion"

# Every host writes an object of its own and reads what all hosts wrote.
USES_STORAGE = """
import os, time
from google.cloud import storage
bucket = storage.Client().bucket("team")
me, all_hosts = os.environ["BASTION_HOST_INDEX"], int(os.environ["BASTION_NUM_HOSTS"])
bucket.blob("data/host-" + me).upload_from_string("from " + me, if_generation_match=0)
while len(found := [*bucket.list_blobs(prefix="data/host-")]) < all_hosts:
    time.sleep(0.1)
print(sorted(blob.download_as_text() for blob in found))
"""


@pytest.fixture(scope="module")
def machine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[StorageMachine]:
    machine = StorageMachine(tmp_path_factory.mktemp("gs"), bucket="team", root=ROOT)
    try:
        machine.start()
        yield machine
    finally:
        machine.stop()


def test_a_job_on_the_bastion_prints_into_the_bucket_and_returns_its_exit_code(machine: StorageMachine) -> None:
    done = machine.bastion("launch", "--name=hello", "--wait", "--", "bash", "-c", "echo out; echo err >&2; exit 7")
    assert done.returncode == 7, done.stderr
    assert "out" in done.stdout
    logs = machine.bastion("logs", "hello")
    assert "out" in logs.stdout
    # With a plain file reader on the endpoint's folder, too: what a client of the API writes is a file.
    assert "COMPLETED" in (machine.buckets / "team" / "e2e-bastion" / "history" / "jobs" / "hello").read_text()


def test_every_host_of_a_slice_uses_gs_for_its_own_data(machine: StorageMachine) -> None:
    done = machine.bastion(
        "launch", "--name=data", "--instance_type=tpu-v4-16", "--wait", "--", "python3", "-c", USES_STORAGE
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.count("['from 0', 'from 1']") == 2, done.stdout
    assert (machine.buckets / "team" / "data" / "host-1").read_text() == "from 1"


def test_outputs_are_fetched_from_gs_with_what_a_program_wrote_itself_if_asked_for(
    machine: StorageMachine, tmp_path: Path
) -> None:
    program = (
        "import os; from google.cloud import storage; "
        "os.makedirs('out', exist_ok=True); open('out/result', 'w').write('of ' + os.environ['BASTION_HOST_INDEX']); "
        "bucket, _, key = os.environ['BASTION_OUTPUT_URL'].removeprefix('gs://').partition('/'); "
        "storage.Client().bucket(bucket).blob(key + '/own').upload_from_string('shared')"
    )
    done = machine.bastion(
        *("launch", "--name=stores", "--instance_type=tpu-v4-16", "--output_dir=out", "--wait", "--"),
        *("python3", "-c", program),
    )
    assert done.returncode == 0, done.stdout + done.stderr
    to = tmp_path / "to"
    fetched = machine.bastion("outputs", "stores", f"--to={to}")
    assert fetched.returncode == 0, fetched.stderr
    assert [(to / f"worker-{host}/result").read_text() for host in (0, 1)] == ["of 0", "of 1"]
    assert not (to / "shared").exists()
    fetched = machine.bastion("outputs", "stores", f"--to={to}", "--unproved")
    assert (to / "shared/own").read_text() == "shared", fetched.stderr


def test_the_code_of_a_git_tree_reaches_every_host_of_a_slice(machine: StorageMachine, tmp_path: Path) -> None:
    tree = tmp_path / "project"
    (tree / "src" / "model").mkdir(parents=True)
    (tree / "src" / "model" / "__init__.py").write_text("def size():\n    return open('size.txt').read()\n")
    (tree / "train.py").write_text("import os, model\nprint('size', model.size(), 'on', os.environ['TPU_WORKER_ID'])\n")
    (tree / "pyproject.toml").write_text("[project]\nname = 'model'\nversion = '1'\n")
    (tree / "size.txt").write_text("huge")
    (tree / "noise.log").write_text("ignored")
    (tree / ".gitignore").write_text("*.log\n")
    subprocess.run(["git", "init", "-q", str(tree)], check=True)
    launch = ("launch", "--instance_type=tpu-v4-16", "--wait")
    done = machine.bastion(*launch, "--", "bash", "-c", "ls; python3 train.py", folder=tree)
    assert done.returncode == 0, done.stdout + done.stderr
    for worker in (0, 1):
        assert f"size huge on {worker}" in done.stdout
    assert "noise.log" not in done.stdout
    bundles = list((machine.buckets / "team" / "e2e-bastion" / "bundles").iterdir())
    assert len(bundles) == 1

    failed = machine.bastion(*launch, "--name=broken", "--setup=echo not here; exit 9", "--", "true", folder=tree)
    assert failed.returncode == 9, failed.stderr
    assert "SetupFailed: the setup (echo not here; exit 9) exited with code 9" in failed.stderr
    assert "not here" in failed.stdout
    assert list((machine.buckets / "team" / "e2e-bastion" / "bundles").iterdir()) == bundles


def test_following_cancelling_listing_and_asking_why_work_on_gs(machine: StorageMachine) -> None:
    launched = machine.bastion("launch", "--name=long", "--", "bash", "-c", "echo begun; sleep 600")
    assert launched.returncode == 0, launched.stderr
    follower = subprocess.Popen(
        [sys.executable, "-m", "bastion.cli.main", "logs", "-f", "long"],
        env=machine.environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )
    assert follower.stdout is not None
    assert "begun" in follower.stdout.readline()
    until(lambda: '"running"' in machine.bastion("list", "--output=json").stdout)
    assert machine.bastion("why", "long").returncode == 0
    cancelled = machine.bastion("cancel", "long", "--wait")
    assert follower.wait(60) == 0
    follower.stdout.close()
    result = json.loads((machine.buckets / "team" / "e2e-bastion" / "jobs" / "complete" / "long").read_text())
    assert result["result"]["outcome"] == "cancelled", cancelled.stderr


def test_a_bucket_that_does_not_exist_is_an_error_that_says_so(machine: StorageMachine) -> None:
    listed = machine.bastion("list", "--root=gs://no-such-bucket/x-bastion")
    assert listed.returncode != 0
    assert "no-such-bucket" in listed.stderr
    assert "Traceback" not in listed.stderr
