"""What a tick in which nothing happens asks of the bucket, in the pages that a bucket in the cloud bills."""

from __future__ import annotations

from collections import Counter

import pytest

from bastion.core import limits
from bastion.core.bucket import keys
from bastion.daemon.act import executor
from bastion.testing.cluster import LONG_QUEUES, QUOTA, Cluster
from bastion.testing.counting_store import CountingStore
from bastion.testing.scripted_hosts import runs_for, saves_every

BUDGET = 15
# As in the cloud.
TICK_SECONDS = 10.0
LEASE_TTL_SECONDS = 60.0


def in_the_cloud(pool: int = 64) -> tuple[Cluster, CountingStore]:
    """A cluster with the intervals of a bucket in the cloud, and what its daemon asks of it."""
    quota = QUOTA.replace(b"v4 = 64", b"v4 = %d" % pool) + LONG_QUEUES
    cluster = Cluster(quota=quota, lease_ttl_seconds=LEASE_TTL_SECONDS)
    counting = CountingStore(cluster.store)
    cluster.daemon = cluster.new_daemon(counting)
    return cluster, counting


def settle(cluster: Cluster) -> None:
    """Until a tick does nothing."""
    for _ in range(20):
        if not cluster.step(TICK_SECONDS).outcome.done:
            return
    raise AssertionError("it does not come to rest")


def test_an_empty_bastion_asks_four_times_a_tick_and_writes_the_lease_every_second_one() -> None:
    cluster, counting = in_the_cloud()
    settle(cluster)
    counting.reset()
    for _ in range(10):
        cluster.step(TICK_SECONDS)
    assert counting.calls == {"list": 40, "put": 5}


def test_ten_thousand_waiting_and_a_hundred_running_jobs_of_sixteen_hosts_stay_within_the_budget_in_every_tick() -> (
    None
):
    cluster, counting = in_the_cloud(pool=100 * 128)
    for number in range(100):
        cluster.submit(f"running-{number}", instance_type="tpu-v4-128")
    settle(cluster)
    for number in range(10_000):
        cluster.submit(f"waiting-{number}", instance_type="tpu-v4-128")
    settle(cluster)
    assert len(cluster.listed(keys.BEATS)) == 1600
    assert sum(bool(cluster.hosts.live(f"running-{number}")) for number in range(100)) == 100
    assert len(cluster.json(keys.STATUS)["jobs"]) == 10_100
    for _ in range(12):
        counting.reset()
        cluster.step(TICK_SECONDS)
        assert counting.requests <= BUDGET
        assert set(counting.calls) <= {"list", "put"}
        assert counting.written in ([], [keys.LEASE])


def test_running_jobs_change_nothing_by_themselves_in_a_hundred_ticks() -> None:
    cluster, counting = in_the_cloud()
    cluster.submit("job", instance_type="tpu-v4-32")
    cluster.submit("borrower", user="bob", project="b", instance_type="tpu-v4-32")
    cluster.submit("waiting", instance_type="tpu-v4-32")
    cluster.submit("too-large", instance_type="tpu-v4-128")
    cluster.submit("on-the-bastion")
    cluster.put_spec("broken", b"{}")
    settle(cluster)
    assert cluster.hosts.live("job")
    assert cluster.hosts.live("borrower")
    assert cluster.hosts.live("on-the-bastion")
    counting.reset()
    for _ in range(100):
        cluster.step(TICK_SECONDS)
    assert set(counting.calls) == {"list", "put"}
    assert counting.calls["list"] == 4 * 100 + 3  # the settings, once in 30 ticks
    assert set(counting.written) == {keys.LEASE}


