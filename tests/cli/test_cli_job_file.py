"""`bastion launch --file=job.toml`."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

_FILE = """\
# the usual run
name = "train-1"
project_id = "a"
priority = 2
max_run = "2h"
check = false
bundle = "none"
label = ["team=vision"]
command = ["python3", "train.py", "--text=a b"]

[env]
LR = 0.1
STEPS = 10
"""


@pytest.fixture
def file(bastion, tmp_path: Path) -> Path:
    path = tmp_path / "job.toml"
    path.write_text(_FILE)
    return path


def spec(run, file: Path, *more: str) -> dict:
    done = run("launch", "--dry_run", f"--file={file}", *more)
    assert done.code == 0, done.err
    return json.loads(done.out)


def test_every_key_is_the_flag_of_its_name(run, file: Path) -> None:
    made = spec(run, file)
    assert (made["name"], made["metadata"]["priority"], made["metadata"]["project_id"]) == ("train-1", 2, "a")
    assert made["env_vars"] == {"LR": "0.1", "STEPS": "10"}
    assert made["metadata"]["labels"] == {"team": "vision"}
    assert made["limits"] == {"max_run_seconds": 7200}
    assert made["command"] == "python3 train.py '--text=a b'"


def test_what_is_on_the_command_line_wins(run, file: Path) -> None:
    made = spec(run, file, "--name=train-2", "--env=LR=0.2", "--label=team=text", "--", "true")
    assert (made["name"], made["command"]) == ("train-2", "true")
    assert made["env_vars"] == {"LR": "0.2", "STEPS": "10"}
    assert made["metadata"]["labels"] == {"team": "text"}


def test_a_command_line_is_taken_as_it_is_written(run, file: Path) -> None:
    file.write_text('project_id = "a"\nbundle = "none"\ncommand = "make data && python3 train.py"\n')
    made = spec(run, file)
    assert made["command"] == "make data && python3 train.py"
    assert "make" in made["name"]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('name = "x"\n\ninstance_typ = "tpu-v4-8"', "line 3: bastion launch has no flag 'instance_typ'; did you mean"),
        ('file = "other.toml"', "line 1: bastion launch has no flag 'file'"),
        ('# x\npriority = "high"', "line 2: --priority=high is not a whole number"),
        ("priority = 9", "line 1"),
        ("priority = [1]", "line 1: priority must be a text, a number, true or false"),
        ("label = [[1]]", "line 1: label must be a text"),
        ('[env]\nLR = ["x"]', "line 1: env.LR must be a text"),
        ("command = 3", "line 1: command must be a command line, or a list of arguments"),
        ("command = []", "line 1: command must be"),
        ("name = ", "is not valid TOML"),
        ('name = "x"', "the command is missing"),
        ("x" * 2**21, "no spec may be"),
    ],
)
def test_a_file_that_cannot_be_meant_is_refused_with_the_line(run, file: Path, text: str, message: str) -> None:
    file.write_text(text)
    done = run("launch", f"--file={file}", code=64)
    assert message in done.err
    assert "Traceback" not in done.err


def test_a_file_that_is_not_there_is_named(run, tmp_path: Path) -> None:
    assert "cannot read the job file" in run("launch", f"--file={tmp_path}/none.toml", code=64).err
    assert "cannot read the job file" in run("launch", f"--file={tmp_path}", code=64).err


def test_a_job_that_is_refused_is_not_packed(run, bastion, tmp_path: Path) -> None:
    (tmp_path / "code").mkdir()
    (tmp_path / "code" / "train.py").write_text("print(1)")
    bundle = f"--bundle={tmp_path}/code"
    bastion.submit("taken")
    bastion.settle(2)
    done = run("launch", "--name=taken", "--project_id=a", bundle, "--", "true", code=64)
    assert "a job named 'taken' already exists" in done.err
    assert "packed" not in done.err
    done = run("launch", "--project_id=nowhere", bundle, "--", "true", code=64)
    assert "packed" not in done.err
    assert not bastion.listed("bundles/")
