"""Waiting for capacity: recorded, shown, turned to the next zone, and given up when its owner says so."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import pytest

from bastion.cli import phrases
from bastion.core import limits
from bastion.core.bucket import keys
from bastion.core.errors import ProvisionerUnavailable
from bastion.core.instants import from_rfc3339
from bastion.core.model.gangs import GangState, GangStatus
from bastion.core.model.job_record import JobRecord
from bastion.core.status.document import JobEntry
from bastion.testing.cluster import QUOTA, Cluster
from bastion.testing.scripted_hosts import runs_for

NEAR, FAR = "us-central2-b", "europe-west4-b"
WORD = "WAITING_FOR_RESOURCES"


def in_zones(*zones: str, more: str = "") -> Cluster:
    cluster = Cluster(without_settings=None)
    named = ", ".join(f'"{zone}"' for zone in zones)
    text = f'project = "p"\n[types.v4]\nzones = [{named}]\nservice_account = "w@p"\n[[tiers]]\nmodel = "spot"\n{more}'
    cluster.write_settings(text.encode())
    cluster.hosts.scripts["job"] = runs_for(2)
    return cluster


def record(cluster: Cluster) -> JobRecord:
    found = cluster.record("job")
    assert found is not None
    return found


def entry(cluster: Cluster) -> dict[str, Any]:
    [found] = cluster.json(keys.STATUS)["jobs"]
    assert isinstance(found, dict)
    return found


def minutes(cluster: Cluster, number: float) -> None:
    for _ in range(int(number * 12)):
        cluster.step(5)


def test_a_gang_that_waits_for_capacity_is_shown_with_the_apis_word_since_when_and_where() -> None:
    cluster = in_zones(NEAR)
    cluster.slices.waits[NEAR] = WORD
    cluster.submit("job", instance_type="tpu-v4-16")
    cluster.settle(4)
    minutes(cluster, 12)
    assert (
        phrases.progress(JobEntry.model_validate(entry(cluster)), cluster.clock.now())
        == f"provisioning: {WORD} for 12m in {NEAR}"
    )
    assert any(f"is waiting for capacity in {NEAR}: {WORD}" in line for line in cluster.history("job"))


def test_a_change_of_the_apis_word_is_shown_and_does_not_begin_the_wait_anew() -> None:
    cluster = in_zones(NEAR)
    cluster.slices.waits[NEAR] = "ACCEPTED"
    cluster.submit("job", instance_type="tpu-v4-16")
    cluster.settle(5)
    before = entry(cluster)["waiting"]
    cluster.slices.waits[NEAR] = WORD
    cluster.settle(10)
    assert entry(cluster)["waiting"] == {**before, "state": WORD}
    assert sum("waiting for capacity" in line for line in cluster.history("job")) == 1


def test_the_time_for_hosts_to_come_up_begins_when_there_is_capacity() -> None:
    cluster = in_zones(NEAR)
    cluster.slices.waits[NEAR] = WORD
    cluster.slices.ready_seconds = limits.PROVISION_TIMEOUT_SECONDS * 0.9
    cluster.submit("job", instance_type="tpu-v4-16")
    minutes(cluster, 91)
    del cluster.slices.waits[NEAR]
    cluster.settle(3)
    assert "waiting" not in entry(cluster)
    assert any("got capacity" in line and "1h30m" in line for line in cluster.history("job"))
    minutes(cluster, limits.PROVISION_TIMEOUT_SECONDS / 60)
    result = cluster.result("job")
    assert result is not None
    assert [attempt["cause"] for attempt in result["attempts"]] == ["succeeded"]


def test_hosts_that_do_not_come_up_after_there_was_capacity_are_given_up() -> None:
    cluster = in_zones(NEAR)
    cluster.slices.waits[NEAR] = WORD
    cluster.slices.ready_seconds = 1e9
    cluster.submit("job", instance_type="tpu-v4-16")
    minutes(cluster, 10)
    del cluster.slices.waits[NEAR]
    cluster.settle(3)
    minutes(cluster, limits.PROVISION_TIMEOUT_SECONDS / 60 - 2)
    assert record(cluster).attempts == ()
    minutes(cluster, 3)
    assert [past.cause.value for past in record(cluster).attempts] == ["infrastructure"]


@pytest.mark.parametrize(("hosts", "factor"), [(4, 1), (64, 2), (256, 3)])
def test_large_gangs_get_more_time_to_come_up(hosts: int, factor: int) -> None:
    cluster = Cluster(quota=QUOTA.replace(b"v4 = 64", b"v4 = 4096"))
    cluster.slices.ready_seconds = 1e9
    cluster.submit("job", instance_type=f"tpu-v4-{hosts * 8}")
    cluster.settle(2)
    for _ in range(int(factor * limits.PROVISION_TIMEOUT_SECONDS / 60) - 1):
        cluster.step(60)
    assert record(cluster).attempts == ()
    for _ in range(4):
        cluster.step(60)
    assert [past.cause.value for past in record(cluster).attempts] == ["infrastructure"]


# -- zones ------------------------------------------------------------------------------------------------------------


def test_after_a_quarter_of_an_hour_without_capacity_the_next_zone_is_asked_and_its_capacity_taken() -> None:
    cluster = in_zones(NEAR, FAR)
    cluster.slices.waits[NEAR] = WORD
    cluster.submit("job", instance_type="tpu-v4-16")
    cluster.settle(4)
    minutes(cluster, limits.ZONE_WAIT_SECONDS / 60 - 1)
    assert [request.ref.zone for request in cluster.slices.created] == [NEAR]
    cluster.run_until(lambda: cluster.result("job"), steps=200)
    result = cluster.result("job")
    assert result is not None
    assert [(a["zone"], a["cause"]) for a in result["attempts"]] == [(NEAR, "capacity"), (FAR, "succeeded")]
    assert cluster.slices.list(NEAR) == []


def test_a_wait_in_the_only_zone_is_not_given_up() -> None:
    cluster = in_zones(NEAR)
    cluster.slices.waits[NEAR] = WORD
    cluster.submit("job", instance_type="tpu-v4-16")
    minutes(cluster, 10 * limits.ZONE_WAIT_SECONDS / 60)
    assert len(cluster.slices.created) == 1


def test_zones_are_asked_in_turns_and_a_pause_comes_when_each_was() -> None:
    cluster = in_zones(NEAR, FAR)
    cluster.slices.stockouts = 10**6
    cluster.submit("job", instance_type="tpu-v4-16")
    minutes(cluster, 20)
    past = record(cluster).attempts
    assert [attempt.zone for attempt in past[:6]] == [NEAR, FAR] * 3
    gaps = [b.started_at - a.ended_at for a, b in pairwise(past)]
    assert max(gaps[0::2]) <= 5 < min(gaps[1::2])
    assert gaps[1] < gaps[3] < gaps[5]


def test_a_silent_zone_is_passed_over_and_turns_go_on_after_the_one_that_was_asked() -> None:
    cluster = in_zones(NEAR, FAR)
    cluster.slices.stockouts = 1
    plain = cluster.slices.list

    def silent(zone: str = "") -> Sequence[GangStatus]:
        if zone == NEAR:
            raise ProvisionerUnavailable("no answer")
        return plain(zone)

    cluster.slices.list = silent  # type: ignore[method-assign]
    cluster.submit("job", instance_type="tpu-v4-16")
    cluster.settle(2)
    cluster.run_until(lambda: record(cluster).capacity_failures, steps=20)
    assert [past.zone for past in record(cluster).attempts] == [FAR]
    del cluster.slices.list
    cluster.run_until(lambda: cluster.result("job"), steps=60)
    assert [request.ref.zone for request in cluster.slices.created] == [NEAR]


def test_a_job_that_had_its_capacity_goes_on_in_that_zone() -> None:
    cluster = in_zones(NEAR, FAR)
    cluster.hosts.scripts["job"] = runs_for(1e9)
    cluster.slices.stockouts = 1
    cluster.submit("job", instance_type="tpu-v4-16")
    cluster.run_until(lambda: cluster.hosts.live("job"), steps=60)
    cluster.settle(2)
    assert record(cluster).capacity_failures == 0
    cluster.slices.put_into(cluster.slices.created[-1].ref.name, GangState.LOST)
    cluster.run_until(lambda: len(cluster.slices.created) == 2, steps=60)
    assert [request.ref.zone for request in cluster.slices.created] == [FAR, FAR]


# -- max_wait ---------------------------------------------------------------------------------------------------------


def test_a_job_that_may_wait_so_long_fails_then_with_75_and_says_so() -> None:
    cluster = in_zones(NEAR, FAR)
    cluster.slices.waits = {NEAR: WORD, FAR: WORD}
    cluster.submit("job", instance_type="tpu-v4-16", max_wait_seconds=7200)
    began = cluster.clock.now()
    minutes(cluster, 115)
    assert cluster.result("job") is None
    minutes(cluster, 10)
    result = cluster.result("job")
    assert result is not None
    assert (result["outcome"], result["exit_code"]) == ("failed", 75)
    assert "no capacity for 2h, the limit set by --max_wait" in result["message"]
    assert cluster.clock.now() - began < 7600
    assert {attempt["cause"] for attempt in result["attempts"]} == {"capacity"}
    assert cluster.slices.existing_requests() == []


def test_stockouts_count_towards_it_with_their_pauses_and_it_ends_with_one_last_try() -> None:
    cluster = in_zones(NEAR)
    cluster.slices.stockouts = 10**6
    cluster.submit("job", instance_type="tpu-v4-16", max_wait_seconds=1200)
    began = cluster.clock.now()
    minutes(cluster, 30)
    result = cluster.result("job")
    assert result is not None
    assert result["exit_code"] == 75
    last = result["attempts"][-1]
    assert 1200 <= from_rfc3339(last["ended_at"]) - began <= 1300


def test_what_a_job_waits_for_its_projects_share_does_not_count() -> None:
    cluster = in_zones(NEAR)
    cluster.hosts.scripts["big"] = runs_for(3000)
    cluster.submit("big", instance_type="tpu-v4-64")
    cluster.run_until(lambda: cluster.hosts.live("big"))
    cluster.submit("job", instance_type="tpu-v4-16", max_wait_seconds=600)
    minutes(cluster, 60)
    result = cluster.result("job")
    assert result is not None
    assert result["outcome"] == "succeeded"


def test_a_request_outlives_what_its_owner_lets_it_wait_so_that_a_dead_daemon_leaves_none_for_ever() -> None:
    cluster = in_zones(NEAR)
    cluster.submit("job", instance_type="tpu-v4-16", max_wait_seconds=600)
    cluster.settle(3)
    [request] = cluster.slices.created
    assert request.valid_until_seconds == 600 + limits.VALID_UNTIL_SLACK_SECONDS
