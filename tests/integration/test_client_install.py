"""`pip install bastion` without extras: what comes with it, and that all of a user's day works with that alone.

The environment is a folder of links to the files of exactly those packages that the installer would bring, by their
metadata and RECORD; nothing else of this one can be imported.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from importlib.metadata import Distribution, distribution
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

import bastion

# Of the daemon, of frameworks, of the page: none of a teammate's business.
UNWANTED = {"grpcio", "grpcio-status", "google-cloud-tpu", "jax", "jaxlib", "numpy", "kubernetes", "boto3", "starlette"}
# A part of another package's files may be missing in this environment; what is imported is what counts.
_SKIPPED = ("..", "/", "__pycache__")


def closure(name: str) -> dict[str, Distribution]:
    """The package and all that it requires, without extras but those that requirements name."""
    found: dict[str, Distribution] = {}
    extras_of: dict[str, set[str]] = {}
    waiting: list[tuple[str, set[str]]] = [(name, set())]
    while waiting:
        each, extras = waiting.pop()
        key = canonicalize_name(each)
        if key in found and extras <= extras_of[key]:
            continue
        found[key] = distribution(each)
        extras_of.setdefault(key, set()).update(extras)
        for line in found[key].requires or ():
            need = Requirement(line)
            if need.marker is None or any(need.marker.evaluate({"extra": extra}) for extra in ("", *extras)):
                waiting.append((need.name, set(need.extras)))
    return found


@pytest.fixture(scope="module")
def packages() -> dict[str, Distribution]:
    return closure("bastion")


@pytest.fixture(scope="module")
def environment(packages: dict[str, Distribution], tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """Variables for a Python that sees these packages only."""
    folder = tmp_path_factory.mktemp("site")
    for name, package in packages.items():
        if name == "bastion":
            continue
        for file in package.files or ():
            if file.parts[0] in _SKIPPED or "__pycache__" in file.parts:
                continue
            link = folder / file
            link.parent.mkdir(parents=True, exist_ok=True)
            link.symlink_to(package.locate_file(file))
    sources = Path(bastion.__file__).parents[1]
    for part in ("bastion", "quota", "scheduler"):
        (folder / part).symlink_to(sources / part)
    return {"PATH": os.environ["PATH"], "PYTHONPATH": str(folder), "HOME": str(folder), "NO_GCE_CHECK": "true"}


def run(environment: dict[str, str], *arguments: str, code: int = 0) -> subprocess.CompletedProcess[str]:
    # -S: without the packages that this Python has.
    program = "import sys; from bastion.cli.main import main; sys.exit(main(sys.argv[1:]))"
    done = subprocess.run(
        [sys.executable, "-S", "-c", program, *arguments],
        env=environment,
        cwd=environment["HOME"],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == code, done.stderr
    return done


def test_the_client_comes_without_the_daemons_packages(packages: dict[str, Distribution]) -> None:
    assert not UNWANTED & packages.keys()
    assert {"google-cloud-storage", "pydantic", "rich"} <= packages.keys()


def test_a_job_is_prepared_listed_and_explained_without_them(environment: dict[str, str], tmp_path: Path) -> None:
    root = tmp_path / "bucket" / "team-bastion"
    root.mkdir(parents=True)
    mine = {**environment, "BASTION_ROOT": str(root), "BASTION_HOME": str(tmp_path / "home")}
    assert run(mine, "version").stdout.startswith("bastion ")
    spec = run(mine, "launch", "--dry_run", "--project_id=p", "--", "true").stdout
    assert json.loads(spec)["command"] == "true"
    # No daemon has ever run here, which is what 75 says.
    assert "no daemon has published a status" in run(mine, "list", code=75).stderr
    assert "no such job" in run(mine, "why", "train-1", code=64).stderr


def test_cloud_storage_is_reached_without_them(environment: dict[str, str], tmp_path: Path) -> None:
    mine = {**environment, "STORAGE_EMULATOR_HOST": "http://127.0.0.1:9", "BASTION_HOME": str(tmp_path / "home")}
    done = run(mine, "list", "--root=gs://bucket/team-bastion", code=75)
    assert "nothing listens at http://127.0.0.1:9" in done.stderr


def test_what_needs_more_says_what_to_install(environment: dict[str, str], tmp_path: Path) -> None:
    mine = {**environment, "BASTION_HOME": str(tmp_path / "home")}
    assert "pip install 'bastion[local]'" in run(mine, "local", "up", code=64).stderr
    assert not (tmp_path / "home").exists()
    assert "pip install 'bastion[daemon]'" in run(mine, "emulator", "tpu", code=64).stderr
