"""`--max_run`: the time that a job may hold its slices, over all attempts, with the daemon alive, dead, or late."""

from __future__ import annotations

from typing import Any

import pytest

from bastion.core.bucket import keys, protocol
from bastion.core.bucket.protocol import Order
from bastion.core.model.job_record import JobRecord
from bastion.testing.cluster import QUOTA, Cluster
from bastion.testing.scripted_hosts import runs_for
from tests.sim.test_kueue import in_kueue
from tests.support.killed_daemon import check_history, kill_at, survive

SLICE = "tpu-v4-32"
PODS = b"""
[clusters.training]
uid = "5f0c1a2b-1111-2222-3333-444455556666"
[types.v4]
zones = ["k8s:training"]
[types.v4.pod]
image = "train:v1"
[[tiers]]
model = "on-demand"
"""
MOST = 100


def record(cluster: Cluster) -> JobRecord:
    found = cluster.record("job")
    assert found is not None, cluster.describe()
    return found


def result(cluster: Cluster) -> dict[str, Any]:
    found = cluster.result("job")
    assert found is not None, cluster.describe()
    return found


def running(
    *, instance_type: str = SLICE, quota: bytes = QUOTA, most: int = MOST, settings: bytes = b"", **options: Any
) -> Cluster:
    cluster = Cluster(quota=quota)
    if settings:
        cluster.write_settings(settings)
        cluster.settle(2)
    cluster.submit("job", instance_type=instance_type, max_run_seconds=most, **options)
    cluster.run_until(lambda: cluster.hosts.live("job"))
    return cluster


def without_daemon(cluster: Cluster, seconds: int) -> None:
    for _ in range(seconds):
        cluster.hosts.step([*cluster.slices.live_slices(), *cluster.bastion_host.live_slices()])
        cluster.clock.advance(1)


def lose(cluster: Cluster) -> None:
    [request, *_] = cluster.slices.existing_requests()
    cluster.slices.lose(request.ref.name)


@pytest.mark.parametrize("instance_type", [SLICE, ""])
def test_a_job_ends_at_its_time(instance_type: str) -> None:
    cluster = running(instance_type=instance_type)
    began = cluster.clock.now()
    cluster.run_until(lambda: not cluster.hosts.live("job"))
    assert MOST - 4 <= cluster.clock.now() - began <= MOST + 2
    cluster.run_until(lambda: cluster.result("job"))
    ended = result(cluster)
    what = "held its slices" if instance_type else "ran"
    assert (ended["outcome"], ended["exit_code"]) == ("failed", 124)
    assert ended["message"] == f"{what} for 1m40s, the limit set by --max_run"
    assert [attempt["cause"] for attempt in ended["attempts"]] == ["overtime"]


@pytest.mark.parametrize(
    ("hours", "words"), [("0.02", "maximum runtime of project a, 0.02 h"), ("0.04", "the limit set by --max_run")]
)
def test_the_smaller_limit_wins_and_the_message_names_it(hours: str, words: str) -> None:
    cluster = running(quota=QUOTA + f"[project_rules.a]\nmaximum_runtime_hours = {hours}\n".encode())
    cluster.run_until(lambda: cluster.result("job"))
    assert words in result(cluster)["message"]
    assert result(cluster)["exit_code"] == 124
    # A daemon that sees both limits passed names the one that came first.
    late = running(quota=QUOTA + f"[project_rules.a]\nmaximum_runtime_hours = {hours}\n".encode())
    late.clock.advance(300)
    late.run_until(lambda: late.result("job"))
    assert words in result(late)["message"]


def test_all_attempts_count_together() -> None:
    cluster = running()
    cluster.settle(60)
    lose(cluster)
    cluster.run_until(lambda: len(record(cluster).attempts) == 1)
    held = record(cluster).held_seconds
    assert 60 <= held <= 66
    cluster.run_until(lambda: cluster.hosts.live("job"))
    began = cluster.clock.now()
    cluster.run_until(lambda: not cluster.hosts.live("job"))
    assert abs(held + cluster.clock.now() - began - MOST) <= 5
    cluster.run_until(lambda: cluster.result("job"))
    assert result(cluster)["message"] == "held its slices for 1m40s over 2 attempts, the limit set by --max_run"
    assert [attempt["cause"] for attempt in result(cluster)["attempts"]] == ["infrastructure", "overtime"]


