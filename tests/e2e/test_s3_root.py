"""The whole path with the bucket on a real S3 server, and a cluster's pods as hosts."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.support.cluster_bastion import ClusterBastion, causes, cluster_bastion
from tests.support.s3_server import S3Server
from tests.support.waiting import until

pytest.importorskip("kubernetes")
pytestmark = [pytest.mark.e2e, pytest.mark.timeout(300)]


@pytest.fixture(scope="module")
def bastion(s3_server: S3Server, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ClusterBastion]:
    with pytest.MonkeyPatch.context() as patch:
        for name, value in s3_server.env.items():
            patch.setenv(name, value)
        url = f"s3://{s3_server.new_bucket()}/e2e-bastion"
        with cluster_bastion(tmp_path_factory.mktemp("s3"), "v4-8=1", "v4-16=1", url=url) as bastion:
            yield bastion


def test_a_job_prints_into_the_bucket_from_every_host(bastion: ClusterBastion) -> None:
    done = bastion.cli(
        "launch", "--name=hello", "--instance_type=tpu-v4-16", "--bundle=none", "--wait", "--",
        "bash", "-c", "echo out of $BASTION_HOST_INDEX",
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    assert "out of 0" in done.stdout
    assert "out of 1" in done.stdout
    assert "out of 1" in bastion.cli("logs", "hello").stdout
    assert "COMPLETED" in bastion.known("hello").history()


def test_a_job_on_the_bastion_itself_returns_its_exit_code(bastion: ClusterBastion) -> None:
    done = bastion.cli("launch", "--name=fails", "--bundle=none", "--wait", "--", "bash", "-c", "echo out; exit 7")
    assert (done.returncode, done.stdout) == (7, "out\n"), done.stderr


def test_outputs_of_a_host_are_in_the_bucket(bastion: ClusterBastion) -> None:
    job = bastion.job("saves", "mkdir -p out; echo result > out/file; echo saved", output_dir="out")
    assert causes(job.ended()) == ["succeeded"]
    assert job.outputs(0) == {"file": b"result\n"}


def test_a_running_job_is_cancelled(bastion: ClusterBastion) -> None:
    job = bastion.job("long", "echo begun; sleep 1000")
    job.await_line("begun")
    assert bastion.cli("cancel", "long").returncode == 0
    until(job.result)
    assert causes(job.ended()) == ["cancelled"]
