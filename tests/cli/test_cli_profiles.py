"""Profiles, the project's file, and who set what."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from bastion.cli.command import Command
from bastion.cli.parsing import parse
from bastion.cli.target import resolve

_COMMAND = Command(summary="x", usage="", run=lambda _: 0)


def root(*arguments: str) -> str:
    return resolve(parse("try", _COMMAND, list(arguments)).flags).root.url


@pytest.fixture
def profiles(run) -> None:
    """Two profiles above what all share."""
    run("config", "set", "root", "/a/base-bastion")
    run("config", "set", "project_id", "shared")
    run("config", "set", "--profile=lab", "root", "/a/lab-bastion")
    run("config", "set", "--profile=lab", "project_id", "lab")
    run("config", "set", "--profile=other", "bastion", "other-bastion")
    run("config", "set", "--profile=other", "bucket", "/b")


@pytest.fixture
def repository(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "repository"
    (folder / ".git").mkdir(parents=True)
    (folder / "src").mkdir()
    monkeypatch.chdir(folder / "src")
    return folder


def explained(run) -> dict[str, dict[str, str]]:
    return json.loads(run("config", "explain", "--output=json").out)["settings"]


@pytest.mark.usefixtures("profiles")
def test_a_profile_overrides_what_all_share_and_its_name_of_the_bastion_hides_the_other_one(run, home: Path) -> None:
    assert root() == "/a/base-bastion"
    done = run("config", "activate", "lab")
    assert "commands use /a/lab-bastion" in done.err
    found = explained(run)
    assert found["project_id"] == {"value": "lab", "from": f"profile lab of {home}/config.toml"}
    run("config", "activate", "other")
    assert root() == "/b/other-bastion"
    assert explained(run)["project_id"]["value"] == "shared"
    assert "commands use /a/base-bastion" in run("config", "activate", "").err


@pytest.mark.usefixtures("profiles")
def test_flags_win_over_the_environment_over_the_projects_file_over_the_active_profile(
    run, repository: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run("config", "activate", "lab")
    (repository / ".bastion.toml").write_text('# ours\nprofile = "other"\nproject_id = "vision"\n')
    assert root() == "/b/other-bastion"
    assert explained(run)["project_id"] == {"value": "vision", "from": str(repository / ".bastion.toml")}
    assert "chooses the profile other" in run("config", "activate", "lab").err
    monkeypatch.setenv("BASTION_PROFILE", "lab")
    assert root() == "/a/lab-bastion"
    assert explained(run)["profile"] == {"value": "lab", "from": "$BASTION_PROFILE"}
    monkeypatch.setenv("BASTION_ROOT", "/c/env-bastion")
    assert root() == "/c/env-bastion"
    assert root("--root=/d/flag-bastion") == "/d/flag-bastion"


def test_a_job_needs_no_profile_of_the_projects_file(repository: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (repository / ".bastion.toml").write_text('profile = "team"\n')
    monkeypatch.setenv("BASTION_ROOT", "/c/env-bastion")
    assert root() == "/c/env-bastion"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('root = "gs://evil/x-bastion"', "a file that comes with code may not set root"),
        ('inbox = "alice"', "may not set inbox"),
        ('proxy = "x:y"', "may not set proxy"),
        ('profile = "team"', "no such profile (its profiles: none); make it: bastion config set --profile=team root"),
        ("profile = 3", "profile must be a non-empty string"),
        ('colour = "red"', "unknown key 'colour'; the keys are profile, project_id"),
        ("profile = ", "is not valid TOML"),
        ('project_id = "' + "x" * 2**20 + '"', "is longer than 1048576 bytes"),
    ],
)
def test_a_projects_file_that_says_too_much_or_nonsense_is_one_line_and_64(
    run, repository: Path, text: str, message: str
) -> None:
    (repository / ".bastion.toml").write_text(text)
    done = run("list", code=64)
    assert message in done.err
    assert str(repository / ".bastion.toml") in done.err


def test_files_above_the_repository_are_not_read(run, repository: Path) -> None:
    (repository.parent / ".bastion.toml").write_text("nonsense")
    assert "from" in explained(run)["root"]


@pytest.mark.usefixtures("profiles")
def test_profiles_are_listed_with_the_one_in_use(run) -> None:
    run("config", "activate", "lab")
    done = run("config", "list")
    assert [line.split() for line in done.out.splitlines()] == [
        ["PROFILE", "ROOT", "PROJECT"],
        ["*", "lab", "/a/lab-bastion", "lab"],
        ["other", "/b/other-bastion"],
    ]
    document = json.loads(run("config", "list", "--output=json").out)
    assert [(each["name"], each["in_use"]) for each in document["profiles"]] == [("lab", True), ("other", False)]


@pytest.mark.usefixtures("profiles")
def test_a_profile_is_gone_with_its_last_setting_unless_it_is_active(run) -> None:
    run("config", "activate", "lab")
    run("config", "set", "--profile=lab", "project_id", "")
    assert "activate another one first" in run("config", "set", "--profile=lab", "root", "", code=64).err
    run("config", "activate", "")
    run("config", "set", "--profile=lab", "root", "")
    assert "lab" not in run("config", "list").out
    assert "no such profile" in run("config", "activate", "lab", code=64).err
    assert "is no name of a profile" in run("config", "activate", "a b", code=64).err
