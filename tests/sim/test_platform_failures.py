"""What a platform says of a lost gang: that the job itself ended it, that it needs the machines, or nothing."""

from __future__ import annotations

from typing import Any

import pytest

from bastion.core import limits
from bastion.core.bucket import host_errors
from bastion.core.model.gangs import GangFailure, GangState
from bastion.core.model.pods import PodSettings
from bastion.core.model.provisioning import Provisioning, ResourceTypeSettings
from bastion.testing.cluster import Cluster
from bastion.testing.scripted_hosts import runs_for

FOUR_HOSTS = "tpu-v4-32"
OUT_OF_MEMORY = GangFailure(cause="failed", message="ran out of memory", host=2, exit_code=137)
TAKEN_BACK = GangFailure(cause="evicted", message="another queue needs the machines")


def running(**spec: Any) -> Cluster:
    """A job whose four hosts run."""
    cluster = Cluster()
    cluster.submit("job", instance_type=FOUR_HOSTS, **spec)
    cluster.run_until(lambda: len(cluster.hosts.began) == 4)
    cluster.settle(2)
    return cluster


def lose(cluster: Cluster, failure: GangFailure) -> None:
    cluster.slices.put_into(cluster.slices.created[-1].ref.name, GangState.LOST, failure=failure)


def result(cluster: Cluster) -> dict[str, Any]:
    cluster.run_until(lambda: cluster.result("job"), steps=300)
    found = cluster.result("job")
    assert found is not None
    return found


def test_a_job_that_ate_its_memory_fails_with_its_worker_and_code() -> None:
    cluster = running()
    lose(cluster, OUT_OF_MEMORY)
    end = result(cluster)
    assert (end["outcome"], end["exit_code"], end["failed_worker"]) == ("failed", 137, 2)
    assert end["message"] == "worker 2 ran out of memory"
    assert len(cluster.slices.created) == 1


def test_with_tries_left_another_attempt_follows_and_is_charged_to_the_tries() -> None:
    cluster = running(max_tries=2)
    lose(cluster, OUT_OF_MEMORY)
    cluster.run_until(lambda: len(cluster.slices.created) == 2, steps=40)
    record = cluster.record("job")
    assert record is not None and record.attempt is not None
    assert (record.failed_tries, record.infrastructure_failures, record.attempt.try_number) == (1, 0, 2)
    cluster.run_until(lambda: len(cluster.hosts.began) == 8)
    cluster.settle(2)
    lose(cluster, OUT_OF_MEMORY)
    end = result(cluster)
    assert (end["outcome"], end["exit_code"], len(end["attempts"])) == ("failed", 137, 2)


def test_after_it_the_next_attempt_may_succeed() -> None:
    cluster = running(max_tries=2)
    lose(cluster, OUT_OF_MEMORY)
    cluster.hosts.scripts["job"] = runs_for(1, code=0)
    assert result(cluster)["outcome"] == "succeeded"


def test_the_platforms_word_precedes_that_of_a_host_that_only_knew_that_it_shut_down() -> None:
    cluster = running()
    cluster.hosts.errors["job", 0] = host_errors.HOST_SHUT_DOWN
    cluster.hosts.step(cluster.slices.live_slices())
    lose(cluster, OUT_OF_MEMORY)
    assert result(cluster)["exit_code"] == 137


def test_peers_that_failed_first_are_told_of_and_not_at_fault() -> None:
    cluster = running()
    cluster.hosts.deaf.add(("job", 2))
    cluster.hosts.scripts["job"] = lambda host, elapsed: 1 if host == 1 else None
    cluster.settle(2)
    lose(cluster, OUT_OF_MEMORY)
    end = result(cluster)
    assert (end["exit_code"], end["failed_worker"]) == (137, 2)
    assert end["message"] == "worker 2 ran out of memory; also: worker 1 exited with code 1"


def test_reports_of_all_hosts_precede_the_platforms_word() -> None:
    """A finished set deletes what still exists: what its hosts stored before is what happened."""
    cluster = running()
    cluster.hosts.scripts["job"] = runs_for(0, code=0)
    cluster.hosts.step(cluster.slices.live_slices())
    lose(cluster, OUT_OF_MEMORY)
    assert result(cluster)["outcome"] == "succeeded"


def test_a_gang_that_ended_itself_after_every_last_report_was_not_lost() -> None:
    """Pods end once nothing can follow: the failure of one host stays the user's, though the others are gone."""
    cluster = running()
    cluster.hosts.scripts["job"] = lambda host, elapsed: 7 if host == 1 else None
    cluster.hosts.step(cluster.slices.live_slices())
    cluster.step()
    cluster.hosts.step(cluster.slices.live_slices())
    cluster.slices.put_into(cluster.slices.created[-1].ref.name, GangState.LOST)
    end = result(cluster)
    assert (end["outcome"], end["exit_code"], end["failed_worker"]) == ("failed", 7, 1)
    assert end["message"] == "worker 1 exited with code 7"


