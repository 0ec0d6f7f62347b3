"""More jobs than the queue takes: their specs stay, cost next to nothing, and come in as others start or end."""

from __future__ import annotations

import json
from collections.abc import Iterable

import pytest

from bastion.core import documents, limits
from bastion.core.bucket import keys
from bastion.core.model.lifecycle import Status
from bastion.testing.cluster import QUOTA, Cluster
from bastion.testing.counting_store import CountingStore
from bastion.testing.scripted_hosts import runs_for


def quota(per_user: int = 3, per_project: int = 5) -> bytes:
    rules = f"[project_rules]\nmax_queued_jobs_per_user = {per_user}\nmax_queued_jobs = {per_project}\n"
    return QUOTA.replace(b'a = ["alice"]', b'a = ["alice", "ann", "anton"]') + rules.encode()


def submit(cluster: Cluster, names: Iterable[str], **given: str) -> None:
    """One after the other, by the bucket's clock; larger than the pool, so that they wait."""
    for name in names:
        cluster.clock.advance(1)
        cluster.submit(name, **{"instance_type": "tpu-v4-128", **given})  # type: ignore[arg-type]


def queued(cluster: Cluster) -> set[str]:
    return {meta.removeprefix(keys.JOBS_STATES) for meta in cluster.listed(keys.JOBS_STATES)}


def backlog(cluster: Cluster) -> list[dict[str, object]]:
    return list(cluster.json(keys.STATUS)["backlog"])


def test_jobs_over_the_users_limit_stay_out_and_come_in_by_age_as_others_end() -> None:
    cluster = Cluster(quota=quota())
    submit(cluster, ["z", "y", "x", "w", "v", "u"])
    cluster.settle(3)
    assert queued(cluster) == {"x", "y", "z"}
    full = {"project_id": "a", "user_id": "alice", "queued": 3, "limit": 3, "rule": "max_queued_jobs_per_user"}
    assert backlog(cluster) == [{**full, "jobs": 3}]
    assert len(cluster.json(keys.STATUS)["jobs"]) == 3
    cluster.cancel("y")
    cluster.settle(6)
    assert queued(cluster) == {"x", "z", "w"}
    assert backlog(cluster) == [{**full, "jobs": 2}]
    cluster.restart_daemon()
    cluster.settle(3)
    assert queued(cluster) == {"x", "z", "w"}
    for name in ("z", "x", "w"):
        cluster.cancel(name)
    cluster.settle(8)
    assert queued(cluster) == {"u", "v"}
    assert backlog(cluster) == []


def test_jobs_that_start_make_room() -> None:
    cluster = Cluster(quota=quota(per_user=2))
    names = [f"job-{number}" for number in range(6)]
    for name in names:
        cluster.hosts.scripts[name] = runs_for(2)
    submit(cluster, names, instance_type="tpu-v4-32")
    cluster.run_until(lambda: all(cluster.result(name) for name in names))
    assert backlog(cluster) == []


def test_the_projects_limit_counts_all_its_users_and_nobody_elses_jobs() -> None:
    cluster = Cluster(quota=quota())
    submit(cluster, ["a1", "a2", "a3"])
    submit(cluster, ["n1", "n2", "n3"], user="ann")
    submit(cluster, ["t1"], user="anton")
    submit(cluster, ["b1"], user="bob", project="b")
    cluster.settle(3)
    assert queued(cluster) == {"a1", "a2", "a3", "n1", "n2", "b1"}
    assert [(e["user_id"], e["jobs"], e["rule"], e["queued"]) for e in backlog(cluster)] == [
        ("ann", 1, "max_queued_jobs", 5),
        ("anton", 1, "max_queued_jobs", 5),
    ]


def test_users_of_no_project_share_one_limit_however_they_call_themselves(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "OUTSIDERS_QUEUED_JOBS_MAX", 4)
    cluster = Cluster(quota=quota())
    for number in range(10):
        submit(cluster, [f"job-{number}"], user=f"user-{number}", project=f"project-{number}")
    submit(cluster, ["honest"])
    cluster.settle(3)
    assert queued(cluster) == {"job-0", "job-1", "job-2", "job-3", "honest"}
    assert [(e["project_id"], e["user_id"], e["jobs"], e["limit"]) for e in backlog(cluster)] == [(None, None, 6, 4)]


