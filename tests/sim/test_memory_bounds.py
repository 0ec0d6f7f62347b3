"""What others write into the bucket costs the daemon no more memory than it is worth, and never its life."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest

from bastion.core import limits
from bastion.core.bucket import keys
from bastion.core.bucket.objects import ObjectMeta
from bastion.ports import ObjectStore
from bastion.testing.cluster import BASTION, Cluster
from bastion.testing.counting_store import CountingStore
from bastion.testing.scripted_hosts import runs_for
from tests.support.foreign_changes import check_a_good_job_runs


def spec_of(cluster: Cluster, name: str, extra: object, *, version: int | None = None) -> bytes:
    """The bytes of a valid spec with one more field; the cluster is left without it."""
    elsewhere = Cluster()
    elsewhere.clock.advance(cluster.clock.monotonic())
    elsewhere.submit(name, instance_type="tpu-v4-128", version=version)
    document = json.loads(elsewhere.store.get(keys.active(name)).data)
    return json.dumps({**document, "extra": extra}).encode()


# -- the run's own objects --------------------------------------------------------------------------------------


def test_reports_of_hosts_that_a_run_does_not_have_are_not_read(cluster: Cluster) -> None:
    counting = CountingStore(cluster.store)
    cluster.daemon = cluster.new_daemon(counting)
    uid = cluster.submit("job", instance_type="tpu-v4-16")
    cluster.run_until(lambda: len(cluster.hosts.live("job")) == 1)
    run = f"{uid}-1"
    foreign = [f"runs/{run}/reports/{name}" for name in ("2", "59", "00", "-1", "1/1", "x")]
    foreign += [f"runs/{run}/other", f"runs/{run}/order2", "runs/aaaaaaaaaa-1/order"]
    for key in foreign:
        report = {"format": 1, "run": run, "host": 59, "phase": "running", "message": "x" * 10_000}
        cluster.store.put(key, json.dumps(report).encode(), generation=0)
    cluster.settle(5)
    assert [key for key in foreign if key in counting.read] == []
    assert {f"runs/{run}/reports/0", f"runs/{run}/reports/1"} <= {*counting.read}


def test_a_report_larger_than_any_hosts_is_not_downloaded_and_the_job_ends_by_a_good_one(cluster: Cluster) -> None:
    counting = CountingStore(cluster.store)
    cluster.daemon = cluster.new_daemon(counting)
    uid = cluster.submit("job")
    cluster.run_until(lambda: cluster.hosts.live("job"))
    key = keys.report(f"{uid}-1", 0)
    meta = cluster.store.head(key)
    assert meta is not None
    counting.reset()
    cluster.store.put(key, b" " * (limits.REPORT_MAX_BYTES + 1), generation=meta.generation)
    for _ in range(3):
        cluster.daemon.tick()
        cluster.clock.advance(1)
    assert key not in counting.read
    check_a_good_job_runs(cluster)


# -- documents --------------------------------------------------------------------------------------------------


def test_a_spec_of_too_many_values_is_refused_with_the_number(cluster: Cluster) -> None:
    cluster.put_spec("bomb", spec_of(cluster, "bomb", [{"": []}] * 3000))
    cluster.run_until(lambda: cluster.json(keys.invalid("bomb")), steps=10)
    problem = cluster.json(keys.invalid("bomb"))["problem"]
    assert "keys and values; the maximum is 4096" in problem
    check_a_good_job_runs(cluster)


@pytest.mark.parametrize("epoch", ["9" * 4300, str(2**61), "-1", "1.5", "[" * 1000 + "]" * 1000])
def test_a_lease_of_an_absurd_epoch_is_taken_over_once_it_stands_still(cluster: Cluster, epoch: str) -> None:
    cluster.store.put(
        keys.LEASE, f'{{"format":1,"owner":"mallory","epoch":{epoch},"released":true}}'.encode(), generation=0
    )
    cluster.settle(8)
    check_a_good_job_runs(cluster)
    assert cluster.json(keys.LEASE)["epoch"] < 100


def test_an_explanation_of_a_bad_object_is_short(cluster: Cluster) -> None:
    name = "n" * 60_000
    document = json.loads(spec_of(cluster, "bad", 1))
    document["runner"]["instance_type"] = name
    cluster.put_spec("bad", json.dumps(document).encode())
    cluster.run_until(lambda: cluster.json(keys.invalid("bad")), steps=10)
    assert len(cluster.json(keys.invalid("bad"))["problem"]) <= limits.PROBLEM_MAX_CHARS


def test_alarms_name_a_hundred_unreadable_states_and_the_number_of_the_others(cluster: Cluster) -> None:
    for k in range(limits.ALARMS_OF_JOBS_MAX + 7):
        cluster.store.put(keys.state(f"foreign-{k}"), b'{"format": 1}', generation=0)
    cluster.settle(3)
    alarms = cluster.json(keys.STATUS)["alarms"]
    assert len(alarms) == limits.ALARMS_OF_JOBS_MAX + 1
    assert "7 more jobs are frozen: their states cannot be read" in alarms


# -- the budget of specs ----------------------------------------------------------------------------------------


def test_large_specs_wait_unread_when_the_budget_is_spent_and_a_small_one_starts(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(limits, "SPECS_KEPT_MAX_BYTES", 200_000)
    cluster = Cluster()
    for k in range(20):
        data = spec_of(
            cluster, f"large-{k}", "".join(chr(0x4E00 + (k * 7919 + n * 104_729) % 20_000) for n in range(5000))
        )
        cluster.put_spec(f"large-{k}", data)
    cluster.settle(3)
    accepted = [key for key in cluster.listed(keys.JOBS_STATES) if "large-" in key]
    assert 0 < len(accepted) < 20
    (alarm,) = [alarm for alarm in cluster.json(keys.STATUS)["alarms"] if "not read yet" in alarm]
    assert alarm.startswith(f"{20 - len(accepted)} specs are not read yet")
    check_a_good_job_runs(cluster)
    for key in accepted:
        cluster.cancel(key.removeprefix(keys.JOBS_STATES))
    cluster.run_until(lambda: cluster.listed(keys.JOBS_STATES) not in (accepted, []), steps=20)  # others moved up


# -- the daemon's log -------------------------------------------------------------------------------------------


def test_of_a_huge_object_in_the_place_of_its_log_the_daemon_keeps_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "DAEMON_LOG_ROLL_BYTES", 1000)
    monkeypatch.setattr(limits, "DAEMON_LOG_READ_MAX_BYTES", 2000)
    cluster = Cluster()
    log = keys.log(BASTION)
    cluster.store.put(log, b"0" * 90_000 + b"the end", generation=0)
    cluster.settle(3)
    (aside,) = [key for key in cluster.listed("logs/") if key.startswith(f"{log}-")]
    kept = cluster.store.get(aside).data
    assert (len(kept), kept[-7:]) == (2000, b"the end")
    cluster.settle(2)
    assert b"the first 88007 bytes of" in cluster.store.get(log).data + kept


# -- the last guard ---------------------------------------------------------------------------------------------


class _Failing:
    """A store whose listings of one folder fail as nobody foresaw, so many times."""

    def __init__(self, store: ObjectStore, error: BaseException, times: int) -> None:
        self._store, self._error, self.left = store, error, times
        self.get, self.head = store.get, store.head
        self.put, self.append, self.delete = store.put, store.append, store.delete

    def list(self, prefix: str, *, start_after: str = "", end_before: str = "") -> Iterator[ObjectMeta]:
        if self.left and prefix == keys.BEATS:
            self.left -= 1
            raise self._error
        return self._store.list(prefix, start_after=start_after, end_before=end_before)


def run_for_ticks(cluster: Cluster, ticks: int, *, seconds: float = 1.0) -> None:
    left = iter(range(ticks + 1))

    def should_stop() -> bool:
        cluster.hosts.step([*cluster.slices.live_slices(), *cluster.bastion_host.live_slices()])
        return next(left) == ticks

    def rest(_seconds: float, _should_stop: object) -> None:
        cluster.clock.advance(seconds)

    cluster.daemon._pause = rest  # type: ignore[method-assign,assignment]
    cluster.daemon.run(should_stop)


@pytest.mark.parametrize("error", [MemoryError(), RuntimeError("a bug\nof two lines"), ZeroDivisionError()])
def test_a_tick_that_fails_unforeseen_is_an_alarm_and_the_next_one_goes_on(cluster: Cluster, error: Exception) -> None:
    cluster.hosts.scripts["job"] = runs_for(1)
    cluster.daemon = cluster.new_daemon(_Failing(cluster.store, error, 2))
    cluster.submit("job")
    run_for_ticks(cluster, 20)
    assert (cluster.result("job") or {})["outcome"] == "succeeded"
    status = cluster.json(keys.STATUS)
    assert status["daemon"]["failed_ticks"] == 2
    (alarm,) = status["alarms"]
    assert alarm.startswith("2 ticks of this daemon failed, the last at ")
    assert type(error).__name__ in alarm
    assert b"a tick failed: " in cluster.store.get(keys.log(BASTION)).data


@pytest.mark.parametrize(("seconds", "alarms"), [(1000.0, 1), (1300.0, 0)])
def test_the_alarm_of_a_failed_tick_ends_after_an_hour(cluster: Cluster, seconds: float, alarms: int) -> None:
    cluster.daemon = cluster.new_daemon(_Failing(cluster.store, MemoryError(), 1))
    run_for_ticks(cluster, 4, seconds=seconds)  # the last one is three pauses after the first, which fails
    assert len(cluster.json(keys.STATUS)["alarms"]) == alarms


@pytest.mark.parametrize("error", [KeyboardInterrupt(), SystemExit(3)])
def test_who_ends_the_daemon_is_not_held_up_by_the_guard(cluster: Cluster, error: BaseException) -> None:
    cluster.daemon = cluster.new_daemon(_Failing(cluster.store, error, 1))
    with pytest.raises(type(error)):
        run_for_ticks(cluster, 3)
