"""Jobs that await others, on a simulated bastion: whatever becomes of what they await, and of the daemon."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest

from bastion.core import recorded_tick
from bastion.core.bucket import keys
from bastion.core.tick import TickInput, TickOutput, decide
from bastion.daemon import tick as daemon_tick
from bastion.testing.cluster import LONG_QUEUES, QUOTA, Cluster
from bastion.testing.counting_store import CountingStore
from bastion.testing.scripted_hosts import runs_for
from tests.support.killed_daemon import kill_at, survive

HOUR = 3600.0


def after(job: str, uid: str, on: str = "succeeded") -> dict[str, str]:
    return {"job": job, "uid": uid, "on": on}


def pair(cluster: Cluster, on: str = "succeeded", **options: Any) -> tuple[str, str]:
    """Submits `first`, and `second` after it; returns their uids."""
    first = cluster.submit("first")
    return first, cluster.submit("second", after=[after("first", first, on)], **options)


def ended(cluster: Cluster, name: str) -> tuple[str, int, str]:
    cluster.run_until(lambda: cluster.result(name))
    result = cluster.result(name)
    assert result is not None
    return result["outcome"], result["exit_code"], result["message"]


def test_a_job_starts_when_the_awaited_one_has_succeeded(cluster: Cluster) -> None:
    cluster.hosts.scripts["first"] = runs_for(20)
    cluster.hosts.scripts["second"] = runs_for(2)
    pair(cluster, instance_type="tpu-v4-16")
    cluster.run_until(lambda: cluster.hosts.live("first"))
    cluster.settle(5)
    reason = cluster.reason("second")
    assert reason is not None
    assert (reason["code"], reason["holders"]) == ("WaitingForDependency", ["first"])
    assert (reason["message"], reason["unblock"]) == ("starts after first", "first ends")
    assert cluster.slices.created == []
    assert ended(cluster, "second")[0] == "succeeded"
    (line,) = [line for line in cluster.history("second") if "waited for" in line]
    assert "waited for first (success) for " in line
    began = [(began.run, began.host) for began in cluster.hosts.began]
    assert len(began) == 3


@pytest.mark.parametrize("on", ["succeeded", "ended"])
def test_a_job_may_start_while_the_awaited_one_still_cleans_up(cluster: Cluster, on: str) -> None:
    cluster.hosts.scripts["second"] = runs_for(2)
    cluster.hosts.scripts["first"] = lambda _host, elapsed: 0 if elapsed == 2 else None
    first = cluster.submit("first", cleanup_command="sleep")
    cluster.submit("second", after=[after("first", first, on)])
    cluster.run_until(lambda: cluster.result("second"), steps=60)
    assert cluster.status("first") in ("CLEANING", "none")


def test_a_failed_one_refuses_what_was_to_follow_its_success_and_all_behind_that(cluster: Cluster) -> None:
    cluster.hosts.scripts["first"] = runs_for(3, code=7)
    _, second = pair(cluster)
    cluster.submit("third", after=[after("second", second)])
    text = "it was to start after the success of first, which failed with exit code 7"
    assert ended(cluster, "second") == ("refused", 64, text)
    assert ended(cluster, "third") == ("refused", 64, "it was to start after the success of second, which was refused")
    assert any(f"refused: {text}" in line for line in cluster.history("second"))
    assert not [began for began in cluster.hosts.began if began.job != "first"]


def test_what_waits_for_any_end_starts_after_a_failure_and_after_a_cancel(cluster: Cluster) -> None:
    cluster.hosts.scripts |= {"first": runs_for(3, code=7), "second": runs_for(1)}
    pair(cluster, on="ended")
    assert ended(cluster, "second")[0] == "succeeded"
    other = cluster.submit("other")
    cluster.hosts.scripts["next"] = runs_for(1)
    cluster.submit("next", after=[after("other", other, "ended")])
    cluster.run_until(lambda: cluster.hosts.live("other"))
    cluster.cancel("other")
    assert ended(cluster, "next")[0] == "succeeded"


def test_a_cancelled_one_refuses_what_was_to_follow_its_success(cluster: Cluster) -> None:
    pair(cluster)
    cluster.run_until(lambda: cluster.hosts.live("first"))
    cluster.cancel("first")
    assert ended(cluster, "second")[2] == "it was to start after the success of first, which was cancelled"


def test_an_ended_job_counts_by_its_result(cluster: Cluster) -> None:
    cluster.hosts.scripts |= {"good": runs_for(1), "bad": runs_for(1, code=3), "x": runs_for(1), "z": runs_for(1)}
    good, bad = cluster.submit("good"), cluster.submit("bad")
    cluster.run_until(lambda: cluster.result("good") and cluster.result("bad"))
    cluster.submit("x", after=[after("good", good)])
    cluster.submit("y", after=[after("good", good), after("bad", bad)])
    cluster.submit("z", after=[after("bad", bad, "ended")])
    assert ended(cluster, "x")[0] == ended(cluster, "z")[0] == "succeeded"
    assert ended(cluster, "y")[2] == "it was to start after the success of bad, which failed with exit code 3"


def test_a_namesake_is_another_job(cluster: Cluster) -> None:
    cluster.hosts.scripts |= {"a": runs_for(1), "b": runs_for(1), "c": runs_for(1)}
    first = cluster.submit("a")
    cluster.run_until(lambda: cluster.result("a"))
    again = cluster.submit("a")
    cluster.run_until(lambda: (cluster.result("a") or {}).get("uid") == again)
    cluster.hosts.scripts["a"] = runs_for(50)
    cluster.submit("a")
    cluster.run_until(lambda: cluster.hosts.live("a"))
    cluster.submit("b", after=[after("a", first)])
    cluster.submit("c", after=[after("a", again)])
    assert ended(cluster, "b")[0] == ended(cluster, "c")[0] == "succeeded"
    assert cluster.hosts.live("a")


@pytest.mark.parametrize("name", ["nobody", "second"])
def test_an_unknown_job_is_never_awaited(cluster: Cluster, name: str) -> None:
    cluster.submit("second", after=[after(name, "aaaaaaaaaa")])
    text = f"it was to start after {name} (aaaaaaaaaa), which is not known to this bastion"
    assert ended(cluster, "second") == ("refused", 64, text)


def test_a_job_that_is_not_accepted_yet_is_awaited(cluster: Cluster) -> None:
    quota = QUOTA + b"[project_rules]\nmax_queued_jobs_per_user = 1\n"
    cluster.write_quota(quota)
    cluster.settle(2)
    cluster.hosts.scripts |= {"x": runs_for(30), "first": runs_for(2), "second": runs_for(2)}
    cluster.submit("x", instance_type="tpu-v4-128", resources={"v4": 64})
    cluster.settle(3)
    first = cluster.submit("first", user="alice", instance_type="tpu-v4-64")
    cluster.submit("second", user="bob", project="b", after=[after("first", first)])
    cluster.settle(5)
    assert cluster.record("second") is not None
    reason = cluster.reason("second")
    assert reason is not None and reason["code"] == "WaitingForDependency"
    assert ended(cluster, "second")[0] == "succeeded"


def test_a_refused_spec_is_never_awaited(cluster: Cluster) -> None:
    broken = cluster.put_spec("first", b"{}")
    cluster.submit("second", after=[after("first", broken, "ended")])
    assert ended(cluster, "second") == ("refused", 64, "it was to start after first, whose spec is refused")


def test_an_update_of_the_awaited_job_changes_nothing(cluster: Cluster) -> None:
    cluster.hosts.scripts |= {"first": runs_for(10), "second": runs_for(1)}
    pair(cluster)
    cluster.run_until(lambda: cluster.hosts.live("first"))
    cluster.submit("first", version=1, command="other")
    assert ended(cluster, "second")[0] == "succeeded"
    assert len([began for began in cluster.hosts.began if began.job == "first"]) == 2


def test_an_update_may_await_other_jobs(cluster: Cluster) -> None:
    cluster.hosts.scripts |= {"first": runs_for(4), "other": runs_for(15), "second": runs_for(1)}
    first, other = cluster.submit("first"), cluster.submit("other")
    cluster.submit("second", after=[after("first", first)], instance_type="tpu-v4-16")
    cluster.settle(2)
    cluster.submit("second", after=[after("other", other)], instance_type="tpu-v4-16", version=1)
    cluster.run_until(lambda: cluster.result("first"))
    cluster.settle(2)
    reason = cluster.reason("second")
    assert reason is not None and reason["holders"] == ["other"]
    assert ended(cluster, "second")[0] == "succeeded"


def test_jobs_that_await_one_another_by_updates_are_refused_and_those_behind_them(cluster: Cluster) -> None:
    first, second = pair(cluster, instance_type="tpu-v4-16")
    third = cluster.submit("third", after=[after("second", second)], instance_type="tpu-v4-16")
    cluster.submit("fourth", after=[after("third", third, "ended")])
    cluster.hosts.scripts["fourth"] = runs_for(1)
    cluster.run_until(lambda: cluster.hosts.live("first"))
    cluster.submit("second", after=[after("third", third)], instance_type="tpu-v4-16", version=1)
    assert ended(cluster, "second")[2] == "it would start after itself: second after third after second"
    assert ended(cluster, "third")[2] == "it would start after itself: third after second after third"
    assert ended(cluster, "fourth")[0] == "succeeded"
    assert first and cluster.hosts.live("first")
    alone = cluster.submit("alone", after=[after("first", first)])
    cluster.settle(2)
    cluster.submit("alone", after=[after("alone", alone)], version=1)
    assert ended(cluster, "alone")[2] == "it would start after itself: alone after alone"


def test_a_result_that_is_gone_does_not_stop_who_had_met_it(cluster: Cluster) -> None:
    cluster.hosts.scripts |= {"first": runs_for(2), "other": runs_for(60), "second": runs_for(1)}
    first, other = cluster.submit("first"), cluster.submit("other")
    cluster.submit("second", after=[after("first", first), after("other", other)])
    cluster.run_until(lambda: cluster.result("first"))
    cluster.settle(2)
    found = cluster.store.head(keys.complete("first"))
    assert found is not None
    cluster.store.delete(found.key, generation=found.generation)
    cluster.restart_daemon()
    cluster.settle(3)
    reason = cluster.reason("second")
    assert reason is not None and reason["holders"] == ["other"]
    assert ended(cluster, "second")[0] == "succeeded"


def test_a_job_waits_no_longer_than_asked(cluster: Cluster) -> None:
    cluster.hosts.scripts["first"] = runs_for(10 * HOUR)
    pair(cluster, after_at_most_seconds=6 * 3600)
    cluster.run_until(lambda: cluster.hosts.live("first"))
    cluster.clock.advance(6 * HOUR - 60)
    cluster.settle(3)
    assert cluster.status("second") == "PENDING"
    cluster.clock.advance(60)
    assert ended(cluster, "second") == (
        "refused",
        64,
        "waited for first for 6h, the limit set by --after_at_most",
    )


@pytest.mark.parametrize(("on", "code"), [("succeeded", 0), ("ended", 0), ("ended", 3)])
def test_what_ended_in_time_while_no_daemon_was_there_is_not_waited_for_in_vain(
    cluster: Cluster, on: str, code: int
) -> None:
    cluster.hosts.scripts.update(first=runs_for(60, code), second=runs_for(2))
    uid = cluster.submit("first", instance_type="tpu-v4-16")
    cluster.submit("second", after=[after("first", uid, on)], after_at_most_seconds=120)
    cluster.run_until(lambda: cluster.hosts.live("first"))
    for _ in range(200):
        cluster.hosts.step([*cluster.slices.live_slices(), *cluster.bastion_host.live_slices()])
        cluster.clock.advance(1)
    cluster.restart_daemon()
    assert ended(cluster, "second")[0] == "succeeded"


def test_a_job_that_ended_on_some_hosts_only_is_awaited_no_longer_than_asked(cluster: Cluster) -> None:
    cluster.hosts.scripts["first"] = lambda host, passed: 0 if host or passed > HOUR else None
    uid = cluster.submit("first", instance_type="tpu-v4-16")
    cluster.submit("second", after=[after("first", uid, "ended")], after_at_most_seconds=120)
    assert ended(cluster, "second")[0] == "refused"


def test_a_waiting_job_can_be_cancelled_and_runs_no_cleanup(cluster: Cluster) -> None:
    pair(cluster, cleanup_command="clean")
    cluster.settle(4)
    cluster.cancel("second")
    assert ended(cluster, "second")[0] == "cancelled"
    assert not [began for began in cluster.hosts.began if began.job == "second"]


def test_a_dry_run_refuses_and_starts_nothing(cluster: Cluster) -> None:
    cluster.hosts.scripts |= {"first": runs_for(1, code=1)}
    pair(cluster)
    cluster.run_until(lambda: cluster.hosts.live("first"))
    cluster.store.put(keys.RUNTIME_OPTIONS, b'{"scheduler": {"dry_run": true}}', generation=0)
    cluster.settle(20)
    assert cluster.status("second") == "PENDING"


def test_a_hold_comes_first_and_the_dependency_after_it(cluster: Cluster) -> None:
    pair(cluster, instance_type="tpu-v4-16")
    cluster.write_quota(QUOTA + b"[project_rules.a]\nhold = true\n")
    cluster.settle(3)
    reason = cluster.reason("second")
    assert reason is not None
    assert (reason["code"], reason["also"]) == ("Held", ["WaitingForDependency"])


def lives(cluster: Cluster) -> None:
    cluster.hosts.scripts |= {"first": runs_for(3), "bad": runs_for(2, code=3), "second": runs_for(2)}
    first, bad = cluster.submit("first"), cluster.submit("bad")
    cluster.submit("second", after=[after("first", first), after("bad", bad, "ended")], instance_type="tpu-v4-16")
    cluster.submit("third", after=[after("bad", bad)])


# All four lives together take fewer mutations; beyond them nobody is killed.
POINTS = 100


@pytest.mark.parametrize("late", [False, True], ids=["before", "after"])
@pytest.mark.parametrize("begin", range(1, 11))
def test_wherever_the_daemon_is_killed_each_job_ends_as_without(begin: int, late: bool) -> None:
    for point in range(begin, POINTS, 10):
        cluster = Cluster()
        lives(cluster)
        store = kill_at(cluster, point, after=late)
        survive(cluster, store, partial(both_ended, cluster))
        second, third = cluster.result("second"), cluster.result("third")
        assert second is not None and third is not None
        assert (second["outcome"], third["outcome"]) == ("succeeded", "refused"), point
        assert [began.host for began in cluster.hosts.began if began.job == "second"] == [0, 1]
        assert len([line for line in cluster.history("second") if "waited for" in line]) == 1
        assert not [began for began in cluster.hosts.began if began.job == "third"]


def both_ended(cluster: Cluster) -> bool:
    return cluster.result("second") is not None and cluster.result("third") is not None


def test_two_daemons_agree(cluster: Cluster) -> None:
    cluster.hosts.scripts |= {"first": runs_for(5), "second": runs_for(2)}
    pair(cluster)
    other = cluster.new_daemon(elsewhere=True)
    for _ in range(60):
        other.tick()
        cluster.step()
    assert ended(cluster, "second")[0] == "succeeded"
    assert len([began for began in cluster.hosts.began if began.job == "second"]) == 1


def test_two_thousand_jobs_that_await_one_cost_no_request_in_an_idle_tick() -> None:
    cluster = Cluster(quota=QUOTA + LONG_QUEUES, lease_ttl_seconds=60.0)
    counting = CountingStore(cluster.store)
    cluster.daemon = cluster.new_daemon(counting)
    gone = cluster.submit("gone")
    cluster.hosts.scripts["gone"] = runs_for(1)
    cluster.run_until(lambda: cluster.result("gone"))
    first = cluster.submit("first")
    cluster.run_until(lambda: cluster.hosts.live("first"))
    for number in range(2_000):
        cluster.submit(f"j{number}", after=[after("gone", gone), after("first", first)], instance_type="tpu-v4-128")
    counting.reset()
    for _ in range(20):
        if not cluster.step(10.0).outcome.done:
            break
    assert len([1 for key in counting.read if key == keys.complete("gone")]) <= 1
    for _ in range(4):
        counting.reset()
        cluster.step(10.0)
        assert set(counting.calls) <= {"list", "put"}
        assert counting.requests <= 15


def test_where_kueue_decides_a_job_is_handed_over_after_the_awaited_one() -> None:
    from tests.sim.test_kueue import SETTINGS, SLICE

    cluster = Cluster()
    cluster.write_settings(SETTINGS.encode())
    cluster.hosts.scripts |= {"first": runs_for(5), "second": runs_for(1)}
    pair(cluster, instance_type=SLICE)
    cluster.run_until(lambda: cluster.hosts.live("first"))
    cluster.settle(3)
    reason = cluster.reason("second")
    assert reason is not None and reason["code"] == "WaitingForDependency"
    assert cluster.slices.created == []
    cluster.run_until(lambda: cluster.slices.created)
    assert cluster.result("first") is not None or cluster.status("first") in ("CLEANING", "COMPLETED")


def test_a_recorded_tick_replays_what_jobs_awaited(cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[tuple[TickInput, TickOutput]] = []

    def recording(given: TickInput, *scheduler: Any) -> TickOutput:
        seen.append((given, decide(given, *scheduler)))
        return seen[-1][1]

    monkeypatch.setattr(daemon_tick, "decide", recording)
    cluster.hosts.scripts |= {"first": runs_for(5, code=1)}
    pair(cluster)
    ended(cluster, "second")
    for given, output in seen:
        tick = recorded_tick.read(recorded_tick.to_bytes(given, output, quota_file=QUOTA))
        assert recorded_tick.describe(decide(tick.given)) == list(tick.decided)
