"""`tools/lock.py`: the lock files are current and complete, and `--check` notices what makes them otherwise."""

from __future__ import annotations

import re
import shutil
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import pytest
from packaging.markers import Marker
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from bastion.adapters import lock_files
from tests.support.tools import load

REPOSITORY = Path(__file__).resolve().parents[3]
HASH = "0" * 64


@pytest.fixture(scope="module")
def lock() -> ModuleType:
    return load("lock")


@pytest.fixture
def copy(tmp_path: Path) -> Path:
    """What `--check` reads, to be changed."""
    shutil.copyfile(REPOSITORY / "pyproject.toml", tmp_path / "pyproject.toml")
    shutil.copytree(lock_files.FOLDER, tmp_path / "bastion" / "requirements")
    return tmp_path


def edit(path: Path, change: Callable[[str], str]) -> None:
    before = path.read_text("utf-8")
    after = change(before)
    assert after != before
    path.write_text(after, "utf-8")


def test_the_lock_files_are_current(lock: ModuleType) -> None:
    assert lock.problems(REPOSITORY) == []


@pytest.mark.parametrize("python", ["3.10", "3.11", "3.12", "3.13", "3.14"])
def test_every_requirement_is_locked_once_for_each_python_in_a_version_that_it_allows(
    lock: ModuleType, python: str
) -> None:
    project = lock.Project(REPOSITORY)
    environment = {"python_version": python, "python_full_version": f"{python}.0", "sys_platform": "linux"}
    environment |= {"implementation_name": "cpython", "platform_python_implementation": "CPython"}
    for name, needs in project.needs.items():
        entries = [*project.entries(name), *(project.entries("base") if name != "build" else [])]
        for need in map(Requirement, needs):
            found = {
                entry.version
                for entry in entries
                if entry.name == canonicalize_name(need.name)
                and (not entry.marker or Marker(entry.marker).evaluate(environment))
            }
            assert len(found) == 1, (name, need)
            assert need.specifier.contains(found.pop()), (name, need)


def test_extras_can_be_installed_together(lock: ModuleType) -> None:
    """A package that several files have is in the same versions in all of them."""
    project = lock.Project(REPOSITORY)
    versions: dict[str, set[tuple[str, ...]]] = {}
    for name in ("base", *project.extras):
        of_file: dict[str, list[str]] = {}
        for entry in project.entries(name):
            of_file.setdefault(entry.name, []).append(entry.version)
        for package, found in of_file.items():
            versions.setdefault(package, set()).add(tuple(found))
    assert {package: found for package, found in versions.items() if len(found) > 1} == {}


def test_no_file_names_a_package_index() -> None:
    for path in lock_files.FOLDER.iterdir():
        assert not re.search(r"://|--(extra-)?index-url|--find-links", path.read_text("utf-8")), path.name


def test_a_new_requirement_makes_them_stale(lock: ModuleType, copy: Path) -> None:
    edit(copy / "pyproject.toml", lambda text: text.replace('"tomli>=2.0"', '"tomli>=2.1"'))
    found = lock.problems(copy)
    assert len(found) == len(list(lock_files.FOLDER.iterdir()))
    assert found[0] == (
        "bastion/requirements/base.lock is stale: pyproject.toml has other requirements; "
        "run `make lock` and commit what it writes"
    )


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda text: text.replace("--hash=sha256:2", "--hash=sha256:3", 1), "was edited"),
        (lambda text: text.replace("certifi==20", "certifi==19"), "was edited"),
        (lambda text: re.sub(r" \\\n    --hash=\S+", "", text, count=2), "is not an exact version with hashes"),
        (lambda text: text + "evil>=1\n", "'evil>=1' is not an exact version with hashes"),
        (lambda text: text + f"https://example.com/evil.whl --hash=sha256:{HASH}\n", "is not an exact version"),
        (lambda text: text + f"evil==1 \\\n    --hash=sha256:{HASH}\n", "was edited"),
    ],
    ids=["another hash", "another version", "no hash", "a range", "an address", "one more"],
)
def test_an_edited_entry_is_noticed(lock: ModuleType, copy: Path, change: Callable[[str], str], words: str) -> None:
    edit(copy / "bastion" / "requirements" / "base.lock", change)
    (found,) = lock.problems(copy)
    assert found.startswith("bastion/requirements/base.lock")
    assert words in found


def test_a_missing_file_and_one_too_many_are_noticed(lock: ModuleType, copy: Path) -> None:
    folder = copy / "bastion" / "requirements"
    (folder / "s3.lock").rename(folder / "other.lock")
    assert [problem.partition(";")[0] for problem in lock.problems(copy)] == [
        "bastion/requirements/s3.lock is missing",
        "other.lock is the lock file of no extra",
    ]


def test_what_is_read_is_written_again_as_it_was() -> None:
    text = (lock_files.FOLDER / "base.lock").read_text("utf-8")
    entries = lock_files.parse(text)
    assert text.endswith("\n" + lock_files.render(entries))
    assert lock_files.hashes()[f"{entries[0].name}=={entries[0].version}"] == entries[0].hashes


def test_the_check_exits_with_1_for_a_stale_file(
    lock: ModuleType, copy: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(lock, "ROOT", copy)
    assert lock.main(["--check"]) == 0
    (copy / "bastion" / "requirements" / "kms.lock").unlink()
    assert lock.main(["--check"]) == 1
    assert "kms.lock is missing" in capsys.readouterr().err
