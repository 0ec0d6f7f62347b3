"""`[admins]` of a quota file is changed in its text, and nothing else."""

from __future__ import annotations

import json

import pytest
import tomli
from hypothesis import given
from hypothesis import strategies as st

from quota import edit_admins

HEAD = "# ours\n[total_resources]\nv4 = 8 # all\n"


@pytest.mark.parametrize(
    ("before", "project", "after"),
    [
        ("", "research", '\n[admins.projects]\nresearch = ["bob"]\n'),
        ("", "", '\n[admins]\nbastion = ["bob"]\n'),
        ('[admins]\nbastion = ["al"]\n', "", '[admins]\nbastion = ["al", "bob"]\n'),
        ("[admins]\nbastion = []\n", "", '[admins]\nbastion = ["bob"]\n'),
        ("[admins]\nbastion = [ ] # none\n", "", '[admins]\nbastion = ["bob"] # none\n'),
        ('[admins] # who\nbastion = ["al"]', "", '[admins] # who\nbastion = ["al", "bob"]'),
        (
            '[admins.projects]\nproduct = ["al"] # the lead\n[x]\ny = ["]"]\n',
            "research",
            '[admins.projects]\nresearch = ["bob"]\nproduct = ["al"] # the lead\n[x]\ny = ["]"]\n',
        ),
        (
            '[admins.projects]\nresearch = [\n  "al", # lead ]\n  "cy",\n] # end\n',
            "research",
            '[admins.projects]\nresearch = [\n  "al", # lead ]\n  "cy",\n  "bob",\n] # end\n',
        ),
        (
            '[admins.projects]\nresearch = [\n  "al", # lead\n  "cy" # no comma\n]\n',
            "research",
            '[admins.projects]\nresearch = [\n  "al", # lead\n  "cy" # no comma\n  , "bob"\n]\n',
        ),
        (
            "[admins]\nprojects.research = ['al']\n",
            "research",
            "[admins]\nprojects.research = ['al', \"bob\"]\n",
        ),
    ],
)
def test_an_admin_is_added_where_a_person_would_add_him(before: str, project: str, after: str) -> None:
    changed = edit_admins.added(HEAD + before, "bob", project)
    assert changed == HEAD + after
    assert edit_admins.added(changed, "bob", project) == changed


@pytest.mark.parametrize(
    ("before", "project", "after"),
    [
        ('[admins]\nbastion = ["bob"] # x\n', "", "[admins]\nbastion = [] # x\n"),
        ('[admins]\nbastion = ["al", "bob"]\n', "", '[admins]\nbastion = ["al"]\n'),
        ('[admins]\nbastion = ["bob", "al"]\n', "", '[admins]\nbastion = ["al"]\n'),
        (
            '[admins.projects]\nr = [\n  "al", # "bob", too\n  "bob",\n  "cy",\n]\n',
            "r",
            '[admins.projects]\nr = [\n  "al", # "bob", too\n  "cy",\n]\n',
        ),
        ('[admins]\nbastion = ["al"]\n', "", '[admins]\nbastion = ["al"]\n'),
        ("", "r", ""),
    ],
)
def test_an_admin_is_removed_and_comments_stay(before: str, project: str, after: str) -> None:
    assert edit_admins.removed(HEAD + before, "bob", project) == HEAD + after


def test_an_unusual_layout_is_refused_with_the_lines_to_write() -> None:
    text = HEAD + 'admins = { projects = { product = ["al"] } }\n'
    with pytest.raises(edit_admins.CannotEdit) as refused:
        edit_admins.added(text.replace("[total_resources]\nv4 = 8 # all\n", ""), "bob", "research")
    assert refused.value.lines == '[admins.projects]\nresearch = ["bob"]'


NAMES = st.text(st.characters(codec="utf-8", exclude_categories=("Cc", "Cs")), min_size=1, max_size=12)


@given(before=st.lists(NAMES, unique=True, max_size=4), user=NAMES, own_lines=st.booleans(), project=st.booleans())
def test_whatever_the_names_are_the_document_is_as_wanted(
    before: list[str], user: str, own_lines: bool, project: bool
) -> None:
    text = HEAD + "[admins.projects]\n" if project else HEAD + "[admins]\n"
    key = "research" if project else "bastion"
    elements = [json.dumps(each, ensure_ascii=False) for each in before]
    text += f"{key} = [\n" + "".join(f"  {each},\n" for each in elements) + "]\n" if own_lines else ""
    text += "" if own_lines else f"{key} = [{', '.join(elements)}]\n"
    scope = "research" if project else ""
    changed = edit_admins.added(text, user, scope)
    document = tomli.loads(changed)["admins"]
    assert (document["projects"] if project else document)[key] == [*before, *([] if user in before else [user])]
    back = edit_admins.removed(changed, user, scope)
    document = tomli.loads(back)["admins"]
    assert (document["projects"] if project else document)[key] == [each for each in before if each != user]
    assert changed.startswith(HEAD)
    assert back.startswith(HEAD)
