"""`bastion list`, `why`, `history`, `cancel` and `quota check` on a simulated bastion."""

from __future__ import annotations

import io
import json
import sys
from pathlib import Path

import pytest

from bastion.core import documents
from bastion.core.bucket import keys
from bastion.testing.cluster import QUOTA
from bastion.testing.scripted_hosts import runs_for

_ESCAPES = "\x1b]0;owned\x07\x1b[2J\u202e"


def refuse(bastion, name: str = "bad", data: bytes = b"{") -> None:
    """Uploads a spec that the daemon quarantines."""
    bastion.put_spec(name, data)
    bastion.settle(5)


# -- list --------------------------------------------------------------------------------------------------------------


def test_the_list_shows_what_each_job_does_or_waits_for(run, bastion) -> None:
    bastion.submit("holder", instance_type="tpu-v4-64")
    bastion.settle(4)
    bastion.submit("waiter", instance_type="tpu-v4-16", num_replicas=2)
    bastion.submit("small")
    bastion.settle(4)
    bastion.clock.advance(70)
    bastion.submit("fresh")
    refuse(bastion)
    bastion.daemon.tick()
    bastion.submit("unread")
    done = run("list")
    rows = {line.split()[0]: line for line in done.out.splitlines()}
    assert done.code == 0
    assert done.out.startswith("NAME ")
    assert "running" in rows["holder"] and "on 4 hosts" not in rows["holder"] and "on 8 hosts" in rows["holder"]
    assert "queued" in rows["waiter"] and "2 x tpu-v4-16" in rows["waiter"] and "v4" in rows["waiter"]
    assert "1m" in rows["small"]
    assert rows["bad"].split()[1] == "INVALID"
    assert "the document is not valid JSON" in rows["bad"]
    assert rows["unread"].split()[1] == "submitted"
    assert "alice" in rows["fresh"]


def test_the_list_as_json_holds_the_published_jobs_and_nothing_else(run, bastion) -> None:
    bastion.submit("job")
    refuse(bastion)
    done = run("list", "--output=json")
    document = json.loads(done.out)
    assert document["jobs"] == bastion.json(keys.STATUS)["jobs"]
    assert [entry["name"] for entry in document["invalid"]] == ["bad"]
    assert "completed" not in document


def test_completed_jobs_are_shown_when_asked_for_the_newest_first(run, bastion) -> None:
    for name in ("one", "two", "three"):
        bastion.hosts.scripts[name] = runs_for(1, code=0 if name == "one" else 5)
        bastion.submit(name)
        bastion.run_until(lambda name=name: bastion.result(name))
    bastion.settle(3)
    assert "no live jobs (use bastion list --all to see completed jobs)" in run("list").err
    assert run("list").out == ""
    done = run("list", "--all", "--limit=2")
    assert [line.split()[:2] for line in done.out.splitlines()[1:]] == [["three", "failed"], ["two", "failed"]]
    assert "showing 2 of 3 completed jobs" in done.err
    document = json.loads(run("list", "--all", "--output=json").out)
    assert [entry["result"]["outcome"] for entry in document["completed"]] == ["failed", "failed", "succeeded"]


def test_the_object_by_which_a_console_shows_an_empty_folder_is_no_job(run, bastion) -> None:
    bastion.store.put("jobs/active/", b"", generation=0)
    bastion.settle(3)
    assert run("list").out == ""


def test_without_a_daemon_the_list_says_so_and_shows_what_was_submitted(run, bastion) -> None:
    bastion.submit("job")
    done = run("list", code=75)
    assert "no daemon has published a status for" in done.err
    assert "job" in done.out


def test_hostile_text_cannot_control_the_terminal(run, bastion) -> None:
    hostile = json.dumps({"version": 1, "name": "bad", "command": 3, _ESCAPES: 1, "metadata": {_ESCAPES: 1}})
    refuse(bastion, data=hostile.encode())
    bastion.put_spec(f"x{_ESCAPES}", b"{")
    bastion.daemon.tick()
    for argv in (["list"], ["list", "--output=json"], ["why", "bad"], ["why", f"x{_ESCAPES}"], ["logs", "bad"]):
        done = run(*argv)
        assert not set("\x1b\x07\u202e") & set(done.out + done.err), argv


def test_a_status_of_another_version_is_explained(run, bastion) -> None:
    bastion.store.put(keys.STATUS, b'{"format": 99}', generation=0)
    done = run("list", code=1)
    assert "it has format 99; this version reads 1 and 2; use the same version of bastion as its daemon" in done.err


