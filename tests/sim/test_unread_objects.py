"""What a host wrote and the daemon could not download is unknown to it, and never counts as not written."""

from __future__ import annotations

import pytest

from bastion.core.bucket import keys
from bastion.testing.cluster import Cluster
from bastion.testing.faulty_store import FaultyStore
from bastion.testing.scripted_hosts import runs_for


@pytest.mark.parametrize("restarted", [False, True])
def test_a_last_report_that_cannot_be_downloaded_runs_no_job_twice(cluster: Cluster, restarted: bool) -> None:
    faulty = FaultyStore(cluster.store)
    cluster.daemon = cluster.new_daemon(faulty)
    cluster.hosts.scripts["job"] = runs_for(3)
    uid = cluster.submit("job", instance_type="tpu-v4-8")
    report = keys.report(f"{uid}-1", 0)
    cluster.run_until(lambda: (cluster.json(report) or {}).get("phase") == "running")
    # The command ends, its host says so and vanishes; the report is listed, and no download of it is answered.
    cluster.clock.advance(5)
    cluster.hosts.step(cluster.slices.live_slices())
    assert cluster.json(report)["exit_code"] == 0
    cluster.slices.vanish(f"b-{uid}-1")
    if restarted:
        cluster.daemon = cluster.new_daemon(faulty)
    faulty.fail_next("get", key=report, times=8)
    cluster.settle(3)
    record = cluster.record("job")
    assert record is not None
    assert record.attempt is not None, "given up, though how it ended is not known"
    assert record.attempt.ending is None
    cluster.run_until(lambda: cluster.result("job"))
    assert (cluster.result("job") or {})["outcome"] == "succeeded"
    assert {began.run for began in cluster.hosts.began} == {f"{uid}-1"}
