"""What the commands say of jobs that the queue has no room for."""

from __future__ import annotations

import json

import pytest

from bastion.testing.cluster import QUOTA

LIMITS = b"[project_rules]\nmax_queued_jobs_per_user = 2\nmax_queued_jobs = 100\n"


@pytest.fixture
def full(bastion):
    """Alice may queue two jobs of project a, and has submitted four that are too large to start."""
    bastion.write_quota(QUOTA + LIMITS)
    for number in range(4):
        bastion.clock.advance(1)
        bastion.submit(f"job-{number}", instance_type="tpu-v4-128")
    bastion.settle(3)
    return bastion


NUMBERS = "the user has 2 queued, and the limit is 2"


def test_list_counts_them_and_says_what_helps(run, full) -> None:
    done = run("list", code=0)
    assert f"2 jobs of user alice in project a are not in the queue yet: {NUMBERS}" in done.err
    assert "raise max_queued_jobs_per_user in the quota file" in done.err
    rows = [line.split()[:2] for line in done.out.splitlines()[1:]]
    assert rows == [["job-0", "queued"], ["job-1", "queued"], ["job-2", "submitted"], ["job-3", "submitted"]]
    document = json.loads(run("list", "--output=json").out)
    assert document["unread"] == ["job-2", "job-3"]
    assert document["backlog"] == [
        {
            "project_id": "a",
            "user_id": "alice",
            "jobs": 2,
            "queued": 2,
            "limit": 2,
            "rule": "max_queued_jobs_per_user",
        }
    ]


def test_list_shows_no_more_than_twenty_of_them(run, full) -> None:
    for number in range(4, 40):
        full.submit(f"job-{number}", instance_type="tpu-v4-128")
    full.settle(3)
    done = run("list")
    assert sum(" submitted " in line for line in done.out.splitlines()) == 20
    assert "18 more submitted jobs are not shown" in done.err


def test_why_says_with_numbers_that_there_is_no_room(run, full) -> None:
    done = run("why", "job-3", code=0)
    assert "job-3 is submitted, but not queued yet (NotYetEvaluated)" in done.out
    assert NUMBERS in done.out
    reason = json.loads(run("why", "job-3", "--output=json").out)["reason"]
    assert (reason["code"], reason["backlog"]["limit"]) == ("NotYetEvaluated", 2)
    assert "job-0 is queued;" in run("why", "job-0").out


def test_launch_says_it_where_nobody_waits_and_the_job_can_be_cancelled(run, full) -> None:
    done = run("launch", "--name=one-more", "--project_id=a", "--", "x", code=0)
    assert NUMBERS in done.err
    full.settle(3)
    cancelled = run("cancel", "--wait", "one-more", code=0)
    assert NUMBERS in cancelled.err
    full.cancel("job-0")
    full.cancel("job-1")
    full.settle(8)
    assert "not in the queue yet" not in run("list").err


def test_users_of_no_project_are_told_to_become_members(run, full, monkeypatch) -> None:
    monkeypatch.setattr("bastion.core.limits.OUTSIDERS_QUEUED_JOBS_MAX", 1)
    for name in ("first", "second"):
        full.submit(name, user="stranger", project="none")
    full.settle(3)
    assert "they have 1 queued, and the limit is 1" in run("why", "second").out
