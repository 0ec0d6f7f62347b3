"""Secrets in the variables of a job: warned about, and hidden wherever a spec is shown."""

from __future__ import annotations

import json
import re
from pathlib import Path

from tests.support.bench_files import text

TOKEN = "ghp_" + "Ab1" * 12
PASSWORD = "correct-horse-battery"
GIVEN = (f"--env=SOURCE={TOKEN}", f"--env=DB_PASSWORD={PASSWORD}", "--env=TOKENIZERS_PARALLELISM=false", "--env=N=3")


def test_launch_names_each_variable_and_what_to_use_instead(run, bastion) -> None:
    done = run("launch", "--name=job", "--instance_type=tpu-v4-16", *GIVEN, "--", "true", code=0)
    assert re.findall(r"bastion: --env .*", done.err) == [
        "bastion: --env DB_PASSWORD looks like a secret by its name; all who read the bucket can read it; use --secret "
        "DB_PASSWORD=sm://PROJECT/SECRET, k8s:secret/NAME/KEY, file:PATH or env:NAME instead",
        "bastion: --env SOURCE looks like a GitHub token; all who read the bucket can read it; use --secret "
        "SOURCE=sm://PROJECT/SECRET, k8s:secret/NAME/KEY, file:PATH or env:NAME instead",
    ]
    assert PASSWORD not in done.err + done.out
    assert TOKEN not in done.err + done.out


def test_a_job_on_the_bastion_is_told_what_it_can_do(run, bastion) -> None:
    done = run("launch", "--name=job", *GIVEN, "--", "true", code=0)
    assert "let the command fetch it by itself, or run on a slice with --secret" in done.err


def test_no_command_shows_a_planted_value(run, bastion, tmp_path: Path) -> None:
    """Every command that shows jobs, before, while and after the job runs."""
    shown = [
        run("launch", "--dry_run", *GIVEN, "--", "true"),
        run("launch", "--dry_run", *GIVEN, "-o", "json", "--", "true"),
    ]
    full = run("launch", "--dry_run", "--show_secrets", "--name=job", *GIVEN, "--", "true")
    assert TOKEN in full.out
    (tmp_path / "job.json").write_text(full.out)
    shown.append(run("submit", f"--spec={tmp_path}/job.json", code=0))
    assert "--env SOURCE looks like a GitHub token" in shown[-1].err
    commands = [
        *(("list", *flags) for flags in ([], ["--output=json"], ["--all"], ["--all", "--output=json"])),
        *((each, "job", *flags) for each in ("why", "history") for flags in ([], ["--output=json"])),
        ("logs", "job"),
    ]
    for _ in range(4):
        shown += [run(*command) for command in commands]
        bastion.settle(1)
    shown.append(run("cancel", "job", code=0))
    bastion.run_until(lambda: bastion.result("job"))
    shown += [run(*command) for command in commands]
    for done in shown:
        assert TOKEN not in done.out + done.err
        assert PASSWORD not in done.out + done.err
    completed = json.loads(run("list", "--all", "--output=json").out)["completed"]
    assert completed[0]["env_vars"] == {
        "SOURCE": "*** (looks like a GitHub token)",
        "DB_PASSWORD": "***",
        "TOKENIZERS_PARALLELISM": "false",
        "N": "3",
    }


def test_a_spec_with_a_value_that_was_hidden_for_its_form_is_refused(run, bastion, tmp_path: Path) -> None:
    hidden = run("launch", "--dry_run", f"--env=SOURCE={TOKEN}", "--name=job", "--", "true")
    (tmp_path / "job.json").write_text(hidden.out)
    done = run("submit", f"--spec={tmp_path}/job.json", code=64)
    assert "this spec hides the values of SOURCE (***)" in done.err


def test_a_benchmark_is_warned_about_too_and_its_jobs_have_their_references(run, bastion, tmp_path: Path) -> None:
    path = tmp_path / "bench.toml"
    secrets = 'secrets = { WANDB_API_KEY = "sm://our-team/wandb" }'
    path.write_text(text().replace("[run]\n", f'[run]\nenv = {{ SOURCE = "{TOKEN}" }}\n{secrets}\n'))
    bastion.settle(2)
    checked = run("benchmark", "check", str(path), code=0)
    assert "bastion: run.env SOURCE looks like a GitHub token; all who read" in checked.err
    assert "write it as run.secrets.SOURCE" in checked.err
    started = run("benchmark", "run", str(path))
    assert started.code == 0, started.err
    shown = [checked, started, run("benchmark", "check", str(path), "--output=json")]
    specs = [json.loads(bastion.store.get(key).data) for key in bastion.listed("jobs/active/")]
    assert {"WANDB_API_KEY": "sm://our-team/wandb"} in [(each.get("runner") or {}).get("secrets") for each in specs]
    for done in shown:
        assert TOKEN not in done.out + done.err
    # The file is stored as it is; like the specs, it is there for those who read the bucket.
    for key in (key for key in bastion.listed("benchmarks/") if not key.endswith("/bench.toml")):
        assert TOKEN.encode() not in bastion.store.get(key).data, key


IN_A_POD = ("launch", "--name=job", "--instance_type=tpu-v4-16", "--secret=A=k8s:secret/wandb/key")
NO_CLUSTER = "its secret k8s:secret/wandb/key needs a Kubernetes cluster, and config/daemon.toml has none for v4; use"


def test_a_secret_of_a_cluster_is_refused_without_one(run, bastion) -> None:
    bastion.settle(2)
    done = run(*IN_A_POD, "--", "true", code=64)
    assert NO_CLUSTER in done.err
    assert "use --nocheck to submit the job anyway and wait until the settings change" in done.err
    assert bastion.listed("jobs/active/") == []
    assert NO_CLUSTER in run(*IN_A_POD, "--dry_run", "--", "true", code=0).err


def test_a_job_that_was_submitted_all_the_same_waits_and_why_says_for_what(run, bastion) -> None:
    bastion.settle(2)
    assert "the job waits until the settings change" in run(*IN_A_POD, "--nocheck", "--", "true", code=0).err
    bastion.settle(3)
    assert NO_CLUSTER in run("why", "job").out
