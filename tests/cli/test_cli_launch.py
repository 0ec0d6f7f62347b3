"""`bastion launch`: what lands in the bucket, what is refused, and what the launcher is told."""

from __future__ import annotations

import json
import shlex
from pathlib import Path

import pytest

from bastion.cli.jobs.command_line import draw_name, unwrap
from bastion.core.bucket import keys
from bastion.core.model import job_spec
from bastion.testing.cluster import BASTION

_TWO_PROJECTS = b"""
[toml-schema]
version = "1"
[total_resources]
v4 = 64
[project_membership]
a = ["alice"]
b = ["al.*"]
[project_resources.a]
v4 = 1
[project_resources.b]
v4 = 1
"""


def spec(bastion, name: str) -> job_spec.JobSpec:
    return job_spec.parse(bastion.store.get(keys.active(name)).data, name=name, bastion=BASTION)


def test_the_arguments_reach_the_job_exactly(run, bastion) -> None:
    arguments = ["tool", "a b", "", "'", '"', "$HOME", "*", "--dry_run", "--", "\n", "ü", "\\"]
    assert run("launch", "--name=job", "--", *arguments).code == 0
    assert shlex.split(spec(bastion, "job").command) == arguments


def test_a_launched_job_has_its_fields_and_says_what_to_do_next(run, bastion) -> None:
    done = run(
        *("launch", "--name=job", "--instance-type=tpu-v4-16", "--num-replicas=2", "--priority=2"),
        *("--env", "A=1", "--env=B=x=y", "--cleanup_command=rm -rf /tmp/x", "--", "true"),
    )
    assert (done.code, done.out) == (0, "")
    job = spec(bastion, "job")
    assert job.runner is not None
    assert (job.runner.instance_type.name, job.runner.num_replicas, dict(job.resources)) == ("tpu-v4-16", 2, {"v4": 32})
    assert (job.user_id, job.project_id, job.priority) == ("alice", "a", 2)
    assert (dict(job.env_vars), job.cleanup_command) == ({"A": "1", "B": "x=y"}, "rm -rf /tmp/x")
    for step in ("bastion logs -f job", "bastion why job", "bastion cancel job"):
        assert step in done.err
    steps, _, absence = done.err.partition("bastion: no daemon has ever run")
    assert "--root" not in steps
    assert "(bastion daemon run --root=" in absence


def test_a_bastion_chosen_by_flags_stands_in_the_next_steps(run, bastion) -> None:
    done = run("launch", "--root=memory/test-bastion", "--name=job", "--", "true")
    assert f"bastion why job --root={Path.cwd()}/memory/test-bastion" in done.err


def test_json_tells_name_and_uid(run, bastion) -> None:
    done = run("launch", "--output=json", "--", "sleep", "1")
    document = json.loads(done.out)
    assert document["name"].startswith("alice-sleep-")
    bastion.settle(1)
    record = bastion.record(document["name"])
    assert record is not None
    assert record.generation == document["generation"]


@pytest.mark.parametrize(
    ("arguments", "word"),
    [
        (["python3", "train.py"], "train"),
        (["/usr/bin/python3.11", "-u", "a/b/Train_Me.py", "--x=1"], "train-me"),
        (["python3", "-m", "pkg.trainer"], "trainer"),
        (["python3", "-c", "print(1)"], "python3"),
        (["bash", "-c", "x y"], "bash"),
        (["env", "A=1", "./run.sh"], "run"),
        (["/opt/Übung"], "bung"),
        (["..."], "job"),
        (["x" * 99], "x" * 16),
    ],
)
def test_a_made_up_name_tells_user_and_command_and_is_valid(arguments: list[str], word: str) -> None:
    name = draw_name("Al.Ice@example.com", arguments)
    assert name.startswith(f"al-ice-example-com-{word}-")
    keys.check_job_name(name, bastion=BASTION, new=True)
    assert draw_name("x", arguments) != draw_name("x", arguments)


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["python3", "-c", "'import jax; print(1)'"], "import jax; print(1)"),
        (["python3", "-c", "'x'"], None),  # no whitespace: a string that somebody may mean
        (["python3", "-c", "'a' + 'b'"], None),
        (["python3", "-c", "'a b"], None),
        (["python3", "'a b'"], None),
        (["python3", "-c", "'a b'", "x"], None),
        (["python3", "-c", '"a b"'], None),
        (["-c", "' '"], " "),
    ],
)
def test_only_the_older_documented_form_loses_its_quotes(arguments: list[str], expected: str | None) -> None:
    kept, note = unwrap(arguments)
    assert kept == (arguments if expected is None else [*arguments[:-1], expected])
    assert bool(note) is (expected is not None)


