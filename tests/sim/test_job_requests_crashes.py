"""The daemon is killed before and after every single write; each request about a job is answered once, and in order."""

from __future__ import annotations

import pytest

from bastion.client.audit import AuditFilter, read_audit
from bastion.core.bucket import keys
from bastion.core.model.job_record import Cause
from bastion.core.model.job_request import JobRequest, RequestKind
from bastion.testing.cluster import Cluster
from bastion.testing.scripted_hosts import runs_for
from tests.support.killed_daemon import check_history, kill_at, survive


@pytest.mark.parametrize("after", [False, True], ids=["before", "after"])
@pytest.mark.parametrize("point", range(1, 26))
def test_each_request_is_answered_once_wherever_the_daemon_dies(cluster: Cluster, point: int, after: bool) -> None:
    cluster.hosts.scripts["job"] = runs_for(100_000)
    uid = cluster.submit("job", instance_type="tpu-v4-16")
    cluster.run_until(lambda: cluster.hosts.live("job"))
    store = kill_at(cluster, point, after=after)
    numbers = iter(range(100))

    def ask(kind: RequestKind) -> bool:
        key = keys.request("job", f"request{next(numbers):08d}")
        cluster.store.put(key, JobRequest(kind=kind, by="alice").to_bytes(), generation=0)
        return True

    steps = iter(
        [
            lambda: ask(RequestKind.HOLD) and ask(RequestKind.RELEASE) and ask(RequestKind.REQUEUE),
            lambda: cluster.hosts.live("job") == [f"{uid}-2"] and not cluster.listed("requests/"),
            lambda: ask(RequestKind.REQUEUE) and ask(RequestKind.HOLD),
            lambda: (found := cluster.record("job")) and found.attempt is None and not cluster.listed("requests/"),
            lambda: ask(RequestKind.RELEASE),
            lambda: cluster.hosts.live("job") == [f"{uid}-3"] and not cluster.listed("requests/"),
        ]
    )
    current = [next(steps)]

    def done() -> bool:
        while current and current[0]():
            current[:] = [following for following in [next(steps, None)] if following is not None]
        return not current

    survive(cluster, store, done)
    cluster.settle(20)
    record = cluster.record("job")
    assert record is not None
    assert [past.cause for past in record.attempts] == [Cause.REQUEUED, Cause.REQUEUED]
    assert (record.held, record.next_attempt) == (None, 4)
    told = [line for line in cluster.history("job") if " by alice" in line]
    assert [line.split(" by alice")[0].rpartition(" ")[2] for line in told] == [
        *("held", "released", "requeued"),
        *("requeued", "held", "released"),
    ]
    check_history(cluster, "job")
    trail = [line.request.value for line in read_audit(cluster.store, AuditFilter()) if line.who == "alice"]
    assert trail == ["submit", "hold", "release", "requeue", "requeue", "hold", "release"]
