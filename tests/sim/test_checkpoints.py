"""What programs say of their checkpoints decides who is stopped, and is told to their owners."""

from __future__ import annotations

import pytest

from bastion.core.bucket.keys import STATUS
from bastion.core.instants import from_rfc3339
from bastion.testing.cluster import Cluster
from bastion.testing.scripted_hosts import runs_for, saves_every


def lent(*saving: str) -> Cluster:
    """Alice holds all 64: 32 of her own, and two borrowers of 16. `saving`: who makes checkpoints every 300 s."""
    cluster = Cluster()
    for name in saving:
        cluster.hosts.savings[name] = saves_every(300.0)
    for name, kind in (("own", "tpu-v4-32"), ("older", "tpu-v4-16"), ("newer", "tpu-v4-16")):
        cluster.submit(name, instance_type=kind)
        cluster.run_until(lambda name=name: cluster.hosts.live(name))
        pass_time(cluster, 60.0)
    pass_time(cluster, 340.0)
    return cluster


def pass_time(cluster: Cluster, seconds: float) -> None:
    for _ in range(int(seconds // 10)):
        cluster.step(10.0)


def reclaim(cluster: Cluster) -> list[str]:
    """Bob wants 16 of his back; who was evicted for it."""
    cluster.hosts.scripts["owner"] = runs_for(10)
    cluster.submit("owner", user="bob", project="b", instance_type="tpu-v4-16")
    cluster.run_until(lambda: cluster.hosts.live("owner"), steps=30)
    return [name for name in ("own", "older", "newer") if cluster.status(name) == "PENDING"]


@pytest.mark.parametrize(
    ("saving", "victim"),
    [
        pytest.param((), "newer", id="nobody saves: the newer has less to lose"),
        pytest.param(("older",), "older", id="the older has saved what it did"),
        pytest.param(("newer",), "newer", id="the newer has saved what it did"),
    ],
)
def test_of_two_borrowers_the_one_with_the_fresher_checkpoint_is_stopped(saving: tuple[str, ...], victim: str) -> None:
    assert reclaim(lent(*saving)) == [victim]


def test_a_gang_has_saved_what_the_slowest_of_its_hosts_has_saved() -> None:
    cluster = lent()
    # Host 0 of the older one has just saved; its other host did so once, long ago.
    cluster.hosts.savings["older"] = lambda host, elapsed: elapsed if host == 0 else 1.0
    cluster.settle(3)
    assert reclaim(cluster) == ["newer"]


def test_a_host_that_saves_for_its_gang_is_enough() -> None:
    cluster = lent()
    cluster.hosts.savings["older"] = lambda host, elapsed: elapsed if host == 0 else None
    cluster.settle(3)
    assert reclaim(cluster) == ["older"]


def test_a_restarted_daemon_knows_the_checkpoints() -> None:
    cluster = lent("older")
    cluster.restart_daemon()
    assert reclaim(cluster) == ["older"]


def test_the_history_tells_the_last_checkpoint_and_the_record_keeps_it() -> None:
    cluster = lent("older")
    published = next(job for job in cluster.json(STATUS)["jobs"] if job["name"] == "older")
    began = next(began.at for began in cluster.hosts.began if began.job == "older")
    assert from_rfc3339(published["checkpointed_at"]) == pytest.approx(began + 300, abs=30)
    reclaim(cluster)
    (line,) = [line for line in cluster.history("older") if "stopping attempt 1: evicted" in line]
    assert line.endswith(("; last checkpoint 2m ago", "; last checkpoint 1m ago"))
    for _ in range(2):
        record = cluster.record("older")
        assert record is not None
        (attempt,) = record.attempts
        assert attempt.checkpointed_at == pytest.approx(began + 300, abs=30)
        cluster.restart_daemon()


def test_an_eviction_without_a_checkpoint_says_nothing_of_one() -> None:
    cluster = lent()
    reclaim(cluster)
    (line,) = [line for line in cluster.history("newer") if "stopping attempt 1: evicted" in line]
    assert "checkpoint" not in line
    record = cluster.record("newer")
    assert record is not None
    assert [attempt.checkpointed_at for attempt in record.attempts] == [None]


def test_what_is_saved_when_told_to_stop_counts_as_saved() -> None:
    cluster = lent()

    def stopped() -> bool:
        return any("stopping attempt 1: evicted" in line for line in cluster.history("newer"))

    cluster.hosts.savings["newer"] = lambda _host, elapsed: elapsed if stopped() else None
    reclaim(cluster)
    record = cluster.record("newer")
    assert record is not None
    (attempt,) = record.attempts
    assert attempt.checkpointed_at == pytest.approx(attempt.ended_at, abs=30)


def test_what_a_later_try_saves_counts_from_its_own_beginning(cluster: Cluster) -> None:
    cluster.submit("job", instance_type="tpu-v4-8", max_tries=2)
    cluster.hosts.scripts["job"] = runs_for(3000, code=1)
    cluster.hosts.later_scripts["job", 2] = runs_for(1e9)
    cluster.run_until(lambda: len(cluster.hosts.began) == 1)
    for _ in range(620):
        cluster.step(5)
    second = cluster.hosts.began[-1]
    assert second.try_number == 2
    cluster.hosts.savings["job"] = saves_every(50)
    for _ in range(30):
        cluster.step(5)
    [job] = cluster.json(STATUS)["jobs"]
    assert second.at < from_rfc3339(job["checkpointed_at"]) <= cluster.clock.now()
