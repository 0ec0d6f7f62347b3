"""`bastion wait`: exit codes, timeouts, groups, and what a thousand jobs cost."""

from __future__ import annotations

import json

import pytest

from bastion.cli import connect
from bastion.client import Client
from bastion.client.jobs import wait as waiting
from bastion.core.bucket import keys
from bastion.core.errors import StoreUnavailable
from bastion.testing.counting_store import CountingStore
from bastion.testing.scripted_hosts import runs_for
from bastion.wiring.roots import parse_root


def begin(bastion, *names: str, code: int = 0, seconds: int = 5, **fields: object) -> None:
    for name in names:
        bastion.hosts.scripts[name] = runs_for(seconds, code=code)
        bastion.submit(name, **fields)


def test_it_waits_for_all_and_exits_with_0_if_all_succeeded(run, bastion) -> None:
    begin(bastion, "one", "two")
    bastion.settle(3)
    done = run("wait", "one", "two", code=0)
    assert done.out == ""
    assert done.err.count("succeeded: all workers exited with code 0") == 2


def test_the_first_job_in_order_that_did_not_succeed_decides_whenever_it_ended(run, bastion) -> None:
    begin(bastion, "quick", code=3, seconds=1)
    begin(bastion, "slow", code=9, seconds=20)
    begin(bastion, "good")
    bastion.settle(3)
    run("wait", "good", "slow", "quick", code=9)
    run("wait", "good", "quick", "slow", code=3)
    document = json.loads(run("wait", "good", "quick", "--output=json", code=3).out)
    assert (document["format"], document["exit_code"]) == (1, 3)
    assert [(job["name"], job["outcome"]) for job in document["jobs"]] == [("good", "succeeded"), ("quick", "failed")]


def test_any_waits_for_the_first_end_only(run, bastion) -> None:
    begin(bastion, "slow", seconds=1000)
    begin(bastion, "quick", code=4, seconds=2)
    bastion.settle(3)
    assert "slow" not in run("wait", "slow", "quick", "--any", code=4).err


def test_a_timeout_has_a_code_of_its_own_and_names_who_is_left(run, bastion) -> None:
    begin(bastion, "quick", seconds=1)
    begin(bastion, "slow", seconds=1000)
    bastion.settle(3)
    began = bastion.clock.now()
    done = run("wait", "quick", "slow", "--timeout=1m30s", code=124)
    assert "after 1m30s, slow is still waiting or running" in done.err
    assert 85 <= bastion.clock.now() - began <= 100
    document = json.loads(run("wait", "slow", "--timeout=1s", "--output=json", code=124).out)
    assert document["jobs"][0]["outcome"] is None


def test_a_name_that_no_job_has_ends_it_at_once(run, bastion) -> None:
    begin(bastion, "train-1", seconds=1000)
    bastion.settle(3)
    done = run("wait", "train-1", "trian-1", code=64)
    assert "no such job: 'trian-1'" in done.err
    assert "did you mean train-1?" in done.err
    assert bastion.slept == 0


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "name the jobs to wait for"),
        (["job", "--group=g"], "name the jobs to wait for"),
        (["--group=none"], "no job of group none"),
        (["job", "--timeout=soon"], "is not a valid duration"),
        (["a/b"], "a/b"),
    ],
)
def test_what_makes_no_sense_is_refused(run, bastion, arguments: list[str], message: str) -> None:
    assert message in run("wait", *arguments, code=64).err


def test_a_job_is_awaited_from_its_submission_on_also_if_it_is_refused_or_withdrawn(run, bastion) -> None:
    begin(bastion, "fresh", code=5)
    run("wait", "fresh", code=5)
    bastion.store.put(keys.active("broken"), b"{}", generation=0)
    bastion.settle(3)
    assert "the spec is refused" in run("wait", "broken", code=64).err


