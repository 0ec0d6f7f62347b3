"""`bastion why` on when a waiting job starts, and `launch --expected_duration`, on a simulated bastion."""

from __future__ import annotations

import functools
import json
import re

import pytest

from bastion.core import documents
from bastion.core.bucket import keys
from bastion.core.instants import from_rfc3339
from bastion.core.model import job_spec
from bastion.testing.cluster import BASTION, QUOTA
from bastion.testing.scripted_hosts import runs_for, saves_every


def launch(run, name: str, *flags: str, kind: str = "tpu-v4-64"):
    return run("launch", f"--name={name}", f"--instance_type={kind}", *flags, "--", "true", code=0)


def eta(run, name: str) -> dict[str, object]:
    return json.loads(run("why", name, "--output=json").out)["eta"]


def test_a_waiting_job_is_told_when_the_declared_time_of_the_running_one_is_over(run, bastion) -> None:
    bastion.settle(2)
    launch(run, "holder", "--expected_duration=2h")
    bastion.settle(4)
    launch(run, "waiter", kind="tpu-v4-32")
    bastion.settle(2)
    bastion.clock.advance(1800)
    assert "estimated start: in 1h30m (p50 and p90), unless" in run("why", "waiter").out
    told = eta(run, "waiter")
    record = bastion.record("holder")
    assert record is not None
    assert record.attempt is not None
    assert from_rfc3339(str(told["p50"])) == pytest.approx(record.attempt.started_at + 7200, abs=0.001)
    assert (told["p10"], told["p90"], told["why"]) == (told["p50"], told["p50"], None)
    assert told["from_declared_durations"] == 1


def test_without_anything_to_go_by_the_start_is_unknown_and_it_says_why(run, bastion) -> None:
    bastion.submit("holder", instance_type="tpu-v4-64")
    bastion.settle(4)
    bastion.submit("waiter", instance_type="tpu-v4-64")
    bastion.settle(2)
    said = "no duration estimate for a job ahead"
    assert f"estimated start: unknown: {said}" in run("why", "waiter").out
    told = eta(run, "waiter")
    assert (told["p10"], told["p50"], told["p90"], told["why"]) == (None, None, None, said)
    assert told["jobs_of_unknown_duration"] == 1


def test_what_ended_jobs_of_the_kind_took_tells_how_long_the_next_takes(run, bastion) -> None:
    bastion.write_quota(QUOTA + b"[project_rules]\nkeep_idle_seconds = 0.0\n")
    for number in range(6):
        bastion.hosts.scripts[f"past-{number}"] = runs_for(30)
        bastion.submit(f"past-{number}", instance_type="tpu-v4-64")
        bastion.run_until(functools.partial(bastion.result, f"past-{number}"))
    bastion.submit("holder", instance_type="tpu-v4-64")
    bastion.settle(4)
    bastion.submit("waiter", instance_type="tpu-v4-64")
    bastion.settle(2)
    told = eta(run, "waiter")
    assert told["from_ended_jobs"] == 6
    assert told["why"] is None
    assert 0 < from_rfc3339(str(told["p50"])) - bastion.clock.now() < 240
    assert eta(run, "waiter") == told


def test_a_running_job_and_one_that_is_not_asked_about_have_no_estimate(run, bastion) -> None:
    bastion.submit("job", instance_type="tpu-v4-64")
    bastion.settle(4)
    bastion.submit("waiter", instance_type="tpu-v4-64")
    bastion.settle(2)
    assert eta(run, "job") is None
    assert "estimated start" not in run("why", "waiter", "--noeta").out
    assert json.loads(run("why", "waiter", "--noeta", "--output=json").out)["eta"] is None


def test_a_job_that_no_time_helps_gets_no_instant(run, bastion) -> None:
    bastion.submit("huge", instance_type="tpu-v4-128")
    bastion.settle(2)
    assert "estimated start: unknown: not waiting for capacity (ExceedsPool)" in run("why", "huge").out


def test_a_quota_file_that_is_not_here_is_no_reason_to_fail(run, bastion) -> None:
    bastion.submit("holder", instance_type="tpu-v4-64")
    bastion.settle(4)
    bastion.submit("waiter", instance_type="tpu-v4-64")
    bastion.settle(2)
    meta = bastion.store.head(keys.PROJECT_QUOTAS)
    bastion.store.put(keys.PROJECT_QUOTAS, b"broken = [", generation=meta.generation)
    assert "the quota file is not valid" in run("why", "waiter").out
    bastion.store.delete(keys.PROJECT_QUOTAS, generation=bastion.store.head(keys.PROJECT_QUOTAS).generation)
    assert "cannot read the quota file from here" in run("why", "waiter").out


