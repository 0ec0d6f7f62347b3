"""Exit with 0 if all requirements of the job are installed, so that `pip` need not run.

Usage: python3 job_needs.py -r FILE, or python3 job_needs.py REQUIREMENT... The job's Python runs this program. It
compares versions only, in a tenth of pip's time, and leaves unclear cases to `pip` (exit code 1). Needs the standard
library of Python 3.8, and what `pip` vendors.
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
        # A version does not tell which extras are installed, or from which URL.
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
    """The requirements in a file. A line with an option (`-...`) counts as never met."""
    lines = (line.split(" #")[0].strip() for line in text.splitlines())
    return [line for line in lines if line and not line.startswith("#")]


def main(arguments: list[str]) -> int:
    try:
        needs = needs_in(Path(arguments[1]).read_text("utf-8")) if arguments[:1] == ["-r"] else arguments
        return 0 if all(map(is_installed, needs)) else 1
    except (ImportError, OSError, ValueError):
        return 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
