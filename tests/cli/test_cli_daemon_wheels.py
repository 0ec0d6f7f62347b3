"""`bastion daemon agent-wheels`: pip is asked for what other Pythons need, and what it brought is packed."""

from __future__ import annotations

import hashlib
import json
import sys
import zipfile
from collections.abc import Sequence
from pathlib import Path

import pytest

from bastion.adapters import agent_packer, lock_files
from tests.cli.conftest import Terminal

# Notes what it was asked for, and brings it.
PIP = """
import json, pathlib, sys
options = dict(word.split("=", 1) for word in sys.argv[1:] if word.startswith("--") and "=" in word)
assert "--require-hashes" in sys.argv
lines = pathlib.Path(options["--requirement"]).read_text().splitlines()
pins = [line.partition(" ")[0] for line in lines]
assert all(" --hash=sha256:" in line for line in lines)
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
    lock(tmp_path, monkeypatch, agent_packer.native_packages())
    return tmp_path


def lock(folder: Path, monkeypatch: pytest.MonkeyPatch, pins: Sequence[str]) -> None:
    """What is installed here is locked, which `make test` does not see to."""
    locks = folder / "locks"
    locks.mkdir(exist_ok=True)
    (locks / "base.lock").write_text("".join(f"{pin} \\\n    --hash=sha256:{'0' * 64}\n" for pin in pins))
    monkeypatch.setattr(lock_files, "FOLDER", locks)


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


def test_an_installed_version_that_is_not_locked_is_not_downloaded(
    environment: Path, run: Terminal, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, *others = agent_packer.native_packages()
    lock(environment, monkeypatch, [f"{first}.1", *others])
    done = run("daemon", "agent-wheels", "--python=3.10", code=75)
    assert f"not in Bastion's lock files: {first}." in done.err
    assert "pip install --require-hashes --requirement=" in done.err
    assert not (environment / "asked").exists()


def test_a_lock_file_that_cannot_be_read_is_named(environment: Path, run: Terminal) -> None:
    (lock_files.FOLDER / "base.lock").write_text("cffi>=2\n")
    done = run("daemon", "agent-wheels", "--python=3.10", code=75)
    assert "'cffi>=2' is not an exact version with hashes" in done.err
    assert not (environment / "asked").exists()


def test_pip_itself_refuses_a_wheel_with_another_hash(
    tmp_path: Path, run: Terminal, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The real pip, without a network: the wheels lie in a folder, and one of them is not the locked one."""
    monkeypatch.setattr(sys, "prefix", str(tmp_path))
    monkeypatch.setattr(agent_packer, "native_packages", lambda: ("planted==1.0",))
    lock(tmp_path, monkeypatch, ["planted==1.0"])
    wheel = tmp_path / "planted-1.0-cp310-cp310-manylinux2014_x86_64.whl"
    with zipfile.ZipFile(wheel, "w") as files:
        files.writestr("planted-1.0.dist-info/METADATA", "Metadata-Version: 2.1\nName: planted\nVersion: 1.0\n")
        files.writestr("planted-1.0.dist-info/WHEEL", "Wheel-Version: 1.0\nTag: cp310-cp310-manylinux2014_x86_64\n")
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(tmp_path))
    done = run("daemon", "agent-wheels", "--python=3.10", code=75)
    assert "they are not those of the lock files" in done.err
    assert not (tmp_path / "agent-wheels").exists()

    digest = hashlib.sha256(wheel.read_bytes()).hexdigest()
    (lock_files.FOLDER / "base.lock").write_text(f"planted==1.0 \\\n    --hash=sha256:{digest}\n")
    run("daemon", "agent-wheels", "--python=3.10", code=0)
    assert [path.name for path in (tmp_path / "agent-wheels").iterdir()] == [wheel.name]


@pytest.mark.parametrize("version", ["3.9", "3", "310", "3.10;", "-r"])
def test_a_version_that_the_agent_does_not_know_is_refused(environment: Path, run: Terminal, version: str) -> None:
    done = run("daemon", "agent-wheels", f"--python={version}", code=64)
    assert "like --python=3.10,3.12" in done.err
    assert not (environment / "asked").exists()
