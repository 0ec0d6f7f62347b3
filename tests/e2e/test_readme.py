"""The README's commands, executed by a shell as they stand there, in a folder like a clone."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from bastion.wiring.local import down
from bastion.wiring.local_home import LocalHome
from tests.support.extras import needs

needs("jax")
pytestmark = [pytest.mark.e2e, pytest.mark.timeout(400)]
REPOSITORY = Path(__file__).parents[2]


def commands(heading: str) -> list[str]:
    """The commands of the first console block under a heading."""
    section = (REPOSITORY / "README.md").read_text("utf-8").partition(f"\n## {heading}\n")[2]
    block = re.search(r"```console\n(.*?)```", section, re.DOTALL)
    assert block is not None, heading
    return [line.removeprefix("$ ") for line in block[1].splitlines() if line.startswith("$ ")]


@pytest.fixture
def clone(tmp_path: Path) -> Iterator[Path]:
    """What the commands need of a clone after `make demo`."""
    folder = tmp_path / "clone"
    shutil.copytree(REPOSITORY / "examples", folder / "examples", ignore=shutil.ignore_patterns("__pycache__"))
    subprocess.run(["git", "init", "-q", str(folder)], check=True)
    program = folder / ".venv" / "bin" / "bastion"
    program.parent.mkdir(parents=True)
    program.write_text(f'#!/bin/sh\nexec "{sys.executable}" -m bastion.cli.main "$@"\n')
    program.chmod(0o755)
    yield folder
    down(LocalHome(tmp_path / "home"), say=lambda _: None)


def test_each_command_under_use_it_works_in_a_clone(clone: Path) -> None:
    lines = commands("Use it")
    assert len(lines) > 8
    script = "\n".join(["set -ex", "shopt -s expand_aliases", *lines])
    environment = {**os.environ, "BASTION_HOME": str(clone.parent / "home"), "PYTHONPATH": str(REPOSITORY)}
    done = subprocess.run(
        ["bash", "-c", script], cwd=clone, env=environment, capture_output=True, text=True, timeout=300, check=False
    )
    assert done.returncode == 0, done.stderr
    assert "hello from the bastion itself" in done.stdout
    for worker in (0, 1):
        assert re.search(rf"^\[w0{worker}\] step 100: loss 0\.0\d+ on 8 devices$", done.stdout, re.MULTILINE), (
            done.stdout
        )
    assert "train-1 succeeded" in done.stderr
