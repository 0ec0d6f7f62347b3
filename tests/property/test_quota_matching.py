"""Members are matched as `re` would match them, and no pattern that is accepted takes long on any user id."""

from __future__ import annotations

import random
import re
import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from quota.matching import COST_MAX, TEXT_MAX_CHARS, Matcher, NotMatchable, Text
from quota.members import Members, UnsafePattern

# One step takes well under a microsecond; a tick of a busy machine may come between.
SLOWEST_MS = 20.0

_ATOMS = st.one_of(
    st.sampled_from(["a", "b", "A", "-", ".", "1", "é", "[ab]", "[^a]", "[a-c]", r"[^\W\d]", "(?:)", "(?!)"]),
    st.sampled_from([r"\w", r"\W", r"\d", r"\D", r"\s", r"\S", r"\n", "^", "$", r"\b", r"\B", r"\A", r"\Z"]),
    st.sampled_from(["(?i:A)", "(?i:[^a])", "(?s:.)", "(?m:^)", "(?m:$)", r"(?a:\w)", "(?i:(?-i:A))", "(?i:É)"]),
    st.just(r"(?a:(?u:\w))"),
)
_REPEATS = st.sampled_from(["*", "+", "?", "*?", "+?", "{2}", "{1,3}", "{0,2}", "{2,}", "{0}", "{3,200}", "{150}"])
_LOOKS = st.sampled_from(["(?=", "(?!"])
_LOOKS_BEHIND = st.sampled_from(["(?<=", "(?<!"])
_FIXED = st.sampled_from(["a", "b", "ab", "[ab]", "\\b", ".", "a(?:b|c)", "(?=a)."])


def _grown(part: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
    return st.one_of(
        st.tuples(part, part).map("".join),
        st.tuples(part, part).map(lambda two: f"({two[0]}|{two[1]})"),
        st.tuples(part, _REPEATS).map(lambda two: f"(?:{two[0]}){two[1]}"),
        st.tuples(_LOOKS, part).map(lambda two: f"{two[0]}{two[1]})"),
        st.tuples(_LOOKS_BEHIND, _FIXED).map(lambda two: f"{two[0]}{two[1]})"),
    )


PATTERNS = st.recursive(_ATOMS, _grown, max_leaves=8).filter(lambda pattern: len(pattern) <= 200)
# Short, so that backtracking ends.
TEXTS = st.text("abA-1\n é", max_size=6)


@settings(max_examples=400, deadline=None)
@given(PATTERNS, st.lists(TEXTS, min_size=1, max_size=5))
def test_a_pattern_matches_what_it_matches_in_python(pattern: str, texts: list[str]) -> None:
    try:
        matcher = Matcher(pattern)
    except NotMatchable:
        return
    for text in texts:
        assert matcher.matches(Text(text)) == bool(re.fullmatch(pattern, text)), (pattern, text)


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
        matcher.matches(Text(user))
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
        "(?=(a+)+b)a*",
        "(?!(a|a)*b).*x",
        "(?:(?=.*b)a)*",
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


def test_the_dearest_patterns_that_are_accepted_keep_within_the_bound() -> None:
    # A search that goes on from what was dearest; it knows the price list, as somebody hostile would.
    chance = random.Random(7)
    pieces = [
        "a",
        "a?",
        "(?:a|b)*",
        "(?:.a?)*",
        "[a-c]",
        "[^b]",
        "(?=.*b)",
        "(?!.*b)",
        "(?:a{1,9}b?){1,9}",
        "\\b",
        ".{1,99}",
        "a*",
    ]
    dearest = Matcher("a")
    parts = ["a"]
    for _ in range(400):
        mutant = list(parts)
        mutant.insert(chance.randint(0, len(mutant)), chance.choice(pieces))
        if chance.random() < 0.3:
            mutant = ["(?:", *mutant, chance.choice([")*", "){1,9}", ")?"])]
        try:
            matcher = Matcher("".join(mutant))
        except NotMatchable:
            continue
        if matcher.cost > dearest.cost:
            dearest, parts = matcher, mutant
    assert dearest.cost > COST_MAX / 2
    assert max(_milliseconds(dearest, user) for user in LONGEST) < SLOWEST_MS


@settings(max_examples=200, deadline=None)
@given(st.text(st.sampled_from("()[]{}|?*+.^$\\-=!<>:#PaimsuxL01,\n"), max_size=60))
def test_any_text_is_a_pattern_or_refused(pattern: str) -> None:
    try:
        matcher = Matcher(pattern)
    except NotMatchable as refusal:
        assert str(refusal).startswith(("is ", "has ", "takes ", "refers "))
    else:
        re.compile(pattern)
        matcher.matches(Text("a" * TEXT_MAX_CHARS))


def test_texts_that_are_too_long_are_not_taken() -> None:
    with pytest.raises(ValueError, match="the maximum is 128"):
        Text("a" * 129)
