"""Where Kueue decides: jobs are handed over at once and count nowhere, and nothing of ours stops their gangs."""

from __future__ import annotations

import os
import random
from typing import Any

import pytest

from bastion.core import limits, recorded_tick
from bastion.core.bucket import keys
from bastion.core.bucket.protocol import OrderAction
from bastion.core.model.gangs import GangState
from bastion.core.model.job_record import Attempt, Cause, JobRecord
from bastion.core.reconcile.effects import CloseGate, DeleteGang, Effect, PutOrder, PutRecord
from bastion.core.tick import TickInput, TickOutput, decide
from bastion.daemon import tick as daemon_tick
from bastion.testing.cluster import LONG_QUEUES, QUOTA, Cluster
from bastion.testing.scripted_hosts import runs_for

SEEDS = int(os.environ.get("BASTION_SIM_SEEDS", "3"))
HOUR, DAY = 3600.0, 86400.0
# v5p is not in the quota file: Kueue's quota decides.
SETTINGS = """
[clusters.training]
uid = "5f0c0000-0000-0000-0000-000000000000"
queue = "bastion-{project}"
[defaults.pod]
image = "registry.example/train:v1"
[types.v5p]
zones = ["k8s:training"]
[types.v6e]
zones = ["k8s:other"]
[clusters.other]
uid = "5f0c0000-0000-0000-0000-000000000001"
[[tiers]]
model = "spot"
"""
PLACE = "k8s:training"
SLICE = "tpu-v5p-16"


class Effects:
    """Every effect of every tick, with the view and the record of its job."""

    def __init__(self) -> None:
        self.stops: list[tuple[str, Cause | None]] = []
        self.all: list[Effect] = []

    def decide(self, given: TickInput, *scheduler: Any) -> TickOutput:
        output = decide(given, *scheduler)
        for name, effects in output.effects.items():
            view = given.world.jobs.get(name)
            record = view.record if view is not None else None
            for effect in effects:
                self.all.append(effect)
                if isinstance(effect, PutRecord):
                    record = effect.record
                if isinstance(effect, (CloseGate, DeleteGang)) or (
                    isinstance(effect, PutOrder) and effect.order.action is OrderAction.STOP
                ):
                    self.stops.append((name, _cause(record)))
        return output


def _cause(record: JobRecord | None) -> Cause | None:
    """Why the job's attempt ends, or its last one ended."""
    if record is None:
        return None
    if record.attempt is not None:
        return record.attempt.ending.cause if record.attempt.ending is not None else None
    return record.attempts[-1].cause if record.attempts else None


@pytest.fixture
def effects(monkeypatch: pytest.MonkeyPatch) -> Effects:
    seen = Effects()
    monkeypatch.setattr(daemon_tick, "decide", seen.decide)
    return seen


def in_kueue(*, quota: bytes = QUOTA, most: int | None = 0, settings: str = SETTINGS) -> Cluster:
    cluster = Cluster(quota=quota, without_settings=None)
    cluster.write_settings(settings.encode())
    cluster.slices.kueue.most = most
    return cluster


def record(cluster: Cluster, name: str = "job") -> JobRecord:
    found = cluster.record(name)
    assert found is not None
    return found


def attempt(cluster: Cluster, name: str = "job") -> Attempt:
    found = record(cluster, name).attempt
    assert found is not None
    return found


def entry(cluster: Cluster, name: str = "job") -> dict[str, Any]:
    (found,) = [job for job in cluster.json(keys.STATUS)["jobs"] if job["name"] == name]
    assert isinstance(found, dict)
    return found


def pass_time(cluster: Cluster, seconds: float, steps: int = 40) -> None:
    for _ in range(steps):
        cluster.step(seconds / steps)


def gang(cluster: Cluster) -> str:
    return cluster.slices.created[-1].ref.name


