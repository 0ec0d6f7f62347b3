"""The quota file's rules of projects, from the file to the job: grace, maximum runtime, and who used how much."""

from __future__ import annotations

import pytest

from bastion.core.bucket import keys
from bastion.testing.cluster import QUOTA, Cluster
from bastion.testing.scripted_hosts import runs_for


def test_a_job_that_runs_too_long_is_stopped_for_good_and_told_why() -> None:
    cluster = Cluster(quota=QUOTA + b"[project_rules.a]\nmaximum_runtime_hours = 0.05\ngrace_seconds = 7\n")
    cluster.hosts.scripts["job"] = runs_for(100_000)
    cluster.hosts.scripts["other"] = runs_for(100_000)
    cluster.submit("job", instance_type="tpu-v4-16")
    cluster.submit("other", user="bob", project="b", instance_type="tpu-v4-16")
    cluster.run_until(lambda: cluster.result("job"), steps=400)
    result = cluster.result("job")
    assert result is not None
    assert (result["outcome"], result["exit_code"]) == ("failed", 124)
    assert result["message"] == "ran longer than the maximum runtime of project a, 0.05 h (maximum_runtime_hours)"
    assert [attempt["cause"] for attempt in result["attempts"]] == ["overtime"]
    assert 180 <= cluster.clock.now() - from_start(cluster) < 400
    assert any("overtime: ran longer than" in line for line in cluster.history("job"))
    assert cluster.hosts.live("other")


def from_start(cluster: Cluster) -> float:
    record = cluster.record("other")
    assert record is not None
    assert record.attempt is not None
    return record.attempt.started_at


@pytest.mark.parametrize(("rules", "grace"), [(b"", 60.0), (b"[project_rules.a]\ngrace_seconds = 7\n", 7.0)])
def test_an_evicted_job_gets_its_projects_grace(rules: bytes, grace: float) -> None:
    cluster = Cluster(quota=QUOTA + rules)
    cluster.submit("borrower", instance_type="tpu-v4-64")
    cluster.run_until(lambda: cluster.hosts.live("borrower"))
    cluster.submit("owner", user="bob", project="b", instance_type="tpu-v4-32")

    def ending() -> object:
        record = cluster.record("borrower")
        return record.attempt.ending if record and record.attempt else None

    cluster.run_until(ending)
    record = cluster.record("borrower")
    assert record is not None
    assert record.attempt is not None
    assert record.attempt.ending is not None
    assert (record.attempt.ending.cause.value, record.attempt.ending.grace_seconds) == ("evicted", grace)


def test_what_a_user_used_outlives_the_daemon() -> None:
    quota = QUOTA.replace(b'a = ["alice"]', b'a = ["alice", "carol"]')
    cluster = Cluster(quota=quota)
    cluster.hosts.scripts["first"] = runs_for(500)
    cluster.submit("first", instance_type="tpu-v4-64")
    cluster.run_until(lambda: cluster.result("first"), steps=1000)
    cluster.settle()
    used = cluster.json(keys.STATUS)["usage"]["projects"]["a"]["alice"]
    assert 400 * 64 < used < 700 * 64
    cluster.restart_daemon()
    cluster.write_quota(quota + b"[project_rules.a]\nhold = true\n")
    cluster.submit("hers", instance_type="tpu-v4-64")
    cluster.settle(2)
    cluster.submit("new", user="carol", instance_type="tpu-v4-64")
    cluster.settle(2)
    assert (cluster.reason("hers") or {})["code"] == "Held"
    cluster.write_quota(quota)
    cluster.run_until(lambda: cluster.hosts.live("hers") or cluster.hosts.live("new"))
    assert cluster.hosts.live("new"), "who used nothing goes before who was here first"
    assert cluster.json(keys.STATUS)["usage"]["projects"]["a"]["alice"] == pytest.approx(used, rel=0.05)


def test_a_job_waits_until_its_project_may_have_what_it_asks_for_and_then_starts() -> None:
    cluster = Cluster(quota=QUOTA + b'[project_rules.a]\ninstance_types = ["tpu-v4-8"]\n')
    cluster.submit("large", instance_type="tpu-v4-16")
    cluster.submit("small", instance_type="tpu-v4-8")
    cluster.run_until(lambda: cluster.hosts.live("small"))
    reason = cluster.reason("large")
    assert reason is not None
    assert reason["code"] == "NotAllowed"
    assert reason["message"] == "project a may use the instance types tpu-v4-8, not tpu-v4-16"
    present = cluster.store.head(keys.PROJECT_QUOTAS)
    assert present is not None
    cluster.store.put(keys.PROJECT_QUOTAS, QUOTA, generation=present.generation)
    cluster.run_until(lambda: cluster.hosts.live("large"))
    assert cluster.hosts.live("small")


def test_a_job_as_root_waits_until_its_project_may_and_its_history_says_what_it_is() -> None:
    cluster = Cluster(quota=QUOTA)
    cluster.submit("job", instance_type="tpu-v4-8", root=True)
    cluster.run_until(lambda: cluster.reason("job") is not None)
    reason = cluster.reason("job")
    assert reason is not None
    assert reason["code"] == "NotAllowed"
    assert "may not run jobs as root (allow_root = false)" in reason["message"]
    cluster.write_quota(QUOTA + b"[project_rules.a]\nallow_root = true\n")
    cluster.run_until(lambda: cluster.hosts.live("job"))
    assert any("is starting: tpu-v4-8 as root" in line for line in cluster.history("job"))
