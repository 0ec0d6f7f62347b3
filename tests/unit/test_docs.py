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
PAGES = sorted([REPOSITORY / "README.md", *(REPOSITORY / "docs").rglob("*.md")])


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
