"""Whole jobs on an emulated cluster: JobSets, pods, agents, and what the bucket shows of them."""

from __future__ import annotations

import time
from collections.abc import Iterator

import pytest

from tests.support.cluster_bastion import ClusterBastion, causes, cluster_bastion
from tests.support.waiting import until

pytest.importorskip("kubernetes")
pytestmark = [pytest.mark.e2e, pytest.mark.timeout(300)]


@pytest.fixture(scope="module")
def bastion(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ClusterBastion]:
    folder = tmp_path_factory.mktemp("cluster")
    with cluster_bastion(folder, "v4-8=2", "v4-16=2", "v5litepod-16=1") as bastion:
        yield bastion


def test_one_host(bastion: ClusterBastion) -> None:
    began = time.monotonic()
    job = bastion.job("one", "echo hello; echo $BASTION_TRY")
    job.await_line("hello")
    print("first line after", time.monotonic() - began)
    result = job.ended()
    assert (result["outcome"], result["exit_code"], causes(result)) == ("succeeded", 0, ["succeeded"])
    until(lambda: bastion.cluster.everything() == [], 5)
    print("gone after", time.monotonic() - began)
