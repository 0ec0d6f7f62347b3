"""Labels of jobs: which are valid, which are not, and what an update without them means."""

from __future__ import annotations

import json
from typing import Any

import pytest

from bastion.core import limits
from bastion.core.errors import InvalidSpec
from bastion.core.model import job_spec
from bastion.core.model.job_spec import JobOptions, JobSpec
from bastion.core.model.labels import match


def spec(labels: Any = None, *, version: int | None = None, instance_type: str = "", **changes: Any) -> JobSpec:
    made = job_spec.new(
        name="job",
        bastion="b-bastion",
        command="true",
        user_id="u",
        project_id="p",
        now=0,
        options=JobOptions(instance_type=instance_type),
    )
    document = made.document
    document["metadata"]["version"] = version
    if labels is not None:
        document["metadata"]["labels"] = labels
    return job_spec.parse(json.dumps({**document, **changes}).encode(), name="job", bastion="b-bastion")


def problem(labels: Any) -> str:
    with pytest.raises(InvalidSpec) as refusal:
        spec(labels)
    return str(refusal.value)


def test_labels_are_kept_and_a_spec_without_them_does_not_mention_them() -> None:
    labels = {"team": "vision", "Sweep_1.x": "", "a": "b" * 63}
    assert (spec(labels).labels, spec(labels).has_labels) == (labels, True)
    assert "labels" not in spec().document["metadata"]
    assert (spec().labels, spec().has_labels, spec({}).labels) == ({}, False, {})


@pytest.mark.parametrize(
    ("labels", "words"),
    [
        ({"": "x"}, "'' is not a valid label key; use up to 63 letters"),
        ({"-a": "x"}, "'-a' is not a valid label key"),
        ({"a" * 64: "x"}, "is not a valid label key"),
        ({"example.com/a": "x"}, "'example.com/a' is not a valid label key"),
        ({"a\n": "x"}, r"'a\n' is not a valid label key"),
        ({"ä": "x"}, "is not a valid label key"),
        ({"team": "a b"}, "'a b' is not a valid value of label team"),
        ({"team": "x" * 64}, "is not a valid value of label team"),
        ({"team": "x\n"}, r"'x\n' is not a valid value of label team"),
        ({"team": 7}, "metadata.labels.team"),
        (["team"], "metadata.labels"),
        ({"bastion-run": "x"}, "'bastion-run' is a label that Bastion sets itself; choose another key"),
        ({"job-name": "x"}, "'job-name' is a label that Kubernetes sets itself; choose another key"),
        ({"controller-uid": "x"}, "'controller-uid' is a label that Kubernetes sets itself"),
        ({f"k{number}": "" for number in range(limits.LABELS_MAX + 1)}, "has 33 labels; the maximum is 32"),
        ({f"k{number:02}": "v" * 60 for number in range(17)}, "have 1071 characters together; the maximum is 1024"),
    ],
)
def test_labels_that_cannot_be_on_objects_are_refused_with_what_to_do(labels: Any, words: str) -> None:
    assert words in problem(labels)


def test_the_most_labels_are_accepted_and_keys_like_reserved_ones_too() -> None:
    most = {f"k{number}": "" for number in range(limits.LABELS_MAX)}
    assert spec(most).labels == most
    assert spec({"bastion": "x", "job-names": "y"}).has_labels


@pytest.mark.parametrize("instance_type", ["", "tpu-v4-8"])
def test_an_update_without_labels_keeps_them_and_one_with_labels_has_its_own(instance_type: str) -> None:
    accepted = spec({"team": "a"}, instance_type=instance_type)
    update = spec(version=1, instance_type=instance_type, command="other")
    kept = job_spec.overwriting(update, accepted)
    assert (kept.labels, kept.command, kept.runner is not None) == ({"team": "a"}, "other", bool(instance_type))
    without_runner = spec({"x": "y"}, version=1, instance_type=instance_type).document
    without_runner.pop("runner", None)
    changed = job_spec.overwriting(job_spec.from_document(without_runner, name="job"), accepted)
    assert (changed.labels, changed.runner is not None) == ({"x": "y"}, bool(instance_type))
    assert job_spec.overwriting(spec({}, version=1, instance_type=instance_type), accepted).labels == {}


def test_another_job_of_that_name_does_not_get_the_labels() -> None:
    assert job_spec.overwriting(spec(command="other"), spec({"team": "a"})).labels == {}
    assert job_spec.overwriting(spec(), spec({"team": "a"})).labels == {"team": "a"}  # the same job, uploaded again


@pytest.mark.parametrize(
    ("wanted", "found"),
    [
        ({}, True),
        ({"team": "a"}, True),
        ({"team": None}, True),
        ({"team": "a", "run": ""}, True),
        ({"team": "b"}, False),
        ({"team": "a", "x": None}, False),
        ({"run": "1"}, False),
    ],
)
def test_a_filter_requires_each_of_its_labels(wanted: dict[str, str | None], found: bool) -> None:
    assert match({"team": "a", "run": ""}, wanted) is found
