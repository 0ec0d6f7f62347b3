"""Requests about jobs: held jobs do not start, requeued ones start again, and only who may asks."""

from __future__ import annotations

import pytest

from bastion.client.audit import AuditFilter, read_audit
from bastion.core import limits
from bastion.core.bucket import keys
from bastion.core.model.job_record import Cause
from bastion.core.model.job_request import JobRequest, RequestKind
from bastion.testing.cluster import Cluster
from bastion.testing.scripted_hosts import runs_for

FOREVER = 100_000.0


def ask(cluster: Cluster, job: str, kind: RequestKind, number: int = 1, *, inbox: str = "", **fields: object) -> str:
    key = keys.request(job, f"request{number:08d}", inbox)
    request = JobRequest.model_validate({"kind": kind, "by": "alice", **fields})
    cluster.store.put(key, request.to_bytes(), generation=0)
    return key


def history(cluster: Cluster, job: str) -> str:
    return cluster.store.get(keys.job_history(job)).data.decode()


def reason(cluster: Cluster, job: str) -> tuple[str, str, str]:
    entry = next(each for each in (cluster.json(keys.STATUS) or {})["jobs"] if each["name"] == job)
    found = entry["reason"]
    return found["code"], found["message"], found["unblock"]


@pytest.fixture(params=["open", "inbox"])
def inbox(cluster: Cluster, request: pytest.FixtureRequest) -> str:
    """In whose inbox the requests are; empty in mode `open`."""
    if request.param == "open":
        return ""
    cluster.use_inboxes()
    cluster.settle(2)
    return "alice"


def test_a_job_that_is_held_before_it_is_accepted_never_starts_until_it_is_released(
    cluster: Cluster, inbox: str
) -> None:
    cluster.hosts.scripts["job"] = runs_for(3)
    cluster.submit("job", inbox=inbox, instance_type="tpu-v4-8")
    ask(cluster, "job", RequestKind.HOLD, inbox=inbox, reason="wrong data")
    cluster.settle(12)
    record = cluster.record("job")
    assert record is not None
    assert record.held is not None
    assert (record.held.by, record.next_attempt) == ("alice", 1)
    assert not cluster.hosts.began
    assert not cluster.listed("requests/")
    ask(cluster, "job", RequestKind.RELEASE, 2, inbox=inbox)
    cluster.run_until(lambda: cluster.result("job"))
    assert "held by alice: wrong data" in history(cluster, "job")
    assert "released by alice" in history(cluster, "job")
    asked = [line.request.value for line in read_audit(cluster.store, AuditFilter()) if line.job == "job"]
    assert asked == ["submit", "hold", "release", "end"]


def test_a_running_job_goes_on_when_it_is_held_and_waits_once_it_is_requeued(cluster: Cluster, inbox: str) -> None:
    cluster.hosts.scripts["job"] = runs_for(FOREVER)
    cluster.submit("job", inbox=inbox, instance_type="tpu-v4-8")
    cluster.run_until(lambda: cluster.hosts.live("job"))
    ask(cluster, "job", RequestKind.HOLD, inbox=inbox)
    cluster.settle(20)
    assert cluster.hosts.live("job")
    ask(cluster, "job", RequestKind.REQUEUE, 2, inbox=inbox)
    cluster.run_until(lambda: not cluster.hosts.live("job"))
    cluster.settle(60)
    record = cluster.record("job")
    assert record is not None
    assert record.attempt is None
    assert [past.cause for past in record.attempts] == [Cause.REQUEUED]
    assert (record.failed_tries, record.infrastructure_failures) == (0, 0)
    ask(cluster, "job", RequestKind.RELEASE, 3, inbox=inbox)
    cluster.run_until(lambda: cluster.hosts.live("job"))