def test_a_job_is_shown_and_cancelled_while_the_status_is_malformed(run, bastion) -> None:
    bastion.submit("job", instance_type="tpu-v4-8")
    bastion.settle(2)
    meta = bastion.store.head(keys.STATUS)
    bastion.store.put(keys.STATUS, b'{"format": 1, "jobs": [7]}', generation=meta.generation)
    told = run("why", "job", "--noeta").out
    assert "job is ACTIVE; the daemon has not published details yet" in told
    assert "alarm: status/current.json: it is not as a daemon writes it: jobs.0" in told
    assert run("cancel", "job").code == 0
    bastion.settle(3)
    assert bastion.result("job")["outcome"] == "cancelled"


def test_alarms_of_the_daemon_are_shown(run, bastion) -> None:
    bastion.settle(2)
    bastion.write_quota(b"broken")
    bastion.settle(3)
    assert "bastion: alarm: " in run("list").err


# -- why ---------------------------------------------------------------------------------------------------------------


def test_why_tells_the_reason_with_its_arithmetic_since_when_and_who_holds(run, bastion) -> None:
    bastion.submit("holder", instance_type="tpu-v4-32")
    bastion.submit("owner", user="bob", project="b", instance_type="tpu-v4-32")
    bastion.settle(4)
    bastion.submit("waiter", instance_type="tpu-v4-16")
    bastion.settle(2)
    bastion.clock.advance(90)
    done = run("why", "waiter")
    reason = bastion.reason("waiter")
    assert reason is not None
    assert done.code == 0
    assert f"{reason['code']}: {reason['message']}" in done.out
    assert "needs tpu-v4-16; project a, user alice (unverified), priority 5" in done.out
    assert f"for 1m (since {reason['since']})" in done.out
    assert "queue position: 1" in done.out
    for holder in reason["holders"]:
        assert holder in done.out
    assert reason["unblock"] in done.out
    document = json.loads(run("why", "waiter", "--output=json").out)
    assert (document["stage"], document["job"]["reason"]) == ("known", reason)


def test_why_of_a_running_job_says_what_it_does(run, bastion) -> None:
    bastion.submit("job", instance_type="tpu-v4-16")
    bastion.settle(5)
    bastion.clock.advance(60)
    done = run("why", "job")
    assert "job is running on 2 hosts" in done.out
    assert "attempt 1 started 1m ago" in done.out


def test_why_of_a_job_that_nobody_has_read_says_so(run, bastion) -> None:
    bastion.submit("job")
    assert "job is submitted; waiting for the scheduler to pick it up (NotYetEvaluated)" in run("why", "job").out
    assert json.loads(run("why", "job", "--output=json").out)["reason"]["code"] == "NotYetEvaluated"


def test_why_of_an_evicted_job_tells_for_whom(run, bastion) -> None:
    bastion.submit("borrower", instance_type="tpu-v4-64")
    bastion.settle(5)
    bastion.submit("owner", user="bob", project="b", instance_type="tpu-v4-32")
    bastion.run_until(lambda: bastion.status("owner") == "ACTIVE")
    done = run("why", "borrower")
    assert "attempt 1 ended" in done.out
    assert "evicted: " in done.out
    record = bastion.record("borrower")
    assert record is not None
    assert record.attempts[0].message in done.out
    assert json.loads(run("why", "borrower", "--output=json").out)["attempts"][0]["cause"] == "evicted"


def test_why_of_a_refused_spec_tells_the_problem(run, bastion) -> None:
    refuse(bastion)
    done = run("why", "bad", code=0)
    assert "bad is refused: the document is not valid JSON" in done.out
    assert "bastion cancel bad" in done.out
    assert json.loads(run("why", "bad", "--output=json").out)["stage"] == "invalid"


def test_why_of_a_name_that_no_job_can_have_tells_its_problem(run, bastion) -> None:
    refuse(bastion, name="x.d")
    assert "x.d is refused: " in run("why", "x.d").out
    assert json.loads(run("why", "x.d", "--output=json").out)["reason"]["code"] == "InvalidSpec"
    done = run("why", "../nothing", code=64)
    assert "'../nothing' is not a valid job name" in done.err


def test_why_of_a_new_spec_that_is_refused_while_the_old_job_runs_tells_both(run, bastion) -> None:
    bastion.submit("job")
    bastion.settle(4)
    refuse(bastion, name="job")
    done = run("why", "job")
    assert "job is running" in done.out
    assert "its new spec is refused: the document is not valid JSON" in done.out
    assert "new spec refused" in run("list").out