def test_the_older_form_is_noted_and_raw_keeps_it(run, bastion) -> None:
    done = run("launch", "--name=job", "--", "python3", "-c", "'import jax; print(1)'")
    assert "removed the single quotes from" in done.err
    assert spec(bastion, "job").command == "python3 -c 'import jax; print(1)'"
    done = run("launch", "--name=kept", "--raw", "--", "python3", "-c", "'import jax; print(1)'")
    assert "quotes" not in done.err
    assert shlex.split(spec(bastion, "kept").command)[-1] == "'import jax; print(1)'"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "the command is missing; it follows --, for example: bastion launch"),
        (["--"], "there is no command after --"),
        (["--", ""], "the command is empty"),
        (["--name=A", "--", "x"], "'A' is not a valid job name; use lowercase letters"),
        (["--name=", "--", "x"], "--name is empty; give it a value or leave it out"),
        (["--user_id=", "--", "x"], "--user_id is empty"),
        (["--name=../x", "--", "x"], "'../x' is not a valid job name"),
        (["--name=x.d", "--", "x"], "ends like a log file"),
        (["--name=test-bastion-1", "--", "x"], "begins with the bastion's own name"),
        (["--instance_type=tpu-v4-33", "--", "x"], "tpu-v4-33 is not a valid size; v4 has"),
        (["--instance_type=v4-32", "--", "x"], "did you mean tpu-v4-32?"),
        (["--instance_type=gpu", "--", "x"], "gpu is not an instance type"),
        (["--num_replicas=2", "--", "x"], "--num_replicas requires --instance_type"),
        (["--num_replicas=0", "--", "x"], "--num_replicas"),
        (["--priority=6", "--", "x"], "--priority=6"),
        (["--env=A", "--", "x"], "--env=A has no value; use --env A=VALUE"),
        (["--env==x", "--", "x"], "'' is not a valid variable name"),
        (["--env=1A=x", "--", "x"], "'1A' is not a valid variable name"),
        (["--env=A=1", "--env=A=2", "--", "x"], "--env sets A to two values"),
        (["--env=A=\udcff", "--", "x"], "the value of --env A is not UTF-8 text"),
        (["--user_id=\udcff", "--", "x"], "--user_id is not UTF-8 text"),
        (["--", "x", "\udcff"], "argument 2 of the command is not UTF-8 text"),
        (["--user_id=a\nb", "--project_id=a", "--", "x"], "metadata.user_id"),
        (["--", "x", "y" * 70_000], "the maximum is 65536"),
    ],
)
def test_what_cannot_run_is_refused_and_nothing_is_written(run, bastion, arguments: list[str], message: str) -> None:
    done = run("launch", *arguments, code=64)
    assert message in done.err
    assert bastion.listed("jobs/") == []
    assert done.err.startswith("bastion: ")


def test_what_the_rules_of_a_project_do_not_allow_is_refused_at_once(run, bastion) -> None:
    quota = bastion.store.get(keys.PROJECT_QUOTAS).data
    bastion.write_quota(quota + b'[project_rules.a]\ninstance_types = ["tpu-v4-8"]\nhighest_priority = 4\n')
    done = run("launch", "--instance_type=tpu-v4-16", "--", "x", code=64)
    assert "project a may use the instance types tpu-v4-8, not tpu-v4-16; submit it with one of these types" in done.err
    done = run("launch", "--instance_type=tpu-v4-8", "--priority=3", "--", "x", code=64)
    assert "jobs of project a may have priority 4 at most, not 3 (1 is the highest)" in done.err
    assert bastion.listed("jobs/") == []
    assert run("launch", "--instance_type=tpu-v4-8", "--priority=4", "--", "x").code == 0


def test_a_name_in_use_is_refused_with_the_way_out(run, bastion) -> None:
    assert run("launch", "--name=job", "--", "a").code == 0
    done = run("launch", "--name=job", "--", "b", code=64)
    assert "a job named 'job' already exists (bastion why job)" in done.err
    assert "bastion cancel --wait job" in done.err
    assert spec(bastion, "job").command == "a"


