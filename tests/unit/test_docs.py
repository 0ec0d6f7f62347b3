"""The docs follow the code: generated pages are fresh, links lead somewhere, and nothing named is missing."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from bastion.core.bucket import keys
from scheduler import ReasonCode

REPOSITORY = Path(__file__).resolve().parents[2]
PAGES = sorted([*REPOSITORY.glob("*.md"), *(REPOSITORY / "docs").rglob("*.md")])


def test_generated_pages_are_fresh() -> None:
    check = subprocess.run(
        [sys.executable, str(REPOSITORY / "docs" / "render.py"), "--check"], capture_output=True, text=True, check=False
    )
    assert check.returncode == 0, check.stderr


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(REPOSITORY)))
def test_relative_links_lead_to_files_that_exist(page: Path) -> None:
    for link in re.findall(r"\]\(([^)#\s]+)", page.read_text("utf-8")):
        if "://" not in link:
            assert (page.parent / link).exists(), f"{page.name} links to {link}"


def test_every_reason_code_is_explained() -> None:
    text = (REPOSITORY / "docs" / "reference" / "reasons.md").read_text("utf-8")
    assert [code.value for code in ReasonCode if f"`{code.value}`" not in text] == []


def test_codes_that_are_never_given_are_said_to_be_so_in_the_reference_and_promised_nowhere() -> None:
    sources = [
        path.read_text("utf-8") for layer in ("bastion", "scheduler") for path in (REPOSITORY / layer).rglob("*.py")
    ]
    given = set(re.findall(r"ReasonCode\.([A-Z_]+)", "".join(sources)))
    never = [code.value for code in ReasonCode if code.name not in given]
    reasons = REPOSITORY / "docs" / "reference" / "reasons.md"
    assert re.findall(r"^\| `(\w+)` .* never given yet: ", reasons.read_text("utf-8"), re.MULTILINE) == never
    promising = [page.name for page in PAGES for code in never if page != reasons and code in page.read_text("utf-8")]
    assert promising == []


def test_every_folder_of_the_bucket_is_in_its_reference() -> None:
    text = (REPOSITORY / "docs" / "reference" / "bucket-format.md").read_text("utf-8")
    prefixes = [value for name, value in vars(keys).items() if name.isupper() and isinstance(value, str)]
    assert [prefix for prefix in prefixes if f"`{prefix}" not in text] == []


@pytest.mark.parametrize(
    "page", ["docs/explanation/architecture.md", "docs/development/where-things-are.md", "CONTRIBUTING.md"]
)
def test_the_modules_that_a_page_names_exist(page: str) -> None:
    named = re.findall(r"`([a-z_0-9]+/[a-z_0-9/]*?(?:\w\.py|\w\.sh|/))`", (REPOSITORY / page).read_text("utf-8"))
    roots = [REPOSITORY, REPOSITORY / "bastion"]
    keys_of_the_bucket = {value for value in vars(keys).values() if isinstance(value, str)}
    missing = [path for path in named if not any((root / path).exists() for root in roots)]
    assert [path for path in missing if path not in keys_of_the_bucket] == []


@pytest.mark.parametrize("folder", ["how-to", "explanation", "reference", "development"])
def test_the_index_names_every_page(folder: str) -> None:
    index = (REPOSITORY / "docs" / "README.md").read_text("utf-8")
    assert [p.name for p in (REPOSITORY / "docs" / folder).glob("*.md") if f"({folder}/{p.name})" not in index] == []


def test_the_index_of_decisions_names_every_one_and_each_has_a_status_and_a_date() -> None:
    folder = REPOSITORY / "docs" / "adr"
    index = (folder / "README.md").read_text("utf-8")
    for page in folder.glob("0*.md"):
        assert f"]({page.name})" in index, page.name
        assert re.search(
            r"^Status: (Accepted|Superseded by ).* Date: 20\d\d-\d\d-\d\d\.$", page.read_text("utf-8"), re.MULTILINE
        )
