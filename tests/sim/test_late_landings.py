"""Reads that fail after a takeover, and writes that land late: no room is given twice, and no ended job returns."""

from __future__ import annotations

import re
from collections.abc import Iterable

import pytest

from bastion.core import limits
from bastion.core.bucket import keys
from bastion.daemon.daemon import Daemon
from bastion.testing.cluster import Cluster
from bastion.testing.faulty_store import FaultyStore
from bastion.testing.frozen import Frozen, SteppedClock
from bastion.testing.scripted_hosts import runs_for
from bastion.testing.slow_bucket import SlowBucket, SlowWay

POOL = 64


def cluster_and_way() -> tuple[Cluster, SlowBucket, SlowWay]:
    """A cluster whose daemon reaches the bucket by a way that can hold its requests back."""
    cluster = Cluster()
    bucket = SlowBucket(cluster.store, cluster.clock)
    way = bucket.way()
    cluster.daemon = cluster.new_daemon(way)
    return cluster, bucket, way


def steps(cluster: Cluster, bucket: SlowBucket, count: int, daemon: Daemon | None = None) -> int:
    """Steps; returns the most units that gangs of current attempts ever had."""
    most = 0
    if daemon is not None:
        cluster.daemon = daemon
    for _ in range(count):
        bucket.land()
        cluster.step()
        most = max(most, in_use(cluster))
    return most


def in_use(cluster: Cluster) -> int:
    records = [cluster.record(key.rpartition("/")[2]) for key in cluster.listed(keys.JOBS_STATES)]
    return cluster.in_use({f"{r.uid}-{r.attempt.number}" for r in records if r is not None and r.attempt is not None})


def running(cluster: Cluster, names: Iterable[str]) -> list[str]:
    return [name for name in names if cluster.hosts.live(name)]


def test_a_state_that_cannot_be_read_after_a_takeover_gives_no_room_away(cluster: Cluster) -> None:
    faulty = FaultyStore(cluster.store)
    first = cluster.new_daemon(faulty)
    second = cluster.new_daemon()
    cluster.daemon = first
    cluster.hosts.scripts |= {"old-1": runs_for(20), "old-2": runs_for(20)}
    for name, user, project in [("old-1", "alice", "a"), ("old-2", "bob", "b")]:
        cluster.submit(name, user=user, project=project, instance_type="tpu-v4-32")
    cluster.settle(3)
    for name, user, project in [("new-1", "alice", "a"), ("new-2", "bob", "b"), ("new-3", "alice", "a")]:
        cluster.submit(name, user=user, project=project, instance_type="tpu-v4-32")
    cluster.settle(5)  # the first daemon has read that they wait
    assert cluster.status("new-1") == "PENDING"
    cluster.daemon = second
    cluster.settle(40)
    assert running(cluster, ["new-1", "new-2", "new-3"]) == ["new-1", "new-2"]
    cluster.daemon = first
    faulty.fail_next("get", key=keys.state("new-1"), times=4)
    cluster.clock.advance(20)
    most = 0
    for _ in range(20):
        cluster.step()
        most = max(most, in_use(cluster))
    assert most <= POOL, f"{most} of {POOL} units are in use"
    assert running(cluster, ["new-1", "new-2", "new-3"]) == ["new-1", "new-2"]


def test_a_state_that_can_never_be_read_holds_up_only_its_own_job_for_long(cluster: Cluster) -> None:
    faulty = FaultyStore(cluster.store)
    cluster.hosts.scripts |= {"one": runs_for(60)}
    cluster.submit("one", instance_type="tpu-v4-8")
    cluster.submit("two", instance_type="tpu-v4-32")
    cluster.settle(5)
    cluster.restart_daemon()
    cluster.daemon = cluster.new_daemon(faulty)
    faulty.fail_next("get", key=keys.state("two"), times=100_000)
    cluster.submit("three", instance_type="tpu-v4-32")
    cluster.settle(80)
    assert cluster.result("one"), "what runs goes on"
    assert not cluster.hosts.live("three"), "nothing starts while it is unknown what the state holds"
    cluster.run_until(lambda: cluster.hosts.live("three"), steps=400)
    assert cluster.hosts.live("two"), "nobody touched it"
    cluster.submit("four", instance_type="tpu-v4-8")
    cluster.settle(10)
    assert not cluster.hosts.live("four"), "what its spec asks for is in use"
    faulty.enabled = False
    cluster.settle(3)
    assert cluster.hosts.live("two") == [f"{cluster.record('two').uid}-1"]  # type: ignore[union-attr]