def test_a_requeued_job_starts_again_at_its_place(cluster: Cluster, inbox: str) -> None:
    cluster.hosts.scripts["job"] = runs_for(FOREVER)
    cluster.submit("job", inbox=inbox, instance_type="tpu-v4-8")
    cluster.run_until(lambda: cluster.hosts.live("job"))
    before = cluster.record("job")
    ask(cluster, "job", RequestKind.REQUEUE, inbox=inbox, reason="a bad host")
    cluster.run_until(lambda: (found := cluster.record("job")) and found.next_attempt == 3)
    after = cluster.record("job")
    assert before is not None
    assert after is not None
    assert after.queued_at == before.queued_at
    assert "requeued by alice: a bad host" in history(cluster, "job")


def test_who_entered_a_worker_is_in_the_history(cluster: Cluster, inbox: str) -> None:
    cluster.hosts.scripts["job"] = runs_for(FOREVER)
    cluster.submit("job", inbox=inbox, instance_type="tpu-v4-8")
    cluster.run_until(lambda: cluster.hosts.live("job"))
    ask(cluster, "job", RequestKind.EXEC, inbox=inbox, worker=3)
    cluster.settle(4)
    assert "alice entered worker 3" in history(cluster, "job")


def test_a_cancel_wins_whatever_else_is_asked(cluster: Cluster, inbox: str) -> None:
    cluster.hosts.scripts["job"] = runs_for(FOREVER)
    cluster.submit("job", inbox=inbox, instance_type="tpu-v4-8")
    cluster.run_until(lambda: cluster.hosts.live("job"))
    ask(cluster, "job", RequestKind.HOLD, inbox=inbox)
    ask(cluster, "job", RequestKind.REQUEUE, 2, inbox=inbox)
    cluster.cancel("job", inbox=inbox)
    cluster.run_until(lambda: cluster.result("job"))
    assert (cluster.result("job") or {})["outcome"] == "cancelled"
    assert "held by" not in history(cluster, "job")
    cluster.settle(15)
    assert not [key for key in (*cluster.listed("requests/"), *cluster.listed("inbox/")) if "request" in key]


def test_the_reason_says_who_holds_a_job_and_who_may_release_it(cluster: Cluster) -> None:
    cluster.submit("job", instance_type="tpu-v4-8")
    ask(cluster, "job", RequestKind.HOLD, reason="wrong data")
    cluster.settle(4)
    code, message, unblock = reason(cluster, "job")
    assert code == "Held"
    assert message.startswith("held by alice since 20")
    assert message.endswith(": wrong data")
    assert unblock.endswith("releases it: bastion release job")


def test_nobody_is_evicted_for_a_held_job(cluster: Cluster) -> None:
    cluster.hosts.scripts["loan"] = runs_for(FOREVER)
    cluster.submit("loan", user="bob", project="b", instance_type="tpu-v4-64")
    cluster.run_until(lambda: cluster.hosts.live("loan"))
    cluster.submit("owner", instance_type="tpu-v4-64")
    ask(cluster, "owner", RequestKind.HOLD)
    cluster.settle(30)
    assert cluster.hosts.live("loan")


def test_requests_for_an_earlier_job_of_the_name_do_nothing(cluster: Cluster) -> None:
    ask(cluster, "job", RequestKind.HOLD)
    cluster.clock.advance(2)
    cluster.hosts.scripts["job"] = runs_for(3)
    cluster.submit("job", instance_type="tpu-v4-8")
    ask(cluster, "job", RequestKind.HOLD, 2, uid="aaaaaaaaaa")
    cluster.run_until(lambda: cluster.result("job"))
    assert "held" not in history(cluster, "job")
    why = {line.why for line in read_audit(cluster.store, AuditFilter()) if line.request.value == "hold"}
    assert why == {"it is for an earlier job of this name"}