def test_a_user_in_several_projects_must_choose(run, bastion) -> None:
    bastion.write_quota(_TWO_PROJECTS)
    done = run("launch", "--name=job", "--", "x", code=64)
    assert "you (alice) are a member of several projects: a, b; choose one with --project_id=a" in done.err
    assert run("launch", "--name=job", "--project_id=b", "--", "x").code == 0
    assert spec(bastion, "job").project_id == "b"


def test_a_user_in_no_project_is_told_which_there_are(run, bastion) -> None:
    done = run("launch", "--user_id=mallory", "--", "x", code=64)
    assert "you (mallory) are not a member of any project in the quota file" in done.err
    assert "(its projects: a, b)" in done.err


def test_a_missing_quota_file_is_explained(run, bastion) -> None:
    meta = bastion.store.head(keys.PROJECT_QUOTAS)
    bastion.store.delete(keys.PROJECT_QUOTAS, generation=meta.generation)
    done = run("launch", "--", "x", code=64)
    assert "there is no quota file" in done.err
    assert "use --project_id=PROJECT" in done.err
    assert run("launch", "--project_id=a", "--", "x").code == 0


def test_a_broken_quota_file_is_explained_with_its_line(run, bastion) -> None:
    bastion.write_quota(b"[toml-schema]\nversion = ?\n")
    done = run("launch", "--", "x", code=64)
    assert "is not valid (line 2: " in done.err
    assert "bastion quota check FILE" in done.err


_HUGE = ("--instance_type=tpu-v4-512", "--num_replicas=256")


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (("--project_id=b",), "user alice is not a member of project b; choose --project_id=a, or ask"),
        (("--project_id=zz",), "the quota file has no project zz (its projects: a, b); correct --project_id"),
        (_HUGE, "the job needs 131072 v4, but the whole pool has 64; choose a smaller"),
        (("--instance_type=tpu-v5p-8",), "the job needs v5p, which the pool does not have (it has: v4)"),
    ],
)
def test_a_job_that_can_never_start_is_refused_unless_it_may_wait_for_another_quota(
    run, bastion, flags, message
) -> None:
    for _ in ("before a daemon ran", "after it has published"):
        done = run("launch", "--name=job", *flags, "--", "x")
        assert (done.code, done.out) == (64, "")
        assert message in done.err
        assert "use --nocheck to submit the job anyway" in done.err
        assert bastion.listed("jobs/active/") == []
        bastion.settle(2)
    done = run("launch", "--name=job", "--nocheck", *flags, "--", "x", code=0)
    assert message in done.err
    assert bastion.listed("jobs/active/") == ["jobs/active/job"]


def test_a_spec_from_a_file_that_can_never_start_is_refused(run, bastion, tmp_path: Path) -> None:
    made = run("launch", "--name=job", "--project_id=zz", "--dry_run", "--", "x", code=0)
    assert "launch would refuse this job: the quota file has no project zz" in made.err
    (tmp_path / "job.json").write_text(made.out)
    assert run("submit", "--spec=job.json").code == 64
    assert run("submit", "--spec=job.json", "--nocheck").code == 0


def test_a_share_that_no_limit_lets_grow_is_the_most_a_job_may_ask_for(run, bastion) -> None:
    bastion.write_quota(
        bastion.store.get(keys.PROJECT_QUOTAS).data + b"[project_rules.a]\nborrowing_limit = {v4 = 0}\n"
    )
    done = run("launch", "--instance_type=tpu-v4-64", "--", "x")
    assert (done.code, "allow project a at most 32" in done.err) == (64, True)
    assert run("launch", "--instance_type=tpu-v4-32", "--", "x").code == 0


def test_where_the_file_cannot_be_read_the_status_tells(run, bastion) -> None:
    bastion.settle(2)
    bastion.store.delete(keys.PROJECT_QUOTAS, generation=bastion.store.head(keys.PROJECT_QUOTAS).generation)
    bastion.settle(2)
    for flags in (("--project_id=zz",), ("--project_id=a", *_HUGE), ("--project_id=a", "--instance_type=tpu-v5p-8")):
        assert run("launch", *flags, "--", "x").code == 64
    assert run("launch", "--project_id=a", "--instance_type=tpu-v4-8", "--", "x").code == 0


