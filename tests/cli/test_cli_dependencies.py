"""`launch --after` and `--group` on the command line, and what `why`, `list`, `cancel` and `logs` make of them."""

from __future__ import annotations

import json

import pytest

from bastion.client import Client
from bastion.client.jobs import groups
from bastion.core import documents
from bastion.core.bucket import keys
from bastion.core.instants import from_rfc3339
from bastion.testing.scripted_hosts import runs_for
from bastion.wiring.roots import parse_root

SLICE = "--instance_type=tpu-v4-64"


def limits_of(bastion, name: str) -> dict:
    return documents.loads(bastion.store.get(keys.active(name)).data)["limits"]


def launch(run, name: str, *flags: str, code: int | None = 0):
    return run("launch", f"--name={name}", *flags, "--", "true", code=code)


def ended(bastion, name: str, code: int = 0) -> str:
    """A job of that name that has ended; returns its uid."""
    bastion.hosts.scripts[name] = runs_for(1, code=code)
    uid = bastion.submit(name)
    bastion.run_until(lambda: bastion.result(name))
    return uid


def test_jobs_are_named_by_uid_however_far_they_have_come(run, bastion) -> None:
    done, failed = ended(bastion, "done"), ended(bastion, "failed", code=3)
    launch(run, "live", SLICE)
    bastion.settle(3)
    launch(run, "new", SLICE)
    flags = ("--after=live", "--after=new", "--after=done", "--after_any=failed", "--after_at_most=6h")
    launch(run, "job", SLICE, *flags)
    found = limits_of(bastion, "job")
    uids = {each["job"]: each["uid"] for each in found["after"]}
    assert [each["on"] for each in found["after"]] == ["succeeded", "succeeded", "succeeded", "ended"]
    assert (uids["done"], uids["failed"], found["after_at_most_seconds"]) == (done, failed, 21600)
    assert uids["live"] == bastion.record("live").uid
    bastion.settle(2)
    assert uids["new"] == bastion.record("new").uid
    dry = run("launch", "--name=dry", "--after=live", "--dry_run", "--output=json", "--", "true", code=0)
    assert json.loads(dry.out)["spec"]["limits"]["after"][0]["uid"] == uids["live"]


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        (("--after=",), "--after and --after_any need the name of a job; give it, or leave the flag out"),
        (("--after=nobody",), "no such job: 'nobody'"),
        (("--after=faild",), "did you mean failed?"),
        (("--after=job",), "a job cannot start after itself (job); name another job"),
        (("--after=failed",), "failed has failed; use --after_any=failed to start after any end"),
        (("--after=cancelled",), "cancelled was cancelled; use --after_any=cancelled to start after any end"),
        (("--after=broken",), "the spec of broken is refused, so nothing can start after it; see bastion why broken"),
        (("--after=a/b",), "'a/b' is not a valid job name"),
        (("--after=failed", "--after_any=failed"), "--after and --after_any name failed twice; name each job once"),
        (("--after_at_most=6h",), "--after_at_most requires --after or --after_any"),
        (("--after_at_most=soon", "--after_any=failed"), "--after_at_most=soon is not a valid duration"),
        (("--group=A b",), "--group: 'A b' is not a valid name of a group"),
        (("--group=",), "--group is empty; give it a value or leave it out"),
        (tuple(f"--after=j{number}" for number in range(65)), "name 65 jobs; the maximum is 64"),
    ],
)
def test_what_a_job_can_never_start_after_is_refused_and_nothing_is_written(run, bastion, flags, said: str) -> None:
    ended(bastion, "failed", code=3)
    bastion.submit("cancelled")
    bastion.settle(3)
    bastion.cancel("cancelled")
    bastion.run_until(lambda: bastion.result("cancelled"))
    bastion.put_spec("broken", b"{}")
    bastion.settle(5)
    assert said in launch(run, "job", *flags, code=64).err
    assert bastion.store.head(keys.active("job")) is None


def test_submit_checks_the_uids_of_a_file(run, bastion, tmp_path) -> None:
    uid = ended(bastion, "first")
    launch(run, "job", "--after=first")
    spec = documents.loads(bastion.store.get(keys.active("job")).data)
    path = tmp_path / "spec.json"
    for change, said in (
        (
            {"uid": "aaaaaaaaaa"},
            f"no job first with uid aaaaaaaaaa is known; the present job of that name has uid {uid}",
        ),
        ({"job": "other"}, f"no job other with uid {uid} is known; there is none"),
        ({"job": "next"}, "limits.after: a job cannot start after itself (next); name another job"),
    ):
        after = {**spec["limits"]["after"][0], **change}
        path.write_text(json.dumps({**spec, "name": "next", "limits": {"after": [after]}}))
        assert said in run("submit", f"--spec={path}", code=64).err
    path.write_text(json.dumps({**spec, "name": "next"}))
    run("submit", f"--spec={path}", code=0)


def test_why_and_list_name_the_awaited_job_and_tell_when_it_starts(run, bastion) -> None:
    bastion.settle(2)
    launch(run, "first", SLICE, "--expected_duration=2h")
    bastion.settle(4)
    launch(run, "second", SLICE, "--after=first", "--expected_duration=1h", "--after_at_most=6h")
    launch(run, "third", SLICE, "--after_any=second")
    bastion.settle(4)
    uid = bastion.record("first").uid
    out = run("why", "second").out
    assert f"  starts after the success of first ({uid})\n" in out
    assert "starts after first (WaitingForDependency" in out or "WaitingForDependency" in out
    told = {name: json.loads(run("why", name, "--output=json").out) for name in ("second", "third")}
    began = bastion.record("first").attempt.started_at
    assert told["second"]["reason"]["holders"] == ["first"] and told["second"]["job"]["after"] == ["first"]
    assert from_rfc3339(told["second"]["eta"]["p50"]) == pytest.approx(began + 7200, abs=60)
    assert from_rfc3339(told["third"]["eta"]["p50"]) == pytest.approx(began + 10800, abs=60)
    assert "WaitingForDependency: starts after first" in run("list").out


