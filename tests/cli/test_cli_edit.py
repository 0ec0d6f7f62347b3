"""`bastion edit` and `bastion rerun`."""

from __future__ import annotations

import json

import pytest

from bastion.testing.scripted_hosts import runs_for


@pytest.fixture
def running(bastion):
    """A job that runs, and one that waits for its slices."""
    bastion.hosts.scripts["first"] = runs_for(100_000)
    bastion.submit("first", instance_type="tpu-v4-64")
    bastion.run_until(lambda: bastion.hosts.live("first"))
    bastion.submit("job", instance_type="tpu-v4-64")
    bastion.settle(3)
    return bastion


def test_a_waiting_job_is_changed_and_keeps_its_place(run, running) -> None:
    queued_at = running.record("job").queued_at
    done = run("edit", "job", "--priority=1", "--max_run=2h", "--label=team=vision", "--output=json")
    assert json.loads(done.out)["version"] == 1
    assert not json.loads(done.out)["restarts"]
    running.settle(3)
    record = running.record("job")
    assert (record.job.priority, record.job.limits.max_run_seconds, record.queued_at) == (1, 7200, queued_at)
    assert record.job.labels == {"team": "vision"}
    history = run("history", "job").out
    assert "updated to version 1: max_run_seconds none -> 7200, labels, priority 5 -> 1" in history
    assert "is like this already" in run("edit", "job", "--priority=1", code=64).err
    run("edit", "job", "--max_run=none")
    running.settle(3)
    assert running.record("job").job.limits.max_run_seconds is None


def test_a_running_job_goes_on_unless_the_change_is_part_of_what_runs(run, running) -> None:
    attempt = running.record("first").attempt.number
    assert "its attempt" not in run("edit", "first", "--priority=2").err
    running.settle(3)
    assert running.record("first").job.priority == 2
    assert running.record("first").attempt.number == attempt
    refused = run("edit", "first", "--env=LR=0.1", code=2)
    assert "first runs, and this needs a restart" in refused.err
    assert running.record("first").job.version == 1
    assert "its attempt is stopped" in run("edit", "first", "--env=LR=0.1", "--yes", "--", "other").err
    running.run_until(lambda: running.record("first").job.version == 2)
    assert running.record("first").job.env_vars == {"LR": "0.1"}
    assert running.record("first").job.command == "other"


@pytest.mark.parametrize(
    ("argv", "said"),
    [
        (["none", "--priority=1"], "no such job"),
        (["job"], "name what to change"),
        (["job", "--project="], "--project is empty"),
        (["job", "--project=nowhere"], "nowhere"),
        (["job", "--max_run=soon"], "--max_run=soon is not a valid duration"),
        (["job", "--priority=9"], "priority"),
        (["job", "--priority=1", "--"], "there is no command after --"),
    ],
)
def test_a_change_that_cannot_be_is_refused_and_changes_nothing(run, running, argv, said) -> None:
    assert said in run("edit", *argv, code=64).err
    running.settle(2)
    assert running.record("job").job.version is None


def test_a_job_that_has_ended_is_run_again_the_same_or_changed(run, bastion) -> None:
    bastion.hosts.scripts["job"] = bastion.hosts.scripts["other"] = runs_for(2)
    bastion.submit("job", command="train --steps=1", priority=2)
    bastion.run_until(lambda: bastion.result("job"))
    uid = bastion.json("jobs/complete/job")["result"]["uid"]
    assert "rerun job" in run("edit", "job", "--priority=1", code=64).err
    assert "submitted job" in run("rerun", "job", "--wait").err
    document = bastion.json("jobs/complete/job")
    assert document["result"]["uid"] != uid
    assert document["command"] == "train --steps=1"
    run("rerun", "job", "--name=other", "--env=LR=1", "--priority=3", "--wait", "--", "train", "--steps=2")
    other = bastion.json("jobs/complete/other")
    assert (other["command"], other["env_vars"]) == ("train --steps=2", {"LR": "1"})
    assert (other["metadata"]["priority"], bastion.json("jobs/complete/job")["metadata"]["priority"]) == (3, 2)


def test_a_live_job_is_run_again_under_another_name_only(run, running) -> None:
    assert "already exists" in run("rerun", "first", code=64).err
    assert "submitted second" in run("rerun", "first", "--name=second").err
    assert "no such job" in run("rerun", "none", code=64).err


def test_a_job_whose_code_is_gone_is_not_run_again(run, bastion, tmp_path) -> None:
    bastion.hosts.scripts["job"] = runs_for(2)
    (tmp_path / "code").mkdir()
    (tmp_path / "code" / "train.py").write_text("print(1)")
    run("launch", "--name=job", "--project_id=a", f"--bundle={tmp_path}/code", "--wait", "--", "true")
    for key in bastion.listed("bundles/"):
        bastion.store.delete(key, generation=bastion.store.head(key).generation)
    done = run("rerun", "job", code=64)
    assert "is not in the bucket any more; launch the job anew" in done.err
