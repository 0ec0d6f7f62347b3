"""`bastion quota whatif`: on a simulated bastion, and on a folder with what a bastion left there."""

from __future__ import annotations

import json
import time
from pathlib import Path

import pytest

from bastion.adapters.folder.store import DirectoryStore
from bastion.client.quota import whatif as quota_whatif
from bastion.core import documents
from bastion.core.bucket import keys
from bastion.core.instants import to_rfc3339
from bastion.testing.cluster import BASTION
from tests.cli.quota_files import shares
from tests.support.job_specs import new_spec

HOUR = 3600.0


def keep_result(
    store,
    name: str,
    *,
    queued: float,
    began: float,
    ended: float,
    project: str = "a",
    user: str = "alice",
    kind: str = "tpu-v4-32",
    cause: str = "succeeded",
) -> None:
    """What a daemon leaves of a job that is over."""
    spec = new_spec(
        name, bastion=BASTION, command="x", user_id=user, project_id=project, now=queued, instance_type=kind
    )
    attempt = {"number": 1, "started_at": to_rfc3339(began), "ended_at": to_rfc3339(ended), "cause": cause}
    result = {"uid": f"uid-{name}", "outcome": cause, "queued_at": to_rfc3339(queued), "attempts": [attempt]}
    document = {**json.loads(spec.to_bytes()), "result": result}
    store.put(keys.complete(name), documents.dumps(document), generation=0)


def a_week_of_b_waiting(store, now: float) -> None:
    """Every day a takes the whole pool for twelve hours, and b's job comes an hour later and runs for two."""
    for day in range(7):
        at = now - (7 - day) * 24 * HOUR
        keep_result(store, f"a-{day}", queued=at, began=at, ended=at + 12 * HOUR, kind="tpu-v4-64")
        came, began = at + HOUR, at + 12 * HOUR
        keep_result(store, f"b-{day}", queued=came, began=began, ended=began + 2 * HOUR, project="b", user="bob")


@pytest.fixture
def busy(bastion):
    """a-run of alice holds the whole pool, which is a's alone; b-wait of bob waits. Behind them lies a week."""
    bastion.clock.advance(30 * 24 * HOUR)
    bastion.write_quota(shares(1, 0))
    a_week_of_b_waiting(bastion.store, bastion.clock.now())
    bastion.submit("a-run", instance_type="tpu-v4-64")
    bastion.settle(4)
    bastion.submit("b-wait", user="bob", project="b", instance_type="tpu-v4-32")
    bastion.settle(4)
    return bastion


def ask(run, *argv: str):
    done = run("quota", "whatif", *argv, "--output=json", code=0)
    return json.loads(done.out)


def test_who_waits_shorter_is_told_by_project_and_nothing_is_written(run, busy, new) -> None:
    before = busy.listed()
    done = run("quota", "whatif", str(new), code=0)
    assert "  a: v4 64 -> 32 (-32)\n  b: v4 0 -> 32 (+32)\n" in done.out
    assert "Running jobs that would stop: 1\n  a-run of project a, user alice" in done.out
    assert "Waiting jobs: 1; estimated start (p50)\n" in done.out
    assert "  b-wait  b        in 11h59m  in 1m  11h58m sooner\n" in done.out
    # The owner waits for the grace period and the deletion of the nodes instead of eleven hours.
    (b,) = [line for line in done.out.splitlines() if line.startswith("  b  ") and "shorter" in line]
    assert "8     11h8m -> 1m   11h7m shorter  11h1m -> 1m" in b
    assert "no earlier job is known" in done.out
    assert busy.listed() == before


def test_the_json_has_the_queue_and_the_past_by_stable_names(run, busy, new) -> None:
    told = ask(run, str(new))
    assert told["against"].endswith("memory/test-bastion/project-quotas/project-quotas.config (generation 2)")
    assert [stopped["name"] for stopped in told["jobs"]["stopped"]] == ["a-run"]
    (waiting,) = told["queue"]["jobs"]
    assert (waiting["name"], waiting["project_id"], waiting["user_id"]) == ("b-wait", "b", "bob")
    assert waiting["after"]["p50"] < waiting["before"]["p50"]
    past = told["past"]
    assert (past["days"], past["from_ended_jobs"], past["jobs_of_unknown_duration"]) == (14, 14, 0)
    # What a project gives back is lent after five minutes, and the replay looks once a minute.
    assert 11 * HOUR <= past["projects"]["b"]["before"]["wait_p50_seconds"] <= 11 * HOUR + 360
    assert past["projects"]["b"]["after"]["wait_p50_seconds"] < 300
    assert past["projects"]["a"]["before"]["evictions"] == 0
    assert past["projects"]["a"]["after"]["evictions"] >= 7
    assert past["projects"]["b"]["after"]["held_unit_seconds"]["v4"] == pytest.approx(7 * 2 * HOUR * 32, rel=0.01)
    assert set(past["total"]["before"]) == {
        "jobs",
        "never_start",
        "wait_mean_seconds",
        "wait_p50_seconds",
        "wait_p95_seconds",
        "evictions",
        "overtime",
        "held_unit_seconds",
    }
    assert ask(run, str(new)) == told


