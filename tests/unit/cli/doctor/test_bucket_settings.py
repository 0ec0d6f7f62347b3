"""Lifecycle rules: which of them delete what a running bastion needs."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from bastion.cli.doctor import bucket_settings
from bastion.core.model.bucket_settings import BucketSettings

ROOT = "team-bastion"
OURS = (Path(__file__).parents[4] / "deploy" / "lifecycle.json").read_text("utf-8").replace("NAME-bastion", ROOT)


def told(*rules: dict[str, Any]) -> list[str]:
    found = BucketSettings(
        uniform_access=True,
        public_access_prevented=True,
        versioned=False,
        retention_seconds=0,
        held_by_default=False,
        soft_delete_seconds=0,
        lifecycle=rules,
    )
    return [each.what for each in bucket_settings.of_bastion("gs://b", ROOT, found)]


def deleting(**condition: object) -> dict[str, Any]:
    return {"action": {"type": "Delete"}, "condition": condition}


@pytest.mark.parametrize(
    "rule",
    [
        *json.loads(OURS)["rule"],
        deleting(age=1, matchesPrefix=["other-bastion/jobs/"]),
        deleting(age=1, matchesPrefix=[f"{ROOT}/jobs/complete/"]),
        deleting(daysSinceNoncurrentTime=1),
        deleting(isLive=False, age=1),
        {"action": {"type": "SetStorageClass", "storageClass": "NEARLINE"}, "condition": {"age": 30}},
    ],
)
def test_a_rule_that_spares_what_is_live(rule: dict[str, Any]) -> None:
    assert told(rule) == []


@pytest.mark.parametrize(
    ("condition", "named"),
    [
        ({"age": 1}, "team-bastion/beats/"),
        ({"age": 1, "matchesPrefix": ["team"]}, "and 10 more"),
        ({"age": 1, "matchesPrefix": ["x/", f"{ROOT}/jobs/states/a"]}, "objects of team-bastion/jobs/states/"),
        ({"age": 1, "matchesPrefix": [f"{ROOT}/le"]}, "objects of team-bastion/lease"),
        ({"age": 1, "matchesSuffix": [".json"]}, "team-bastion/beats/"),
    ],
)
def test_a_rule_that_deletes_what_is_live(condition: dict[str, Any], named: str) -> None:
    assert [named in what for what in told(deleting(**condition))] == [True]
