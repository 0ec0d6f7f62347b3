"""Patches, with the examples of their specifications."""

from __future__ import annotations

import copy
import json
from typing import Any

import pytest

from bastion.emulators.kubernetes.apiserver import patches
from bastion.emulators.kubernetes.apiserver.statuses import ApiFailure


# RFC 7386, appendix A.
@pytest.mark.parametrize(
    ("original", "patch", "result"),
    [
        ({"a": "b"}, {"a": "c"}, {"a": "c"}),
        ({"a": "b"}, {"b": "c"}, {"a": "b", "b": "c"}),
        ({"a": "b"}, {"a": None}, {}),
        ({"a": "b", "b": "c"}, {"a": None}, {"b": "c"}),
        ({"a": ["b"]}, {"a": "c"}, {"a": "c"}),
        ({"a": "c"}, {"a": ["b"]}, {"a": ["b"]}),
        ({"a": {"b": "c"}}, {"a": {"b": "d", "c": None}}, {"a": {"b": "d"}}),
        ({"a": [{"b": "c"}]}, {"a": [1]}, {"a": [1]}),
        ({"e": None}, {"a": 1}, {"e": None, "a": 1}),
        ([1, 2], {"a": "b", "c": None}, {"a": "b"}),
        ({}, {"a": {"bb": {"ccc": None}}}, {"a": {"bb": {}}}),
    ],
)
def test_merge_patches(original: Any, patch: Any, result: Any) -> None:
    before = copy.deepcopy(original)
    assert patches.merged(original, patch) == result
    assert original == before


# RFC 6902, appendix A.
@pytest.mark.parametrize(
    ("original", "patch", "result"),
    [
        ({"foo": "bar"}, [{"op": "add", "path": "/baz", "value": "qux"}], {"baz": "qux", "foo": "bar"}),
        ({"foo": ["bar", "baz"]}, [{"op": "add", "path": "/foo/1", "value": "qux"}], {"foo": ["bar", "qux", "baz"]}),
        ({"baz": "qux", "foo": "bar"}, [{"op": "remove", "path": "/baz"}], {"foo": "bar"}),
        ({"foo": ["bar", "qux", "baz"]}, [{"op": "remove", "path": "/foo/1"}], {"foo": ["bar", "baz"]}),
        ({"baz": "qux"}, [{"op": "replace", "path": "/baz", "value": "boo"}], {"baz": "boo"}),
        (
            {"foo": {"bar": "baz", "waldo": "fred"}, "qux": {"corge": "grault"}},
            [{"op": "move", "from": "/foo/waldo", "path": "/qux/thud"}],
            {"foo": {"bar": "baz"}, "qux": {"corge": "grault", "thud": "fred"}},
        ),
        ({"foo": [1, 2, 3]}, [{"op": "move", "from": "/foo/1", "path": "/foo/2"}], {"foo": [1, 3, 2]}),
        ({"foo": "bar"}, [{"op": "add", "path": "/child", "value": {"a": {}}}], {"foo": "bar", "child": {"a": {}}}),
        ({"/": 9, "~1": 10}, [{"op": "test", "path": "/~01", "value": 10}], {"/": 9, "~1": 10}),
        ({"foo": ["bar"]}, [{"op": "add", "path": "/foo/-", "value": ["abc"]}], {"foo": ["bar", ["abc"]]}),
        ({"a": 1}, [{"op": "copy", "from": "/a", "path": "/b"}], {"a": 1, "b": 1}),
    ],
)
def test_json_patches(original: Any, patch: Any, result: Any) -> None:
    before = copy.deepcopy(original)
    assert patches.applied(original, patch) == result
    assert original == before


@pytest.mark.parametrize(
    ("patch", "code"),
    [
        ([{"op": "remove", "path": "/missing"}], 422),
        ([{"op": "replace", "path": "/missing", "value": 1}], 422),
        ([{"op": "add", "path": "/a/b", "value": 1}], 422),
        ([{"op": "add", "path": "/list/3", "value": 1}], 422),
        ([{"op": "test", "path": "/a", "value": "other"}], 422),
        ([{"op": "add", "path": "a", "value": 1}], 422),
        ([{"op": "remove", "path": ""}], 422),
        ([{"op": "wish", "path": "/a"}], 400),
        ({"a": 1}, 400),
        (["a"], 400),
    ],
)
def test_json_patches_that_do_not_fit_are_refused(patch: Any, code: int) -> None:
    with pytest.raises(ApiFailure) as refused:
        patches.applied({"a": "b", "list": [1]}, patch)
    assert refused.value.code == code


def test_a_strategic_patch_is_a_merge_where_it_equals_one() -> None:
    document = {"metadata": {"name": "p", "finalizers": ["a"]}, "spec": {"list": [1], "x": 1}}
    patch = {"metadata": {"finalizers": ["b"], "labels": {"l": "1"}}, "spec": {"x": None, "list": None}}
    expected = {"metadata": {"name": "p", "finalizers": ["a", "b"], "labels": {"l": "1"}}, "spec": {}}
    assert patches.strategic(document, patch) == expected
    for other in ({"spec": {"list": [2]}}, {"spec": {"$patch": "replace"}}, {"metadata": {"$retainKeys": ["x"]}}):
        with pytest.raises(ApiFailure) as refused:
            patches.strategic(document, other)
        assert refused.value.code == 501, json.dumps(other)