def test_a_spec_that_is_deleted_before_it_is_accepted_ends_the_wait(run, bastion, monkeypatch) -> None:
    bastion.settle(3)
    begin(bastion, "withdrawn")
    key = keys.active("withdrawn")
    # No daemon looks at it.
    monkeypatch.setattr(bastion, "step", lambda seconds=1.0: bastion.clock.advance(seconds))

    def withdraw() -> None:
        if (meta := bastion.store.head(key)) is not None:
            bastion.store.delete(key, generation=meta.generation)

    bastion.on_sleep.append(withdraw)
    assert "its spec was deleted or replaced" in run("wait", "withdrawn", code=143).err


def test_a_cancelled_job_and_a_namesake_of_an_ended_one_are_told_apart(run, bastion) -> None:
    begin(bastion, "job", seconds=1000)
    bastion.settle(3)
    client = Client(bastion.store, parse_root("memory/test-bastion"), bastion.clock)

    def replace() -> None:
        bastion.on_sleep.clear()
        client.cancel("job", by="alice")
        bastion.run_until(lambda: bastion.result("job"))
        begin(bastion, "job", seconds=1000)
        bastion.settle(5)

    bastion.on_sleep.append(replace)
    run("wait", "job", code=143)
    assert bastion.status("job") == "ACTIVE"


def test_ctrl_c_detaches(run, bastion) -> None:
    begin(bastion, "job", seconds=1000)
    bastion.settle(3)

    def interrupt() -> None:
        raise KeyboardInterrupt

    bastion.on_sleep.append(interrupt)
    assert "detached; job is not affected" in run("wait", "job", code=130).err
    assert bastion.status("job") == "ACTIVE"


def test_a_group_has_those_that_ended_and_those_that_are_not_accepted_yet(run, bastion) -> None:
    begin(bastion, "done", seconds=1, code=6, group="sweep")
    bastion.run_until(lambda: bastion.result("done"))
    begin(bastion, "live", group="sweep")
    bastion.settle(2)
    begin(bastion, "new", group="sweep")
    begin(bastion, "other", seconds=1000)
    document = json.loads(run("wait", "--group=sweep", "--output=json", code=6).out)
    assert {job["name"] for job in document["jobs"]} == {"done", "live", "new"}


def test_a_job_of_another_implementation_is_awaited_by_its_state(run, bastion) -> None:
    bastion.store.put(keys.state("theirs"), b"ACTIVE", generation=0)

    def end() -> None:
        if bastion.store.head(keys.complete("theirs")) is None:
            bastion.store.put(keys.complete("theirs"), b'{"name": "theirs"}', generation=0)
            bastion.store.delete(keys.state("theirs"), generation=bastion.store.head(keys.state("theirs")).generation)

    bastion.on_sleep.append(end)
    done = run("wait", "theirs", code=1)
    assert "theirs unknown" in done.err


def test_a_bucket_that_does_not_answer_is_told_once_and_polled_again(run, bastion, monkeypatch) -> None:
    begin(bastion, "job", seconds=60)
    bastion.settle(3)
    fails = iter([False, True, True, True])
    head = bastion.store.head

    def answer(key: str):
        if key == keys.STATUS and bastion.slept and next(fails, False):
            raise StoreUnavailable("no route")
        return head(key)

    counting = CountingStore(bastion.store)
    monkeypatch.setattr(connect, "open_root", lambda _url: counting)
    monkeypatch.setattr(counting, "head", answer)
    done = run("wait", "job", code=0)
    assert done.err.count("does not answer") == 1
    assert "the bucket answers again" in done.err


def test_a_thousand_jobs_cost_as_much_as_one_while_they_run(bastion) -> None:
    names = [f"job-{number}" for number in range(1000)]
    for name in names:
        bastion.submit(name, instance_type="tpu-v4-64")
    bastion.settle(3)
    counting = CountingStore(bastion.store)
    client = Client(counting, parse_root("gs://bucket/test-bastion"), bastion.clock)
    jobs = waiting.find(client, names)
    assert counting.requests == 2
    began = bastion.clock.monotonic()
    assert list(waiting.wait(client, jobs, until=began + 60)) == []
    assert counting.requests <= 2 + 2 + 60 / 2 + 2 * 60 / 20 + 2, counting.calls