def test_a_checkpoint_costs_a_read_for_each_host_that_makes_it_and_one_status() -> None:
    cluster, counting = in_the_cloud()
    cluster.hosts.savings["all-hosts"] = saves_every(1800.0)
    cluster.hosts.savings["host-0"] = lambda host, elapsed: elapsed // 1800 * 1800 or None if host == 0 else None
    for name in ("all-hosts", "host-0"):
        cluster.submit(name, instance_type="tpu-v4-32")
    settle(cluster)
    counting.reset()
    for _ in range(4 * 180):
        cluster.step(TICK_SECONDS)
    uids = {name: record.uid for name in ("all-hosts", "host-0") if (record := cluster.record(name))}
    read = Counter(key.partition("/reports/")[0] for key in counting.read)
    assert read == {f"runs/{uids['all-hosts']}-1": 4 * 4, f"runs/{uids['host-0']}-1": 4}
    assert Counter(counting.written)[keys.STATUS] <= 4 * 2
    assert set(counting.written) == {keys.LEASE, keys.STATUS}


def test_a_program_that_saves_all_the_time_costs_a_read_in_ten_minutes_for_each_host() -> None:
    cluster, counting = in_the_cloud()
    cluster.hosts.savings["job"] = lambda _host, elapsed: elapsed
    cluster.submit("job", instance_type="tpu-v4-128")
    cluster.write_quota(QUOTA.replace(b"v4 = 64", b"v4 = 128"))
    settle(cluster)
    counting.reset()
    for _ in range(360):
        cluster.step(TICK_SECONDS)
    assert len(counting.read) == 16 * 3600 / limits.CHECKPOINT_REPORT_SECONDS
    assert Counter(counting.written)[keys.STATUS] <= 3600 / limits.CHECKPOINT_REPORT_SECONDS


def test_new_jobs_cost_three_writes_each_and_nothing_is_looked_up_first() -> None:
    cluster, counting = in_the_cloud()
    settle(cluster)
    counting.reset()
    for number in range(20):
        cluster.submit(f"job-{number}", instance_type="tpu-v4-128")
    cluster.step(TICK_SECONDS)
    read = [key for key in counting.read if not key.startswith("history/projects/")]
    assert sorted(read) == sorted(keys.active(f"job-{number}") for number in range(20))
    written = Counter(key.partition("/")[0] for key in counting.written if key != keys.LEASE)
    # The history of the project, the daemon's own log, and the audit trail.
    assert written == {"jobs": 20, "history": 20 + 1, "logs": 20 + 1, "status": 1, "audit": 1}
    assert counting.calls["head"] <= 2  # of the project's history, and of the daemon's log


