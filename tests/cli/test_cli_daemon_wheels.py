"""`bastion daemon agent-wheels`: pip is asked for what other Pythons need, and what it brought is packed."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from bastion.adapters import agent_packer
from tests.cli.conftest import Terminal

# Notes what it was asked for, and brings it.
PIP = """
import json, pathlib, sys
options = dict(word.split("=", 1) for word in sys.argv[1:] if word.startswith("--") and "=" in word)
pins = [word for word in sys.argv[2:] if not word.startswith("--")]
notes = pathlib.Path(__file__).with_name("asked")
with notes.open("a") as file:
    file.write(json.dumps([options["--python-version"], pins]) + "\\n")
if options["--python-version"] == "3.13":
    sys.exit("no such wheel")
folder = pathlib.Path(options["--dest"])
folder.mkdir(parents=True, exist_ok=True)
for pin in pins:
    name, version = pin.split("==")
    digits = options["--python-version"].replace(".", "")
    (folder / f"{name.replace('-', '_')}-{version}-cp{digits}-cp{digits}-manylinux2014_x86_64.whl").write_text("wheel")
"""


@pytest.fixture
def environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An environment of its own for wheels, and a pip that needs no network."""
    (tmp_path / "pip.py").write_text(PIP)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    monkeypatch.setattr(sys, "prefix", str(tmp_path / "env"))
    (tmp_path / "env").mkdir()
    return tmp_path


def asked(environment: Path) -> list[list[object]]:
    return [json.loads(line) for line in (environment / "asked").read_text().splitlines()]


def test_what_is_native_is_fetched_in_the_installed_versions_and_the_agent_serves_more_pythons(
    environment: Path, run: Terminal
) -> None:
    other = "3.10" if sys.version_info.minor != 10 else "3.11"
    done = run("daemon", "agent-wheels", f"--python={other}", code=0)
    assert asked(environment) == [[other, list(agent_packer.native_packages())]]
    assert "pydantic-core==" in " ".join(agent_packer.native_packages())
    served = sorted([other, f"3.{sys.version_info.minor}"])
    assert all(version in done.out.rpartition(": ")[2] for version in served)
    assert [entry.name for entry in (environment / "env").iterdir()] == ["agent-wheels"]


def test_what_was_there_is_replaced(environment: Path, run: Terminal) -> None:
    run("daemon", "agent-wheels", "--python=3.10")
    run("daemon", "agent-wheels", "--python=3.12,3.14")
    names = [path.name for path in (environment / "env" / "agent-wheels").iterdir()]
    assert {name.split("-")[2] for name in names} == {"cp312", "cp314"}


def test_wheels_that_cannot_be_had_change_nothing(environment: Path, run: Terminal) -> None:
    run("daemon", "agent-wheels", "--python=3.10")
    before = sorted((environment / "env" / "agent-wheels").iterdir())
    done = run("daemon", "agent-wheels", "--python=3.12,3.13", code=75)
    assert "pip could not download the wheels for Python 3.13" in done.err
    assert sorted((environment / "env" / "agent-wheels").iterdir()) == before


@pytest.mark.parametrize("version", ["3.9", "3", "310", "3.10;", "-r"])
def test_a_version_that_the_agent_does_not_know_is_refused(environment: Path, run: Terminal, version: str) -> None:
    done = run("daemon", "agent-wheels", f"--python={version}", code=64)
    assert "like --python=3.10,3.12" in done.err
    assert not (environment / "asked").exists()