def test_no_attempt_follows_if_no_time_is_left() -> None:
    cluster = running()
    cluster.settle(60)
    cluster.slices.delete_seconds = 60.0
    lose(cluster)
    cluster.run_until(lambda: cluster.result("job"))
    ended = result(cluster)
    assert (ended["outcome"], ended["exit_code"], len(ended["attempts"])) == ("failed", 124, 1)
    assert "held its slices for 1m40s, the limit set by --max_run; the last attempt: b-" in ended["message"]


def test_an_update_that_leaves_no_time_ends_a_job_that_waits() -> None:
    cluster = running()
    cluster.settle(60)
    lose(cluster)
    cluster.run_until(lambda: record(cluster).status.value == "PENDING")
    cluster.submit("job", instance_type=SLICE, max_run_seconds=30, version=1)
    cluster.run_until(lambda: cluster.result("job"))
    assert (result(cluster)["outcome"], result(cluster)["exit_code"]) == ("failed", 124)
    assert len(result(cluster)["attempts"]) == 1


def test_waiting_for_capacity_does_not_count() -> None:
    zone = "us-central2-b"
    cluster = Cluster(without_settings=None)
    text = f'project = "p"\n[types.v4]\nzones = ["{zone}"]\nservice_account = "w@p"\n[[tiers]]\nmodel = "spot"\n'
    cluster.write_settings(text.encode())
    cluster.slices.waits[zone] = "WAITING_FOR_RESOURCES"
    cluster.hosts.scripts["job"] = runs_for(MOST - 20)
    cluster.submit("job", instance_type=SLICE, max_run_seconds=MOST)
    cluster.settle(3 * MOST)
    assert record(cluster).attempt is not None
    del cluster.slices.waits[zone]
    cluster.run_until(lambda: cluster.result("job"))
    assert result(cluster)["outcome"] == "succeeded"


def test_the_wait_in_a_queue_of_kueue_does_not_count() -> None:
    cluster = in_kueue()
    cluster.hosts.scripts["job"] = runs_for(MOST - 20)
    cluster.submit("job", instance_type="tpu-v5p-16", max_run_seconds=MOST)
    cluster.settle(3 * MOST)
    assert record(cluster).attempt is not None
    cluster.slices.kueue.most = None
    cluster.run_until(lambda: cluster.result("job"))
    assert result(cluster)["outcome"] == "succeeded"


def test_neither_a_stockout_nor_a_gang_that_nobody_created_counts() -> None:
    cluster = Cluster()
    cluster.hosts.scripts["job"] = runs_for(MOST - 20)
    cluster.slices.stockouts = 3
    cluster.submit("job", instance_type=SLICE, max_run_seconds=MOST)
    cluster.run_until(lambda: len(cluster.slices.created) == 1, steps=400)
    assert record(cluster).held_seconds == 0
    cluster.run_until(lambda: cluster.result("job"))
    assert result(cluster)["outcome"] == "succeeded"


@pytest.mark.parametrize(
    ("instance_type", "settings"), [(SLICE, b""), (SLICE, PODS), ("", b"")], ids=["nodes", "pods", "bastion"]
)
@pytest.mark.parametrize("seen", [True, False], ids=["seen running", "never seen running"])
def test_with_the_daemon_gone_the_hosts_end_the_job_at_its_time(
    instance_type: str, settings: bytes, seen: bool
) -> None:
    cluster = running(instance_type=instance_type, settings=settings, max_tries=3 if instance_type else None)
    if seen:
        cluster.settle(3)
    began = cluster.clock.now() - (3 if seen else 0)
    for _ in range(MOST + 20):
        without_daemon(cluster, 1)
        if not cluster.hosts.live("job"):
            break
    assert MOST - 3 <= cluster.clock.now() - began <= MOST + 5
    without_daemon(cluster, 1000)
    cluster.restart_daemon()
    cluster.run_until(lambda: cluster.result("job"))
    ended = result(cluster)
    assert (ended["outcome"], ended["exit_code"]) == ("failed", 124)
    assert "the limit set by --max_run" in ended["message"]
    assert [attempt["cause"] for attempt in ended["attempts"]] == ["overtime"]
    assert len({began.try_number for began in cluster.hosts.began}) == 1


def test_with_the_daemon_gone_for_less_the_job_goes_on_and_ends_at_its_time() -> None:
    cluster = running()
    began = cluster.clock.now()
    cluster.settle(5)
    without_daemon(cluster, 40)
    cluster.restart_daemon()
    cluster.run_until(lambda: not cluster.hosts.live("job"))
    assert MOST - 4 <= cluster.clock.now() - began <= MOST + 2
    cluster.run_until(lambda: cluster.result("job"))
    assert result(cluster)["exit_code"] == 124