def test_a_restarted_daemon_looks_after_the_history_of_waiting_jobs_little_by_little(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(executor, "_CATCH_UP_JOBS", 5)
    cluster, counting = in_the_cloud()
    for number in range(20):
        cluster.submit(f"job-{number:02}", instance_type="tpu-v4-128")
    settle(cluster)
    before = {name: cluster.history(name) for name in (f"job-{number:02}" for number in range(20))}
    cluster.clock.advance(LEASE_TTL_SECONDS + 1)
    cluster.daemon = cluster.new_daemon(counting)
    ticks = []
    for _ in range(6):
        counting.reset()
        cluster.step(TICK_SECONDS)
        ticks.append(sum(key.startswith("history/jobs/") for key in counting.read))
    assert ticks == [5, 5, 5, 5, 0, 0]
    assert {name: cluster.history(name) for name in before} == before


# Pages of five objects make of a small bastion a large one: folders are listed piece by piece.
@pytest.fixture
def short_pages(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "LIST_PAGE_OBJECTS", 5)


def large(cluster: Cluster) -> None:
    for number in range(40):
        cluster.submit(f"job-{number:02}", instance_type="tpu-v4-128")
    settle(cluster)


@pytest.mark.usefixtures("short_pages")
def test_with_many_states_a_tick_sees_a_page_of_them() -> None:
    cluster, counting = in_the_cloud()
    large(cluster)
    counting.reset()
    cluster.step(TICK_SECONDS)
    assert counting.requests < 2 * len(cluster.listed(keys.JOBS_STATES)) / 5


@pytest.mark.usefixtures("short_pages")
@pytest.mark.parametrize("name", ["job-00", "job-17", "job-39"])
def test_a_state_that_somebody_changed_or_removed_is_noticed_when_the_window_comes_by(name: str) -> None:
    cluster, _ = in_the_cloud()
    large(cluster)
    for damage in (b"garbage", None):
        meta = cluster.store.head(keys.state(name))
        assert meta is not None
        if damage is None:
            cluster.store.delete(meta.key, generation=meta.generation)
        else:
            cluster.store.put(meta.key, damage, generation=meta.generation)
        for _ in range(40):
            cluster.step(TICK_SECONDS)
        problems = [job["problem"] for job in cluster.json(keys.STATUS)["jobs"] if job["name"] == name]
        alarms = cluster.json(keys.STATUS)["alarms"]
        if damage is None:
            assert problems == [None]  # accepted anew
            assert cluster.status(name) == "PENDING"
        else:
            assert any(name in alarm for alarm in alarms)


@pytest.mark.usefixtures("short_pages")
def test_what_users_write_is_acted_upon_in_the_next_tick_however_large_the_bucket() -> None:
    cluster, _ = in_the_cloud()
    large(cluster)
    cluster.submit("new", instance_type="tpu-v4-16")
    cluster.step(TICK_SECONDS)
    assert cluster.status("new") == "PENDING"
    cluster.cancel("job-30")
    cluster.step(TICK_SECONDS)
    assert cluster.status("job-30") in ("CANCELLING", "CLEANING", "COMPLETED", "none")
    settle(cluster)
    cluster.write_quota(QUOTA.replace(b"v4 = 64", b"v4 = 256"))
    cluster.step(TICK_SECONDS)
    assert "ACTIVE" in {cluster.status(f"job-{number:02}") for number in range(40)}


@pytest.mark.usefixtures("short_pages")
def test_what_hosts_report_is_acted_upon_within_four_ticks_however_large_the_bucket() -> None:
    cluster, _ = in_the_cloud()
    large(cluster)
    for number in range(4):
        cluster.hosts.scripts[f"small-{number}"] = runs_for(1000 + 70 * number)
        cluster.submit(f"small-{number}", instance_type="tpu-v4-16")
    settle(cluster)
    for number in range(4):
        cluster.run_until(lambda n=number: not cluster.hosts.live(f"small-{n}"), steps=2000)
        for _ in range(4):
            cluster.step(TICK_SECONDS)
        assert cluster.status(f"small-{number}") != "ACTIVE"


@pytest.mark.usefixtures("short_pages")
def test_a_host_that_falls_silent_is_noticed_however_large_the_bucket() -> None:
    cluster, _ = in_the_cloud()
    large(cluster)
    uid = cluster.submit("mute", instance_type="tpu-v4-16")
    cluster.submit("sound", instance_type="tpu-v4-16")
    settle(cluster)
    cluster.hosts.mute.add(("mute", 1))
    for _ in range(18):
        cluster.step(TICK_SECONDS)
    assert cluster.hosts.live("mute") in ([], [f"{uid}-2"])
    assert any("worker 1 sent no heartbeat for" in line for line in cluster.history("mute"))
    assert not any("sent no heartbeat for" in line for line in cluster.history("sound"))


@pytest.mark.usefixtures("short_pages")
def test_strangers_between_our_folders_are_not_paid_for() -> None:
    cluster, counting = in_the_cloud()
    for place in ("jobs/backup/", "jobs/old/", "results/"):
        for number in range(200):
            cluster.store.put(f"{place}{number}", b"", generation=0)
    settle(cluster)
    counting.reset()
    cluster.step(TICK_SECONDS)
    assert counting.calls["get"] == 0
    assert counting.requests <= BUDGET
    cluster.submit("job", instance_type="tpu-v4-16")
    cluster.run_until(lambda: cluster.hosts.live("job"))