def test_what_is_launched_with_an_expected_duration_has_it_in_its_spec_and_status(run, bastion) -> None:
    bastion.settle(2)
    launch(run, "job", "--expected_duration=1.5h", kind="tpu-v4-16")
    spec = job_spec.parse(bastion.store.get(keys.active("job")).data, name="job", bastion=BASTION)
    assert spec.runner is not None
    assert spec.runner.expected_duration_seconds == 5400
    bastion.settle(2)
    entry = json.loads(run("why", "job", "--output=json").out)["job"]
    assert entry["expected_duration_seconds"] == 5400


@pytest.mark.parametrize("value", ["2", "h", "-1h", "0s", "2 hours", "1e9d", "367d", "nan"])
def test_an_expected_duration_that_is_none_is_refused(run, bastion, value: str) -> None:
    done = run("launch", "--instance_type=tpu-v4-16", f"--expected_duration={value}", "--", "true", code=64)
    assert "is not a valid duration; write it like 45m or 2h, up to 366d" in done.err


def test_an_expected_duration_without_a_slice_is_refused(run, bastion) -> None:
    done = run("launch", "--expected_duration=2h", "--", "true", code=64)
    assert "--expected_duration applies only to slice jobs" in done.err


@pytest.mark.parametrize("value", [0, -1, "2h", 1.5, True, 10**9])
def test_a_spec_with_an_expected_duration_that_is_none_is_refused(run, bastion, value: object) -> None:
    bastion.submit("job", instance_type="tpu-v4-16")
    document = json.loads(bastion.store.get(keys.active("job")).data)
    document["name"] = "other"
    document["runner"]["expected_duration_seconds"] = value
    bastion.put_spec("other", documents.dumps(document))
    bastion.clock.advance(5)
    bastion.settle(3)
    assert "expected_duration_seconds" in run("why", "other").out


def test_a_running_job_shows_its_last_checkpoint_and_an_evicted_one_that_of_its_attempt(run, bastion) -> None:
    bastion.hosts.savings["saver"] = saves_every(60.0)
    for name in ("silent", "saver"):
        bastion.submit(name, instance_type="tpu-v4-32")
        bastion.settle(4)
    assert "checkpoint" not in run("why", "saver").out
    bastion.settle(70)
    bastion.clock.advance(300)
    assert re.search(r"running for 6m, last checkpoint 5m ago\n", run("why", "saver").out)
    assert "checkpoint" not in run("why", "silent").out
    bastion.submit("owner", user="bob", project="b", instance_type="tpu-v4-32")
    bastion.run_until(lambda: bastion.status("saver") == "PENDING")
    assert re.search(r"attempt 1 ended .* evicted: .*; last checkpoint \d+s ago\n", run("why", "saver").out)
    assert re.search(r"stopping attempt 1: evicted: .*; last checkpoint 5m ago\n", run("history", "saver").out)


TWO_SHARES = b"""
[toml-schema]
version = "1"
[total_resources]
v4 = 64
[project_membership]
research = ["alice"]
product = ["alice"]
[project_resources.research]
v4 = 0.5
[project_resources.product]
v4 = 0.5
[project_rules]
keep_idle_seconds = 300
"""


def _product_gave_32_back(bastion) -> None:
    bastion.write_quota(TWO_SHARES)
    bastion.submit("holder", instance_type="tpu-v4-32", project="research")
    bastion.hosts.scripts["short"] = runs_for(20)
    bastion.submit("short", instance_type="tpu-v4-32", project="product")
    bastion.run_until(functools.partial(bastion.result, "short"))
    bastion.submit("waiter", instance_type="tpu-v4-32", project="research")
    bastion.settle(2)


def test_a_job_that_waits_for_reserved_units_is_told_whose_they_are_and_until_when(run, bastion) -> None:
    _product_gave_32_back(bastion)
    told = run("why", "waiter").out
    until = re.search(r"32 of them reserved for project product until (\d\d:\d\d:\d\d) UTC", told)
    assert until is not None
    assert f"jobs of project research end, or the reservation ends at {until[1]} UTC, or 32 more v4 become free" in told
    assert "estimated start: in 5m (p50 and p90)" in told


def test_the_estimate_counts_what_is_reserved_also_after_the_daemon_has_been_restarted(run, bastion) -> None:
    _product_gave_32_back(bastion)
    before = eta(run, "waiter")
    bastion.restart_daemon()
    bastion.settle(2)
    assert eta(run, "waiter")["p50"] == before["p50"]
    started = bastion.run_until(lambda: bastion.status("waiter") == "ACTIVE", steps=400)
    assert started


def test_the_estimate_of_a_declared_duration_survives_a_restart_of_the_daemon(run, bastion) -> None:
    bastion.settle(2)
    launch(run, "holder", "--expected_duration=2h")
    bastion.settle(4)
    launch(run, "waiter", kind="tpu-v4-32")
    bastion.settle(2)
    before = eta(run, "waiter")
    bastion.restart_daemon()
    bastion.settle(2)
    after = eta(run, "waiter")
    assert (after["p50"], after["why"]) == (before["p50"], None)
