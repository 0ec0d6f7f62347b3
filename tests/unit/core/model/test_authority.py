"""Who may change whose job."""

from __future__ import annotations

import pytest

import quota
from bastion.core.model import job_spec
from bastion.core.model.authority import may_end, may_update

POLICY = quota.load(
    b"""
[toml-schema]
version = "1"
[total_resources]
v4 = 8
[project_membership]
a = ["alice", "bob"]
b = ["dan"]
[project_resources.a]
v4 = 1
[admins]
bastion = ["carol"]
[admins.projects]
a = ["ann"]
b = ["dan"]
"""
)
JOB = job_spec.new(
    name="job",
    bastion="x-bastion",
    command="true",
    user_id="alice",
    project_id="a",
    now=0.0,
    options=job_spec.JobOptions(),
)


@pytest.mark.parametrize(
    ("user", "ends", "updates"),
    [
        ("alice", True, True),  # who submitted it
        ("ann", True, False),  # admin of its project
        ("carol", True, False),  # admin of the bastion
        ("bob", False, False),  # a member of the project
        ("dan", False, False),  # admin of another project
        ("", False, False),
        ("Alice", False, False),
    ],
)
def test_submitter_and_admins_end_a_job_and_only_its_submitter_updates_it(user: str, ends: bool, updates: bool) -> None:
    assert may_end(user, JOB, POLICY) == ends
    assert may_update(user, JOB) == updates


def test_without_a_quota_file_there_are_no_admins() -> None:
    assert may_end("alice", JOB, None)
    assert not may_end("carol", JOB, None)
