"""A job's whole life where Kueue decides: it waits, runs, is evicted, runs again before its equals, ends."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from bastion.emulators.kubernetes.controllers.api_objects import WORKLOAD, condition_of, owners_of
from tests.support.cluster_bastion import ClusterBastion, ClusterJob, causes, cluster_bastion
from tests.support.waiting import until

pytest.importorskip("kubernetes")
pytestmark = [pytest.mark.e2e, pytest.mark.timeout(300)]

# One slice each.
QUOTA = b"""
[toml-schema]
version = "1"
[total_resources]
v4 = 16
[project_membership]
research = [".*"]
product = [".*"]
[project_resources]
research = { v4 = 0.5 }
product = { v4 = 0.5 }
"""


@pytest.fixture(scope="module")
def bastion(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ClusterBastion]:
    with cluster_bastion(tmp_path_factory.mktemp("cluster"), "v4-8=2", kueue_quota=QUOTA) as bastion:
        yield bastion


def test_an_evicted_job_runs_again_before_its_equals(bastion: ClusterBastion, tmp_path: Path) -> None:
    def job(name: str, project: str = "research") -> ClusterJob:
        """It runs until a file of its name exists."""
        command = f"echo started; while [ ! -e {tmp_path}/{name} ]; do sleep 0.1; done"
        return bastion.job(name, command, project_id=project)

    borrowers = [job("one"), job("two")]
    for each in borrowers:
        each.await_line("started")
    waits = job("three")
    until(lambda: "QuotaReserved=False" in bastion.cli("why", "three").stdout)
    # Kueue may word it anew, and the status follows a moment later.
    until(lambda: _kueues_words(bastion, waits) in bastion.cli("why", "three").stdout)
    why = bastion.cli("why", "three").stdout
    assert "cluster test, LocalQueue bastion-research, Workload jobset-b-" in why
    assert "order and ETA are Kueue's" in why

    owner = job("owner", "product")
    owner.await_line("started")
    until(lambda: sum(each.printed("started", run=2) or "evicted" in each.history() for each in borrowers) == 1)
    evicted, stays = sorted(borrowers, key=lambda each: "evicted" not in each.history())
    assert "Preempted to accommodate a workload" in evicted.history()
    until(lambda: len(evicted.runs()) == 1 and "attempt 2" in evicted.history())
    assert not evicted.printed("started", run=2)

    (tmp_path / "owner").touch()
    evicted.await_line("started", run=2)
    assert waits.runs() == []
    for each in (*borrowers, waits):
        (tmp_path / each.name).touch()
    assert causes(evicted.ended()) == ["evicted", "succeeded"]
    assert [causes(each.ended()) for each in (stays, waits, owner)] == [["succeeded"]] * 3
    until(lambda: bastion.cluster.everything() == [])
    until(lambda: bastion.cluster.client.list(WORKLOAD.path("default"))["items"] == [])


def _kueues_words(bastion: ClusterBastion, job: ClusterJob) -> str:
    """Why it waits, as Kueue says it."""
    document = json.loads(bastion.cli("why", job.name, "--output=json").stdout)
    name = document["job"]["queue"]["workload"]
    workload = bastion.cluster.client.get(WORKLOAD.path("default", name))
    assert owners_of(workload)[0]["kind"] == "JobSet"
    told = condition_of(workload, "QuotaReserved")
    assert told is not None
    return f"{told['reason']}: {told['message']}"