def test_a_raised_limit_lets_them_in_and_a_lowered_one_removes_nobody() -> None:
    cluster = Cluster(quota=quota())
    names = [f"job-{number}" for number in range(5)]
    submit(cluster, names)
    cluster.settle(3)
    cluster.write_quota(quota(per_user=4))
    cluster.settle(3)
    assert queued(cluster) == set(names[:4])
    cluster.write_quota(quota(per_user=1))
    cluster.settle(3)
    assert queued(cluster) == set(names[:4])
    assert [(e["jobs"], e["queued"], e["limit"]) for e in backlog(cluster)] == [(1, 4, 1)]


def test_a_job_that_is_not_accepted_yet_can_be_cancelled_replaced_or_removed() -> None:
    cluster = Cluster(quota=quota(per_user=1))
    submit(cluster, ["first", "cancelled", "removed", "replaced"])
    cluster.settle(3)
    cluster.cancel("cancelled")
    meta = cluster.store.head(keys.active("removed"))
    assert meta is not None
    cluster.store.delete(keys.active("removed"), generation=meta.generation)
    document = json.loads(cluster.store.get(keys.active("replaced")).data)
    cluster.put_spec("replaced", documents.dumps({**document, "command": "another"}))
    cluster.run_until(lambda: cluster.result("cancelled"))
    cluster.settle(2)
    assert (cluster.result("cancelled") or {})["outcome"] == "cancelled"
    assert queued(cluster) == {"first"}
    assert [entry["jobs"] for entry in backlog(cluster)] == [1]
    cluster.cancel("first")
    cluster.run_until(lambda: queued(cluster) == {"replaced"})
    record = cluster.record("replaced")
    assert record is not None
    assert record.job.command == "another"


@pytest.mark.parametrize(
    "user_request", [b'{"status": "ACTIVE"}', b"garbage", b'{"status": "CANCELLING", "uid": "aaaaaaaaaa"}']
)
def test_only_a_cancel_of_the_job_itself_passes_the_limit(user_request: bytes) -> None:
    cluster = Cluster(quota=quota(per_user=1))
    submit(cluster, ["first", "second"])
    cluster.store.put(keys.user_state("third"), b'{"status": "CANCELLING"}', generation=0)
    submit(cluster, ["third"])
    cluster.store.put(keys.user_state("second"), user_request, generation=0)
    cluster.settle(4)
    assert queued(cluster) == {"first"}
    assert [entry["jobs"] for entry in backlog(cluster)] == [2]


def test_a_job_with_a_state_is_never_kept_out_whatever_the_state_says() -> None:
    cluster = Cluster(quota=quota(per_user=1))
    submit(cluster, ["first", "second"])
    cluster.settle(3)
    cluster.store.put(keys.state("second"), b"garbage", generation=0)
    cluster.settle(3)
    assert backlog(cluster) == []
    assert any("second" in alarm for alarm in cluster.json(keys.STATUS)["alarms"])


def test_what_is_not_accepted_is_read_once_and_kept_as_a_few_words() -> None:
    cluster = Cluster(quota=quota(per_user=2))
    counting = CountingStore(cluster.store)
    cluster.daemon = cluster.new_daemon(counting)
    submit(cluster, [f"job-{number:03}" for number in range(200)])
    cluster.settle(3)
    observer = cluster.daemon._observer
    assert len(observer.folders.specs.values) <= 2
    assert all(name not in observer.backlog for name in queued(cluster))
    counting.reset()
    cluster.settle(5)
    assert [key for key in counting.read if key.startswith(keys.JOBS_ACTIVE)] == []
    cluster.cancel("job-000")
    cluster.settle(6)
    assert [key for key in counting.read if key.startswith(keys.JOBS_ACTIVE)] == [keys.active("job-002")]
    record = cluster.record("job-002")
    assert record is not None
    assert record.status is Status.PENDING
