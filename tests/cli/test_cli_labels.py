"""Labels and images: given to `launch` and `submit`, shown by `why` and `list`, which filters by labels."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from bastion.core import limits
from bastion.core.bucket import keys

_IMAGE = "us-docker.pkg.dev/p/images/train:v1"
_SLICE = "--instance_type=tpu-v4-8"


def stored(bastion, name: str = "job") -> dict[str, Any]:
    return dict(json.loads(bastion.store.get(keys.active(name)).data))


def names(run, *flags: str) -> set[str]:
    return {entry["name"] for entry in json.loads(run("list", *flags, "--output=json").out)["jobs"]}


@pytest.fixture
def three(run, bastion) -> None:
    """A queue of jobs with different labels, and one without."""
    bastion.settle(2)
    for name, labels in (("a", ["team=vision", "sweep=1"]), ("b", ["team=vision"]), ("c", ["team=speech", "sweep="])):
        run("launch", f"--name={name}", *(f"--label={label}" for label in labels), "--", "true", code=0)
    run("launch", "--name=plain", "--", "true", code=0)
    bastion.settle(2)


def test_image_and_labels_of_a_launch_are_in_its_spec(run, bastion) -> None:
    labels = ("--label", "team=vision", "--label=sweep=1", "--label=team=vision", "--label=empty=")
    run("launch", "--name=job", _SLICE, f"--image={_IMAGE}", *labels, "--", "true", code=0)
    spec = stored(bastion)
    assert spec["runner"]["image"] == _IMAGE
    assert spec["metadata"]["labels"] == {"team": "vision", "sweep": "1", "empty": ""}


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--image=x"], "--image applies only to slice jobs; add --instance_type"),
        ([_SLICE, "--image="], "--image is empty; give it a value or leave it out"),
        ([_SLICE, "--image=my image"], "--image=my image is not valid: it must be a container image such as us-docker"),
        ([_SLICE, "--image=" + "x" * 513], "is not valid: it must be a container image"),
        (["--label=team"], "--label=team has no value; use --label team=VALUE"),
        (["--label="], "--label= has no value; use --label KEY=VALUE"),
        (["--label==x"], "--label: '' is not a valid label key; use up to 63 letters"),
        (["--label=a b=x"], "--label: 'a b' is not a valid label key"),
        (["--label=\x1b[2J=x"], r"--label: '\x1b[2J' is not a valid label key"),
        (["--label=team=a=b"], "--label: 'a=b' is not a valid value of label team"),
        (["--label=team=a", "--label=team=b"], "--label sets team to two values; set it once"),
        (["--label=bastion-run=x"], "'bastion-run' is a label that Bastion sets itself; choose another key"),
        (["--label=job-name=x"], "'job-name' is a label that Kubernetes sets itself; choose another key"),
        ([f"--label=k{n}=v" for n in range(limits.LABELS_MAX + 1)], "has 33 labels; the maximum is 32"),
    ],
)
def test_a_bad_image_or_label_is_refused_and_nothing_is_written(run, bastion, flags: list[str], message: str) -> None:
    assert message in run("launch", *flags, "--", "true", code=64).err
    assert bastion.listed("jobs/") == []


def test_submit_changes_labels_and_image_of_the_file(run, bastion, tmp_path: Path) -> None:
    path = tmp_path / "job.json"
    flags = ("--name=job", _SLICE, "--label=team=vision", "--label=kept=1", "--bundle=none")
    path.write_text(run("launch", *flags, "--dry_run", "--", "true", code=0).out, "utf-8")
    run("submit", f"--spec={path}", f"--image={_IMAGE}", "--label=team=speech", code=0)
    spec = stored(bastion)
    assert spec["metadata"]["labels"] == {"team": "speech", "kept": "1"}
    assert spec["runner"]["image"] == _IMAGE
    without = json.loads(path.read_text("utf-8")) | {"runner": None, "name": "other"}
    without["metadata"]["resources"] = {}
    path.write_text(json.dumps(without), "utf-8")
    refused = run("submit", f"--spec={path}", f"--image={_IMAGE}", code=64)
    assert "--image applies only to slice jobs, and this spec has no runner" in refused.err


def test_submit_without_these_flags_writes_the_files_bytes(run, bastion, tmp_path: Path) -> None:
    path = tmp_path / "job.json"
    path.write_text(run("launch", "--name=job", "--bundle=none", "--dry_run", "--", "true").out + "\n\n", "utf-8")
    run("submit", f"--spec={path}", code=0)
    assert bastion.store.get(keys.active("job")).data == path.read_bytes()


@pytest.mark.parametrize(
    ("filters", "found"),
    [
        ([], {"a", "b", "c", "plain"}),
        (["--label=team=vision"], {"a", "b"}),
        (["--label=sweep"], {"a", "c"}),
        (["--label=sweep="], {"c"}),
        (["--label=team=vision", "--label=sweep"], {"a"}),
        (["--label=sweep=1", "--label=sweep"], {"a"}),
        (["--label=other"], set()),
    ],
)
def test_the_list_shows_the_jobs_with_all_these_labels(run, three, filters: list[str], found: set[str]) -> None:
    assert names(run, *filters) == found
    shown = {line.split()[0] for line in run("list", *filters).out.splitlines()[1:]}
    assert shown == found


def test_a_filter_that_no_job_matches_says_so_and_one_that_cannot_match_is_refused(run, three) -> None:
    assert "no live jobs with these labels" in run("list", "--label=other").err
    assert "'a b' is not a valid label key" in run("list", "--label=a b", code=64).err
    refused = run("list", "--label=team=a", "--label=team=b", code=64)
    assert "--label asks for two values of team, so no job matches" in refused.err


def test_completed_jobs_are_filtered_too_and_what_was_searched_is_said(run, bastion, three) -> None:
    run("cancel", "--wait", "a", "b", "c", "plain", code=0)
    shown = run("list", "--all", "--label=team=vision")
    assert {line.split()[0] for line in shown.out.splitlines()[1:]} == {"a", "b"}
    document = json.loads(run("list", "--all", "--label=sweep", "--output=json").out)
    assert {each["name"] for each in document["completed"]} == {"a", "c"}
    few = run("list", "--all", "--label=sweep", "--limit=2").err
    assert "searched the newest 2 of 4 completed jobs; use --limit=4 to see all" in few


def test_a_filtered_list_reads_new_specs_and_leaves_out_refused_ones(run, bastion, three) -> None:
    bastion.put_spec("bad", b"{")
    bastion.settle(2)
    run("launch", "--name=unread", "--label=team=vision", "--", "true", code=0)
    everything = json.loads(run("list", "--output=json").out)
    assert (everything["unread"], len(everything["invalid"])) == (["unread"], 1)
    filtered = json.loads(run("list", "--label=team", "--output=json").out)
    assert (filtered["unread"], filtered["invalid"]) == (["unread"], [])
    assert json.loads(run("list", "--label=other", "--output=json").out)["unread"] == []
    assert "bad" not in run("list", "--label=team").out


def test_why_shows_labels_and_image_while_the_job_lives_and_labels_after(run, bastion) -> None:
    bastion.settle(2)
    run("launch", "--name=job", _SLICE, f"--image={_IMAGE}", "--label=team=vision", "--label=n=1", "--", "true", code=0)
    bastion.settle(2)
    shown = run("why", "job")
    assert "\n  labels n=1, team=vision\n" in shown.out
    assert f"\n  image {_IMAGE}\n" in shown.out
    document = json.loads(run("why", "job", "--output=json").out)
    assert document["labels"] == document["job"]["labels"] == {"team": "vision", "n": "1"}
    run("cancel", "--wait", "job", code=0)
    assert "\n  labels n=1, team=vision\n" in run("why", "job").out
    assert json.loads(run("why", "job", "--output=json").out)["labels"] == {"team": "vision", "n": "1"}


def test_a_job_without_labels_does_not_mention_them(run, bastion) -> None:
    bastion.submit("job")
    bastion.settle(2)
    assert "label" not in run("why", "job").out
    assert "labels" not in json.loads(run("why", "job", "--output=json").out)["job"]
