"""A cleanup command that waits until no other job of its group is left, and its tries."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from bastion.core import documents, typed_json
from bastion.core.bucket import keys, protocol
from bastion.core.bucket.protocol import Order
from bastion.core.model.job_record import JobRecord
from bastion.core.model.world import Installation, World
from bastion.core.run_keys import RunKeys
from bastion.testing.cluster import QUOTA, Cluster
from bastion.testing.scripted_hosts import runs_for
from tests.sim.test_crashes import POINTS
from tests.support.killed_daemon import check_history, kill_at, survive

DAY = 86400
GROUP = {"group": "g"}
SETTINGS = Installation(root="/b/b-bastion", bastion="b-bastion", host_identity="h", run_keys=RunKeys(b"r" * 32))


def finisher(cluster: Cluster, name: str = "finisher", *, seconds: int = DAY, **options: Any) -> str:
    """A job whose command ends soon, and whose cleanup command takes as long as its script says."""
    given = {"cleanup_command": "finish", "cleanup_after_group_seconds": seconds, **GROUP, **options}
    cluster.hosts.scripts[name] = runs_for(2)
    return cluster.submit(name, **given)


def waiting(cluster: Cluster, name: str = "finisher") -> bool:
    record = cluster.record(name)
    return record is not None and record.awaits_group


def record(cluster: Cluster, name: str = "finisher") -> JobRecord:
    found = cluster.record(name)
    assert found is not None, cluster.describe()
    return found


def result(cluster: Cluster, name: str = "finisher") -> dict[str, Any]:
    cluster.run_until(lambda: cluster.result(name), steps=400)
    found = cluster.result(name)
    assert found is not None
    return found


def began(cluster: Cluster) -> list[str]:
    """The runs of commands, in order, without the uid."""
    return [f"{each.job} {each.run.partition('-')[2]}" for each in cluster.hosts.began if each.host == 0]


def test_it_runs_after_the_last_other_job_of_the_group() -> None:
    cluster = Cluster()
    finisher(cluster)
    cluster.hosts.scripts["member"] = runs_for(60)
    cluster.submit("member", instance_type="tpu-v4-8", **GROUP)
    cluster.submit("other", instance_type="tpu-v4-8", group="another")
    cluster.submit("loner", instance_type="tpu-v4-8")
    cluster.submit("stranger", user="bob", project="b", instance_type="tpu-v4-8", **GROUP)
    cluster.run_until(lambda: waiting(cluster))
    cluster.settle(30)
    assert waiting(cluster)
    [entry] = [each for each in cluster.json(keys.STATUS)["jobs"] if each["name"] == "finisher"]
    assert (entry["phase"], entry["group"], entry["group_left"]) == ("cleaning", "g", 1)
    assert result(cluster)["cleanup"] == {
        "tries": 1,
        "outcome": "succeeded",
        "exit_code": 0,
        "message": "all workers exited with code 0",
        "public_keys": [cluster.run_keys.drawn(f"{result(cluster)['uid']}-cleanup").public],
    }
    assert cluster.result("member") is not None
    assert began(cluster)[-1] == "finisher cleanup"
    assert any("is starting: no other job of group g is left" in line for line in cluster.history("finisher"))


def test_members_that_are_queued_or_come_in_the_last_moment_count_and_refused_ones_do_not() -> None:
    cluster = Cluster()
    finisher(cluster)
    cluster.submit("blocker", instance_type="tpu-v4-64")
    cluster.run_until(lambda: waiting(cluster))
    assert not cluster.hosts.live("finisher")
    cluster.submit("queued", instance_type="tpu-v4-64", **GROUP)  # in the very tick that could decide
    cluster.put_spec("refused", b'{"limits": {"group": "g"}}')
    cluster.settle(30)
    assert waiting(cluster)
    cluster.cancel("queued")
    cluster.run_until(lambda: cluster.result("queued"))
    result(cluster)
    assert cluster.json(keys.invalid("refused")) is not None


def test_members_that_the_queue_limit_keeps_out_count() -> None:
    cluster = Cluster(quota=QUOTA + b"[project_rules]\nmax_queued_jobs_per_user = 2\n")
    finisher(cluster)
    cluster.run_until(lambda: cluster.hosts.live("finisher"))
    cluster.submit("blocker", user="bob", project="b", instance_type="tpu-v4-64")
    cluster.run_until(lambda: cluster.hosts.live("blocker"))
    for number in range(6):
        cluster.submit(f"member-{number}", instance_type="tpu-v4-64", priority=5, **GROUP)
    cluster.run_until(lambda: waiting(cluster))
    cluster.settle(10)
    [entry] = [each for each in cluster.json(keys.STATUS)["jobs"] if each["name"] == "finisher"]
    assert entry["group_left"] == 6
    assert any(cluster.record(f"member-{number}") is None for number in range(6))
    for number in range(6):
        cluster.cancel(f"member-{number}")
        cluster.run_until(lambda: cluster.store.head(keys.user_state(f"member-{number}")) is None)  # noqa: B023
        assert waiting(cluster) or number == 5
    result(cluster)


def test_it_waits_at_most_its_time() -> None:
    cluster = Cluster()
    finisher(cluster, seconds=300)
    cluster.submit("member", instance_type="tpu-v4-8", **GROUP)
    submitted_at = cluster.clock.now()
    cluster.run_until(lambda: waiting(cluster))
    cluster.run_until(lambda: not waiting(cluster), steps=400)
    assert 299 <= cluster.clock.now() - submitted_at <= 303
    assert result(cluster)["outcome"] == "succeeded"
    assert cluster.hosts.live("member")
    text = "is starting: its time to wait for group g is over; 1 other job left"
    assert any(text in line for line in cluster.history("finisher"))


def test_a_cancel_ends_the_wait_and_is_the_outcome() -> None:
    cluster = Cluster()
    uid = finisher(cluster)
    cluster.submit("member", instance_type="tpu-v4-8", **GROUP)
    cluster.run_until(lambda: waiting(cluster))
    cluster.settle(3)
    cluster.cancel("finisher", uid)
    ended = result(cluster)
    assert (ended["outcome"], ended["exit_code"], ended["cleanup"]["outcome"]) == ("cancelled", 143, "succeeded")
    assert cluster.hosts.live("member")
    assert cluster.store.head(keys.user_state("finisher")) is None
    check_history(cluster, "finisher")


def test_a_deleted_spec_is_a_cancel_and_one_that_comes_after_the_wait_changes_nothing() -> None:
    cluster = Cluster()
    finisher(cluster)
    cluster.submit("member", instance_type="tpu-v4-8", **GROUP)
    cluster.run_until(lambda: waiting(cluster))
    cluster.store.delete(keys.active("finisher"), generation=record(cluster).generation)
    assert result(cluster)["outcome"] == "cancelled"
    uid = finisher(cluster, "second")
    cluster.hosts.scripts["second"] = runs_for(20)
    cluster.cancel("member")
    cluster.run_until(lambda: (found := cluster.record("second")) is not None and found.cleanups, steps=100)
    cluster.cancel("second", uid)
    assert result(cluster, "second")["outcome"] == "succeeded"


def test_while_it_waits_an_update_changes_nothing_and_another_spec_of_its_name_is_a_cancel() -> None:
    cluster = Cluster()
    uid = finisher(cluster)
    cluster.submit("member", instance_type="tpu-v4-8", **GROUP)
    cluster.run_until(lambda: waiting(cluster))
    finisher(cluster, version=1, command="another")
    cluster.settle(10)
    assert waiting(cluster)
    assert record(cluster).uid == uid
    finisher(cluster, command="yet another")
    cluster.run_until(lambda: (found := cluster.record("finisher")) is not None and found.uid != uid, steps=60)
    [first] = [key for key in cluster.listed(keys.JOBS_COMPLETE) if key == keys.complete("finisher")]
    assert cluster.json(first)["result"]["outcome"] == "cancelled"


def test_the_next_job_of_its_name_does_not_keep_it_waiting() -> None:
    cluster = Cluster()
    uid = finisher(cluster)
    cluster.submit("member", instance_type="tpu-v4-8", **GROUP)
    cluster.run_until(lambda: waiting(cluster))
    finisher(cluster, version=1)  # it starts after the one that waits has ended
    cluster.settle(10)
    [entry] = [each for each in cluster.json(keys.STATUS)["jobs"] if each["name"] == "finisher"]
    assert entry["group_left"] == 1
    cluster.cancel("member")
    ended = result(cluster)
    assert (ended["uid"], ended["outcome"], ended["cleanup"]["outcome"]) == (uid, "succeeded", "succeeded")


def test_a_recorded_tick_has_what_the_decision_depends_on() -> None:
    world = World(jobs={}, settings=replace(SETTINGS, run_keys=None), backlog_groups={"alice": {"g": 2}})
    assert typed_json.decode(World, typed_json.encode(world)) == world


def test_a_job_that_was_cancelled_before_cleans_up_at_once() -> None:
    cluster = Cluster()
    finisher(cluster)
    cluster.hosts.scripts["finisher"] = runs_for(1000)
    cluster.submit("member", instance_type="tpu-v4-8", **GROUP)
    cluster.run_until(lambda: cluster.hosts.live("finisher"))
    cluster.cancel("finisher")
    cluster.hosts.scripts["finisher"] = runs_for(2)
    assert result(cluster)["outcome"] == "cancelled"
    assert cluster.hosts.live("member")


def test_one_that_never_started_neither_waits_nor_cleans_up() -> None:
    cluster = Cluster()
    finisher(cluster, instance_type="tpu-v4-512")
    cluster.settle(5)
    cluster.cancel("finisher")
    ended = result(cluster)
    assert (ended["outcome"], "cleanup" in ended, began(cluster)) == ("cancelled", False, [])


def test_two_that_wait_for_one_group_do_not_wait_for_each_other() -> None:
    cluster = Cluster()
    finisher(cluster, "one")
    finisher(cluster, "two")
    assert (result(cluster, "one")["outcome"], result(cluster, "two")["outcome"]) == ("succeeded", "succeeded")


def test_those_that_wait_hold_no_slots() -> None:
    cluster = Cluster(quota=QUOTA + b"[project_rules]\nmax_queued_jobs_per_user = 200\n")
    cluster.submit("member", instance_type="tpu-v4-8", **GROUP)
    for number in range(40):
        finisher(cluster, f"f{number}")
    cluster.run_until(lambda: all(waiting(cluster, f"f{number}") for number in range(40)), steps=400)
    cluster.hosts.scripts["plain"] = runs_for(2)
    cluster.submit("plain", cleanup_command="bye")
    assert result(cluster, "plain")["outcome"] == "succeeded"
    assert all(waiting(cluster, f"f{number}") for number in range(40))


def test_a_failed_cleanup_is_tried_again_and_told_which_time_it_is() -> None:
    cluster = Cluster()
    codes = {"finisher cleanup": 7, "finisher cleanup2": 8, "finisher cleanup3": 0}
    finisher(cluster, cleanup_tries=3, code_asset_path="gs://b/bundle.tar", env_vars={"A": "b"})
    cluster.hosts.scripts["finisher"] = lambda _host, elapsed: (
        codes.get(began(cluster)[-1], 3) if elapsed >= 2 else None
    )
    ended = result(cluster)
    assert began(cluster) == ["finisher 1", *codes]
    assert (ended["outcome"], ended["exit_code"]) == ("failed", 3)
    assert (ended["cleanup"]["tries"], ended["cleanup"]["outcome"]) == (3, "succeeded")
    orders = [
        protocol.read(Order, cluster.store.get(keys.order(f"{ended['uid']}-cleanup{n}")).data) for n in ("", 2, 3)
    ]
    assert [order.env["BASTION_CLEANUP_TRY"] for order in orders] == ["1", "2", "3"]
    assert {(order.env["BASTION_OUTCOME"], order.env["BASTION_EXIT_CODE"], order.env["A"]) for order in orders} == {
        ("failed", "3", "b")
    }
    assert {(order.command, order.code) for order in orders} == {("finish", "gs://b/bundle.tar")}
    text = " ".join(cluster.history("finisher"))
    assert "the cleanup command failed: worker 0 exited with code 7; again in" in text
    assert "the cleanup command is starting, try 2 of 3" in text
    check_history(cluster, "finisher")


def test_after_its_last_try_a_cleanup_has_failed_and_the_job_is_over() -> None:
    cluster = Cluster()
    finisher(cluster, cleanup_tries=2)
    cluster.hosts.scripts["finisher"] = lambda _host, elapsed: len(cluster.hosts.began) - 1 if elapsed >= 2 else None
    ended = result(cluster)
    assert ended["outcome"] == "succeeded"
    assert ended["cleanup"] == {
        "tries": 2,
        "outcome": "failed",
        "exit_code": 2,
        "message": "worker 0 exited with code 2",
        "public_keys": [cluster.run_keys.drawn(f"{ended['uid']}-cleanup{n}").public for n in ("", 2)],
    }


def test_each_try_has_its_own_time_and_a_lost_one_is_followed_by_another() -> None:
    cluster = Cluster()
    finisher(cluster, cleanup_tries=3, cleanup_max_seconds=50)
    cluster.hosts.scripts["finisher"] = lambda _host, elapsed: (
        0 if elapsed >= 2 and began(cluster)[-1] in ("finisher 1", "finisher cleanup3") else None
    )
    cluster.run_until(lambda: began(cluster)[-1:] == ["finisher cleanup"])
    first = cluster.clock.now()
    cluster.run_until(lambda: began(cluster)[-1:] == ["finisher cleanup2"])
    assert 50 <= cluster.clock.now() - first <= 110
    [request] = cluster.bastion_host.live_requests()
    cluster.bastion_host.lose(request.ref.name)
    ended = result(cluster)
    assert (ended["cleanup"]["tries"], ended["cleanup"]["outcome"]) == (3, "succeeded")
    text = " ".join(cluster.history("finisher"))
    assert "the cleanup command failed: the cleanup command exceeded 50 s" in text
    assert "the cleanup command infrastructure: " in text
    assert cluster.bastion_host.list() == []


def test_without_these_limits_a_cleanup_has_one_try_of_ten_minutes_without_code() -> None:
    cluster = Cluster()
    cluster.hosts.scripts["job"] = lambda _host, elapsed: 0 if elapsed >= 2 and began(cluster)[-1] == "job 1" else None
    uid = cluster.submit("job", cleanup_command="bye", code_asset_path="gs://b/bundle.tar")
    cluster.run_until(lambda: began(cluster)[-1:] == ["job cleanup"])
    order = protocol.read(Order, cluster.store.get(keys.order(f"{uid}-cleanup")).data)
    assert (order.code, order.env["BASTION_CLEANUP_TRY"], order.env["BASTION_OUTCOME"]) == ("", "1", "succeeded")
    begun = cluster.clock.now()
    cluster.run_until(lambda: cluster.result("job"), steps=800)
    assert 600 <= cluster.clock.now() - begun <= 700
    assert result(cluster, "job")["cleanup"]["message"] == "the cleanup command exceeded 600 s"


def test_a_spec_that_nobody_could_read_yet_may_belong_to_the_group() -> None:
    cluster = Cluster()
    finisher(cluster)
    cluster.run_until(lambda: cluster.hosts.live("finisher"))
    meta = cluster.store.put(keys.active("broken"), b"\xff", generation=0)
    # Half written for its first second; refused after that, and then it does not count.
    cluster.run_until(lambda: waiting(cluster))
    result(cluster)
    assert meta.generation


@pytest.mark.parametrize("after", [False, True], ids=["before", "after"])
@pytest.mark.parametrize("point", POINTS)
def test_it_survives_the_daemons_death_at_any_write(point: int, after: bool) -> None:
    cluster = Cluster()
    uid = finisher(cluster, cleanup_tries=3)
    cluster.hosts.scripts["finisher"] = lambda _host, elapsed: (
        (1 if began(cluster)[-1] == "finisher cleanup" else 0) if elapsed >= 2 else None
    )
    cluster.hosts.scripts["member"] = runs_for(12)
    cluster.submit("member", instance_type="tpu-v4-8", **GROUP)
    store = kill_at(cluster, point, after=after)
    survive(cluster, store, lambda: cluster.result("finisher") and cluster.result("member"))
    ended = cluster.result("finisher")
    assert ended is not None
    assert (ended["outcome"], ended["cleanup"]["tries"], ended["cleanup"]["outcome"]) == ("succeeded", 2, "succeeded")
    runs = [each.run for each in cluster.hosts.began if each.job == "finisher"]
    assert runs == [f"{uid}-1", f"{uid}-cleanup", f"{uid}-cleanup2"], "each try runs exactly once"
    order = [each.job for each in cluster.hosts.began]
    assert order.index("member") < max(index for index, job in enumerate(order) if job == "finisher")
    check_history(cluster, "finisher")
    cluster.settle(15)
    assert cluster.bastion_host.list() == []
    cluster.outlive_late_requests()
    assert [
        key for key in cluster.listed() if key.startswith(("runs/", "beats/", "jobs/claims/", "jobs/states/"))
    ] == []


@pytest.mark.parametrize("after", [False, True], ids=["before", "after"])
@pytest.mark.parametrize("point", range(1, 25))
def test_a_cancel_of_the_wait_survives_the_daemons_death_at_any_write(point: int, after: bool) -> None:
    cluster = Cluster()
    uid = finisher(cluster)
    cluster.submit("member", instance_type="tpu-v4-8", **GROUP)
    cluster.run_until(lambda: waiting(cluster))
    cluster.cancel("finisher", uid)
    store = kill_at(cluster, point, after=after)
    survive(cluster, store, lambda: cluster.result("finisher"))
    ended = cluster.result("finisher")
    assert ended is not None
    assert (ended["outcome"], ended["cleanup"]["outcome"]) == ("cancelled", "succeeded")
    assert began(cluster).count("finisher cleanup") == 1
    check_history(cluster, "finisher")


def test_an_older_state_with_a_cleanup_under_way_goes_on() -> None:
    cluster = Cluster()
    finisher(cluster)
    cluster.hosts.scripts["finisher"] = runs_for(20)
    cluster.run_until(lambda: began(cluster)[-1:] == ["finisher cleanup"], steps=100)
    found = record(cluster)
    document = documents.loads(found.to_bytes())
    del document["metadata"]["record"]["cleanups"]
    del document["metadata"]["record"]["cleanup"]["cleanup_try"]
    meta = cluster.store.head(keys.state("finisher"))
    assert meta is not None
    cluster.store.put(keys.state("finisher"), documents.dumps(document), generation=meta.generation)
    ended = result(cluster)
    assert (ended["cleanup"]["outcome"], began(cluster)) == ("succeeded", ["finisher 1", "finisher cleanup"])
