"""What is done on a host once, before the command: the packages that the job's code names are installed.

Layer: worker. Only says what to run; the host runs it as it runs the command, and logs it.

Invariants:

* What is installed goes into an environment of the job's own, on the host's disk, which also sees the packages of the
  machine: a JAX that is there is used, and the Python of the machine, of the agent or of the daemon stays as it is.
* Where there is nothing to set up, no environment is made, and it costs nothing.
* Nothing is built by default: the code is imported from where it lies.
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
_ADVICE = "; --setup=COMMAND replaces what was tried, --setup= (empty) installs nothing"
_FILE_MAX_BYTES = 1024 * 1024
_LABEL_MAX_CHARS = 200
_PIP = "python3 -m pip install -q"
_NAME = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9._-]*[A-Za-z0-9])?")
_PLACE = re.compile(r"[A-Za-z_][A-Za-z0-9_.]*:[A-Za-z_][A-Za-z0-9_.]*")


@dataclass(frozen=True, slots=True, kw_only=True)
class Setup:
    """What to run, in the folder of the code.

    Attributes:
        title: For the log, and for who reads why it failed.
        line: Bash command line; its exit code is that of what the user asked for.
        advice: What its user may do about a failure, to follow a message; may be empty.
    """

    title: str
    line: str
    advice: str = ""

    @property
    def label(self) -> str:
        """For a message."""
        first = self.title.strip().splitlines()[0]
        return f"the setup ({first[:_LABEL_MAX_CHARS]})"


def setup_of(order: Order, tree: Path, environment: Path) -> Setup | None:
    """What to run before the command; None: nothing.

    Args:
        tree: Where the job's code lies.
        environment: Where the job's environment is to be.

    Raises:
        CodeProblem: the code's pyproject.toml cannot be read.
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
        # Only the project's own build tells what it needs.
        return Setup(title=f"{_PIP} .", line=f"{make}\n{_PIP} .", advice=_ADVICE)
    needs = shlex.join(_texts(project, "dependencies"))
    if any(need.startswith("-") for need in _texts(project, "dependencies")):
        raise CodeProblem(host_errors.SETUP_FAILED, "pyproject.toml: project.dependencies holds an option of pip")
    if not needs:
        return Setup(title="puts the project of pyproject.toml on Python's path", line=make)
    return _default(make, needs, title="installs what pyproject.toml depends on")


def _default(make: str, needs: str, *, title: str = "") -> Setup:
    check = shlex.join(["python3", "-I", str(_CHECKER)])
    install = f"{check} {needs} 2> /dev/null || {_PIP} {needs}"
    return Setup(title=title or f"{_PIP} {needs}", line=f"{make}\n{install}", advice=_ADVICE)


def with_environment(variables: Mapping[str, str], environment: Path) -> dict[str, str]:
    """The variables under which the job's environment is in use."""
    path = os.pathsep.join((str(environment / "bin"), variables.get("PATH", os.defpath)))
    quiet = {"PIP_DISABLE_PIP_VERSION_CHECK": "1", "PIP_NO_INPUT": "1", "PIP_PROGRESS_BAR": "off"}
    return {**quiet, **variables, "PATH": path, "VIRTUAL_ENV": str(environment)}


def _make(environment: Path, *arguments: str) -> str:
    """A setup without Python may do without."""
    line = shlex.join(["python3", "-I", str(_MAKER), str(environment), *arguments])
    return f"if command -v python3 > /dev/null; then {line} || exit; fi"


def _project(path: Path) -> Mapping[str, Any] | None:
    """The table `[project]`; None: there is none."""
    try:
        with path.open("rb") as file:
            document = tomli.loads(file.read(_FILE_MAX_BYTES).decode("utf-8"))
    except (FileNotFoundError, IsADirectoryError):
        return None
    except (OSError, ValueError, RecursionError) as error:  # the last: tomli's, for brackets without end
        raise CodeProblem(host_errors.SETUP_FAILED, f"pyproject.toml cannot be read: {error}") from error
    project = document.get("project")
    return project if isinstance(project, dict) else None


def _texts(project: Mapping[str, Any], name: str) -> list[str]:
    value = project.get(name, [])
    if not isinstance(value, list) or not all(isinstance(item, str) for item in value):
        raise CodeProblem(host_errors.SETUP_FAILED, f"pyproject.toml: project.{name} must be a list of texts")
    return value


def _programs(project: Mapping[str, Any]) -> dict[str, str]:
    """`[project.scripts]`, without what is no name or leads nowhere."""
    scripts = project.get("scripts", {})
    if not isinstance(scripts, dict):
        return {}
    places = {str(name): str(place).replace(" ", "") for name, place in scripts.items()}
    return {name: place for name, place in places.items() if _NAME.fullmatch(name) and _PLACE.fullmatch(place)}