def test_a_lookup_that_is_never_answered_holds_up_only_its_own_job_for_long(cluster: Cluster) -> None:
    faulty = FaultyStore(cluster.store)
    cluster.daemon = cluster.new_daemon(faulty)
    faulty.fail_next("head", key=keys.state("one"), times=100_000)
    cluster.submit("one", instance_type="tpu-v4-8")
    cluster.submit("two", instance_type="tpu-v4-8")
    cluster.run_until(lambda: cluster.hosts.live("two"), steps=400)
    assert cluster.clock.monotonic() - 1_000.0 >= limits.UNREAD_STATE_SECONDS
    cluster.run_until(lambda: cluster.hosts.live("one"))


@pytest.mark.parametrize("lands_after", [3.0, 10.0, 60.0])
def test_a_start_that_got_no_answer_stays_charged_until_it_is_known(lands_after: float) -> None:
    cluster, bucket, way = cluster_and_way()
    cluster.submit("runs", user="bob", project="b", instance_type="tpu-v4-32")
    steps(cluster, bucket, 3)
    cluster.submit("late", instance_type="tpu-v4-32", priority=4)
    steps(cluster, bucket, 1)
    cluster.submit("other", instance_type="tpu-v4-32", priority=1)
    way.hold_next("put", keys.state("late"), lands_after)
    steps(cluster, bucket, 1)  # starts the one and accepts the other
    assert bucket.held == 1
    most = steps(cluster, bucket, 90)
    assert most <= POOL, f"{most} of {POOL} units are in use"
    assert len(running(cluster, ["late", "other"])) == 1


def test_a_start_in_doubt_counts_while_its_state_cannot_be_written() -> None:
    cluster, bucket, way = cluster_and_way()
    cluster.submit("runs", user="bob", project="b", instance_type="tpu-v4-32")
    cluster.submit("late", instance_type="tpu-v4-32", priority=4)
    steps(cluster, bucket, 1)
    cluster.submit("other", instance_type="tpu-v4-32", priority=1)
    way.delay = lambda method, key: 1e9 if (method, key) == ("put", keys.state("late")) else None
    steps(cluster, bucket, 10)
    assert bucket.held
    assert running(cluster, ["runs", "late", "other"]) == ["runs"], "the room of the start in doubt is kept"
    way.delay = lambda _method, _key: None  # what was held back never lands
    assert steps(cluster, bucket, 20) <= POOL
    assert len(running(cluster, ["late", "other"])) == 1


@pytest.mark.parametrize("takeovers", [1, 2])
def test_a_start_by_a_daemon_that_lost_the_lease_never_counts(takeovers: int) -> None:
    cluster, bucket, way = cluster_and_way()
    cluster.submit("runs", user="bob", project="b", instance_type="tpu-v4-32")
    steps(cluster, bucket, 3)
    uid = cluster.submit("late", instance_type="tpu-v4-32", priority=4, cleanup_command="bye")
    steps(cluster, bucket, 1)
    cluster.submit("other", instance_type="tpu-v4-32", priority=1)
    way.hold_next("put", keys.state("late"), 25.0)
    cluster.daemon.tick()
    assert bucket.held == 1
    cluster.hosts.scripts["other"] = runs_for(40)
    for _ in range(takeovers - 1):
        steps(cluster, bucket, 8, cluster.new_daemon(bucket.way()))
    cluster.daemon = cluster.new_daemon(bucket.way())
    if takeovers == 2:  # it lands between the death of the second daemon and the first look of the third
        cluster.clock.advance(30)
        bucket.land()
        record = cluster.record("late")
        assert record is not None and record.attempt is not None
    most = steps(cluster, bucket, 35)
    assert bucket.landed == [keys.state("late")], "the late start landed"
    assert most <= POOL, f"{most} of {POOL} units are in use"
    assert running(cluster, ["runs", "late", "other"]) == ["runs", "other"] or cluster.result("other")
    cluster.run_until(lambda: cluster.hosts.live("late"))
    assert cluster.hosts.live("late") == [f"{uid}-2"], "the attempt that never counted has used its number up"
    record = cluster.record("late")
    assert record is not None
    assert (record.infrastructure_failures, record.capacity_failures, record.failed_tries) == (0, 0, 0)
    assert sum("superseded" in line for line in cluster.history("late")) == 2  # that it ends, and that it is queued


