"""`tools/licenses.py`: every locked package has a license that the policy allows."""

from __future__ import annotations

import importlib.metadata
from email.message import Message
from pathlib import Path
from types import ModuleType

import pytest

from bastion.adapters import lock_files
from tests.support.tools import load


@pytest.fixture(scope="module")
def licenses() -> ModuleType:
    return load("licenses")


def metadata(**fields: str) -> Message:
    message = Message()
    for name, value in fields.items():
        message[name.replace("_", "-")] = value
    return message


def test_every_locked_package_is_listed_with_an_allowed_license(licenses: ModuleType) -> None:
    page = licenses.PAGE.read_text("utf-8")
    assert len(licenses.read(page)) > 50
    assert licenses.problems(page, lock_files.FOLDER, importlib.metadata.distributions()) == []


@pytest.mark.parametrize(
    ("license", "words"),
    [
        ("GPL-3.0-only", "has the license GPL-3.0-only, which the policy does not allow"),
        ("MIT AND AGPL-3.0-only", "which the policy does not allow"),
        ("", "declares no license"),
    ],
)
def test_a_forbidden_and_a_missing_license_are_noticed(
    licenses: ModuleType, tmp_path: Path, license: str, words: str
) -> None:
    lock = f"planted==1.0 \\\n    --hash=sha256:{'0' * 64}\n"
    (tmp_path / "base.lock").write_text(lock)
    page = licenses.render({"planted": licenses.Row(versions=("1.0",), license=license, locks=("base",))})
    (found,) = licenses.problems(page, tmp_path, [])
    assert found.startswith("planted ")
    assert words in found


def test_a_page_with_another_version_and_one_package_too_many_is_stale(licenses: ModuleType, tmp_path: Path) -> None:
    (tmp_path / "base.lock").write_text(f"planted==1.1 \\\n    --hash=sha256:{'0' * 64}\n")
    rows = {name: licenses.Row(versions=("1.0",), license="MIT", locks=("base",)) for name in ("planted", "gone")}
    assert licenses.problems(licenses.render(rows), tmp_path, []) == [
        "licenses.md does not have planted 1.1; run `make lock`",
        "licenses.md has gone, which is not locked; run `make lock`",
    ]


def test_a_package_that_is_installed_declares_what_the_page_says(licenses: ModuleType, tmp_path: Path) -> None:
    tomli = importlib.metadata.distribution("tomli")
    (tmp_path / "base.lock").write_text(f"tomli=={tomli.version} \\\n    --hash=sha256:{'0' * 64}\n")
    page = licenses.render({"tomli": licenses.Row(versions=(tomli.version,), license="ISC", locks=("base",))})
    (found,) = licenses.problems(page, tmp_path, [tomli])
    assert "does not declare ISC" in found


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({"License_Expression": "Apache-2.0 AND MIT", "License": "other"}, "Apache-2.0 AND MIT"),
        (
            {"License_Expression": "GPL-3.0-only", "Classifier": "License :: OSI Approved :: MIT License"},
            "GPL-3.0-only",
        ),
        ({"License": "Apache 2.0"}, "Apache-2.0"),
        ({"License": "see LICENSE", "Classifier": "License :: OSI Approved :: MIT License"}, "MIT"),
        ({"License": "BSD", "Classifier": "License :: OSI Approved :: BSD License"}, ""),
        ({}, ""),
    ],
)
def test_what_metadata_declare(licenses: ModuleType, fields: dict[str, str], expected: str) -> None:
    assert licenses.declared("planted", metadata(**fields)) == expected


@pytest.mark.parametrize(
    ("expression", "allowed"),
    [
        ("MIT", True),
        ("GPL-3.0-only OR MIT", True),
        ("(GPL-3.0-only OR MIT) AND BSD-3-Clause", True),
        ("MIT AND GPL-3.0-only", False),
        ("(MIT AND GPL-3.0-only) OR GPL-2.0-only", False),
        ("GPL-3.0-only WITH GCC-exception-3.1", False),
        ("", False),
    ],
)
def test_the_policy(licenses: ModuleType, expression: str, allowed: bool) -> None:
    assert licenses.allowed(expression) is allowed
