"""`bastion hold`, `release` and `requeue`: what they say, and what comes of it."""

from __future__ import annotations

import json

import pytest

from bastion.testing.scripted_hosts import runs_for


@pytest.fixture
def waiting(bastion):
    """A job that another one keeps from starting, and that one."""
    bastion.hosts.scripts["first"] = runs_for(100_000)
    bastion.submit("first", instance_type="tpu-v4-64")
    bastion.run_until(lambda: bastion.hosts.live("first"))
    bastion.submit("job", instance_type="tpu-v4-64")
    bastion.settle(3)
    return bastion


def test_a_job_is_held_and_released(run, waiting) -> None:
    done = run("hold", "job", "--reason=wrong data", code=0)
    assert "holding job" in done.err
    waiting.settle(3)
    why = run("why", "job", code=0).out
    assert "Held" in why
    assert ": wrong data" in why
    assert "bastion release job" in why
    again = run("hold", "job", "--output=json", code=0)
    assert "job is already held" in again.err
    assert [each["already"] for each in json.loads(again.out)] == [True]
    assert not waiting.listed("requests/")
    assert "releasing job" in run("release", "job", code=0).err
    waiting.settle(3)
    assert "Held" not in run("why", "job", code=0).out
    assert "job is not held" in run("release", "job", code=0).err


def test_a_running_job_is_requeued(run, waiting) -> None:
    assert "requeueing first" in run("requeue", "first", "--reason=slow", code=0).err
    waiting.run_until(lambda: (found := waiting.record("first")) and found.attempts)
    assert "slow" in run("history", "first", code=0).out


@pytest.mark.parametrize(
    ("argv", "said"),
    [
        (["hold", "none"], "none"),
        (["requeue", "job"], "the job 'job' is not running; it is queued already (bastion why job)"),
        (["hold", "job", "--reason=" + "x" * 201], "--reason is 201 characters long; the maximum is 200; shorten it"),
        (["hold", "../job"], "is not a valid job name"),
        (["hold"], "JOB"),
    ],
)
def test_what_cannot_be_done_is_said(run, waiting, argv, said) -> None:
    done = run(*argv)
    assert done.code == 64
    assert said in done.err
    assert not waiting.listed("requests/")


def test_an_ended_job_cannot_be_held(run, bastion) -> None:
    bastion.hosts.scripts["job"] = runs_for(1)
    bastion.submit("job", instance_type="tpu-v4-8")
    bastion.run_until(lambda: bastion.result("job"))
    assert "has already ended (succeeded); there is nothing to hold" in run("hold", "job", code=64).err


def test_in_inboxes_the_request_is_in_ones_own(run, bastion) -> None:
    bastion.use_inboxes()
    bastion.settle(2)
    bastion.submit("job", inbox="alice", instance_type="tpu-v4-8")
    run("hold", "job", code=0)
    assert [key.partition("~")[0] for key in bastion.listed("inbox/alice/requests/")] == ["inbox/alice/requests/job"]
