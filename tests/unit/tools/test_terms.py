"""`tools/terms.py`: retired terms are found where they are checked, and names on the wire are not."""

from __future__ import annotations

from types import ModuleType

import pytest

from tests.support.tools import load


@pytest.fixture(scope="module")
def terms() -> ModuleType:
    return load("terms")


LIST = "wish, wishes | user request | names text docs | wish list\ncrew | thread pool | ~names |\n"


@pytest.mark.parametrize(
    ("source", "lines"),
    [
        ("def read_wish(): ...", [1]),
        ("class OldWishes: ...", [1]),
        ("def of(wish): ...", [1]),
        ("x = 1\nself.wish = 2", [2]),
        ('"""Two lines.\n\nA wish of a user."""', [3]),
        ("x = 1  # the wish comes first", [1]),
        ('raise E("no such wish")', [1]),
        ('print(f"the wish of {name}")', [1]),
        ('KEY = "wish/"', []),
        ('"""The key `wish` stays on the wire."""', []),
        ('"""A wish list is allowed, and wishful names as well."""', []),
        ("def crew(): ...", []),
    ],
)
def test_a_retired_term_is_found_in_names_and_in_text(terms: ModuleType, source: str, lines: list[int]) -> None:
    found = terms.findings(terms.read_terms(LIST), terms.python_uses("bastion/x.py", source))
    assert [int(line.split(":")[1]) for line in found] == lines
    assert all('is retired; say "user request"' in line for line in found)


def test_pages_are_checked_without_their_code_and_links(terms: ModuleType) -> None:
    page = "A wish.\n```\nwish\n```\n`wish` and [a page](wish.md)\n"
    assert len(terms.findings(terms.read_terms(LIST), terms.page_uses("docs/x.md", page))) == 1


def test_a_pending_check_is_only_reported(terms: ModuleType) -> None:
    said = list(terms.python_uses("bastion/x.py", "def crew(): ..."))
    assert terms.findings(terms.read_terms(LIST), iter(said)) == []
    assert len(terms.findings(terms.read_terms(LIST), iter(said), pending=True)) == 1


def test_a_bad_line_of_the_list_is_an_error(terms: ModuleType) -> None:
    with pytest.raises(ValueError, match="four fields"):
        terms.read_terms("wish | user request | everywhere |")
