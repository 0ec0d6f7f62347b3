"""The pages name modules that exist, and the indexes name every page."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from bastion.core.bucket import keys

REPOSITORY = Path(__file__).resolve().parents[3]
WITH_PATHS = ("docs/explanation/architecture.md", "docs/development/where-things-are.md", "CONTRIBUTING.md")


def text_of(page: str) -> str:
    return (REPOSITORY / page).read_text("utf-8")


@pytest.mark.parametrize("page", ["CONTRIBUTING.md", "CHANGELOG.md"])
def test_relative_links_of_the_pages_at_the_top_lead_to_files_that_exist(page: str) -> None:
    links = re.findall(r"\]\(([^)#\s]+)", text_of(page))
    assert [link for link in links if "://" not in link and not (REPOSITORY / link).exists()] == []


@pytest.mark.parametrize("page", WITH_PATHS)
def test_the_modules_that_a_page_names_exist(page: str) -> None:
    named = re.findall(r"`([a-z_0-9]+/[a-z_0-9/]*?(?:\w\.py|\w\.sh|/))`", text_of(page))
    roots = [REPOSITORY, REPOSITORY / "bastion"]
    keys_of_the_bucket = {value for value in vars(keys).values() if isinstance(value, str)}
    missing = [path for path in named if not any((root / path).exists() for root in roots)]
    assert named
    assert [path for path in missing if path not in keys_of_the_bucket] == []


@pytest.mark.parametrize("folder", ["how-to", "explanation", "reference", "development"])
def test_the_index_names_every_page(folder: str) -> None:
    index = text_of("docs/README.md")
    pages = (REPOSITORY / "docs" / folder).glob("*.md")
    assert [page.name for page in pages if f"({folder}/{page.name})" not in index] == []


def test_the_index_of_decisions_names_every_one_and_each_has_a_status_and_a_date() -> None:
    index = text_of("docs/adr/README.md")
    status = re.compile(r"^Status: (Accepted|Superseded by ).*\. Date: 20\d\d-\d\d-\d\d\.$", re.M)
    for page in (REPOSITORY / "docs" / "adr").glob("0*.md"):
        assert f"]({page.name})" in index, page.name
        assert status.search(page.read_text("utf-8")), page.name
