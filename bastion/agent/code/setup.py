"""The setup of a host, once before the command: install the packages that the job's code requires.

Invariants:
* Packages go into the job's own environment on the host's disk. It also sees the machine's packages, so an installed
  JAX is used; the machine's, the agent's and the daemon's Python do not change.
* Without anything to set up, no environment is made.
* Nothing is built by default: the code is imported in place.
"""

from __future__ import annotations

import os
import re
import shlex
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import tomli

from bastion.agent.code.fetch import CodeProblem
from bastion.core.bucket import host_errors
from bastion.core.bucket.protocol import Order

_MAKER = Path(__file__).parent / "job_venv.py"
_CHECKER = Path(__file__).parent / "job_needs.py"
_ADVICE = "; use --setup=COMMAND to run another command, --setup= to install nothing"
_FILE_MAX_BYTES = 1024 * 1024
_LABEL_MAX_CHARS = 200
_PIP = "python3 -m pip install -q"
_NAME = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9._-]*[A-Za-z0-9])?")
_PLACE = re.compile(r"[A-Za-z_][A-Za-z0-9_.]*:[A-Za-z_][A-Za-z0-9_.]*")


@dataclass(frozen=True, slots=True, kw_only=True)
class Setup:
    """A setup command, run in the folder of the code, like the command and into the same log.

    Attributes:
        title: What it does, for the log.
        line: Bash command line; its exit code is that of the setup.
        advice: What the user can do about a failure, appended to a message; may be empty.
    """

    title: str
    line: str
    advice: str = ""

    @property
    def label(self) -> str:
        first = self.title.strip().splitlines()[0]
        return f"the setup ({first[:_LABEL_MAX_CHARS]})"


def setup_of(order: Order, tree: Path, environment: Path) -> Setup | None:
    """The setup to run before the command, or None. Raises CodeProblem if the code's pyproject.toml cannot be read.

    Args:
        tree: Folder of the job's code.
        environment: Folder of the job's environment.
    """
    if order.setup is not None:
        if not order.setup.strip():
            return None
        return Setup(title=order.setup, line=f"{_make(environment)}\n{order.setup}")
    if not order.code:
        return None
    project = _project(tree / "pyproject.toml")
    programs = _programs(project) if project else {}
    make = _make(environment, *([str(tree)] if project is not None else []), *(f"{k}={v}" for k, v in programs.items()))
    if (tree / "requirements.txt").is_file():
        return _default(make, "-r requirements.txt")
    if project is None:
        return None
    if "dependencies" in _texts(project, "dynamic"):
        # Only a build of the project knows its requirements.
        return Setup(title=f"{_PIP} .", line=f"{make}\n{_PIP} .", advice=_ADVICE)
    needs = shlex.join(_texts(project, "dependencies"))
    if any(need.startswith("-") for need in _texts(project, "dependencies")):
        raise CodeProblem(host_errors.SETUP_FAILED, "pyproject.toml: project.dependencies contains a pip option")
    if not needs:
        return Setup(title="add the project in pyproject.toml to Python's path", line=make)
    return _default(make, needs, title="install the dependencies in pyproject.toml")


def _default(make: str, needs: str, *, title: str = "") -> Setup:
    check = shlex.join(["python3", "-I", str(_CHECKER)])
    install = f"{check} {needs} 2> /dev/null || {_PIP} {needs}"
    return Setup(title=title or f"{_PIP} {needs}", line=f"{make}\n{install}", advice=_ADVICE)


def with_environment(variables: Mapping[str, str], environment: Path) -> dict[str, str]:
    """`variables`, changed to activate the job's environment."""
    path = os.pathsep.join((str(environment / "bin"), variables.get("PATH", os.defpath)))
    quiet = {"PIP_DISABLE_PIP_VERSION_CHECK": "1", "PIP_NO_INPUT": "1", "PIP_PROGRESS_BAR": "off"}
    return {**quiet, **variables, "PATH": path, "VIRTUAL_ENV": str(environment)}


def _make(environment: Path, *arguments: str) -> str:
    """The command that makes the environment. A host without Python skips it."""
    line = shlex.join(["python3", "-I", str(_MAKER), str(environment), *arguments])
    return f"if command -v python3 > /dev/null; then {line} || exit; fi"


def _project(path: Path) -> Mapping[str, Any] | None:
    """The table `[project]`; None if absent."""
    try:
        with path.open("rb") as file:
            document = tomli.loads(file.read(_FILE_MAX_BYTES).decode("utf-8"))
    except (FileNotFoundError, IsADirectoryError):
        return None
    except (OSError, ValueError, RecursionError) as error:  # RecursionError: tomli, for deeply nested brackets
        raise CodeProblem(host_errors.SETUP_FAILED, f"pyproject.toml cannot be read: {error}") from error
    project = document.get("project")
    return project if isinstance(project, dict) else None


def _texts(project: Mapping[str, Any], name: str) -> list[str]:
    value = project.get(name, [])
    if not isinstance(value, list) or not all(isinstance(item, str) for item in value):
        raise CodeProblem(host_errors.SETUP_FAILED, f"pyproject.toml: project.{name} must be a list of strings")
    return value


def _programs(project: Mapping[str, Any]) -> dict[str, str]:
    """`[project.scripts]`, without invalid entries."""
    scripts = project.get("scripts", {})
    if not isinstance(scripts, dict):
        return {}
    places = {str(name): str(place).replace(" ", "") for name, place in scripts.items()}
    return {name: place for name, place in places.items() if _NAME.fullmatch(name) and _PLACE.fullmatch(place)}
