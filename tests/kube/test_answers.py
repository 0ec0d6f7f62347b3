"""What of two servers' answers is compared."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.kube.answers import at, normal
from tests.kube.scenarios import Step
from tests.kube.test_recorded import differences


def _step(**given: Any) -> Step:
    plain: dict[str, Any] = {
        "name": "a step", "query": {}, "headers": {}, "body": None, "token": "", "save": {}, "events": None,
        "pick": (), "only": {}, "restart": False, "excluded": "", "expected": None,
    }  # fmt: skip
    return Step(**{**plain, **given})


def _normal(body: object, step: Step | None = None, **headers: str) -> dict[str, Any]:
    return normal(step or _step(), 200, {"content-type": "application/json", **headers}, json.dumps(body))


_UID = "0aa64b3c-1111-2222-3333-0123456789ab"


def test_what_differs_from_run_to_run_is_masked() -> None:
    metadata = {
        "name": "made-x7k2p", "generateName": "made-", "uid": _UID, "resourceVersion": "17", "managedFields": [],
        "creationTimestamp": "2026-01-02T03:04:05Z", "ownerReferences": [{"name": "o", "uid": _UID}],
        "deletionTimestamp": None,
    }  # fmt: skip
    assert _normal({"metadata": metadata})["body"]["metadata"] == {
        "name": "made-<suffix>",
        "generateName": "made-",
        "uid": "<uid>",
        "resourceVersion": "<version>",
        "creationTimestamp": "<time>",
        "ownerReferences": [{"name": "o", "uid": "<uid>"}],
    }


@pytest.mark.parametrize(
    ("message", "masked"),
    [
        ("too old resource version: 1 (632)", "too old resource version: <version> (<version>)"),
        ("Too large resource version: 9, current: 7", "Too large resource version: <version>, current: <version>"),
        (f"UID in precondition: {_UID}", "UID in precondition: <uid>"),
        ("must be no more than 63 bytes", "must be no more than 63 bytes"),
        ("consist of '-' (e.g. 'a',  or 'b', regex used for validation is '[a-z]([-a-z])?')", "consist of '-'"),
    ],
)
def test_versions_and_identities_in_messages_are_masked(message: str, masked: str) -> None:
    assert _normal({"message": message})["body"]["message"] == masked


def test_an_absent_version_is_not_masked() -> None:
    assert _normal({"metadata": {"resourceVersion": ""}})["body"]["metadata"] == {"resourceVersion": ""}


def test_codes_warnings_media_types_and_picked_parts_are_compared() -> None:
    assert _normal({"a": {"b/c": [1, 2]}}, _step(pick=("/a/b~1c/1", "/a/d")), warning='299 - "w"') == {
        "code": 200,
        "warning": '299 - "w"',
        "picked": {"/a/b~1c/1": 2, "/a/d": None},
    }
    assert normal(_step(), 404, {"content-type": "text/plain; charset=utf-8"}, "no") == {
        "code": 404,
        "type": "text/plain",
        "text": "no",
    }


def test_of_a_bookmark_only_the_metadata_counts() -> None:
    event = {"type": "BOOKMARK", "object": {"kind": "Pod", "metadata": {"resourceVersion": "7"}, "spec": {"x": []}}}
    answer = normal(_step(query={"watch": "true"}), 200, {"content-type": "application/json"}, json.dumps(event) + "\n")
    assert answer["events"] == [
        {"type": "BOOKMARK", "object": {"kind": "Pod", "metadata": {"resourceVersion": "<version>"}}}
    ]


def test_a_pointer_past_the_end_finds_nothing() -> None:
    assert (at([1], "/1"), at({"a": 1}, "/a/b"), at({"a": {"b": 1}}, "/a/b")) == (None, None, 1)


def test_a_changed_answer_and_a_missing_one_are_differences() -> None:
    right = {"one": {"code": 200}, "two": {"code": 404}}
    assert differences(right, {"one": {"code": 200}, "two": {"code": 404}}) == ""
    found = differences(right, {"one": {"code": 201}})
    assert "--- one" in found and '+ "code": 201' in found and "--- two" in found