def test_a_job_waits_with_kueues_words_is_admitted_evicted_queued_in_front_and_ends(effects: Effects) -> None:
    cluster = in_kueue()
    cluster.submit("job", instance_type=SLICE, priority=3)
    cluster.settle(3)
    (request,) = cluster.slices.created
    assert (request.ref.zone, request.place.queue, request.priority_class) == (
        PLACE,
        "bastion-a",
        "bastion-priority-3",
    )
    assert request.valid_until_seconds is None
    assert (attempt(cluster).charged, attempt(cluster).tier) == ({}, None)
    status = cluster.json(keys.STATUS)
    assert (status["delegated"], status["projects"]["a"]["demand"]) == (["v5p"], {})
    shown = entry(cluster)
    assert (shown["zone"], shown["waiting"]["queue"], shown["waiting"]["state"]) == (PLACE, "bastion-a", "Pending")
    (reserved,) = shown["queue"]["conditions"]
    assert reserved["message"] == cluster.slices.kueue.message
    assert (reserved["type"], reserved["status"], shown["queue"]["admitted"]) == ("QuotaReserved", False, False)

    pass_time(cluster, 3 * DAY)
    written = len([each for each in effects.all if isinstance(each, PutRecord)])
    pass_time(cluster, 3 * DAY)
    assert len([each for each in effects.all if isinstance(each, PutRecord)]) == written
    assert effects.stops == []

    cluster.slices.kueue.most = None
    cluster.run_until(lambda: cluster.hosts.live("job"), steps=20)
    assert (attempt(cluster).waiting, record(cluster).waited_seconds) == (None, 0.0)
    assert [each["type"] for each in entry(cluster)["queue"]["conditions"]] == ["QuotaReserved", "Admitted"]
    assert any("was admitted in queue bastion-a in cluster training after 6d" in x for x in cluster.history("job"))
    pass_time(cluster, 2 * DAY)
    assert effects.stops == []

    cluster.slices.kueue.most = 0
    cluster.slices.evict(gang(cluster), "its quota is reclaimed by its owner")
    cluster.run_until(lambda: len(cluster.slices.created) == 2, steps=60)
    assert cluster.slices.created[1].priority_class == "bastion-priority-3-again"
    cluster.settle(3)
    assert (record(cluster).infrastructure_failures, record(cluster).not_before) == (0, None)
    (past,) = record(cluster).attempts
    assert past.cause is Cause.EVICTED
    assert "Preempted: its quota is reclaimed by its owner" in past.message
    assert entry(cluster)["queue"]["evictions"] == 1
    assert {cause for _, cause in effects.stops} == {Cause.EVICTED}

    cluster.hosts.scripts["job"] = runs_for(5)
    cluster.slices.kueue.most = None
    cluster.run_until(lambda: cluster.result("job"), steps=60)
    end = cluster.result("job")
    assert end is not None
    assert [each["cause"] for each in end["attempts"]] == ["evicted", "succeeded"]
    assert {cause for _, cause in effects.stops} == {Cause.EVICTED, Cause.SUCCEEDED}


def test_the_job_that_was_evicted_goes_before_its_equals_that_came_first() -> None:
    cluster = in_kueue(most=1)
    for name in ("first", "second", "third"):
        cluster.submit(name, instance_type=SLICE)
        cluster.settle(3)
    assert cluster.hosts.live("first")
    cluster.slices.kueue.most = 0
    cluster.slices.evict(cluster.slices.created[0].ref.name, "reclaimed")
    cluster.run_until(lambda: len(cluster.slices.created) == 4, steps=60)
    cluster.slices.kueue.most = 1
    cluster.settle(5)
    assert [name for name in ("first", "second", "third") if cluster.hosts.live(name)] == ["first"]


def test_max_wait_counts_from_admission(effects: Effects) -> None:
    cluster = in_kueue()
    cluster.submit("job", instance_type=SLICE, max_wait_seconds=int(HOUR))
    cluster.settle(3)
    pass_time(cluster, 1.01 * DAY)
    cluster.slices.waits[PLACE] = "Unschedulable"
    cluster.slices.kueue.most = None
    cluster.settle(3)
    waiting = attempt(cluster).waiting
    assert waiting is not None
    assert (waiting.queue, waiting.state) == ("", "Unschedulable")
    assert "after 1d; waiting for capacity: Unschedulable" in "\n".join(cluster.history("job"))
    pass_time(cluster, 0.9 * HOUR)
    assert effects.stops == []
    pass_time(cluster, 0.2 * HOUR)
    cluster.run_until(lambda: cluster.result("job"), steps=30)
    end = cluster.result("job")
    assert end is not None
    assert (end["outcome"], len(end["attempts"])) == ("failed", 1)
    assert "no capacity for 1h, the limit set by --max_wait" in end["message"]