def test_why_of_a_completed_job_tells_how_it_ended(run, bastion) -> None:
    bastion.hosts.scripts["job"] = lambda host, elapsed: 5 if host == 1 else None
    bastion.submit("job", instance_type="tpu-v4-16")
    bastion.run_until(lambda: bastion.result("job"))
    done = run("why", "job")
    assert "job failed: worker 1 exited with code 5 (exit code 5)" in done.out
    assert "first worker to fail: 1" in done.out
    assert "attempt 1 ended" in done.out
    assert json.loads(run("why", "job", "--output=json").out)["result"]["failed_worker"] == 1


def test_why_understands_a_result_of_the_ancestor(run, bastion) -> None:
    bastion.store.put(keys.complete("old"), b'{"name": "old", "version": 1}', generation=0)
    assert "old unknown" in run("why", "old").out
    bastion.store.put(keys.complete("odd"), b"not json", generation=0)
    done = run("why", "odd", code=1)
    assert "cannot read the result of odd" in done.err


@pytest.mark.parametrize("command", [["why"], ["history"], ["logs"], ["logs", "-f"], ["cancel"]])
def test_an_unknown_job_is_refused_with_close_names(run, bastion, command: list[str]) -> None:
    bastion.submit("train-7")
    bastion.settle(2)
    done = run(*command, "trian-7", code=64)
    assert "no such job: 'trian-7' in" in done.err
    assert "did you mean train-7?" in done.err
    assert "use bastion list --all to see all jobs" in run(*command, "zzzzzz").err


# -- history -----------------------------------------------------------------------------------------------------------


def test_history_is_shown_as_it_was_written(run, bastion) -> None:
    bastion.hosts.scripts["job"] = runs_for(1)
    uid = bastion.submit("job")
    bastion.run_until(lambda: bastion.result("job"))
    done = run("history", "job")
    assert done.out.splitlines() == bastion.history("job")
    entries = json.loads(run("history", "job", "--output=json").out)
    assert [entry["number"] for entry in entries] == list(range(1, len(entries) + 1))
    assert entries[0]["status"] == "PENDING"
    assert entries[0]["text"].startswith("queued: project a, user alice")
    assert {entry["uid"] for entry in entries} == {uid}


def test_history_of_a_job_that_is_not_read_yet_is_empty(run, bastion) -> None:
    bastion.submit("job")
    done = run("history", "job")
    assert (done.code, done.out) == (0, "")
    assert "job has no history yet" in done.err
    assert json.loads(run("history", "job", "--output=json").out) == []


# -- cancel ------------------------------------------------------------------------------------------------------------


def test_cancel_writes_a_wish_for_that_very_job(run, bastion) -> None:
    uid = bastion.submit("job")
    bastion.settle(3)
    done = run("cancel", "job")
    assert (done.code, done.err) == (0, "cancelling job\n")
    user_request = bastion.json(keys.user_state("job"))
    assert (user_request["status"], user_request["metadata"]["uid"], user_request["metadata"]["by"]) == (
        "CANCELLING",
        uid,
        "alice",
    )
    assert run("cancel", "job").err == "job is already being cancelled\n"
    bastion.run_until(lambda: bastion.result("job"))
    assert bastion.result("job")["by"] == "alice"


def test_a_wish_of_an_older_client_is_replaced(run, bastion) -> None:
    uid = bastion.submit("job")
    bastion.settle(3)
    bastion.cancel("job", uid="aaaaaaaaaa")
    assert run("cancel", "job").code == 0
    assert bastion.json(keys.user_state("job"))["metadata"]["uid"] == uid


def test_cancel_waits_for_the_end_of_every_job(run, bastion) -> None:
    for name in ("one", "two"):
        bastion.submit(name)
    bastion.settle(3)
    done = run("cancel", "--wait", "one", "two", "--output=json", code=0)
    assert [entry["name"] for entry in json.loads(done.out)] == ["one", "two"]
    assert "one cancelled" in done.err and "two cancelled" in done.err
    assert "submitted; waiting" not in done.err  # the second has ended before it is looked at
    assert bastion.result("two")["outcome"] == "cancelled"


def test_ctrl_c_while_cancel_waits_does_not_say_that_the_job_keeps_running(run, bastion) -> None:
    def interrupt() -> None:
        raise KeyboardInterrupt

    bastion.submit("job")
    bastion.settle(3)
    bastion.on_sleep.append(interrupt)
    done = run("cancel", "--wait", "job", code=130)
    assert done.err.endswith("detached; the jobs are still being cancelled\n")
    assert "keeps running" not in done.err


def test_cancel_of_a_job_that_is_not_read_yet_reaches_it(run, bastion) -> None:
    run("launch", "--name=job", "--", "x")
    assert run("cancel", "--wait", "job").code == 0
    assert bastion.result("job")["outcome"] == "cancelled"


