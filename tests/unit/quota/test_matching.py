"""Patterns of members, each kind of part by itself: against `re` on every short text, and what each costs."""

from __future__ import annotations

import itertools
import re

import pytest

from quota.matching import COST_MAX, TEXT_MAX_CHARS, Matcher, NotMatchable, Text

TEXTS = ["".join(chars) for length in range(6) for chars in itertools.product("ab\n", repeat=length)]
PARTS = [
    "a",
    ".",
    "(?s:.)",
    "[^b]",
    "[a-b]",
    "[^\\W]",
    "\\s",
    "(?i:B)",
    "a?",
    "a*",
    "a+",
    "a{2}",
    "a{1,3}",
    "(?:a|bb)",
    "(?:ab|)",
    "(?:ab){0,2}",
    "(?:ab?){2,}",
    "(?:a*b){1,2}",
    "(?m:$)",
    "(?:^a|b)",
    "(?!)",
    "(?:a{0})",
]


@pytest.mark.parametrize(
    "pattern", [f"{part}b?{other}" for part, other in itertools.product(PARTS, ("", "a*", "(?:b|$)"))]
)
def test_a_part_leads_on_from_where_it_begins_as_in_python(pattern: str) -> None:
    matcher = Matcher(pattern)
    assert [text for text in TEXTS if matcher.matches(Text(text))] == [t for t in TEXTS if re.fullmatch(pattern, t)]


@pytest.mark.parametrize("part", PARTS)
@pytest.mark.parametrize("look", ["(?={}b)", "(?!{}b)", "a(?={}$)", "(?={}.(?:a|$))"])
def test_what_is_looked_for_ahead_leads_back_to_where_it_began_as_in_python(look: str, part: str) -> None:
    pattern = f"{look.format(part)}(?s:.)*"
    matcher = Matcher(pattern)
    assert [text for text in TEXTS if matcher.matches(Text(text))] == [t for t in TEXTS if re.fullmatch(pattern, t)]


@pytest.mark.parametrize("most", ["", TEXT_MAX_CHARS - 1, TEXT_MAX_CHARS, TEXT_MAX_CHARS + 1])
@pytest.mark.parametrize("least", [0, 1, TEXT_MAX_CHARS - 1])
@pytest.mark.parametrize("body", ["a", "(?:a|b)", "(?:b?a)"])
def test_repeats_are_counted_up_to_the_longest_text(body: str, least: int, most: int | str) -> None:
    matcher = Matcher(f"{body}{{{least},{most}}}")
    for length in (0, 1, 2, TEXT_MAX_CHARS - 2, TEXT_MAX_CHARS - 1, TEXT_MAX_CHARS):
        assert matcher.matches(Text("a" * length)) == (least <= length <= (most or TEXT_MAX_CHARS))


@pytest.mark.parametrize(
    ("pattern", "cost"),
    [
        ("a", 1 + 1),
        ("ab", 1 + 1 + 2),
        ("a*", 1 + 10),
        ("a+", 1 + 1 + 10 + 3),
        ("[ab]", 1 + 100 + 1),
        ("[ab][ab][bc]", 1 + 200 + 1 + 3),
        ("[\\x00-\\U0000ffff]", 1 + 100 + 0xFFFF // 50 + 1),
        ("^", 1 + 100 + 1),
        ("(?=a)", 1 + 1 + 1),
        ("a|b|cd", 1 + 1 + 1 + 1 + 3),
        # A round costs a step besides, and each moves on by the width of what is repeated.
        ("a{5}", 1 + 1 + 5 * 2),
        ("a{2,5}", 1 + 1 + 5 * 2),
        ("a{100,128}", 1 + 1 + 128 * 2),
        ("(?:abcd){100}", 1 + 1 + 33 * 6),
        ("(?:ab|c){200}", 1 + 1 + 129 * 6),
        ("(?:a*){20}", 1 + 1 + 20 * 11),
        ("(?:(?=a)){3}", 1 + 1 + 3 * 3),
    ],
)
def test_a_pattern_costs_what_its_parts_cost(pattern: str, cost: int) -> None:
    assert Matcher(pattern).cost == cost


def test_a_pattern_may_cost_the_whole_bound_and_no_more() -> None:
    longest = "a" * (COST_MAX - 2)
    assert Matcher(longest).cost == COST_MAX
    with pytest.raises(NotMatchable, match="too long to match"):
        Matcher(longest + "a")
    classes = "".join(f"[{chr(0x4E00 + number)}x]" for number in range(98))
    assert Matcher(classes).cost == 1 + 98 * 100 + 1 + 98
    with pytest.raises(NotMatchable, match="classes"):
        Matcher(f"{classes}[\\x00-\\U00003fff]")