def test_hosts_whose_setup_failed_may_end_their_pods_at_once() -> None:
    cluster = running()
    for host in range(4):
        cluster.hosts.errors["job", host] = host_errors.SETUP_FAILED
    cluster.hosts.step(cluster.slices.live_slices())
    cluster.slices.put_into(cluster.slices.created[-1].ref.name, GangState.LOST)
    end = result(cluster)
    assert (end["outcome"], len(end["attempts"])) == ("failed", 1)
    assert host_errors.SETUP_FAILED in end["message"]


def test_an_evicted_gang_is_queued_again_and_costs_no_budget() -> None:
    cluster = running()
    for number in range(2, limits.INFRASTRUCTURE_ATTEMPTS_MAX + 3):
        lose(cluster, TAKEN_BACK)
        cluster.run_until(lambda expected=number: len(cluster.slices.created) == expected, steps=40)
        cluster.run_until(lambda expected=number: len(cluster.hosts.began) == 4 * expected)
        cluster.settle(2)
    record = cluster.record("job")
    assert record is not None
    assert {past.cause.value for past in record.attempts} == {"evicted"}
    assert (record.infrastructure_failures, record.failed_tries) == (0, 0)


@pytest.mark.parametrize("failure", [OUT_OF_MEMORY, TAKEN_BACK])
def test_of_a_gang_with_another_token_the_platforms_word_is_not_ours(failure: GangFailure) -> None:
    cluster = running()
    request = cluster.slices.created[0]
    cluster.slices.replace_token(request.ref.name, "another")
    lose(cluster, failure)
    cluster.run_until(lambda: cluster.record("job").attempt.ending is not None)  # type: ignore[union-attr]
    assert cluster.record("job").attempt.ending.cause.value == "infrastructure"  # type: ignore[union-attr]


def test_a_gang_that_stays_half_placed_gives_its_part_back_where_there_is_one_place_only() -> None:
    cluster = Cluster()
    cluster.slices.ready_seconds = 1e6
    cluster.submit("job", instance_type=FOUR_HOSTS)
    cluster.run_until(lambda: cluster.slices.created)
    name = cluster.slices.created[0].ref.name
    cluster.slices.put_into(name, GangState.WAITING, waiting="Unschedulable")
    cluster.settle(2)
    cluster.clock.advance(limits.ZONE_WAIT_SECONDS)
    cluster.settle(2)
    assert cluster.slices.deleted == []
    cluster.slices.put_into(name, GangState.WAITING, waiting="Unschedulable", partial=True)
    cluster.settle(2)
    cluster.clock.advance(limits.ZONE_WAIT_SECONDS - 10)
    cluster.settle(2)
    assert cluster.slices.deleted == []
    cluster.clock.advance(20)
    cluster.run_until(lambda: cluster.slices.deleted == [name], steps=20)
    cluster.run_until(lambda: cluster.record("job").attempts)  # type: ignore[union-attr]
    [past] = cluster.record("job").attempts  # type: ignore[union-attr]
    assert past.cause.value == "capacity"
    assert "only some of its hosts had machines for 15m" in past.message


IN_A_CLUSTER = Provisioning(
    resource_types={"v4": ResourceTypeSettings(zones=("k8s:west",), pod=PodSettings(image="image"))}
)


def in_pods() -> Cluster:
    """As `running`, in a Kubernetes cluster; one of the hosts has been told to shut down."""
    cluster = Cluster(without_settings=IN_A_CLUSTER)
    cluster.submit("job", instance_type=FOUR_HOSTS)
    cluster.run_until(lambda: len(cluster.hosts.began) == 4)
    cluster.settle(2)
    cluster.hosts.errors["job", 0] = host_errors.HOST_SHUT_DOWN
    cluster.hosts.step(cluster.slices.live_slices())
    cluster.settle(2)
    return cluster


def test_a_pod_that_was_shut_down_waits_for_the_platforms_word() -> None:
    cluster = in_pods()
    record = cluster.record("job")
    assert record is not None and record.attempt is not None and record.attempt.ending is None
    lose(cluster, OUT_OF_MEMORY)
    end = result(cluster)
    assert (end["outcome"], end["exit_code"], len(end["attempts"])) == ("failed", 137, 1)


def test_peers_of_a_pod_that_was_shut_down_are_not_settled_before_the_platforms_word() -> None:
    cluster = in_pods()
    cluster.hosts.scripts["job"] = lambda host, elapsed: 1
    cluster.hosts.step(cluster.slices.live_slices())
    cluster.settle(3)
    cluster.slices.put_into(cluster.slices.created[-1].ref.name, GangState.LOST)
    cluster.run_until(lambda: cluster.record("job").attempts, steps=300)  # type: ignore[union-attr]
    [past] = cluster.record("job").attempts  # type: ignore[union-attr]
    assert past.cause.value == "infrastructure"
    assert host_errors.HOST_SHUT_DOWN in past.message


def test_a_pod_that_was_shut_down_and_forgotten_is_lost_in_the_end() -> None:
    cluster = in_pods()
    cluster.run_until(lambda: cluster.record("job").attempts, steps=600)  # type: ignore[union-attr]
    [past] = cluster.record("job").attempts  # type: ignore[union-attr]
    assert past.cause.value == "infrastructure"