def test_without_a_limit_an_admitted_gang_waits_for_its_machines_and_keeps_what_it_has(effects: Effects) -> None:
    cluster = in_kueue(most=None, settings=SETTINGS.replace('["k8s:training"]', '["k8s:training", "k8s:more"]') + MORE)
    cluster.slices.waits[PLACE] = "Unschedulable"
    cluster.slices.half_placed = True
    cluster.submit("job", instance_type=SLICE)
    cluster.settle(3)
    pass_time(cluster, 3 * DAY)
    assert effects.stops == []
    del cluster.slices.waits[PLACE]
    cluster.run_until(lambda: cluster.hosts.live("job"), steps=20)
    assert record(cluster).waited_seconds >= 3 * DAY - HOUR


MORE = """
[clusters.more]
uid = "5f0c0000-0000-0000-0000-000000000002"
queue = "batch"
"""


def test_hosts_have_their_time_from_the_admission_even_if_nobody_saw_the_wait() -> None:
    cluster = in_kueue()
    cluster.slices.ready_seconds = 1e9
    cluster.submit("job", instance_type=SLICE)
    cluster.run_until(lambda: cluster.slices.created, steps=10)
    cluster.clock.advance(DAY)  # nothing was seen of the gang yet
    cluster.slices.kueue.most = None
    cluster.restart_daemon()
    cluster.settle(3)
    assert attempt(cluster).up_since is not None
    pass_time(cluster, limits.PROVISION_TIMEOUT_SECONDS * 0.9)
    assert record(cluster).attempts == ()
    pass_time(cluster, limits.PROVISION_TIMEOUT_SECONDS * 0.2)
    assert [past.cause for past in record(cluster).attempts] == [Cause.INFRASTRUCTURE]


def test_a_job_that_kueue_deactivated_waits_with_kueues_words_until_it_is_cancelled(effects: Effects) -> None:
    cluster = in_kueue()
    cluster.submit("job", instance_type=SLICE)
    cluster.settle(3)
    cluster.slices.kueue.deactivate(gang(cluster), "The workload is deactivated")
    pass_time(cluster, 2 * DAY)
    assert entry(cluster)["queue"]["conditions"][0]["message"] == "The workload is deactivated"
    assert (effects.stops, len(cluster.slices.created)) == ([], 1)
    cluster.cancel("job")
    cluster.run_until(lambda: cluster.result("job"), steps=30)
    assert {cause for _, cause in effects.stops} == {Cause.CANCELLED}


def test_membership_hold_and_the_maximum_runtime_are_still_ours(effects: Effects) -> None:
    rules = b"[project_rules.a]\nmaximum_runtime_hours = 2\n[project_rules.b]\nhold = true\n"
    cluster = in_kueue(quota=QUOTA + rules, most=None)
    cluster.submit("mine", instance_type=SLICE)
    cluster.submit("held", instance_type=SLICE, user="bob", project="b")
    cluster.submit("foreign", instance_type=SLICE, user="bob")
    cluster.settle(5)
    codes = {name: (cluster.reason(name) or {}).get("code") for name in ("held", "foreign")}
    assert codes == {"held": "Held", "foreign": "NotMember"}
    assert [request.place.queue for request in cluster.slices.created] == ["bastion-a"]
    pass_time(cluster, 2.1 * HOUR)
    cluster.run_until(lambda: cluster.result("mine"), steps=30)
    assert {cause for _, cause in effects.stops} == {Cause.OVERTIME}


def test_a_limited_number_is_submitted_and_the_rest_says_why(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "SUBMITTED_JOBS_MAX", 2)
    cluster = in_kueue(quota=QUOTA + LONG_QUEUES)
    for number in range(4):
        cluster.submit(f"job-{number}", instance_type=SLICE, priority=1 if number == 3 else 5)
    cluster.settle(4)
    assert len(cluster.slices.created) == 2
    assert {cluster.status(name) for name in ("job-0", "job-3")} == {"ACTIVE"}
    reason = cluster.reason("job-2")
    assert reason is not None
    assert (reason["code"], reason["unblock"]) == ("TooManySubmitted", "2 of the submitted jobs end")
    assert "Kueue already has 2 jobs of this bastion; at most 2 are submitted at once; 1 waiting" in reason["message"]
    cluster.cancel("job-0")
    cluster.run_until(lambda: len(cluster.slices.created) == 3, steps=30)
    assert cluster.status("job-1") == "ACTIVE"


