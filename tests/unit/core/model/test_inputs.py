"""Inputs of a spec: URLs, folders, and what a job may not ask for."""

from __future__ import annotations

import pytest

from bastion.core.errors import InvalidSpec
from bastion.core.model import inputs
from bastion.core.model.inputs import Input
from bastion.core.model.job_spec import JobOptions, JobSpec, new


def _spec(**options: object) -> JobSpec:
    made = JobOptions(instance_type="tpu-v4-8", **options)  # type: ignore[arg-type]
    return new(name="j", bastion="b-bastion", command="true", user_id="u", project_id="p", now=0, options=made)


@pytest.mark.parametrize(
    ("text", "url", "folder"),
    [
        ("s3://data/tokens:data", "s3://data/tokens", "data"),
        ("s3://data/tokens", "s3://data/tokens", "tokens"),
        ("gs://data/a/tokens/", "gs://data/a/tokens", "tokens"),
        ("gs://data", "gs://data", "data"),
        ("gs://data:in/deep", "gs://data", "in/deep"),
        ("/mnt/tokens", "/mnt/tokens", "tokens"),
        ("file:///mnt/tokens:in", "file:///mnt/tokens", "in"),
    ],
)
def test_an_input_is_a_url_and_a_folder(text: str, url: str, folder: str) -> None:
    assert inputs.parse(text) == Input(url=url, folder=folder)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("data/tokens", "must be gs://BUCKET/PREFIX, s3://BUCKET/PREFIX, file:///FOLDER or /FOLDER"),
        ("http://data/tokens:data", "must be gs://"),
        ("gs://D/x", "must name a bucket: 'D' is no name of one"),
        ("s3://My_Data/x", "must name a bucket: 'My_Data' is no name of one"),
        ("gs://", "must name a bucket"),
        ("S3://data/x", "must be gs://"),
        ("s3:/data/x", "must be gs://"),
        ("file://data/tokens", "must be gs://"),
        ("gs://data/../x", "must not have . or .., nor an empty name"),
        ("gs://data//x", "must not have . or .., nor an empty name"),
        ("/mnt/../etc", "must not have . or .., nor an empty name"),
        ("gs://data/x:", "has no folder after the colon"),
        ("gs://data/x:/etc", "must be a folder below the command's working directory, such as data"),
        ("gs://data/x:../up", "must be a folder below"),
        ("gs://data/x:.", "must be a folder below"),
        ("gs://data/x:a//b", "must be a folder below"),
        (f"gs://data/x:{'a/' * 600}a", "must be a folder's path of at most 1024 bytes"),
        ("gs://data/\x1b[2J", "printable"),
    ],
)
def test_what_is_no_input_is_told(text: str, said: str) -> None:
    with pytest.raises(ValueError, match=r".*") as caught:
        inputs.parse(text)
    assert said in str(caught.value)


def test_a_spec_has_its_inputs_and_the_place_of_its_outputs() -> None:
    runner = _spec(
        inputs=[{"url": "gs://data/tokens/", "dir": "data/"}, {"url": "/mnt/x", "dir": "x"}],
        output_dir="out",
        output_to="s3://my-bucket/runs/",
    ).runner
    assert runner is not None
    assert runner.inputs == (Input(url="gs://data/tokens", folder="data"), Input(url="/mnt/x", folder="x"))
    assert runner.output_to == "s3://my-bucket/runs"
    plain = _spec().runner
    assert plain is not None
    assert (plain.inputs, plain.output_to) == ((), "")


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"inputs": [{"url": "gs://data", "dir": "../x"}]}, "runner.inputs.0.dir: must be a folder below"),
        ({"inputs": [{"url": "data", "dir": "x"}]}, "runner.inputs.0.url: must be gs://BUCKET"),
        ({"inputs": [{"url": "gs://data", "dir": f"x{n}"} for n in range(17)]}, "runner.inputs: "),
        (
            {"inputs": [{"url": "gs://data/a", "dir": "x"}, {"url": "gs://data/b", "dir": "x"}]},
            "two inputs go into x and x; give each a folder of its own with URL:DIR",
        ),
        ({"inputs": [{"url": "gs://data/a", "dir": "x"}, {"url": "gs://data/b", "dir": "x/y"}]}, "into x and x/y"),
        (
            {"inputs": [{"url": "gs://data/a", "dir": "out/data"}], "output_dir": "./out"},
            "an input goes into out/data, which would be stored with the outputs of out",
        ),
        ({"output_to": "s3://my-bucket"}, "output_to requires output_dir"),
        ({"output_to": "elsewhere", "output_dir": "out"}, "runner.output_to: must be gs://BUCKET"),
    ],
)
def test_an_impossible_input_is_refused(options: dict[str, object], said: str) -> None:
    with pytest.raises(InvalidSpec) as refused:
        _spec(**options)
    assert said in str(refused.value)
    assert "Value error" not in str(refused.value)
