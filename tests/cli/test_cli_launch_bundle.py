"""`bastion launch` and code: what goes along, what is said, what is refused before anything is written."""

from __future__ import annotations

import json
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from bastion.core.bucket import bundles, keys
from bastion.core.model import job_spec
from bastion.testing.cluster import BASTION


@pytest.fixture
def tree(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A git working tree, which is the current folder; the simulated bastion is found from it."""
    folder = tmp_path / "project"
    (folder / "lib").mkdir(parents=True)
    (folder / "train.py").write_text("print(1)\n")
    (folder / "lib" / "model.py").write_text("x = 1\n")
    subprocess.run(["git", "init", "-q", str(folder)], check=True)
    monkeypatch.setenv("BASTION_ROOT", str(tmp_path / "memory" / "test-bastion"))
    monkeypatch.chdir(folder)
    return folder


def spec(bastion, name: str = "job") -> job_spec.JobSpec:
    return job_spec.parse(bastion.store.get(keys.active(name)).data, name=name, bastion=BASTION)


def stored(bastion) -> list[str]:
    return [meta.key for meta in bastion.store.list("bundles/")]


def test_in_a_git_tree_the_code_goes_along_and_is_stored_once(run, bastion, tree) -> None:
    done = run("launch", "--name=job", "--", "python3", "train.py", code=0)
    assert f"packed 2 files from {tree} (uploaded, 1 KiB)" in done.err
    url = spec(bastion).code_asset_path
    assert url is not None
    digest = bundles.digest_in(url)
    assert url == f"{tree.parent}/memory/test-bastion/{keys.bundle(digest)}"
    assert stored(bastion) == [keys.bundle(digest)]

    again = run("launch", "--name=again", "--", "python3", "train.py")
    assert f"packed 2 files from {tree} (already uploaded)" in again.err
    assert (spec(bastion, "again").code_asset_path, len(stored(bastion))) == (url, 1)


def test_outside_of_one_nothing_goes_along_and_one_line_says_so(run, bastion) -> None:
    done = run("launch", "--name=job", "--", "true")
    assert (
        done.err.count("not uploading code: this folder is not in a git repository (use --bundle=DIR to pack a folder)")
        == 1
    )
    assert (spec(bastion).code_asset_path, stored(bastion)) == (None, [])


def test_none_packs_nothing_and_says_nothing(run, bastion, tree) -> None:
    done = run("launch", "--name=job", "--bundle=none", "--", "true")
    assert (spec(bastion).code_asset_path, stored(bastion)) == (None, [])
    assert "go along" not in done.err
    assert "packed" not in done.err


def test_another_folder_is_packed_when_it_is_named(run, bastion, tree, tmp_path) -> None:
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "x.py").write_text("")
    assert f"packed 1 file from {tmp_path}/other" in run("launch", "--bundle=../other", "--", "true").err


def test_a_folder_inside_of_a_tree_goes_alone_and_the_whole_tree_is_named(run, bastion, tree, monkeypatch) -> None:
    monkeypatch.chdir(tree / "lib")
    done = run("launch", "--", "true")
    assert f"packed 1 file from {tree}/lib" in done.err
    assert f"packing only this folder of the git repository {tree} (use --bundle={tree} to pack all of it)" in done.err


def test_a_folder_where_git_counts_nothing_takes_nothing_along(run, bastion, tree, monkeypatch) -> None:
    (tree / "empty").mkdir()
    monkeypatch.chdir(tree / "empty")
    done = run("launch", "--name=job", "--", "true", code=0)
    assert "not uploading code: git has no files in this folder" in done.err
    assert run("launch", "--bundle=.", "--", "true").code == 64


def test_a_secret_stops_the_launch_before_anything_is_written(run, bastion, tree) -> None:
    (tree / ".env").write_text("A=1")
    done = run("launch", "--name=job", "--", "true", code=64)
    assert ".env (named like a file of passwords or tokens)" in done.err
    assert (list(bastion.store.list("jobs/active/")), stored(bastion)) == ([], [])
    assert "2 files" in run("launch", "--bundle_exclude=.env", "--", "true").err
    assert "3 files" in run("launch", "--bundle_allow=.env", "--", "true").err


def test_what_is_left_out_is_named(run, bastion, tree) -> None:
    for number in range(5):
        (tree / f"link{number}").symlink_to("/etc/hosts")
    err = run("launch", "--", "true").err
    assert "not packing link0 (the link points to an absolute path)" in err
    assert "not packing 2 more files" in err
    assert "link4" not in err


def test_a_dry_run_shows_where_the_code_would_be_and_stores_nothing(run, bastion, tree) -> None:
    done = run("launch", "--dry_run", "--", "true")
    assert bundles.digest_in(json.loads(done.out)["code_asset_path"])
    assert stored(bastion) == []


# -- a dry run, then submit --------------------------------------------------------------------------------------------


def made_in(folder: Path, *flags: str) -> subprocess.CompletedProcess[str]:
    """`bastion launch --dry_run > job.json`, by a shell."""
    command = [sys.executable, "-m", "bastion.cli.main", "launch", "--dry_run", "--name=job", "--project_id=a", *flags]
    shell = f"{shlex.join([*command, '--', 'python3', 'train.py'])} > job.json"
    return subprocess.run(["bash", "-c", shell], cwd=folder, capture_output=True, text=True, timeout=60, check=True)


def test_a_dry_run_into_a_file_of_the_folder_can_be_submitted_with_its_code(run, bastion, tree) -> None:
    assert "run bastion submit in this folder to upload it" in made_in(tree).stderr
    done = run("submit", "--spec=job.json", code=0)
    assert f"packed 2 files from {tree} (uploaded" in done.err
    assert stored(bastion) == [keys.bundle(bundles.digest_in(spec(bastion).code_asset_path or ""))]
    (tree / "train.py").unlink()
    assert run("cancel", "job").code == 0
    bastion.run_until(lambda: bastion.result("job"))
    assert run("submit", "--spec=job.json").code == 0  # the code is in the bucket


def test_a_spec_whose_code_is_nowhere_is_refused(run, bastion, tree, tmp_path, monkeypatch) -> None:
    made_in(tree)
    (tree / "train.py").write_text("print(2)\n")
    done = run("submit", "--spec=job.json", code=64)
    assert f"is not in the bucket, and the code in {tree} differs; run bastion submit in the folder" in done.err
    monkeypatch.chdir(tmp_path)
    assert "is not in the bucket, and there is no code here" in run("submit", f"--spec={tree}/job.json").err
    assert (bastion.listed("jobs/active/"), stored(bastion)) == ([], [])


def test_a_spec_with_hidden_secrets_is_refused_and_one_with_secrets_is_taken(run, bastion, tree) -> None:
    assert "hunter2" not in made_in(tree, "--env=API_KEY=hunter2").stderr + (tree / "job.json").read_text()
    done = run("submit", "--spec=job.json", code=64)
    assert "this spec hides the values of API_KEY (***); fill them in, or make the spec again with" in done.err
    assert bastion.listed("jobs/active/") == []
    made_in(tree, "--env=API_KEY=hunter2", "--env=A=***", "--show_secrets")
    assert run("submit", "--spec=job.json").code == 0
    assert dict(spec(bastion).env_vars) == {"A": "***", "API_KEY": "hunter2"}


@pytest.mark.parametrize("flag", ["--bundle=", "--bundle_exclude=", "--bundle_allow=", "--bundle=missing"])
def test_an_empty_or_wrong_value_is_refused(run, bastion, tree, flag: str) -> None:
    run("launch", flag, "--", "true", code=64)
    assert stored(bastion) == []


def test_what_a_job_on_slices_may_ask_for_stands_in_its_runner(run, bastion) -> None:
    done = run(
        *("launch", "--name=job", "--instance_type=tpu-v4-16", "--max_tries=3", "--max_wait=2h", "--setup="),
        *("--output_dir=out", "--output_sync=worker0", "--", "true"),
    )
    assert done.code == 0
    runner = spec(bastion).runner
    assert runner is not None
    assert (runner.max_tries, runner.max_wait_seconds, runner.setup) == (3, 7200, "")
    assert (runner.output_dir, runner.output_sync) == ("out", "worker0")


@pytest.mark.parametrize(
    "flag",
    [
        "--max_tries=2",
        "--max_wait=2h",
        "--setup=",
        "--output_dir=x",
        "--output_sync=each",
        "--stuck_after=30m",
        "--secret=A=file:/a",
        "--input=gs://data/x",
        "--output_to=gs://data/x",
    ],
)
def test_without_a_slice_it_means_nothing_and_is_refused(run, bastion, flag: str) -> None:
    done = run("launch", flag, "--", "true", code=64)
    assert f"{flag.partition('=')[0]} applies only to slice jobs; add --instance_type" in done.err


def test_inputs_and_the_place_of_outputs_stand_in_its_runner(run, bastion) -> None:
    flags = ("--input=s3://data/tokens:in", "--input=/mnt/x", "--output_dir=out", "--output_to=gs://mine/runs/")
    assert run("launch", "--name=job", "--instance_type=tpu-v4-16", *flags, "--", "true").code == 0
    runner = spec(bastion).runner
    assert runner is not None
    assert [(each.url, each.folder) for each in runner.inputs] == [("s3://data/tokens", "in"), ("/mnt/x", "x")]
    assert runner.output_to == "gs://mine/runs"


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        (
            ("--input=tokens",),
            "--input=tokens must be gs://BUCKET/PREFIX, s3://BUCKET/PREFIX, file:///FOLDER",
        ),
        (
            ("--input=gs://data/a:x", "--input=gs://data/b:x"),
            "two inputs go into x and x; give each a folder",
        ),
        (("--output_to=gs://mine",), "--output_to requires --output_dir"),
        (("--output_dir=o", "--output_to=mine"), "--output_to=mine must be gs://BUCKET/PREFIX"),
    ],
)
def test_a_wrong_input_is_refused(run, bastion, flags: tuple[str, ...], said: str) -> None:
    done = run("launch", "--instance_type=tpu-v4-8", *flags, "--", "true", code=64)
    assert said in done.err
    assert stored(bastion) == []


def test_a_wait_that_is_no_duration_is_refused(run, bastion) -> None:
    done = run("launch", "--instance_type=tpu-v4-8", "--max_wait=soon", "--", "true")
    assert (done.code, "--max_wait=soon is not a valid duration" in done.err) == (64, True)


def test_a_job_has_references_to_its_secrets_and_a_limit_of_silence(run, bastion) -> None:
    done = run(
        *("launch", "--name=job", "--instance_type=tpu-v4-16", "--stuck_after=30m"),
        *("--secret=WANDB_API_KEY=file:/secrets/wandb/api-key", "--secret=TOKEN=env:HF_TOKEN", "--", "true"),
    )
    assert done.code == 0
    runner = spec(bastion).runner
    assert runner is not None
    assert runner.stuck_after_seconds == 1800
    assert runner.secrets == {"WANDB_API_KEY": "file:/secrets/wandb/api-key", "TOKEN": "env:HF_TOKEN"}


def test_a_job_asks_to_run_as_root(run, bastion) -> None:
    launch = ("launch", "--name=job", "--instance_type=tpu-v4-16", "--root_user")
    assert "may not run jobs as root (allow_root = false); submit it without root" in run(*launch, "--", "true").err
    assert run(*launch, "--nocheck", "--", "true").code == 0
    assert spec(bastion).as_root
    assert (
        run("launch", "--root_user", "--", "true")
        .err.strip()
        .endswith("--root_user applies only to slice jobs; add --instance_type")
    )
    bastion.settle(2)
    assert "  runs as root on its hosts (--root_user)\n" in run("why", "job").out


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        (["--secret=KEY"], "--secret has no =; use --secret NAME=SOURCE, where SOURCE is file:PATH, env:NAME, sm://"),
        (["--secret=KEY=hunter2"], "k8s:secret/NAME/KEY; a secret's value itself must not"),
        (["--secret=KEY=file:hunter2"], "--secret=KEY=... must have an absolute path on the host"),
        (["--secret=KEY=env:hunter 2"], "--secret=KEY=... must have the name of a variable"),
        (["--secret=KEY=sm://hunter2"], "--secret=KEY=... must name a Google Cloud project, a secret and perhaps a"),
        (["--secret=KEY=sm://our-team/hunter2/-1"], "such as sm://my-project/wandb-key or sm://my-project/wandb-key/3"),
        (
            ["--secret=KEY=k8s://hunter2/key"],
            "--secret=KEY=... must name a Secret as kubectl does, and its key, such as",
        ),
        (["--secret=KEY=k8s:secret/hunter2/../x"], "such as k8s:secret/wandb/api-key; the namespace is that of the"),
        (["--secret=1KEY=file:/a"], "'1KEY' must be the name of a variable, without BASTION_"),
        (["--secret=BASTION_KEY=file:/a"], "'BASTION_KEY' must be the name of a variable, without BASTION_"),
        (["--secret=KEY=file:/a", "--secret=KEY=file:/b"], "--secret sets KEY twice; set it once"),
        (["--secret=KEY=file:/a", "--env=KEY=x"], "--env and --secret both set KEY; remove one of them"),
        (["--stuck_after=1s"], "--stuck_after=1s is too short; the minimum is 5s"),
        (["--stuck_after=soon"], "--stuck_after=soon is not a valid duration; write it like 45m or 2h"),
        (["--stuck_after="], "--stuck_after is empty"),
    ],
)
def test_a_wrong_secret_or_limit_is_refused_and_not_shown(run, bastion, flags: list[str], words: str) -> None:
    done = run("launch", "--instance_type=tpu-v4-16", *flags, "--", "true", code=64)
    assert words in done.err
    assert "hunter" not in done.err + done.out
    assert stored(bastion) == []
