"""Updates of running jobs: what concerns only the scheduler changes in place, and the attempt goes on."""

from __future__ import annotations

import pytest

from bastion.testing.cluster import Cluster
from bastion.testing.scripted_hosts import runs_for


@pytest.fixture
def running() -> Cluster:
    bastion = Cluster()
    bastion.hosts.scripts["job"] = runs_for(100_000)
    bastion.submit("job", instance_type="tpu-v4-16", version=1)
    bastion.run_until(lambda: bastion.hosts.live("job"))
    return bastion


def number(bastion: Cluster) -> int:
    attempt = bastion.record("job").attempt
    assert attempt is not None
    assert attempt.ending is None
    return attempt.number


def test_a_priority_changes_without_a_new_attempt_and_the_history_says_how(running: Cluster) -> None:
    before = number(running)
    running.submit("job", instance_type="tpu-v4-16", version=2, priority=1)
    running.settle(5)
    assert number(running) == before
    assert running.record("job").job.priority == 1
    assert "updated to version 2: priority 5 -> 1" in "\n".join(running.history("job"))


def test_a_job_that_has_run_longer_than_its_new_limit_ends(running: Cluster) -> None:
    running.submit("job", instance_type="tpu-v4-16", version=2, max_run_seconds=1)
    running.run_until(lambda: running.result("job"))
    assert "max_run" in str(running.result("job"))


@pytest.mark.parametrize("changes", [{"command": "other", "priority": 1}, {}], ids=["command", "nothing"])
def test_anything_else_ends_the_attempt_and_so_does_an_update_that_changes_nothing(
    running: Cluster, changes: dict[str, object]
) -> None:
    before = number(running)
    running.submit("job", instance_type="tpu-v4-16", version=2, **changes)
    running.run_until(lambda: (found := running.record("job")) and found.attempt and found.attempt.number > before)
    assert running.record("job").job.version == 2
