"""What an idle tick asks of the bucket, counted at the port: listings, and the lease's renewal."""

from __future__ import annotations

import json

from bastion.core import keys
from bastion.testing.cluster import Cluster
from bastion.testing.counting_store import CountingStore


def test_a_thousand_waiting_jobs_cost_no_get_and_no_write_but_the_lease() -> None:
    cluster = Cluster()
    counting = CountingStore(cluster.store)
    cluster.daemon = cluster.new_daemon(counting)
    for number in range(1000):
        cluster.submit(f"job-{number}", instance_type="tpu-v4-128")  # larger than the pool: all of them wait
    cluster.settle(6)
    assert len(json.loads(cluster.store.get(keys.STATUS).data)["jobs"]) == 1000
    counting.reset()
    for _ in range(10):
        cluster.step()
    assert counting.calls["get"] == 0
    assert counting.calls["head"] == 0
    assert set(counting.written) == {keys.LEASE}
    assert counting.deleted == []
    assert counting.calls["list"] <= 15 * 10
    assert all(key != keys.LEASE or counting.written.count(key) <= 10 for key in counting.written)


def test_running_jobs_cost_no_more_when_nothing_happens() -> None:
    cluster = Cluster()
    counting = CountingStore(cluster.store)
    cluster.daemon = cluster.new_daemon(counting)
    cluster.submit("job", instance_type="tpu-v4-32")
    cluster.run_until(lambda: cluster.hosts.live("job"))
    cluster.settle(5)
    counting.reset()
    for _ in range(10):
        cluster.step()
    assert counting.calls["get"] == 0
    assert set(counting.written) == {keys.LEASE}
