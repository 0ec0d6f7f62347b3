"""Jobs in pods that hang, and jobs with secrets of the cluster."""

from __future__ import annotations

import base64
import contextlib
import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from bastion.emulators.kubernetes.client import ApiError
from bastion.emulators.kubernetes.controllers.api_objects import KINDS
from tests.support.cluster_bastion import ClusterBastion, causes, cluster_bastion
from tests.support.emulated_cluster import NAMESPACE
from tests.support.waiting import until

pytest.importorskip("kubernetes")
pytestmark = [pytest.mark.e2e, pytest.mark.timeout(300)]

HANGS = f"{sys.executable} -c 'import os, time\ndef the_hang(): os.write(1, b\"1\\n\"); time.sleep(600)\nthe_hang()'"
SECRETS = f"/api/v1/namespaces/{NAMESPACE}/secrets"
VALUE = "v4lue-of-the-clusters-secret"
FILE_VALUE = "v4lue-of-the-file"
MOUNTED_VALUE = "v4lue-of-a-mounted-key"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("cluster")


@pytest.fixture(scope="module")
def bastion(folder: Path) -> Iterator[ClusterBastion]:
    with cluster_bastion(folder, "gpu-a100-1=2") as bastion:
        values = {"key": VALUE, "mounted": MOUNTED_VALUE, "long": "x" * 1_000_000}
        data = {key: base64.b64encode(value.encode()).decode() for key, value in values.items()}
        secret = {"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "training"}, "data": data}
        bastion.cluster.client.create(SECRETS, secret)
        yield bastion


def test_two_pods_that_hang_are_shown_and_restarted_in_place(bastion: ClusterBastion, folder: Path) -> None:
    command = f'echo try $BASTION_TRY; [ "$BASTION_TRY" = 1 ] && {HANGS}; echo done'
    done = bastion.cli(
        *("launch", "--name=hangs", "--wait", "--instance_type=gpu-a100-1", "--num_replicas=2", "--stuck_after=5s"),
        *("--setup=", "--", "bash", "-c", command),
        folder=folder,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    job = bastion.known("hangs")
    result = job.ended()
    assert (causes(result), [each["stuck"] for each in result["attempts"][0]["tries"]]) == (["succeeded"], [True])
    (run,) = job.runs()
    for host in (0, 1):
        lines = job.output(run, host)
        assert [line for line in lines if " in the_hang" in line], lines
        assert lines[-2:] == ["try 2", "done"]
    why = bastion.cli("why", "hangs").stdout
    assert "attempt 1, try 1: stuck, restarted in place" in why
    assert re.search(r"goodput|lost", why), why


def test_secrets_reach_the_command_and_nothing_else(bastion: ClusterBastion, folder: Path, tmp_path: Path) -> None:
    key, go = tmp_path / "key", tmp_path / "go"
    key.write_text(FILE_VALUE + "\n")
    seen = tmp_path / "seen"
    # The values leave the command through a file of the test's own.
    command = (
        f'printf "%s %s %s" "$A" "$B" "$C" > {seen}; '
        f'echo "other ${{TRAINING_KEY-none}} ${{BASTION_SECRET_VARIABLES-none}}"; '
        f"until [ -e {go} ]; do sleep 0.1; done"
    )
    done = bastion.cli(
        *("launch", "--name=keys", "--instance_type=gpu-a100-1", f"--secret=A=file:{key}"),
        *(
            "--secret=B=env:TRAINING_KEY",
            "--secret=C=k8s:secret/training/mounted",
            "--setup=true",
            "--output_dir=out",
            "--",
            "bash",
            "-c",
            command,
        ),
        folder=folder,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    job = bastion.known("keys")
    job.await_line("other none none")
    arguments = subprocess.run(["ps", "-ef", "-ww"], capture_output=True, text=True, check=True).stdout
    objects = _objects(bastion)
    go.touch()
    job.ended()
    assert seen.read_text() == f"{FILE_VALUE} {VALUE} {MOUNTED_VALUE}"
    for value in (VALUE, FILE_VALUE, MOUNTED_VALUE):
        assert value not in arguments
        assert value not in objects
        assert base64.b64encode(value.encode()).decode() not in objects
        # The bucket, and all logs; below `cluster` are the processes' own environments, too.
        for path in (*_files(Path(bastion.root.url)), *_files(folder / "home"), *_files(folder, "log")):
            with contextlib.suppress(FileNotFoundError):  # it may be gone by now
                assert value.encode() not in path.read_bytes(), path
    assert "file:" in (spec := bastion.root.store.get("jobs/complete/keys").data.decode())
    assert "env:TRAINING_KEY" in spec


def test_a_secret_that_the_cluster_lacks_fails_its_job_at_once(bastion: ClusterBastion, folder: Path) -> None:
    done = bastion.cli(
        *("launch", "--name=absent", "--wait", "--instance_type=gpu-a100-1", "--max_tries=3"),
        *("--secret=A=env:ABSENT_KEY", "--", "echo", "never"),
        folder=folder,
    )
    assert done.returncode == 64, done.stdout + done.stderr
    result = bastion.known("absent").ended()
    assert (result["outcome"], causes(result)) == ("failed", ["failed"])
    assert result["message"].startswith(
        "worker 0 SecretUnreadable: secret A: the variable ABSENT_KEY of the host's agent"
    )
    until(lambda: bastion.cluster.everything() == [])


@pytest.mark.parametrize(
    ("key", "said"),
    [
        (
            "absent",
            "the Secret training in the namespace of the job's pods has no key absent, or does not exist; create",
        ),
        ("long", "key long of the Secret training is larger than 64 KiB, too large for a variable; let the command"),
    ],
    ids=["absent", "long"],
)
def test_a_key_that_is_no_secret_fails_its_job_at_once(
    bastion: ClusterBastion, folder: Path, key: str, said: str
) -> None:
    done = bastion.cli(
        *("launch", f"--name={key}", "--wait", "--instance_type=gpu-a100-1"),
        *(f"--secret=A=k8s:secret/training/{key}", "--", "echo", "never"),
        folder=folder,
    )
    assert done.returncode == 64, done.stdout + done.stderr
    message = bastion.known(key).ended()["message"]
    assert message.startswith(f"worker 0 SecretUnreadable: secret A: {said}"), message


def test_a_secret_that_jobs_may_not_take_is_refused(bastion: ClusterBastion, folder: Path) -> None:
    done = bastion.cli(
        *("launch", "--name=others", "--instance_type=gpu-a100-1", "--secret=A=k8s:secret/registry/token"),
        *("--", "echo", "never"),
        folder=folder,
    )
    assert done.returncode == 64, done.stdout + done.stderr
    assert "no cluster of a100 gives jobs the Secret registry; an operator may name it in clusters.test" in done.stderr


def _files(folder: Path, name: str = "") -> list[Path]:
    """Files below a folder that may change meanwhile; with `name`, those with it in their names."""
    found = [Path(parent) / file for parent, _, files in os.walk(folder) for file in files if name in file]
    return [path for path in found if path.is_file()]


def _objects(bastion: ClusterBastion) -> str:
    """All objects of the cluster but Secrets."""
    found = []
    for kind in KINDS.values():
        if kind.kind != "Secret":
            try:
                found.append(bastion.cluster.client.list(kind.root))
            except ApiError:
                continue
    assert any(item["metadata"]["name"].startswith("b-") for each in found for item in each["items"])
    return json.dumps(found)
