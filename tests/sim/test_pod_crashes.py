"""The daemon is killed before and after every call of its provisioner in the life of a gang of pods.

The gang is first half placed, listings lag as a cache does, its hosts end themselves after their last reports, and its
pods take a moment to go.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from bastion.core.model.gangs import GangFailure, GangState
from bastion.testing.cluster import Cluster
from bastion.testing.scripted_hosts import runs_for
from tests.support.killed_daemon import Killed, check_history

CALLS = ("create", "failure", "get", "list", "delete")
# A life has about eighty calls, most of them lists; beyond them nothing is killed, and the run is an ordinary one.
# Some points in `make test`, all with $BASTION_DEATHS=all.
POINTS = (*range(1, 90),) if os.environ.get("BASTION_DEATHS") == "all" else range(1, 90, 5)
OUT_OF_MEMORY = GangFailure(cause="failed", message="ran out of memory", host=1, exit_code=137)


class KillingProvisioner:
    """Lets so many calls of the slices' provisioner pass, then kills its daemon before one, or right after it."""

    def __init__(self, cluster: Cluster, countdown: int, *, after: bool) -> None:
        self.countdown = countdown
        self.struck = False
        self._cluster = cluster
        self._after = after
        for name in CALLS:
            setattr(cluster.slices, name, self._killing(getattr(cluster.slices, name)))

    def _killing(self, call: Callable[..., Any]) -> Callable[..., Any]:
        def wrapped(*arguments: Any) -> Any:
            self.countdown -= 1
            if self.countdown == 0 and not self._after:
                self._kill()
            answer = call(*arguments)
            if self.countdown == 0:
                self._kill()
            return answer

        return wrapped

    def _kill(self) -> None:
        self.struck = True
        self.countdown = -1
        raise Killed

    def step(self) -> None:
        """A step; the killed daemon is replaced by one that knows nothing."""
        try:
            self._cluster.step()
        except Killed:
            self._cluster.restart_daemon()
        hosts, slices = self._cluster.hosts, self._cluster.slices
        for request in slices.live_requests():
            if hosts.finished(request.run):
                slices.put_into(request.ref.name, GangState.LOST)


@pytest.fixture
def pods(cluster: Cluster) -> Iterator[Cluster]:
    """A cluster without capacity for the moment: the first gang is half placed."""
    slices = cluster.slices
    slices.ready_seconds, slices.delete_seconds, slices.lag_seconds = 2.0, 3.0, 2.0
    slices.waits, slices.half_placed = {"": "Unschedulable"}, True
    yield cluster
    for name in CALLS:
        vars(slices).pop(name, None)
    slices.lag_seconds = 0.0
    for _ in range(15):
        cluster.step()
    assert slices.existing_requests() == []
    cluster.outlive_late_requests()
    left = ("runs/", "beats/", "jobs/claims/", "jobs/states/")
    assert [key for key in cluster.listed() if key.startswith(left)] == []


def live(cluster: Cluster, killer: KillingProvisioner, trouble: Callable[[int], None] = lambda _: None) -> None:
    """Live until the job is over; capacity comes after some steps."""
    for number in range(400):
        if cluster.result("job"):
            return
        if number == 6:
            cluster.slices.waits = {}
        trouble(number)
        killer.step()
        assert len(cluster.hosts.live("job")) <= 1, "two incarnations at once"
    raise AssertionError(f"not done: {cluster.describe()}")


def is_up(cluster: Cluster, uid: str) -> bool:
    """Whether the first attempt's hosts run, and nothing has happened to them yet."""
    ready = [request.run for request in cluster.slices.live_requests()]
    return ready == [f"{uid}-1"] == cluster.hosts.live("job")


def check(cluster: Cluster, uid: str, *runs: str) -> None:
    began = sorted((each.run, each.host) for each in cluster.hosts.began)
    assert began == [(f"{uid}-{run}", host) for run in runs for host in (0, 1)]
    check_history(cluster, "job")


@pytest.mark.parametrize("after", [False, True], ids=["before", "after"])
@pytest.mark.parametrize("point", POINTS)
def test_a_job_in_pods_runs_once_wherever_its_daemon_dies(pods: Cluster, point: int, after: bool) -> None:
    pods.hosts.scripts["job"] = runs_for(4, code=7)
    uid = pods.submit("job", instance_type="tpu-v4-16")
    killer = KillingProvisioner(pods, point, after=after)
    live(pods, killer)
    result = pods.result("job")
    assert result is not None
    assert (result["outcome"], result["exit_code"], len(result["attempts"])) == ("failed", 7, 1)
    check(pods, uid, "1")


@pytest.mark.parametrize("after", [False, True], ids=["before", "after"])
@pytest.mark.parametrize("point", POINTS[::4])
def test_a_try_that_ran_out_of_memory_is_charged_once_wherever_the_daemon_dies(
    pods: Cluster, point: int, after: bool
) -> None:
    uid = pods.submit("job", instance_type="tpu-v4-16", max_tries=2)
    killer = KillingProvisioner(pods, point, after=after)

    def trouble(_: int) -> None:
        if is_up(pods, uid):
            pods.slices.put_into(f"b-{uid}-1", GangState.LOST, failure=OUT_OF_MEMORY)
        elif pods.hosts.live("job") == [f"{uid}-2"]:
            pods.hosts.scripts["job"] = runs_for(2)

    live(pods, killer, trouble)
    result = pods.result("job")
    assert result is not None
    assert (result["outcome"], [each["cause"] for each in result["attempts"]]) == ("succeeded", ["failed", "succeeded"])
    check(pods, uid, "1", "2")


@pytest.mark.parametrize("after", [False, True], ids=["before", "after"])
@pytest.mark.parametrize("point", POINTS[::4])
def test_pods_without_a_jobset_go_before_another_attempt_wherever_the_daemon_dies(
    pods: Cluster, point: int, after: bool
) -> None:
    uid = pods.submit("job", instance_type="tpu-v4-16")
    killer = KillingProvisioner(pods, point, after=after)

    def trouble(_: int) -> None:
        if is_up(pods, uid):
            pods.slices.orphan(f"b-{uid}-1")  # its hosts go on
        elif pods.hosts.live("job") == [f"{uid}-2"]:
            pods.hosts.scripts["job"] = runs_for(2)

    live(pods, killer, trouble)
    result = pods.result("job")
    assert result is not None
    causes = [each["cause"] for each in result["attempts"]]
    assert (result["outcome"], causes) == ("succeeded", ["infrastructure", "succeeded"])
    check(pods, uid, "1", "2")


def test_a_life_is_long_enough_to_be_killed_in_its_last_calls(pods: Cluster) -> None:
    pods.hosts.scripts["job"] = runs_for(4, code=7)
    pods.submit("job", instance_type="tpu-v4-16")
    killer = KillingProvisioner(pods, 1000, after=False)
    live(pods, killer)
    assert 30 < 1000 - killer.countdown <= max(POINTS) + 6
