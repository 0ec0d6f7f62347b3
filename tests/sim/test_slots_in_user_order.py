"""The slots of the bastion's own host, for jobs and for cleanup commands: nobody takes them all."""

from __future__ import annotations

import inspect

import pytest

from bastion.adapters.bastion_host import BastionHostProvisioner
from bastion.core import limits
from bastion.testing.cluster import QUOTA, Cluster
from bastion.testing.scripted_hosts import runs_for

USERS = QUOTA.replace(b'["alice"]', b'["alice", "carol"]')
FOR_EVER = runs_for(10**9)


def running(cluster: Cluster, prefix: str) -> int:
    return sum(bool(cluster.hosts.live(f"{prefix}{k}")) for k in range(limits.BASTION_HOST_JOBS_MAX + 8))


@pytest.mark.parametrize(("user", "project"), [("bob", "b"), ("carol", "a")])
def test_a_users_jobs_that_ask_for_nothing_do_not_keep_another_user_out(user: str, project: str) -> None:
    cluster = Cluster(quota=USERS)
    for k in range(limits.BASTION_HOST_JOBS_MAX + 8):
        cluster.hosts.scripts[f"hog-{k}"] = FOR_EVER
        cluster.submit(f"hog-{k}")
    cluster.settle(5)
    assert running(cluster, "hog-") == limits.BASTION_HOST_JOBS_MAX // 2
    cluster.hosts.scripts["stranger"] = runs_for(2)
    cluster.submit("stranger", user=user, project=project)
    cluster.run_until(lambda: cluster.result("stranger"), steps=20)


def test_who_waits_for_a_slot_is_told_the_numbers_and_starts_when_so_many_of_its_jobs_end() -> None:
    cluster = Cluster(quota=USERS)
    for k in range(17):
        cluster.hosts.scripts[f"hog-{k:02}"] = FOR_EVER
        cluster.submit(f"hog-{k:02}")
    cluster.settle(5)
    reason = cluster.reason("hog-16")
    assert reason is not None
    assert "user alice is using 16 slots of the bastion's own host, and 16 are free" in reason["message"]
    assert reason["unblock"] == ("1 more slot of the bastion's own host becomes free or 1 job of user alice ends there")
    cluster.cancel("hog-03")
    cluster.hosts.scripts["hog-03"] = runs_for(1)
    cluster.run_until(lambda: cluster.hosts.live("hog-16"), steps=90)


def test_hanging_cleanup_commands_end_in_time_and_do_not_hold_back_another_users_end() -> None:
    cluster = Cluster(quota=USERS.replace(b"v4 = 64", b"v4 = 1024"))
    hogs = [f"a-hog-{k}" for k in range(40)]
    for name in hogs:
        cluster.submit(name, instance_type="tpu-v4-8", cleanup_command="sleep 1d")
    cluster.submit("stranger", user="bob", project="b", instance_type="tpu-v4-8", cleanup_command="true")
    cluster.run_until(lambda: len(cluster.hosts.began) == 41)
    for name in hogs:
        cluster.hosts.scripts[name] = FOR_EVER  # their cleanup commands, from now on
        cluster.cancel(name)
    cluster.run_until(lambda: len(cleanups(cluster)) == limits.CLEANUP_COMMANDS_MAX // 2, steps=90)
    cluster.settle(5)
    assert len(cleanups(cluster)) == limits.CLEANUP_COMMANDS_MAX // 2
    cluster.hosts.scripts["stranger"] = runs_for(1)
    cluster.cancel("stranger")
    cluster.run_until(lambda: cluster.result("stranger"), steps=90)
    first = cleanups(cluster)
    took = cluster.run_until(lambda: not first & cleanups(cluster), steps=int(limits.CLEANUP_TIMEOUT_SECONDS) + 120)
    assert took <= limits.CLEANUP_TIMEOUT_SECONDS + limits.STOP_REPORT_SLACK_SECONDS + 30
    cluster.run_until(lambda: cleanups(cluster), steps=5)  # the next ones


def cleanups(cluster: Cluster) -> set[str]:
    """The cleanup runs that hold a slot."""
    return {status.run for status in cluster.bastion_host.list() if status.run.endswith("-cleanup")}


def test_cleanup_commands_have_room_beside_as_many_jobs_as_the_host_runs() -> None:
    most = inspect.signature(BastionHostProvisioner).parameters["max_gangs"].default
    assert most == limits.BASTION_HOST_JOBS_MAX + limits.CLEANUP_COMMANDS_MAX