def test_a_change_of_the_mode_concerns_the_next_attempts_only(effects: Effects) -> None:
    cluster = in_kueue()
    cluster.submit("queued", instance_type=SLICE)
    cluster.settle(3)
    cluster.write_settings(SETTINGS.replace('queue = "bastion-{project}"', "").encode())
    cluster.submit("ours", instance_type=SLICE)
    pass_time(cluster, HOUR)
    reason = cluster.reason("ours")
    assert reason is not None
    assert reason["code"] == "UnknownType"  # now the quota file counts
    assert (attempt(cluster, "queued").charged, effects.stops) == ({}, [])
    cluster.slices.kueue.most = None
    cluster.run_until(lambda: cluster.hosts.live("queued"), steps=20)
    assert effects.stops == []


@pytest.mark.parametrize("seed", range(SEEDS))
def test_over_whole_lives_only_kueue_their_owners_and_faults_stop_them(seed: int, effects: Effects) -> None:
    """Random admissions, evictions, silence of the cluster and crashes of the daemon; each stop has its cause."""
    draw = random.Random(seed)
    cluster = in_kueue(quota=QUOTA + LONG_QUEUES)
    slices, names = cluster.slices, [f"job-{number}" for number in range(6)]
    for name in names:
        cluster.hosts.scripts[name] = runs_for(draw.choice((3, 30, 300)))
        cluster.submit(name, instance_type=SLICE, priority=draw.randint(1, 5))
    evicted: set[str] = set()
    cancelled: set[str] = set()
    for _ in range(150):
        slices.kueue.most = draw.choice((0, 1, 2, 6))
        for present in slices.list(PLACE):
            admitted = present.kueue is not None and present.kueue.admitted
            if admitted and present.state is not GangState.DELETING and draw.random() < 0.02:
                slices.evict(present.ref.name, "reclaimed")
                evicted.add(present.run.rpartition("-")[0])
        name = draw.choice(names)
        if draw.random() < 0.005 and name not in cancelled and cluster.record(name) is not None:
            cluster.cancel(name)
            cancelled.add(name)
        if draw.random() < 0.02:
            cluster.restart_daemon()
        slices.down = draw.random() < 0.1
        cluster.daemon.tick()
        slices.down = False
        cluster.hosts.step(slices.live_slices())
        cluster.clock.advance(draw.choice((1.0, 1.0, 30.0)))
    slices.kueue.most = None
    cluster.run_until(lambda: all(cluster.result(name) for name in names), steps=600)
    uids = {name: cluster.json(keys.complete(name))["result"]["uid"] for name in names}
    for name, cause in effects.stops:
        assert cause in (Cause.SUCCEEDED, Cause.EVICTED, Cause.CANCELLED)
        assert cause is not Cause.EVICTED or uids[name] in evicted
        assert cause is not Cause.CANCELLED or name in cancelled
    ends = {name: (cluster.result(name) or {})["outcome"] for name in names}
    assert all(ends[name] == "succeeded" for name in set(names) - cancelled)
    assert not slices.existing_requests()


def test_a_recorded_tick_has_what_kueue_said(monkeypatch: pytest.MonkeyPatch) -> None:
    ticks: list[tuple[TickInput, TickOutput]] = []

    def recording(given: TickInput, *scheduler: Any) -> TickOutput:
        output = decide(given, *scheduler)
        ticks.append((given, output))
        return output

    monkeypatch.setattr(daemon_tick, "decide", recording)
    cluster = in_kueue()
    cluster.submit("job", instance_type=SLICE)
    cluster.settle(4)
    given, output = ticks[-1]
    gang_seen = given.world.jobs["job"].attempt.gang
    assert gang_seen is not None
    assert gang_seen.kueue is not None
    again = recorded_tick.read(recorded_tick.to_bytes(given, output, quota_file=QUOTA)).given
    assert again.snapshot.jobs == given.snapshot.jobs
    known = again.world.jobs["job"].attempt.gang
    assert known is not None
    assert known.kueue == gang_seen.kueue