@pytest.mark.parametrize("moment", ["before the write", "after the write"])
def test_a_daemon_that_is_revived_in_the_middle_of_a_start_creates_nothing(cluster: Cluster, moment: str) -> None:
    bucket = SlowBucket(cluster.store, cluster.clock)
    way = bucket.way()
    cluster.daemon = cluster.new_daemon(way, elsewhere=True)
    uid = cluster.submit("job", instance_type="tpu-v4-32")
    cluster.step()
    frozen = Frozen(
        cluster.daemon.tick,
        lambda method, key: (method, key) == ("put", keys.state("job")),
        1 if moment == "before the write" else 2,
    )
    way.moment = frozen.moment
    frozen.start()
    assert not frozen.over
    cluster.hosts.scripts["job"] = runs_for(2)
    steps(cluster, bucket, 25, cluster.new_daemon(bucket.way()))
    created = [request.run for request in cluster.slices.created]
    assert created == [f"{uid}-1"]
    assert (cluster.result("job") or {})["outcome"] == "succeeded"
    listed = [(meta.key, meta.generation) for meta in cluster.store.list("") if not meta.key.startswith("logs/")]
    frozen.revive()
    assert frozen.over
    assert [request.run for request in cluster.slices.created] == created
    if moment == "before the write":  # the job is over, so its precondition fails
        assert cluster.record("job") is None
    assert [(m.key, m.generation) for m in cluster.store.list("") if not m.key.startswith("logs/")] == listed


def test_a_start_that_landed_before_the_takeover_counts_and_goes_on() -> None:
    cluster, bucket, way = cluster_and_way()
    uid = cluster.submit("job", instance_type="tpu-v4-32")
    steps(cluster, bucket, 1)
    way.hold_next("put", keys.state("job"), 1.0)
    cluster.daemon.tick()
    cluster.clock.advance(2)
    bucket.land()
    steps(cluster, bucket, 15, cluster.new_daemon(bucket.way()))
    assert cluster.hosts.live("job") == [f"{uid}-1"]
    document = cluster.json(keys.LEASE)
    assert (document["epoch"], document["fenced_epoch"]) == (2, 2)
    record = cluster.record("job")
    assert record is not None and record.attempt is not None
    assert record.attempt.epoch == 2, "adopted"


def test_a_running_job_of_an_older_version_is_adopted(cluster: Cluster) -> None:
    uid = cluster.submit("job", instance_type="tpu-v4-32")
    cluster.settle(4)
    for key, word in [(keys.state("job"), rb'"epoch": *1,?'), (keys.LEASE, rb',? *"fenced_epoch": *1')]:
        stored = cluster.store.get(key)
        data, changed = re.subn(word, b"", stored.data)
        assert changed == 1
        cluster.store.put(key, data, generation=stored.meta.generation)
    for _ in range(2):
        cluster.restart_daemon()
        cluster.settle(4)
        assert cluster.hosts.live("job") == [f"{uid}-1"]
    assert len(cluster.hosts.began) == 4