def test_a_command_that_ended_by_itself_while_no_daemon_was_there_keeps_its_end() -> None:
    cluster = running()
    cluster.settle(3)
    cluster.hosts.scripts["job"] = runs_for(50, code=3)
    without_daemon(cluster, 10 * MOST)
    cluster.restart_daemon()
    cluster.run_until(lambda: cluster.result("job"))
    assert (result(cluster)["outcome"], result(cluster)["exit_code"]) == ("failed", 3)


def test_output_that_is_stored_when_the_time_is_over_does_not_fail_the_job() -> None:
    cluster = running()
    for host in range(4):
        cluster.hosts.storing["job", host] = 60.0
    cluster.hosts.scripts["job"] = runs_for(MOST - 10)
    cluster.run_until(lambda: cluster.result("job"))
    assert result(cluster)["outcome"] == "succeeded"


def test_a_host_that_fails_because_another_ran_out_of_time_does_not_make_it_a_failure_or_another_try() -> None:
    cluster = running(max_tries=3)
    cluster.settle(3)
    cluster.hosts.scripts["job"] = lambda host, elapsed: 1 if host == 2 and elapsed >= MOST - 2 else None
    without_daemon(cluster, MOST + 30)
    cluster.restart_daemon()
    cluster.run_until(lambda: cluster.result("job"))
    assert (result(cluster)["exit_code"], result(cluster)["attempts"][0]["cause"]) == (124, "overtime")


def test_a_failure_that_is_being_settled_becomes_overtime_if_another_host_ran_out_of_time() -> None:
    cluster = running()
    cluster.settle(3)
    cluster.hosts.scripts["job"] = lambda host, elapsed: 1 if host == 2 and elapsed >= MOST - 6 else None
    cluster.hosts.stuck.update({("job", 0), ("job", 1)})
    cluster.run_until(lambda: (attempt := record(cluster).attempt) is not None and attempt.ending, steps=MOST)
    cluster.hosts.errors["job", 0] = "Overtime"  # it ended its command before it read the order to stop
    cluster.hosts.stuck.clear()
    cluster.run_until(lambda: cluster.result("job"))
    assert result(cluster)["attempts"][0]["cause"] == "overtime"
    assert "; also: worker 2 exited with code 1" in result(cluster)["message"]


def test_tries_in_place_share_the_time() -> None:
    cluster = running(max_tries=10)
    began = cluster.clock.now()
    cluster.hosts.scripts["job"] = runs_for(30, code=1)
    cluster.run_until(lambda: cluster.result("job"))
    assert MOST - 4 <= cluster.clock.now() - began <= MOST + 20
    assert (result(cluster)["exit_code"], len(result(cluster)["attempts"])) == (124, 1)
    assert len(result(cluster)["attempts"][0]["tries"]) >= 2


def test_the_order_tells_what_is_left_and_from_when_it_counts() -> None:
    cluster = Cluster()
    cluster.slices.ready_seconds = 30.0
    cluster.submit("job", instance_type=SLICE, max_run_seconds=MOST)

    def order() -> Order:
        return protocol.read(Order, cluster.store.get(keys.order(f"{record(cluster).uid}-1")).data)

    cluster.settle(3)
    first = order().time_left
    assert first is not None
    assert (first.seconds, first.from_order, first.grace_seconds) == (MOST, False, 60.0)
    cluster.run_until(lambda: (attempt := record(cluster).attempt) is not None and attempt.running_since)
    cluster.settle(2)
    later = order().time_left
    assert later is not None
    assert (later.from_order, MOST - 36 <= later.seconds <= MOST - 28) == (True, True)
    generation = cluster.store.head(keys.order(f"{record(cluster).uid}-1"))
    cluster.settle(20)
    assert cluster.store.head(keys.order(f"{record(cluster).uid}-1")) == generation
    plain = Cluster()
    plain.submit("job", instance_type=SLICE)
    plain.settle(3)
    assert b"time_left" not in plain.store.get(keys.order(f"{record(plain).uid}-1")).data


@pytest.mark.parametrize("after", [False, True], ids=["before", "after"])
@pytest.mark.parametrize("point", range(1, 30))
def test_the_end_survives_the_daemons_death_at_any_write(point: int, after: bool) -> None:
    cluster = Cluster()
    cluster.submit("job", instance_type=SLICE, max_run_seconds=10)
    store = kill_at(cluster, point, after=after)
    survive(cluster, store, lambda: cluster.result("job"))
    assert (result(cluster)["outcome"], result(cluster)["exit_code"]) == ("failed", 124)
    check_history(cluster, "job")
    cluster.settle(15)
    assert cluster.slices.list() == []