def test_in_inboxes_a_strangers_request_is_refused_explained_and_told_once(cluster: Cluster) -> None:
    cluster.use_inboxes()
    cluster.settle(2)
    cluster.hosts.scripts["job"] = runs_for(FOREVER)
    cluster.submit("job", inbox="alice", instance_type="tpu-v4-8")
    cluster.run_until(lambda: cluster.hosts.live("job"))
    for number in range(5):
        ask(cluster, "job", RequestKind.REQUEUE, number, inbox="mallory")
        cluster.settle(3)
    assert cluster.hosts.live("job")
    assert history(cluster, "job").count("mallory") == 1
    assert "may ask this" in str((cluster.json(keys.invalid("job", "mallory")) or {})["problem"])
    assert not [key for key in cluster.listed("inbox/mallory/") if "requests" in key]
    lines = [line for line in read_audit(cluster.store, AuditFilter()) if line.who == "mallory"]
    assert len(lines) == 5
    assert {line.outcome.value for line in lines} == {"refused"}


def test_in_mode_inbox_what_lies_outside_of_the_inboxes_is_not_read(cluster: Cluster) -> None:
    cluster.use_inboxes()
    cluster.settle(2)
    cluster.hosts.scripts["job"] = runs_for(FOREVER)
    cluster.submit("job", inbox="alice", instance_type="tpu-v4-8")
    cluster.run_until(lambda: cluster.hosts.live("job"))
    ask(cluster, "job", RequestKind.REQUEUE)
    cluster.settle(limits.UNKNOWN_REQUEST_TICKS + 2)
    record = cluster.record("job")
    assert record is not None
    assert record.next_attempt == 2
    assert not cluster.listed("requests/")


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"{",
        b"[]",
        b'{"kind": "explode"}',
        b'{"kind": "hold", "format": 2}',
        b'{"kind": "hold", "kind": "release"}',
        b'{"kind": "exec", "worker": -1}',
        b'{"kind": "hold", "by": 5}',
        b'{"kind": "hold", "reason": "' + b"x" * limits.REQUEST_MAX_BYTES + b'"}',
        b"\xff\xfe",
        b"[" * 5000,
    ],
)
def test_what_is_no_request_is_removed_and_told(cluster: Cluster, data: bytes) -> None:
    cluster.hosts.scripts["job"] = runs_for(20)
    cluster.submit("job", instance_type="tpu-v4-8")
    cluster.store.put(keys.request("job", "request00000001"), data, generation=0)
    cluster.run_until(lambda: cluster.result("job"))
    assert not cluster.listed("requests/")
    told = [line for line in read_audit(cluster.store, AuditFilter()) if line.request.value == "ask"]
    assert [line.outcome.value for line in told] == ["refused"]


@pytest.mark.parametrize("key", ["requests/job/x", "requests/job", "requests/job/UPPER0000", "requests/a/b/c/d"])
def test_keys_that_are_no_requests_are_removed(cluster: Cluster, key: str) -> None:
    cluster.submit("job", instance_type="tpu-v4-8")
    cluster.store.put(key, b'{"kind": "hold"}', generation=0)
    cluster.settle(limits.UNKNOWN_REQUEST_TICKS + 3)
    assert not cluster.listed("requests/")


def test_thousands_of_requests_are_answered_some_in_each_tick_and_the_state_stays_small(cluster: Cluster) -> None:
    cluster.hosts.scripts["job"] = runs_for(FOREVER)
    cluster.submit("job", instance_type="tpu-v4-8")
    cluster.settle(3)
    for number in range(200):
        ask(cluster, "job", RequestKind.RELEASE if number % 2 else RequestKind.HOLD, number)
        ask(cluster, f"none-{number}", RequestKind.HOLD, number)
    cluster.step(1)
    assert 200 - len(cluster.listed("requests/job/")) == limits.REQUESTS_OF_JOB_AT_ONCE
    cluster.settle(30)
    record = cluster.record("job")
    assert record is not None
    assert record.held is None
    assert len(record.requests_done) <= limits.REQUESTS_REMEMBERED
    assert not cluster.listed("requests/")
