"""`bastion submit`: the spec in a file lands in the bucket as it is, or is refused."""

from __future__ import annotations

import io
import json
import sys
from pathlib import Path

import pytest

from bastion.core.bucket import keys
from bastion.testing.cluster import BASTION
from bastion.testing.scripted_hosts import runs_for
from tests.support.job_specs import new_spec


def written(bastion, name: str = "job", **changes: object) -> bytes:
    made = new_spec(name, bastion=BASTION, command="x", user_id="alice", project_id="a")
    document = json.loads(made.to_bytes())
    metadata = document["metadata"] | changes.pop("metadata", {})  # type: ignore[operator]
    return json.dumps(document | {"metadata": metadata, "note": "kept"} | changes, indent=2).encode()


def test_a_spec_from_a_file_is_put_as_it_is(run, bastion, tmp_path: Path) -> None:
    data = written(bastion)
    (tmp_path / "job.json").write_bytes(data)
    done = run("submit", "--spec=job.json", "--output=json", code=0)
    assert json.loads(done.out)["name"] == "job"
    assert bastion.store.get(keys.active("job")).data == data


def test_a_spec_comes_from_stdin_and_can_be_waited_for(run, bastion, monkeypatch) -> None:
    bastion.hosts.scripts["job"] = runs_for(1, code=9)
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(written(bastion))))
    assert run("submit", "--spec=-", "--wait").code == 9


def test_a_version_one_higher_updates_the_live_job(run, bastion, tmp_path: Path) -> None:
    path = tmp_path / "job.json"
    path.write_bytes(written(bastion))
    assert run("submit", "--spec=job.json").code == 0
    bastion.settle(2)
    path.write_bytes(written(bastion, command="y", metadata={"version": 1}))
    done = run("submit", "--spec=job.json", code=0)
    assert done.err.startswith("updated job")
    path.write_bytes(written(bastion, command="z", metadata={"version": 5}))
    bastion.settle(60)
    done = run("submit", "--spec=job.json", code=64)
    assert "with metadata.version 1; an update must have version 2, not 5" in done.err


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"{", "job.json: the document is not valid JSON"),
        (b'{"name": "job", "name": "x"}', "the key 'name' appears twice"),
        (b"[]", 'a job spec is a JSON object with a "name"'),
        (b'{"version": 1}', 'a job spec is a JSON object with a "name"'),
        (b'{"name": "job"}', "not a valid job spec (version 1)"),
        (b'{"name": "../job"}', "not a valid job spec (version 1)"),
        (b"[" * 99, "nests deeper than 32 levels"),
        (b" " * 70_000, "the maximum is 65536"),
    ],
)
def test_a_broken_spec_is_refused_clearly(run, bastion, tmp_path: Path, data: bytes, message: str) -> None:
    (tmp_path / "job.json").write_bytes(data)
    done = run("submit", "--spec=job.json", code=64)
    assert message in done.err
    assert bastion.listed("jobs/") == []


def test_a_spec_with_a_hostile_name_is_refused(run, bastion, tmp_path: Path) -> None:
    (tmp_path / "job.json").write_bytes(written(bastion, name="job").replace(b'"job"', b'"../../etc/x"'))
    done = run("submit", "--spec=job.json", code=64)
    assert "'../../etc/x' is not a valid job name" in done.err


def test_submit_needs_a_file_that_is_there(run, bastion) -> None:
    assert "--spec is required" in run("submit").err
    assert "cannot read the spec nowhere.json" in run("submit", "--spec=nowhere.json").err


def test_a_field_of_the_runner_that_means_nothing_is_told(run, bastion, tmp_path: Path) -> None:
    owner = {"user_id": "alice", "project_id": "a"}
    inputs = [{"url": "gs://data", "dir": "data"}]
    made = new_spec("job", bastion=BASTION, command="x", instance_type="tpu-v4-8", inputs=inputs, **owner)
    document = json.loads(made.to_bytes())
    document["runner"] |= {"stuck_after": "30m", "input": "gs://data", "later": 1}
    document["runner"]["inputs"][0]["folder"] = "x"
    (tmp_path / "job.json").write_text(json.dumps(document))
    said = run("submit", "--spec=job.json", code=0).err
    for text in (
        "runner.stuck_after means nothing to this version, and is ignored; did you mean stuck_after_seconds?",
        "runner.input means nothing to this version, and is ignored; did you mean inputs?",
        "runner.later means nothing to this version, and is ignored\n",
        "runner.inputs.0.folder means nothing",
    ):
        assert text in said
    assert json.loads(bastion.store.get(keys.active("job")).data)["runner"]["later"] == 1