def test_the_same_file_changes_nothing(run, busy, tmp_path) -> None:
    same = tmp_path / "same.config"
    same.write_bytes(shares(1, 0))
    told = ask(run, str(same))
    assert told["past"]["total"]["before"] == told["past"]["total"]["after"]
    assert all(one["before"] == one["after"] for one in told["queue"]["jobs"])
    done = run("quota", "whatif", str(same))
    assert "no changes" in done.out
    assert "->" not in done.out


def test_fewer_days_cover_less(run, busy, new) -> None:
    told = ask(run, str(new), "--days=2")
    assert told["past"]["why"] is None
    assert told["past"]["total"]["before"]["jobs"] == 5  # b-5, a-6, b-6, a-run and b-wait
    assert "The last 2 days, replayed under both files\n" in run("quota", "whatif", str(new), "--days=2").out
    assert run("quota", "whatif", str(new), "--days=0").code == 64


def test_jobs_of_who_is_no_member_any_more_never_start_and_are_named(run, busy, tmp_path) -> None:
    without = tmp_path / "without.config"
    without.write_bytes(shares(1, 1, members='[project_membership]\na = ["alice"]\nb = ["carol"]\n'))
    done = run("quota", "whatif", str(without))
    assert "Waiting jobs that could no longer start: 1\n  b-wait: user bob is not a member of project b" in done.out
    assert "unknown then for b-wait: not waiting for capacity (NotMember)" in done.out
    assert "Jobs of these days that would never start: 8\n  b-0 of project b, user bob: user bob is not" in done.out
    told = ask(run, str(without))["past"]
    assert told["projects"]["b"]["after"]["never_start"] == 8
    assert told["projects"]["b"]["after"]["wait_mean_seconds"] is None
    assert [one["name"] for one in told["never_after"]] == [f"b-{day}" for day in range(7)] + ["b-wait"]
    assert told["never_before"] == []


def test_without_history_the_present_queue_is_told_alone(run, bastion, new) -> None:
    bastion.write_quota(shares(1, 0))
    bastion.submit("a-run", instance_type="tpu-v4-64")
    bastion.settle(4)
    bastion.submit("b-wait", user="bob", project="b", instance_type="tpu-v4-32")
    bastion.settle(4)
    done = run("quota", "whatif", str(new), code=0)
    assert "  b-wait  b        unknown  in 1m\n" in done.out
    assert "unknown now for b-wait: no duration estimate for a job ahead" in done.out
    assert "Cannot replay the last days: no job has ended in the last 14 days\n" in done.out
    past = ask(run, str(new))["past"]
    assert (past["covered"], past["total"], past["projects"]) == (None, None, {})


def test_two_files_are_compared_on_a_folder_that_no_daemon_serves(run, new, tmp_path: Path) -> None:
    root = tmp_path / "bucket" / "test-bastion"
    (tmp_path / "bucket").mkdir()
    store = DirectoryStore(root)
    a_week_of_b_waiting(store, time.time())
    old = tmp_path / "old.config"
    old.write_bytes(shares(1, 0))
    told = ask(run, str(new), f"--against={old}", f"--root={root}")
    assert told["against"] == str(old)
    assert told["queue"] == {"jobs": [], "untold": 0}
    assert told["past"]["projects"]["b"]["after"]["wait_p50_seconds"] < 300
    assert "There are no jobs now" in run("quota", "whatif", str(new), f"--against={old}", f"--root={root}").out
    none = run("quota", "whatif", str(new), f"--root={root}", code=64)
    assert "there is nothing to compare with; use --against=FILE" in none.err


def test_a_broken_file_is_told_line_by_line(run, busy, new, tmp_path) -> None:
    broken = tmp_path / "broken.config"
    broken.write_bytes(shares(1, 0).replace(b"v4 = 64", b'v4 = "64"'))
    done = run("quota", "whatif", str(broken))
    assert (done.code, done.out) == (64, "")
    assert done.err == run("quota", "check", str(broken)).err
    assert json.loads(run("quota", "whatif", str(broken), "--output=json").out)["problems"][0]["line"] == 4
    other = run("quota", "whatif", str(new), f"--against={broken}", code=64)
    assert "line 4" in other.err
    assert run("quota", "whatif", "-", "--against=-").code == 64


def test_a_daemon_that_is_gone_is_told(run, busy, new) -> None:
    busy.daemon.close()
    done = run("quota", "whatif", str(new), code=0)
    assert "the daemon has ended, so the information about jobs may be out of date" in done.err


def test_more_results_than_are_read_leave_the_last_days_only(run, busy, new, monkeypatch) -> None:
    monkeypatch.setattr(quota_whatif, "RESULTS_MAX", 4)
    past = ask(run, str(new))["past"]
    assert past["why"] == "more than 4 jobs have ended since then"
    assert past["from_ended_jobs"] == 4
    assert "of 14 days, replayed under both files: more than 4 jobs" in run("quota", "whatif", str(new)).out


def test_work_that_would_take_too_long_leaves_the_last_days_only(run, busy, new, monkeypatch) -> None:
    monkeypatch.setattr(quota_whatif, "WORK_MAX", 200)
    past = ask(run, str(new))["past"]
    assert past["why"] == "a longer replay would take too long"
    monkeypatch.setattr(quota_whatif, "WORK_MAX", 1)
    past = ask(run, str(new))["past"]
    assert past["covered"] is None
    assert "too many jobs to replay" in past["why"]