def test_where_nothing_is_published_the_job_is_submitted_with_a_warning(run, bastion) -> None:
    bastion.store.delete(keys.PROJECT_QUOTAS, generation=bastion.store.head(keys.PROJECT_QUOTAS).generation)
    done = run("launch", "--project_id=zz", *_HUGE, "--", "x", code=0)
    assert "cannot check whether this job can start: no daemon has published a quota" in done.err


def test_settings_give_user_and_project(run, bastion) -> None:
    run("config", "set", "user_id", "bob")
    run("config", "set", "project_id", "b")
    assert run("launch", "--name=job", "--", "x").code == 0
    assert (spec(bastion, "job").user_id, spec(bastion, "job").project_id) == ("bob", "b")


def test_a_login_name_with_odd_characters_becomes_a_user_id(run, bastion, monkeypatch) -> None:
    monkeypatch.setenv("LOGNAME", "DOMAIN\\al ice")
    assert run("launch", "--name=job", "--project_id=a", "--nocheck", "--", "x").code == 0
    assert spec(bastion, "job").user_id == "DOMAIN-al-ice"


def test_a_dry_run_shows_the_spec_and_the_shares_and_writes_nothing(run, bastion) -> None:
    bastion.settle(2)
    before = bastion.listed()
    done = run(
        "launch", "--dry_run", "--instance_type=tpu-v4-16", "--env=API_KEY=hunter2", "--env=A=b", "--", "x", code=0
    )
    document = json.loads(done.out)
    assert document["runner"]["instance_type"] == "tpu-v4-16"
    assert document["env_vars"] == {"A": "b", "API_KEY": "***"}
    assert "hunter2" not in done.out + done.err
    assert "needs 16 v4; project a is using 0; its share is 32; 64 of 64 free" in done.err
    assert bastion.listed() == before
    document = json.loads(run("launch", "--dry_run", "--output=json", "--", "x").out)
    assert document["spec"]["command"] == "x"
    assert document["project"]["entitlement"] == {"v4": 32}


def test_a_dry_run_tells_of_what_no_pool_could_hold(run, bastion) -> None:
    bastion.settle(1)
    asked = ("launch", "--name=job", "--instance_type=tpu-v4-512", "--num_replicas=256", "--dry_run", "--", "x")
    assert "more than the whole pool" in run(*asked).err
    assert "more than the whole pool" not in run("launch", "--instance_type=tpu-v4-8", "--dry_run", "--", "x").err


def test_a_command_line_in_one_argument_is_kept_and_noted(run, bastion) -> None:
    done = run("launch", "--name=job", "--", "cd x && make")
    assert shlex.split(spec(bastion, "job").command) == ["cd x && make"]
    assert "remove the quotes, or run a shell: -- bash -c '...'" in done.err
    assert "one word" not in run("launch", "--", "bash", "-c", "cd x && make").err


def test_after_its_daemon_has_ended_a_bastion_says_so_and_how_to_go_on(run, bastion) -> None:
    assert run("list").code == 75  # none has ever run
    bastion.settle(2)
    done = run("list")
    assert (done.code, "no daemon" in done.err) == (0, False)
    bastion.daemon.close()
    for command, code in (
        (("launch", "--name=job", "--", "x"), 0),
        (("list",), 75),
        (("list", "--output=json"), 75),
        (("why", "job"), 0),
        (("cancel", "job"), 0),
    ):
        done = run(*command)
        assert done.code == code
        told = done.err
        assert "the daemon has ended; jobs do not start or end until one runs (bastion daemon run --root=" in told


def test_without_any_daemon_the_launcher_is_told(run, bastion) -> None:
    assert "no daemon has ever run for" in run("launch", "--name=job", "--", "x").err
    bastion.settle(1)
    assert "no daemon" not in run("launch", "--name=job2", "--", "x").err


def test_only_tensorboard_that_is_asked_for_needs_a_slice(run, bastion) -> None:
    asked = run("launch", "--tensorboard", "--project_id=a", "--user_id=alice", "--bundle=none", "--", "true", code=64)
    assert asked.err == "bastion: --tensorboard applies only to slice jobs; add --instance_type\n"
    run("launch", "--name=on-the-vm", "--project_id=a", "--user_id=alice", "--bundle=none", "--", "true", code=0)
    assert "on-the-vm" in run("list").out
