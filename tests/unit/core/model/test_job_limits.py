"""`limits` of a spec: which are valid, which are not, and what an update without them means."""

from __future__ import annotations

import json
from typing import Any

import pytest

from bastion.core import limits
from bastion.core.errors import InvalidSpec
from bastion.core.model import job_spec
from bastion.core.model.job_limits import NO_LIMITS, Dependency, JobLimits, On
from bastion.core.model.job_spec import JobOptions, JobSpec
from tests.support.job_specs import new_spec

ONE = {"job": "first", "uid": "abcdefghij", "on": "succeeded"}
ALL = {
    "max_run_seconds": 7200,
    "after": [ONE, {"job": "Second", "uid": "bbbbbbbbbb", "on": "ended"}],
    "after_at_most_seconds": 60,
    "group": "sweep-1",
    "cleanup_after_group_seconds": 86400,
    "cleanup_max_seconds": 3600,
    "cleanup_tries": 3,
}


def spec(given: Any = None, *, version: int | None = None, cleanup: str | None = "true", **changes: Any) -> JobSpec:
    document = new_spec(cleanup_command=cleanup).document
    document["metadata"]["version"] = version
    if given is not None:
        document["limits"] = given
    return job_spec.parse(json.dumps({**document, **changes}).encode(), name="job", bastion="b-bastion")


def test_all_limits_are_read_and_a_spec_without_them_does_not_mention_them() -> None:
    assert spec(ALL).limits == JobLimits(
        max_run_seconds=7200,
        after=(
            Dependency(job="first", uid="abcdefghij", on=On.SUCCEEDED),
            Dependency(job="Second", uid="bbbbbbbbbb", on=On.ENDED),
        ),
        after_at_most_seconds=60,
        group="sweep-1",
        cleanup_after_group_seconds=86400,
        cleanup_max_seconds=3600,
        cleanup_tries=3,
    )
    assert "limits" not in new_spec().document
    assert all(made.limits is NO_LIMITS for made in (spec(), spec({}), spec({"max_run_seconds": None})))
    assert spec({"group": "g", "colour": "red"}).document["limits"]["colour"] == "red"


@pytest.mark.parametrize("instance_type", ["", "tpu-v4-8"])
def test_a_new_spec_has_the_limits_of_its_options(instance_type: str) -> None:
    made = new_spec(instance_type=instance_type, cleanup_command="true", **ALL)
    assert made.document["limits"] == ALL
    assert new_spec(instance_type=instance_type, group="g").document["limits"] == {"group": "g"}
    assert JobOptions().limits() == {}


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ([], "limits: must be an object"),
        ({"max_run_seconds": 0}, "limits.max_run_seconds: must be at least 1"),
        ({"max_run_seconds": -5}, "limits.max_run_seconds"),
        ({"max_run_seconds": 1.5}, "limits.max_run_seconds"),
        ({"max_run_seconds": "2h"}, "limits.max_run_seconds"),
        ({"max_run_seconds": True}, "limits.max_run_seconds"),
        ({"max_run_seconds": limits.EXPECTED_DURATION_MAX_SECONDS + 1}, "limits.max_run_seconds"),
        ({"after": ["first"]}, "limits.after.0"),
        ({"after": [{**ONE, "uid": "1bcdefghij"}]}, "'1bcdefghij' is not the uid of a job"),
        ({"after": [{**ONE, "job": "../x"}]}, "'../x' is not a valid job name"),
        ({"after": [{**ONE, "on": "failed"}]}, "limits.after.0.on: must be 'succeeded' or 'ended'"),
        ({"after": [{"job": "first", "uid": "abcdefghij"}]}, "limits.after.0.on: is missing"),
        ({"after": [ONE, {**ONE, "on": "ended"}]}, "after has the job abcdefghij twice; remove one"),
        ({"after": [ONE] * (limits.AFTER_MAX + 1)}, "limits.after: has 65 entries; the maximum is 64"),
        ({"after_at_most_seconds": 60}, "limits: after_at_most_seconds requires after"),
        ({"after": [], "after_at_most_seconds": 60}, "limits: after_at_most_seconds requires after"),
        ({"group": ""}, "'' is not a valid name of a group; use lowercase letters"),
        ({"group": "Sweep"}, "'Sweep' is not a valid name of a group"),
        ({"group": "a-"}, "'a-' is not a valid name of a group"),
        ({"group": "a\n"}, r"'a\n' is not a valid name of a group"),
        ({"group": "g" * 64}, "has 64 characters; a group's name has at most 63"),
        ({"cleanup_after_group_seconds": 5}, "limits: cleanup_after_group_seconds requires group"),
        ({"cleanup_max_seconds": 86401}, "limits.cleanup_max_seconds"),
        ({"cleanup_tries": 0}, "limits.cleanup_tries"),
        ({"cleanup_tries": 6}, "limits.cleanup_tries"),
    ],
)
def test_wrong_limits_are_refused_with_what_is_wrong(given: Any, words: str) -> None:
    with pytest.raises(InvalidSpec) as refusal:
        spec(given)
    assert words in str(refusal.value)


@pytest.mark.parametrize(
    "given", [{"group": "g", "cleanup_after_group_seconds": 5}, {"cleanup_max_seconds": 5}, {"cleanup_tries": 2}]
)
def test_limits_of_a_cleanup_command_need_one(given: dict[str, Any]) -> None:
    assert spec(given).has_cleanup
    name = list(given)[-1]
    with pytest.raises(InvalidSpec, match=f"limits.{name} requires cleanup_command; add one, or remove {name}"):
        spec(given, cleanup=None)


@pytest.mark.parametrize("instance_type", ["", "tpu-v4-8"])
def test_an_update_without_limits_keeps_them_and_one_with_limits_has_its_own(instance_type: str) -> None:
    def version(number: int, **changes: Any) -> JobSpec:
        document = new_spec(instance_type=instance_type).document
        document["metadata"]["version"] = number
        return job_spec.from_document({**document, **changes}, name="job")

    accepted = version(1, limits={"max_run_seconds": 5, "group": "g"})
    kept = job_spec.overwriting(version(2, command="other"), accepted)
    assert (kept.limits, kept.command) == (accepted.limits, "other")
    assert job_spec.overwriting(version(2, limits=None), accepted).limits == accepted.limits
    assert job_spec.overwriting(version(2, limits={"group": "h"}), accepted).limits == JobLimits(group="h")
    assert job_spec.overwriting(version(2, limits={}), accepted).limits is NO_LIMITS
    assert job_spec.overwriting(version(3), accepted).limits is NO_LIMITS  # another job of that name
    without_runner = version(2).document
    without_runner.pop("runner", None)
    kept = job_spec.overwriting(job_spec.from_document(without_runner, name="job"), accepted)
    assert (kept.limits, kept.runner) == (accepted.limits, accepted.runner and kept.runner)


def test_an_update_whose_kept_limits_need_a_cleanup_command_is_refused() -> None:
    accepted = spec({"cleanup_tries": 2}, version=1)
    with pytest.raises(InvalidSpec, match=r"limits.cleanup_tries requires cleanup_command"):
        job_spec.overwriting(spec(version=2, cleanup=None), accepted)


def test_fields_of_limits_that_mean_nothing_are_told() -> None:
    found = job_spec.unknown_fields(spec({"group": "g", "max_run": 5, "after": [{**ONE, "if": 1}]}).document)
    assert list(found) == ["limits.max_run", "limits.after.0.if"]
    assert "max_run_seconds" in found["limits.max_run"] and "on" in found["limits.after.0.if"]
