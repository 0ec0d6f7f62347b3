"""Somebody sets the wall clock while jobs run: every budget still lasts as long as it should."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import pytest

from bastion.core import limits
from bastion.core.bucket import keys
from bastion.core.instants import from_rfc3339
from bastion.testing.cluster import QUOTA, Cluster
from bastion.testing.scripted_hosts import runs_for, saves_every

HOUR = 3600.0
# What a restart may cost: `restart_daemon` waits for two of them, and the tick.
TTL = 5.0
RESTART = 2 * (TTL + 1)
# How much a budget may be off while the daemon's time returns to the bucket's.
SLEW = 0.005


@dataclass(frozen=True)
class Trouble:
    """What happens while a budget runs.

    Attributes:
        steps: The wall clock's steps, in seconds: the first early in the budget, the second late.
        restart: A new daemon comes after the first step: "same" or "other" host.
        cloud: The bucket has a clock of its own.
    """

    steps: tuple[float, ...]
    restart: str = ""
    cloud: bool = False

    def __str__(self) -> str:
        steps = ",".join(f"{step / HOUR:+.0f}h" for step in self.steps)
        return f"{steps}{' restart-' + self.restart if self.restart else ''}{' cloud' if self.cloud else ''}"


TROUBLES = [
    Trouble((HOUR,)),
    Trouble((-HOUR,)),
    Trouble((HOUR, -HOUR)),
    Trouble((-HOUR, HOUR)),
    Trouble((HOUR,), restart="same"),
    Trouble((-HOUR,), restart="same"),
    Trouble((HOUR, -HOUR), restart="same"),
    Trouble((HOUR,), restart="other", cloud=True),
    Trouble((-HOUR,), restart="other", cloud=True),
    Trouble((-HOUR, HOUR), cloud=True),
]
troubled = pytest.mark.parametrize("trouble", TROUBLES, ids=str)


def lasts(cluster: Cluster, trouble: Trouble, budget: float, over: Callable[[], object], *, tick: float = 1.0) -> float:
    """Lets the trouble happen while `budget` runs; returns after how many true seconds it was `over`."""
    began, steps, restart = cluster.clock.monotonic(), list(trouble.steps), trouble.restart
    moments = [budget * 0.2, budget * 0.6]
    while not over():
        passed = cluster.clock.monotonic() - began
        assert passed < 2 * budget + 600, f"not over after {passed:.0f} s: {cluster.describe()}"
        if steps and passed >= moments[len(trouble.steps) - len(steps)]:
            cluster.clock.step_wall(steps.pop(0))
        if restart and passed >= budget * 0.4:
            if restart == "other":
                cluster.host_identity = "host-2"
            cluster.restart_daemon()
            restart = ""
        cluster.step(tick)
    return cluster.clock.monotonic() - began


def check(trouble: Trouble, budget: float, lasted: float, *, late: float = 0.0, tick: float = 1.0) -> None:
    slack = budget * SLEW + 2 * tick + (RESTART if trouble.restart else 0.0)
    assert budget * (1 - SLEW) - 2 * tick <= lasted <= budget + late + slack


@troubled
def test_a_maximum_runtime_lasts_as_long_as_the_quota_file_says(trouble: Trouble) -> None:
    quota = QUOTA + b"[project_rules.a]\nmaximum_runtime_hours = 0.05\n"
    cluster = Cluster(quota=quota, own_server_time=trouble.cloud)
    cluster.submit("job", instance_type="tpu-v4-16")
    cluster.run_until(lambda: (r := cluster.record("job")) and r.attempt and r.attempt.running_since)

    def stopped() -> bool:
        record = cluster.record("job")
        return record is None or record.attempt is None or record.attempt.ending is not None

    check(trouble, 180.0, lasts(cluster, trouble, 180.0, stopped))
    assert any("ran longer than the maximum runtime" in line for line in cluster.history("job"))


@troubled
def test_hosts_that_do_not_come_up_have_the_whole_time_to_do_so(trouble: Trouble) -> None:
    cluster = Cluster(own_server_time=trouble.cloud)
    cluster.slices.ready_seconds = 1e9
    cluster.submit("job", instance_type="tpu-v4-16")
    cluster.run_until(lambda: cluster.slices.created)
    budget = limits.PROVISION_TIMEOUT_SECONDS
    lasted = lasts(cluster, trouble, budget, lambda: cluster.slices.deleted, tick=10.0)
    # Hosts that never reported are not waited for beyond their own end.
    check(trouble, budget, lasted, late=limits.EVICTION_GRACE_SECONDS + 60.0, tick=10.0)


# A cleanup command ends with its host, so there is no other one.
@pytest.mark.parametrize("trouble", [t for t in TROUBLES if t.restart != "other"], ids=str)
def test_a_cleanup_command_has_its_ten_minutes(trouble: Trouble) -> None:
    cluster = Cluster(own_server_time=trouble.cloud)
    uid = cluster.submit("job", cleanup_command="hang")
    cluster.hosts.scripts["job"] = runs_for(1)
    cluster.run_until(lambda: cluster.status("job") == "CLEANING")
    cluster.hosts.scripts["job"] = runs_for(1e9)
    cluster.run_until(lambda: any(b.run == f"{uid}-cleanup" for b in cluster.hosts.began))
    budget = limits.CLEANUP_TIMEOUT_SECONDS
    lasted = lasts(cluster, trouble, budget, lambda: cluster.result("job"), tick=2.0)
    check(trouble, budget, lasted, late=30.0, tick=2.0)


@troubled
def test_an_eviction_takes_as_long_as_its_grace(trouble: Trouble) -> None:
    cluster = Cluster(own_server_time=trouble.cloud)
    cluster.submit("borrower", instance_type="tpu-v4-64")
    cluster.run_until(lambda: cluster.hosts.live("borrower"))
    cluster.hosts.deaf |= {("borrower", host) for host in range(8)}  # none of them reports its end
    cluster.submit("owner", user="bob", project="b", instance_type="tpu-v4-32")
    cluster.run_until(lambda: (r := cluster.record("borrower")) and r.attempt and r.attempt.ending)
    budget = 60.0 + limits.STOP_REPORT_SLACK_SECONDS
    lasted = lasts(cluster, trouble, budget, lambda: cluster.slices.deleted)
    check(trouble, budget, lasted)


@troubled
def test_a_job_whose_gang_was_lost_starts_again_when_its_pause_is_over(trouble: Trouble) -> None:
    cluster = Cluster(own_server_time=trouble.cloud)
    cluster.submit("job", instance_type="tpu-v4-16")
    for _ in range(4):  # so that the pause is some two minutes
        cluster.run_until(lambda: cluster.hosts.live("job"), steps=400)
        cluster.slices.lose(cluster.slices.list()[0].ref.name)
        cluster.run_until(lambda: cluster.status("job") == "PENDING")
    record = cluster.record("job")
    assert record is not None
    assert record.not_before is not None
    pause = record.not_before - record.attempts[-1].ended_at
    assert pause > 30
    began = len(cluster.hosts.began)
    lasted = lasts(cluster, trouble, pause, lambda: len(cluster.hosts.began) > began)
    check(trouble, pause, lasted, late=3.0)


@pytest.mark.parametrize("trouble", [TROUBLES[0], TROUBLES[1], TROUBLES[6]], ids=str)
def test_a_job_that_waits_is_overdue_after_a_day(trouble: Trouble) -> None:
    """Only then is a borrower stopped for a job that no share covers."""
    cluster = Cluster(own_server_time=trouble.cloud)
    for name, user, project, units in (("own", "alice", "a", 16), ("share", "bob", "b", 24), ("loan", "bob", "b", 16)):
        cluster.submit(name, user=user, project=project, resources={"v4": units})
    cluster.run_until(lambda: all(cluster.hosts.live(name) for name in ("own", "share", "loan")))
    cluster.submit("more", resources={"v4": 20})
    cluster.step()
    lasted = lasts(cluster, trouble, 24 * HOUR, lambda: cluster.status("more") == "ACTIVE", tick=300.0)
    check(trouble, 24 * HOUR, lasted, late=900.0, tick=300.0)


@pytest.mark.parametrize("step", [HOUR, -HOUR])
def test_a_step_is_no_usage_and_loses_no_checkpoint(cluster: Cluster, step: float) -> None:
    cluster.hosts.savings["job"] = saves_every(60)
    cluster.submit("job", instance_type="tpu-v4-32")
    cluster.run_until(lambda: cluster.hosts.live("job"))
    cluster.settle(100)
    cluster.clock.step_wall(step)
    cluster.settle(700)  # hosts tell of a newer checkpoint every ten minutes

    def saved_seconds() -> float:
        entry = cluster.json(keys.STATUS)["jobs"][0]
        return from_rfc3339(entry["checkpointed_at"]) - from_rfc3339(entry["running_since"])

    assert 500 < saved_seconds() < 800
    cluster.cancel("job")
    cluster.run_until(lambda: cluster.result("job"))
    cluster.settle(3)
    used = cluster.json(keys.STATUS)["usage"]["projects"]["a"]["alice"]
    assert 700 * 32 < used < 900 * 32


@pytest.mark.parametrize("step", [HOUR, -HOUR])
def test_times_are_told_to_be_off_and_are_set_right_when_no_job_is_left(cluster: Cluster, step: float) -> None:
    cluster.hosts.scripts["job"] = runs_for(60)
    cluster.submit("job")
    cluster.run_until(lambda: cluster.hosts.live("job"))
    cluster.clock.step_wall(step)
    cluster.settle(5)
    way = "behind" if step > 0 else "ahead of"
    assert any(f"60 min {way} the bucket's clock" in alarm for alarm in cluster.json(keys.STATUS)["alarms"])
    cluster.run_until(lambda: cluster.result("job"))
    cluster.settle(5)
    assert cluster.json(keys.STATUS)["alarms"] == []
    cluster.restart_daemon()
    cluster.submit("next")
    cluster.settle(3)
    record = cluster.record("next")
    assert record is not None
    assert record.attempt is not None
    assert abs(record.attempt.started_at - cluster.clock.now()) < 10


def test_a_small_difference_goes_away_slowly(cluster: Cluster) -> None:
    cluster.submit("job")
    cluster.run_until(lambda: cluster.hosts.live("job"))
    cluster.clock.step_wall(20)
    before = cluster.daemon.time.now()
    for _ in range(500):
        cluster.step(10)
    behind = cluster.clock.now() - cluster.daemon.time.now()
    assert abs(behind) <= 1.1
    assert cluster.daemon.time.now() - before <= 5000 * (1 + SLEW)
