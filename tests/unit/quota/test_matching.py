"""Patterns of members: what they match is what Python's `re` matches; what is not supported is refused."""

from __future__ import annotations

import itertools
import re

import pytest

from quota.matching import COST_MAX, Matcher, NotMatchable

TEXTS = ["".join(chars) for length in range(6) for chars in itertools.product("ab\n", repeat=length)]
PARTS = [
    "a", ".", "(?s:.)", "[^b]", "[a-b]", "[^\\W]", "\\s", "(?i:B)", "a?", "a*", "a+", "a{2}", "a{1,3}", "(?:a|bb)",
    "(?:ab|)", "(?:ab){0,2}", "(?:ab?){2,}", "(?:a*b){1,2}", "(?m:$)", "(?:^a|b)", "(?:a{0})",
]  # fmt: skip


@pytest.mark.parametrize(
    "pattern", [f"{part}b?{other}" for part, other in itertools.product(PARTS, ("", "a*", "(?:b|$)"))]
)
def test_a_pattern_matches_the_texts_that_it_matches_in_python(pattern: str) -> None:
    matcher = Matcher(pattern)
    assert [text for text in TEXTS if matcher.matches(text)] == [t for t in TEXTS if re.fullmatch(pattern, t)]


@pytest.mark.parametrize(
    ("pattern", "message"),
    [
        ("(", "is not a valid regular expression (missing )"),
        ("[a", "is not a valid regular expression (unterminated character set"),
        ("*", "is not a valid regular expression (nothing to repeat"),
        ("a(?=b)", "cannot be matched in linear time (invalid perl operator: (?=)"),
        ("(?<!a)b", "cannot be matched in linear time"),
        (r"(a)\1", r"cannot be matched in linear time (invalid escape sequence: \1)"),
        ("(?P<x>a)(?P=x)", "cannot be matched in linear time"),
        (r"a\Z", "cannot be matched in linear time"),
        ("a{,3}", "write {0,n}"),
        ("(?:[a-z]{100}){100}", "cannot be matched in linear time"),
        ("[a-z]{1000}" * 3, f"the maximum is {COST_MAX}"),
        ("\ud800+", "it is not valid Unicode"),
    ],
)
def test_what_cannot_be_matched_is_refused_with_the_reason(pattern: str, message: str) -> None:
    with pytest.raises(NotMatchable, match=re.escape(message)):
        Matcher(pattern)


def test_a_user_id_that_is_not_valid_unicode_matches_nothing() -> None:
    assert not Matcher(".*").matches("\ud800")


def test_classes_are_those_of_ascii() -> None:
    for pattern, text in ((r"\w", "é"), (r"\d", "٣"), (r"\s", "\u2003")):
        assert re.fullmatch(pattern, text)
        assert not Matcher(pattern).matches(text)
