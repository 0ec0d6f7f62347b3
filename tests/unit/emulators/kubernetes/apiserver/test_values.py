"""Selectors, quantities, names, ages: small languages."""

from __future__ import annotations

from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bastion.emulators.kubernetes.apiserver import label_selectors, names, pages, quantities, tables
from bastion.emulators.kubernetes.apiserver.rules.pod_defaults import fill
from bastion.emulators.kubernetes.apiserver.statuses import ApiFailure


def _selects(text: str, **labels: str) -> bool:
    return all(test(labels) for test in label_selectors.tests(text))


# The cases of apimachinery pkg/labels/selector_test.go, TestSelectorMatches and TestSetMatches.
@pytest.mark.parametrize(
    ("text", "labels", "selected"),
    [
        ("", {"x": "y"}, True),
        ("x=y", {"x": "y"}, True),
        ("x=y,z=w", {"x": "y", "z": "w"}, True),
        ("x!=y,z!=w", {"x": "z", "z": "a"}, True),
        ("notin=in", {"notin": "in"}, True),
        ("x", {"x": "z"}, True),
        ("!x", {"y": "z"}, True),
        ("x>1", {"x": "2"}, True),
        ("x<1", {"x": "0"}, True),
        ("x=z", {}, False),
        ("x=y", {"x": "z"}, False),
        ("x=y,z=w", {"x": "w", "z": "w"}, False),
        ("x!=y,z!=w", {"x": "z", "z": "w"}, False),
        ("x", {"y": "z"}, False),
        ("!x", {"x": "z"}, False),
        ("x>1", {"x": "0"}, False),
        ("x<1", {"x": "2"}, False),
        ("x>1", {"x": "many"}, False),
        ("x in (a, b),!y", {"x": "b"}, True),
        ("x in (a,)", {"x": ""}, True),
        ("x in (a)", {}, False),
        ("x notin (a)", {}, True),
        ("x notin (a,b)", {"x": "a"}, False),
        ("x==", {"x": ""}, True),
    ],
)
def test_label_selectors_select(text: str, labels: dict[str, str], selected: bool) -> None:
    assert _selects(text, **labels) is selected


@pytest.mark.parametrize(
    "text", ["x=a||y=b", "x==a==b", "!x=a", "x<a", "x<a b", "in (x)", "x in (a", "x in a", ",", "x,"]
)
def test_what_is_no_selector_is_refused(text: str) -> None:
    with pytest.raises(label_selectors.InvalidSelector):
        label_selectors.tests(text)


@given(st.text(alphabet="ab=!(),<> in", max_size=12))
def test_any_text_is_a_selector_or_refused(text: str) -> None:
    try:
        assert all(test({"a": "b"}) in (True, False) for test in label_selectors.tests(text))
    except label_selectors.InvalidSelector as error:
        assert str(error)


def test_quantities() -> None:
    assert quantities.parse("4") == 4
    assert quantities.parse("500m") == Fraction(1, 2)
    assert quantities.parse("1.5Gi") == 3 * 2**29
    assert quantities.parse("2e3") == quantities.parse("2k") == 2000
    for wrong in ("", "x", "1 Gi", "4gi", "--1"):
        with pytest.raises(ValueError, match="is not a valid quantity"):
            quantities.parse(wrong)


def test_names() -> None:
    assert [names.label("a-1"), names.label("a.b"), names.label("A") != []] == [[], ["must not contain dots"], True]
    assert names.label_1035("1a")
    assert names.subdomain("a" * 254) == ["must be no more than 253 characters"]
    assert names.qualified("cloud.google.com/gke-tpu-topology") == []
    assert names.qualified("a/b/c")
    assert names.label_value("x" * 64) == ["must be no more than 63 bytes"]


# apimachinery pkg/util/duration/duration_test.go.
@pytest.mark.parametrize(
    ("seconds", "shown"),
    [
        (1, "1s"),
        (70, "70s"),
        (190, "3m10s"),
        (3 * 60, "3m"),
        (70 * 60, "70m"),
        (47 * 3600, "47h"),
        (3 * 3600 + 600, "3h10m"),
        (49 * 3600, "2d1h"),
        (8 * 86400 + 3600, "8d"),
    ],
)
def test_ages(seconds: int, shown: str) -> None:
    assert tables.human(seconds) == shown


def test_a_continue_token_says_where_and_nothing_else_is_one() -> None:
    assert pages.read(pages.token(7, "default/a\0")) == (7, "default/a\0")
    for wrong in ("x", "e30", "!!!!", pages.token(0, "a")):
        with pytest.raises(ApiFailure) as refused:
            pages.read(wrong)
        assert refused.value.code == 400


@pytest.mark.parametrize(
    ("image", "policy"),
    [
        ("python", "Always"),
        ("python:latest", "Always"),
        ("host:5000/python", "Always"),
        ("host:5000/python:3.11", "IfNotPresent"),
        ("python@sha256:abc", "IfNotPresent"),
    ],
)
def test_images_are_pulled_always_without_a_tag(image: str, policy: str) -> None:
    spec = {"containers": [{"name": "c", "image": image}]}
    fill(spec)
    assert spec["containers"][0]["imagePullPolicy"] == policy  # type: ignore[index]
