"""The table of identities."""

from __future__ import annotations

from pathlib import Path

import pytest

from bastion.core.errors import Refused
from bastion.emulators.gcs.iam import identities
from bastion.emulators.gcs.iam.identities import Identities

TABLE = """
[tokens]
alice-token = "user:alice@example.com"

[groups]
"group:users@example.com" = ["user:alice@example.com"]

[roles]
"projects/p/roles/reader" = ["storage.objects.get"]

[project]
"roles/storage.admin" = ["user:owner@example.com"]
"""


def read(folder: Path, text: str) -> Identities:
    path = folder / "identities.toml"
    path.write_text(text)
    return identities.read(path)


def test_a_table_says_who_has_which_token_group_and_role(tmp_path: Path) -> None:
    table = read(tmp_path, TABLE)
    assert table.tokens == {"alice-token": "user:alice@example.com"}
    assert table.permissions_of("projects/p/roles/reader") == {"storage.objects.get"}
    assert table.project[0].members == ("user:owner@example.com",)
    assert "storage.objects.delete" in table.permissions_of("roles/storage.objectUser")
    assert table.permissions_of("roles/compute.admin") == frozenset()


@pytest.mark.parametrize(
    ("member", "alice", "anonymous"),
    [
        ("user:alice@example.com", True, False),
        ("user:bob@example.com", False, False),
        ("group:users@example.com", True, False),
        ("group:others@example.com", False, False),
        ("domain:example.com", True, False),
        ("domain:ample.com", False, False),
        ("allAuthenticatedUsers", True, False),
        ("allUsers", True, True),
    ],
)
def test_a_member_stands_for_callers(tmp_path: Path, member: str, alice: bool, anonymous: bool) -> None:
    table = read(tmp_path, TABLE)
    assert table.is_member("user:alice@example.com", member) is alice
    assert table.is_member("", member) is anonymous


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[tokens", "not a valid TOML file"),
        ("[token]\n", r"unknown table \[token\]"),
        ("tokens = 1\n", r"\[tokens\] must be a table"),
        ('[tokens]\nx = "alice"\n', "needs a principal such as"),
        ("[tokens]\nx = 1\n", "needs a principal such as"),
        ('[groups]\nx = "alice"\n', r"x in \[groups\] must be a list"),
        ("[roles]\nx = [1]\n", r"x in \[roles\] must be a list"),
    ],
)
def test_a_table_that_is_not_valid_is_refused(tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(Refused, match=message):
        read(tmp_path, text)


def test_a_missing_table_is_refused(tmp_path: Path) -> None:
    with pytest.raises(Refused, match="cannot read the identities"):
        identities.read(tmp_path / "none.toml")
