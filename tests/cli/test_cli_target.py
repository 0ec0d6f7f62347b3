"""Which bastion is meant: flags, environment, config file, the bastion on this machine."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from bastion.cli.command import Command
from bastion.cli.parsing import parse
from bastion.cli.target import resolve
from bastion.core.errors import Refused
from bastion.user_config.target import Target
from bastion.user_config.user_file import bastion_home

_COMMAND = Command(summary="x", usage="", run=lambda _: 0)


def target(*arguments: str) -> Target:
    return resolve(parse("try", _COMMAND, list(arguments)).flags)


def test_with_nothing_configured_it_is_the_bastion_on_this_machine(home: Path) -> None:
    chosen = target()
    assert chosen.root.url == f"{home}/buckets/permanent/local-bastion"
    assert chosen.is_default
    assert chosen.suffix == ""


def test_flags_win_over_the_environment_which_wins_over_the_config_file(run, monkeypatch) -> None:
    assert run("config", "set", "root", "/c/three-bastion").code == 0
    assert target().root.url == "/c/three-bastion"
    monkeypatch.setenv("BASTION_ROOT", "/b/two-bastion")
    assert target().root.url == "/b/two-bastion"
    chosen = target("--root=/a/one-bastion")
    assert chosen.root.url == "/a/one-bastion"
    assert chosen.suffix == " --root=/a/one-bastion"


def test_a_bastion_in_a_bucket_is_the_same_as_its_root() -> None:
    assert (
        target("--bastion=team-bastion", "--bucket=gs://bucket").root == target("--root=gs://bucket/team-bastion").root
    )
    assert target("--bastion=team-bastion", "--bucket=/b/").root.url == "/b/team-bastion"
    assert target("--root=/b/x-bastion", "--bastion=x-bastion", "--bucket=/b").root.url == "/b/x-bastion"


def test_the_bucket_of_the_config_file_completes_a_bastion(run) -> None:
    run("config", "set", "bucket", "gs://bucket")
    assert target("--bastion=team-bastion").root.url == "gs://bucket/team-bastion"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--root=/a/x-bastion", "--bastion=y-bastion", "--bucket=/a"], "name different bastions; give only one"),
        (["--root=/a/x-bastion", "--bucket=/b"], "name different bastions; give only one"),
        (["--bastion=x-bastion"], "--bastion=x-bastion requires --bucket=URL"),
        (["--bucket=/a"], "--bucket requires --bastion=NAME"),
        (["--bastion=a/x-bastion", "--bucket=/a"], "must be a name without /"),
        (["--root=/a/x"], "must end in -bastion"),
        (["--root=az://a/x-bastion"], "is not a folder, a gs:// URL or an s3:// URL"),
        (["--root=gs://x-bastion"], "does not name a bastion"),
    ],
)
def test_contradictions_and_half_names_are_refused(arguments: list[str], message: str) -> None:
    with pytest.raises(Refused) as caught:
        target(*arguments)
    assert message in str(caught.value)


def test_the_home_is_taken_from_xdg_unless_it_is_relative(monkeypatch, tmp_path: Path) -> None:
    monkeypatch.delenv("BASTION_HOME")
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("XDG_DATA_HOME", "/x/data")
    assert bastion_home() == Path("/x/data/bastion")
    monkeypatch.setenv("XDG_DATA_HOME", "relative")
    assert bastion_home() == tmp_path / ".local/share/bastion"


def test_settings_are_kept_shown_and_forgotten(run, home: Path) -> None:
    assert run("config", "set", "project_id", 'a "b" \\ c').code == 0
    assert run("config", "set", "root", "relative/x-bastion").code == 0
    shown = json.loads(run("config", "explain", "--output=json").out)["settings"]
    path = str(home / "config.toml")
    assert shown["root"] == {"value": f"{home.parent}/relative/x-bastion", "from": path}
    assert shown["project_id"] == {"value": 'a "b" \\ c', "from": path}
    assert run("config", "set", "root", "").code == 0
    assert "the default" in json.loads(run("config", "explain", "--output=json").out)["settings"]["root"]["from"]


def test_one_way_of_naming_the_bastion_replaces_the_other(run) -> None:
    run("config", "set", "root", "/a/x-bastion")
    run("config", "set", "bucket", "/b")
    done = run("config", "set", "bastion", "y-bastion")
    assert "removed root from your config" in done.err
    assert target().root.url == "/b/y-bastion"
    assert "removed bastion from your config" in run("config", "set", "root", "/a/x-bastion").err
    assert target().root.url == "/a/x-bastion"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["rot", "x"], "unknown config key 'rot'; did you mean root?"),
        (["root", "/a/b"], "must end in -bastion"),
        (["user_id", "a\x1b[2J"], "contains control characters"),
    ],
)
def test_a_wrong_setting_is_refused(run, home: Path, arguments: list[str], message: str) -> None:
    done = run("config", "set", *arguments, code=64)
    assert message in done.err
    assert not (home / "config.toml").exists()


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("root = ", "is not valid TOML"),
        ("colour = 'red'", "unknown config key 'colour'"),
        ("root = 3", 'root must be a non-empty string, like root = "..."'),
        ("root = '/a/x-bastion'\nbastion = 'y-bastion'\nbucket = '/b'", "name different bastions"),
        ("bastion = 'y-bastion'", "bucket=URL"),
        ("profile = 3", 'profile must be a string, like profile = "team"'),
        ("profile = 'team'", "no such profile (its profiles: none); make it: bastion config set --profile=team root"),
        ("profiles = 'team'", "profiles must be tables"),
        ("[profiles.team]\ncolour = 'red'", "[profiles.team]: unknown config key 'colour'"),
        ("[profiles.'../x']\nroot = '/a/x-bastion'", "is no name of a profile"),
    ],
)
def test_a_broken_config_file_is_one_line_and_64(run, home: Path, text: str, message: str) -> None:
    home.mkdir()
    (home / "config.toml").write_text(text)
    done = run("list", code=64)
    assert message in done.err
    assert str(home / "config.toml") in done.err


def test_looking_at_a_bastion_that_is_not_there_creates_nothing(run, home: Path, tmp_path: Path) -> None:
    done = run("list", code=64)
    assert "there is no bastion on this machine" in done.err
    done = run("list", f"--root={tmp_path}/no/x-bastion", code=64)
    assert f"no such folder: {tmp_path}/no (from flags); create it" in done.err
    assert not home.exists()
    assert list(tmp_path.iterdir()) == []


def test_a_bucket_in_the_cloud_without_credentials_says_how_to_get_them(
    run, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.delenv("STORAGE_EMULATOR_HOST", raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("NO_GCE_CHECK", "true")
    done = run("list", "--root=gs://bucket/x-bastion", code=1)
    assert "gcloud auth application-default login" in done.err