def test_cancel_of_an_ended_job_says_how_it_ended(run, bastion) -> None:
    bastion.hosts.scripts["job"] = runs_for(1)
    bastion.submit("job")
    bastion.run_until(lambda: bastion.result("job"))
    done = run("cancel", "job", code=64)
    assert "the job 'job' has already ended (succeeded); there is nothing to cancel" in done.err
    assert bastion.listed("jobs/user_states/") == []


def test_one_bad_name_among_several_cancels_none(run, bastion) -> None:
    bastion.submit("job")
    bastion.settle(3)
    done = run("cancel", "job", "../job", code=64)
    assert "'../job' is not a valid job name" in done.err
    assert bastion.listed("jobs/user_states/") == []


def test_one_unknown_job_among_several_does_not_save_the_others(run, bastion) -> None:
    bastion.submit("job")
    bastion.settle(3)
    run("cancel", "nothing-here", "job", code=64)
    assert bastion.listed("jobs/user_states/") == ["jobs/user_states/job"]


def test_cancel_removes_a_refused_spec(run, bastion) -> None:
    refuse(bastion)
    done = run("cancel", "bad")
    assert (done.code, done.err) == (0, "removed the refused spec of bad\n")
    bastion.settle(3)
    assert bastion.listed("jobs/") == []


def test_cancel_of_a_foreign_state_leaves_the_uid_out(run, bastion) -> None:
    bastion.put_spec("job", documents.dumps({}))
    bastion.store.put(keys.state("job"), b"ACTIVE", generation=0)
    assert run("cancel", "job").code == 0
    assert "uid" not in bastion.json(keys.user_state("job"))["metadata"]


# -- quota check -------------------------------------------------------------------------------------------------------


def test_a_good_quota_file_is_shown_with_its_entitlements(run, tmp_path: Path) -> None:
    (tmp_path / "q.toml").write_bytes(QUOTA)
    done = run("quota", "check", "q.toml")
    assert (done.code, done.err) == (0, "")
    assert "Entitlements" in done.out
    document = json.loads(run("quota", "check", "q.toml", "--output=json").out)
    assert document["projects"]["a"] == {"entitlement": {"v4": 32}, "members": ["alice"]}


def test_a_broken_quota_file_is_told_line_by_line(run, tmp_path: Path, monkeypatch) -> None:
    broken = QUOTA.replace(b"v4 = 64", b"v4 = -1").replace(b'a = ["alice"]', b"a = 3")
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(broken)))
    done = run("quota", "check", "-")
    assert (done.code, done.out) == (64, "")
    assert "bastion: -: line 5: the amount of v4 is -1" in done.err
    assert "line 7: the members of a are 3" in done.err
    (tmp_path / "q.toml").write_bytes(broken)
    document = json.loads(run("quota", "check", "q.toml", "--output=json").out)
    assert document["valid"] is False
    assert {problem["line"] for problem in document["problems"]} >= {5, 7}


def test_why_tells_each_attempts_tries_and_where_it_was(run, bastion) -> None:
    bastion.write_settings(
        b'project = "p"\n[types.v4]\nzones = ["us-central2-b"]\nservice_account = "w@p"\n[[tiers]]\nmodel = "spot"\n'
    )
    bastion.hosts.scripts["job"] = runs_for(1, code=4)
    bastion.hosts.later_scripts["job", 2] = runs_for(1, code=6)
    bastion.submit("job", instance_type="tpu-v4-8", max_tries=2)
    bastion.run_until(lambda: bastion.result("job"))
    shown = run("why", "job").out
    assert "attempt 1, try 1: worker 0 exited with code 4" in shown
    assert "attempt 1 in us-central2-b ended" in shown
    assert "worker 0 exited with code 6" in shown


def test_list_and_why_tell_how_often_a_job_was_stuck(run, bastion) -> None:
    bastion.hosts.signs["job"] = lambda _host, elapsed: elapsed >= 10
    bastion.submit("job", instance_type="tpu-v4-8", stuck_after_seconds=60)
    bastion.run_until(lambda: [began.try_number for began in bastion.hosts.began] == [1, 2])
    bastion.settle(2)
    assert "running on 1 host (try 2 of 2, stuck 1 time)" in run("why", "job").out
    bastion.run_until(lambda: bastion.result("job"))
    shown = run("why", "job").out
    assert "attempt 1, try 3: stuck, restarted in place" in shown
    assert (
        "failed: Stuck: no output, checkpoint or step on any worker for 1m (--stuck_after), 4 times in a row" in shown
    )
    assert "stuck: Stuck" not in shown
