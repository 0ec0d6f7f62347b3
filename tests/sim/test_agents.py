"""Which agent the nodes of an attempt run: the one that was there when it began, whatever the daemon is since."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from bastion.core.bucket import protocol
from bastion.core.bucket.agent_archive import Manifest, PackedAgent
from bastion.core.bucket.protocol import AgentArguments
from bastion.core.errors import ProvisionerUnavailable
from bastion.core.model.gangs import GangRequest
from bastion.daemon.act.agents import Agents
from bastion.testing.cluster import Cluster
from bastion.testing.scripted_hosts import runs_for

OLD, NEW = "a" * 64, "b" * 64


def agents(cluster: Cluster, sha256: str, later: list[Callable[[], None]] | None = None) -> Agents:
    packed = PackedAgent(sha256=sha256, archive=b"tar", manifest=Manifest(version="1", needs=(), wheels=()))
    run = (lambda work: work()) if later is None else later.append
    return Agents(cluster.store, lambda: packed, cluster.clock, in_background=run)


def agents_asked_for(cluster: Cluster) -> list[str]:
    return [
        protocol.read(AgentArguments, request.agent_arguments.encode()).agent
        for request in cluster.slices.existing_requests()
    ]


def start_anew(cluster: Cluster, sha256: str) -> None:
    cluster.agents = agents(cluster, sha256)
    cluster.restart_daemon()


def test_an_attempt_keeps_the_agent_it_began_with_when_another_version_of_the_daemon_takes_over(
    cluster: Cluster,
) -> None:
    start_anew(cluster, OLD)
    cluster.submit("job-a", resources={"v4": 32}, instance_type="tpu-v4-32")
    cluster.hosts.scripts["job-a"] = runs_for(300, code=0)
    cluster.run_until(lambda: agents_asked_for(cluster))
    assert agents_asked_for(cluster) == [OLD]
    start_anew(cluster, NEW)
    cluster.submit("job-b", resources={"v4": 32}, instance_type="tpu-v4-32")
    cluster.hosts.scripts["job-b"] = runs_for(300, code=0)
    cluster.run_until(lambda: len(agents_asked_for(cluster)) == 2)
    assert sorted(agents_asked_for(cluster)) == [OLD, NEW]
    attempts = [record.attempt for record in map(cluster.record, ("job-a", "job-b")) if record is not None]
    assert [attempt and attempt.agent for attempt in attempts] == [OLD, NEW]


def test_a_creation_that_is_asked_for_again_by_another_daemon_names_the_same_agent(
    cluster: Cluster,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    start_anew(cluster, OLD)
    cluster.submit("job-a", resources={"v4": 32}, instance_type="tpu-v4-32")

    def unavailable(_: GangRequest) -> None:
        raise ProvisionerUnavailable("not now")

    with monkeypatch.context() as patch:
        patch.setattr(cluster.slices, "create", unavailable)
        cluster.run_until(lambda: (record := cluster.record("job-a")) is not None and record.attempt is not None)
    start_anew(cluster, NEW)
    cluster.run_until(lambda: agents_asked_for(cluster))
    assert agents_asked_for(cluster) == [OLD]


def test_jobs_on_slices_wait_for_the_agent_and_others_do_not(cluster: Cluster) -> None:
    later: list[Callable[[], None]] = []
    cluster.agents = agents(cluster, OLD, later)
    cluster.restart_daemon()
    cluster.submit("job-a", resources={"v4": 32}, instance_type="tpu-v4-32")
    cluster.submit("job-b", resources={})
    cluster.hosts.scripts["job-b"] = runs_for(2, code=0)
    cluster.run_until(lambda: cluster.result("job-b"))
    record = cluster.record("job-a")
    assert record is not None
    assert record.attempt is None
    assert len(later) == 1
    later.pop()()
    cluster.run_until(lambda: agents_asked_for(cluster))
    assert agents_asked_for(cluster) == [OLD]


def test_a_daemon_with_nothing_to_start_uploads_nothing(cluster: Cluster) -> None:
    start_anew(cluster, OLD)
    for _ in range(5):
        cluster.step()
    assert list(cluster.store.list("agents/")) == []