@pytest.mark.parametrize("namesake", ["none", "waits", "unlisted", "ended", "update"])
def test_a_state_whose_creation_lands_after_the_jobs_end_is_dropped(namesake: str) -> None:
    cluster, bucket, way = cluster_and_way()
    cluster.hosts.scripts["job"] = runs_for(3)
    uid = cluster.submit("job", instance_type="tpu-v4-8", cleanup_command="bye")
    way.hold_next("put", keys.state("job"), 50.0)
    steps(cluster, bucket, 30)
    result = cluster.result("job")
    assert result is not None and result["outcome"] == "succeeded"
    lines = cluster.history("job")
    other = ""
    if namesake == "ended":
        other = cluster.submit("job", instance_type="tpu-v4-8", command="another")
        steps(cluster, bucket, 12)
        assert (cluster.result("job") or {})["uid"] == other
        lines = cluster.history("job")
    cluster.clock.advance(50)
    bucket.land()
    assert bucket.landed == [keys.state("job")], "the creation landed, and the job is back"
    if namesake in ("waits", "unlisted", "update"):
        version = 1 if namesake == "update" else None
        if namesake == "unlisted":  # the listings lack the namesake's spec for a while
            cluster.clock.advance(10)  # they have the state by then
            bucket.lag_seconds = 8.0
            bucket.wrote(keys.active("job"), 0)
        other = cluster.submit("job", instance_type="tpu-v4-8", command="another", version=version)
    steps(cluster, bucket, 30)
    assert cluster.record("job") is None
    began = [b.run for b in cluster.hosts.began]
    assert began.count(f"{uid}-cleanup") == 1, "the cleanup command ran once"
    if not other:
        assert cluster.history("job") == lines
        assert cluster.result("job") == result
    else:
        new = cluster.result("job")
        assert new is not None and (new["uid"], new["outcome"]) == (other, "succeeded")
        assert cluster.json(keys.former_result("job", uid))["result"] == result
        mine = [line for line in cluster.history("job") if f" {uid}#" in line]
        assert mine == [line for line in lines if f" {uid}#" in line]


def test_no_command_runs_after_the_result_though_an_order_lands_late_and_the_gang_returns() -> None:
    cluster, bucket, way = cluster_and_way()
    uid = cluster.submit("job", instance_type="tpu-v4-16")
    way.hold_next("put", keys.order(f"{uid}-1"), 40.0)
    cluster.run_until(lambda: cluster.hosts.live("job"))
    cluster.cancel("job")
    cluster.run_until(lambda: cluster.result("job"))
    began = len(cluster.hosts.began)
    cluster.clock.advance(40)
    bucket.land()
    cluster.slices.resurrect(f"b-{uid}-1")
    for _ in range(3):  # its hosts are quicker than the daemon
        cluster.hosts.step(cluster.slices.live_slices())
    assert [b.run for b in cluster.hosts.began[began:]] == []
    steps(cluster, bucket, 10)
    assert cluster.slices.list() == []
    assert len(cluster.hosts.began) == began


def test_what_keeps_late_hosts_out_is_swept_an_hour_after_the_end() -> None:
    cluster, bucket, _way = cluster_and_way()
    cluster.hosts.scripts["job"] = runs_for(4)
    uid = cluster.submit("job", instance_type="tpu-v4-16", cleanup_command="bye")
    cluster.run_until(lambda: cluster.result("job"))
    steps(cluster, bucket, 10)
    left = [key for key in cluster.listed() if key.startswith(("runs/", "beats/", "jobs/claims/"))]
    assert left == [
        cluster.claim_of(f"{uid}-1"),
        cluster.claim_of(f"{uid}-cleanup"),
        keys.order(f"{uid}-1"),
        keys.order(f"{uid}-cleanup"),
    ]
    cluster.clock.advance(3500)
    cluster.restart_daemon()
    steps(cluster, bucket, 10)
    assert [key for key in cluster.listed() if key.startswith(("runs/", "jobs/claims/"))] == left
    cluster.clock.advance(100)
    steps(cluster, bucket, 12)
    assert [key for key in cluster.listed() if key.startswith(("runs/", "beats/", "jobs/claims/"))] == []


def test_a_wall_clock_that_steps_drops_no_claim_of_a_past_attempt() -> None:
    cluster, bucket, way = cluster_and_way()
    clock = SteppedClock(cluster.clock)
    cluster.daemon = cluster.new_daemon(way, clock=clock)
    uid = cluster.submit("job", instance_type="tpu-v4-16")
    cluster.run_until(lambda: cluster.hosts.live("job"))
    cluster.slices.vanish(f"b-{uid}-1")
    cluster.run_until(lambda: cluster.hosts.live("job") == [f"{uid}-2"])
    clock.offset = 3700.0
    steps(cluster, bucket, 8)
    assert cluster.store.head(cluster.claim_of(f"{uid}-1")) is not None
    cluster.slices.resurrect(f"b-{uid}-1")
    cluster.hosts.step(cluster.slices.live_slices())
    assert cluster.hosts.live("job") == [f"{uid}-2"]
