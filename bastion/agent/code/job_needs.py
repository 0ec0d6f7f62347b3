"""Run by the Python of a job: exits with 0 if all that the job needs is installed, so that `pip` need not be asked.

Usage: python3 job_needs.py -r FILE, or python3 job_needs.py NEED... Looks at versions only, as `pip` first does, in a
tenth of its time; where it does not understand something, it leaves the answer to `pip` (exit code 1).

Layer: worker; a program of its own, started by `setup_step`. It needs the standard library of Python 3.8, and what
`pip` brings along.
"""

from __future__ import annotations

import importlib
import importlib.metadata
import sys
from pathlib import Path
from typing import Any


def is_installed(need: str) -> bool:
    """Whether a requirement such as `numpy>=1.26; python_version < '3.13'` is met."""
    syntax = _syntax()
    try:
        requirement = syntax.Requirement(need)
        if requirement.marker is not None and not requirement.marker.evaluate({"extra": ""}):
            return True
        # What an extra needs, or whether it came from that address, is not in a version.
        if requirement.extras or requirement.url:
            return False
        version = importlib.metadata.version(requirement.name)
        return bool(requirement.specifier.contains(version, prereleases=True))
    except (syntax.InvalidRequirement, importlib.metadata.PackageNotFoundError):
        return False


def _syntax() -> Any:
    try:
        return importlib.import_module("packaging.requirements")
    except ImportError:
        return importlib.import_module("pip._vendor.packaging.requirements")


def needs_in(text: str) -> list[str]:
    """The requirements in a file; one that begins with `-`, an option, is met by nothing."""
    lines = (line.split(" #")[0].strip() for line in text.splitlines())
    return [line for line in lines if line and not line.startswith("#")]


def main(arguments: list[str]) -> int:
    """The exit code."""
    try:
        needs = needs_in(Path(arguments[1]).read_text("utf-8")) if arguments[:1] == ["-r"] else arguments
        return 0 if all(map(is_installed, needs)) else 1
    except (ImportError, OSError, ValueError):
        return 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
