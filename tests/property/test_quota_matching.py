"""Members are matched as `re` would match them, and no pattern that is accepted takes long on any user id."""

from __future__ import annotations

import re
import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from quota.matching import COST_MAX, TEXT_MAX_CHARS, Matcher, NotMatchable
from quota.members import Members, UnsafePattern

# A tick of a busy machine may come between.
SLOWEST_MS = 20.0

_ATOMS = st.one_of(
    st.sampled_from(["a", "b", "A", "-", ".", "1", "[ab]", "[^a]", "[a-c]", r"[^\W\d]", "(?:)"]),
    st.sampled_from([r"\w", r"\W", r"\d", r"\D", r"\s", r"\S", r"\n", "^", r"\b", r"\A"]),
    st.sampled_from(["(?i:A)", "(?i:[^a])", "(?s:.)", "(?m:^)", "(?i:(?-i:A))"]),
)
_REPEATS = st.sampled_from(["*", "+", "?", "*?", "+?", "{2}", "{1,3}", "{0,2}", "{2,}", "{0}", "{3,200}", "{150}"])
_LOOKS = st.sampled_from(["(?=", "(?!", "(?<=", "(?<!"])


def _grown(part: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
    return st.one_of(
        st.tuples(part, part).map("".join),
        st.tuples(part, part).map(lambda two: f"({two[0]}|{two[1]})"),
        st.tuples(part, _REPEATS).map(lambda two: f"(?:{two[0]}){two[1]}"),
    )


PATTERNS = st.recursive(_ATOMS, _grown, max_leaves=8).filter(lambda pattern: len(pattern) <= 200)
# Short, so that backtracking ends.
TEXTS = st.text("abA-1\n ", max_size=6)


@settings(max_examples=400, deadline=None)
@given(PATTERNS, st.lists(TEXTS, min_size=1, max_size=5))
def test_a_pattern_matches_what_it_matches_in_python(pattern: str, texts: list[str]) -> None:
    try:
        matcher = Matcher(pattern)
    except NotMatchable:
        return
    for text in texts:
        assert matcher.matches(text) == bool(re.fullmatch(pattern, text)), (pattern, text)


@settings(max_examples=100, deadline=None)
@given(_LOOKS, st.sampled_from(["a", "b", "[ab]", "."]), PATTERNS)
def test_look_arounds_are_refused(look: str, part: str, pattern: str) -> None:
    with pytest.raises(NotMatchable):
        Matcher(f"{look}{part}){pattern}")


@settings(max_examples=300, deadline=None)
@given(st.lists(st.one_of(PATTERNS, st.from_regex(r"(?:[ab.]|\\\.){1,4}", fullmatch=True)), max_size=4), TEXTS)
def test_a_user_is_a_member_if_one_of_the_patterns_matches(patterns: list[str], user: str) -> None:
    try:
        members = Members(patterns)
    except UnsafePattern:
        return
    assert members.has(user) == any(re.fullmatch(pattern, user) for pattern in patterns)


def _milliseconds(matcher: Matcher, user: str) -> float:
    """The best of some tries: what the pattern takes, and not what else the machine does."""
    tries = []
    for _ in range(3):
        begin = time.thread_time()
        matcher.matches(user)
        tries.append((time.thread_time() - begin) * 1000)
        if tries[-1] < SLOWEST_MS / 4:
            break
    return min(tries)


LONGEST = ["a" * TEXT_MAX_CHARS, "ab" * (TEXT_MAX_CHARS // 2), "a" * (TEXT_MAX_CHARS - 1) + "!", "\n" * TEXT_MAX_CHARS]


@settings(max_examples=200, deadline=None)
@given(PATTERNS, st.one_of(st.sampled_from(LONGEST), st.text("ab-", min_size=TEXT_MAX_CHARS, max_size=TEXT_MAX_CHARS)))
def test_no_accepted_pattern_takes_long_on_a_long_user_id(pattern: str, user: str) -> None:
    try:
        matcher = Matcher(pattern)
    except NotMatchable:
        return
    assert matcher.cost <= COST_MAX
    assert _milliseconds(matcher, user) < SLOWEST_MS


@pytest.mark.parametrize(
    "pattern",
    [
        "(a+)+!?b",
        "(a*)*b",
        "(a|a)*b",
        "(a|aa)+b",
        "(a|a|a|a|a|a|a|a)*b",
        "(.*a){12}b",
        "a*a*a*a*a*a*a*a*b",
        ".*.*.*.*.*=.*",
        "(?:a?){128}a{128}b",
        "(?:a?b?c?){128}x",
        "(?:(?:a|aa|aaa){1,3}){1,9}b",
        "([a-z]+.?)*@",
        "^(([a-z])+.)+[A-Z]([a-z])+$",
        r"([a-zA-Z0-9])(([\-.]|[_]+)?([a-zA-Z0-9]+))*(@){1}[a-z0-9]+[.]{1}(([a-z]{2,3})|([a-z]{2,3}[.]{1}[a-z]{2,3}))",
    ],
)
def test_what_would_hang_a_backtracking_matcher_is_done_at_once(pattern: str) -> None:
    try:
        matcher = Matcher(pattern)
    except NotMatchable:
        pytest.fail("it should be accepted")
    assert max(_milliseconds(matcher, user) for user in LONGEST) < SLOWEST_MS
