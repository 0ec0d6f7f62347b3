"""`bastion quota check`: what a file promises to nobody, told of projects and, with a bastion, of its jobs."""

from __future__ import annotations

import json

import pytest

from bastion.cli.quota import fit
from bastion.core import documents
from bastion.core.bucket import keys
from quota import Policy, ProjectRules, load
from scheduler import Job

FILE = """\
[toml-schema]
version = "1"
[total_resources]
v4 = 64
mystery = 64
[project_membership]
a = ["alice"]
b = ["bob"]
c = ["carol"]
[project_resources.a]
v4 = 0.9
mystery = 0.01
[project_resources.b]
v4 = 0.1
mystery = 0.99
[project_resources.c]
v4 = 0
"""


@pytest.fixture
def file(tmp_path) -> str:
    (tmp_path / "new.toml").write_text(FILE)
    return "new.toml"


def test_projects_that_are_entitled_to_less_than_a_slice_are_named(run, file) -> None:
    done = run("quota", "check", file)
    assert (done.code, done.err) == (0, "")
    assert done.out.endswith(
        "\n\nShares smaller than the smallest slice: 1\n"
        "  project b has a share of 6 v4 and can only borrow: the smallest slice is tpu-v4-8\n"
    )
    document = json.loads(run("quota", "check", file, "--output=json").out)
    assert document["shares_below_a_slice"] == [
        {"project_id": "b", "resource_type": "v4", "entitlement": 6, "smallest": "tpu-v4-8"}
    ]
    assert document["jobs_beyond_their_share"] is None
    assert document["rules"]["default"]["grace_seconds"] == 60.0
    assert document["rules"]["projects"] == {}


def test_a_file_without_such_projects_says_nothing_of_them(run, tmp_path) -> None:
    (tmp_path / "good.toml").write_text(FILE.replace("v4 = 64", "v4 = 1024"))
    assert "smallest slice" not in run("quota", "check", "good.toml").out


def test_a_file_without_an_end_is_refused(run) -> None:
    done = run("quota", "check", "/dev/zero", code=64)
    assert done.err == "bastion: /dev/zero: the file is larger than 1048576 bytes; use patterns for members\n"


def test_a_bastions_jobs_beyond_their_share_under_this_file_are_named(run, bastion, file) -> None:
    bastion.write_quota(FILE.replace("v4 = 64", "v4 = 1024").encode())
    for name, size in (("fits", 32), ("gang", 64), ("huge", 128)):
        bastion.submit(name, instance_type=f"tpu-v4-{size}")
    bastion.settle(3)
    root = "--root=memory/test-bastion"
    done = run("quota", "check", file, root)
    assert (done.code, done.err) == (0, "")
    assert done.out.endswith(
        "\n\nJobs larger than their project's share: 2\n"
        "  huge of project a can never run: needs 128 v4; the pool has 64\n"
        "  gang of project a can only run on borrowed units: "
        "needs 64 v4; its project's share is 57\n"
    )
    document = json.loads(run("quota", "check", file, root, "--output=json").out)
    assert [(job["name"], job["never"]) for job in document["jobs_beyond_their_share"]] == [
        ("huge", True),
        ("gang", False),
    ]


def test_where_no_daemon_has_told_of_jobs_that_is_said(run, bastion, file) -> None:
    done = run("quota", "check", file, "--root=memory/test-bastion", code=0)
    assert "cannot list the jobs: no daemon has published a status" in done.err
    bastion.settle(1)
    status = bastion.json(keys.STATUS)
    generation = bastion.store.head(keys.STATUS).generation
    broken = documents.dumps({**status, "format": 1, "jobs": [{"name": "x"}]})
    bastion.store.put(keys.STATUS, broken, generation=generation)
    assert (
        "cannot list the jobs: status/current.json: it is not as a daemon writes it: jobs.0"
        in run("quota", "check", file, "--root=memory/test-bastion").err
    )


def job(name: str, project: str, **demand: int) -> Job:
    return Job(name=name, project_id=project, user_id="u", queued_at=0.0, demand=demand)


def test_limits_of_borrowing_and_lending_make_a_job_impossible() -> None:
    policy = load(FILE.encode())
    limited = Policy(
        tiers=policy.tiers,
        weights=policy.weights,
        members=policy.members,
        project_rules={"a": ProjectRules(borrowing_limit={"v4": 2}), "b": ProjectRules(lending_limit={"v4": 0})},
    )
    jobs = [job("z", "a", v4=60), job("y", "c", v4=60), job("x", "gone", v4=58), job("w", "gone", v4=59, mystery=1)]
    assert [str(misfit) for misfit in fit.misfits(limited, jobs)] == [
        "w of project gone can never run: needs 59 v4; the borrowing and lending limits allow at most 58",
        "y of project c can never run: needs 60 v4; the borrowing and lending limits allow at most 58",
        "z of project a can never run: needs 60 v4; the borrowing and lending limits allow at most 58",
        "x of project gone can only run on borrowed units: needs 58 v4; its project is not in this file",
    ]
    assert fit.misfits(limited, [job("ok", "a", v4=57), job("nothing", "gone")]) == []


def test_many_are_counted() -> None:
    policy = load(FILE.encode())
    told = list(fit.lines(fit.misfits(policy, [job(f"j{n:02}", "c", v4=8) for n in range(33)]), "Jobs"))
    assert told[:2] == ["", "Jobs: 33"]
    assert told[-1] == "  and 3 more (use --output=json to see all)"
    assert len(told) == 33


def test_a_type_that_has_left_the_pool_is_warned_of_and_keeps_the_file_in_force(run, bastion, tmp_path) -> None:
    text = FILE.replace("mystery = 64\n", "")
    (tmp_path / "new.toml").write_text(text)
    done = run("quota", "check", "new.toml", code=0)
    assert "[project_resources.a] has 'mystery', which is not in total_resources; it is ignored" in done.out
    # A daemon that knows nothing yet has no last good file to go on with.
    bastion.write_quota(text.encode())
    bastion.restart_daemon()
    bastion.submit("job", instance_type="tpu-v4-8")
    bastion.settle(4)
    assert bastion.status("job") == "ACTIVE"
    assert bastion.json(keys.STATUS)["quota"]["problem"] == ""