def test_a_group_is_listed_cancelled_and_its_logs_are_shown(run, bastion, monkeypatch) -> None:
    monkeypatch.setattr("bastion.cli.jobs.cancel.default_user", lambda: "alice")
    bastion.settle(2)
    launch(run, "a", "--group=sweep", "--user_id=alice")
    bastion.hosts.scripts["b"] = runs_for(1)
    launch(run, "b", "--group=sweep", "--user_id=alice")
    launch(run, "c", "--group=other", "--user_id=alice")
    run("launch", "--name=foreign", "--group=sweep", "--user_id=bob", "--project_id=b", "--", "true", code=0)
    bastion.run_until(lambda: bastion.result("b") and bastion.hosts.live("a"))
    launch(run, "new", "--group=sweep", "--user_id=alice")
    listed = {row["name"] for row in json.loads(run("list", "--group=sweep", "--output=json").out)["jobs"]}
    assert listed == {"a", "foreign"}
    shown = run("list", "--group=sweep", "--all").out
    assert all(name in shown for name in ("a ", "b ", "foreign")) and "\nc " not in shown
    assert "no live jobs in group nothing" in run("list", "--group=nothing").err
    bastion.write_log("a", f"{bastion.record('a').uid}-1", 0, 1, "stdout F out of a")
    logs = run("logs", "--group=sweep", code=0)
    assert "out of a" in logs.out
    assert "==> a <==" in logs.err and "==> b <==" in logs.err and "==> foreign <==" in logs.err
    assert "==> new <==" not in logs.err and logs.err.endswith("bastion: 1 job of group sweep did not run yet\n")
    assert "cancelling 2 jobs of group sweep" in run("cancel", "--group=sweep", code=0).err
    bastion.run_until(lambda: bastion.result("a") and bastion.result("new"))
    assert bastion.hosts.live("c") and bastion.hosts.live("foreign")
    again = run("cancel", "--group=sweep", code=0)
    assert "user alice has no live jobs in group sweep; see bastion list --group=sweep" in again.err
    assert "cancelling 1 job of group sweep" in run("cancel", "--group=sweep", "--user_id=bob", "--wait", code=0).err


def test_quota_whatif_estimates_who_awaits_others(run, bastion, new) -> None:
    bastion.settle(2)
    launch(run, "first", SLICE, "--expected_duration=2h")
    bastion.settle(4)
    launch(run, "second", "--instance_type=tpu-v4-32", "--after=first")
    bastion.settle(4)
    told = json.loads(run("quota", "whatif", str(new), "--output=json", code=0).out)
    (queued,) = told["queue"]["jobs"]
    assert queued["name"] == "second"
    began = bastion.record("first").attempt.started_at
    assert from_rfc3339(queued["before"]["p50"]) == pytest.approx(began + 7200, abs=60)


@pytest.mark.parametrize(
    ("argv", "said"),
    [
        (("cancel",), "name the jobs to cancel, a pattern of names, --all, or flags that select jobs"),
        (("cancel", "job", "--user_id=u"), "--user_id requires --group"),
        (("cancel", "--group=A"), "--group: 'A' is not a valid name of a group"),
        (("list", "--group=A"), "--group: 'A' is not a valid name of a group"),
        (("logs",), "name one job, or a group of jobs with --group=NAME"),
        (
            ("logs", "--group=g", "-f"),
            "a group cannot be followed, only one job: bastion logs -f JOB; bastion list --group=g names them",
        ),
        (("logs", "--group=g", "--output=json"), "--output=json shows one job; name it instead of --group"),
        (("logs", "--group=g"), "no job of group g among the live jobs and the newest 1000 completed ones"),
    ],
)
def test_bad_uses_of_groups_are_refused(run, bastion, argv: tuple[str, ...], said: str) -> None:
    assert said in run(*argv, code=64).err


def test_members_are_those_of_one_user_unless_all_are_asked_for(run, bastion, tmp_path) -> None:
    launch(run, "a", "--group=g", "--user_id=alice")
    bastion.settle(3)
    launch(run, "b", "--group=g", "--user_id=alice")
    client = Client(bastion.store, parse_root(str(tmp_path / "memory/test-bastion")), bastion)
    assert [(each.name, each.stage.value) for each in groups.members(client, "g", "alice")] == [
        ("a", "known"),
        ("b", "submitted"),
    ]
    assert groups.members(client, "g", "bob") == []


def test_all_jobs_of_a_group_are_cancelled_however_many_are_not_accepted(run, bastion, monkeypatch) -> None:
    monkeypatch.setattr("bastion.cli.jobs.cancel.default_user", lambda: "alice")
    launch(run, "a", "--group=g", "--user_id=alice")
    for number in range(1100):
        spec = bastion.json("jobs/active/a") | {"name": f"b-{number:04}"}
        bastion.store.put(f"jobs/active/{spec['name']}", json.dumps(spec).encode(), generation=0)
    done = run("cancel", "--group=g", code=0)
    assert "requesting the end of 1101 jobs; if this is interrupted, run it again\n" in done.err
    assert "cancelling 1101 jobs of group g\n" in done.err
    assert len(bastion.listed("jobs/user_states/")) == 1101
