"""Packages that tests can do without."""

from __future__ import annotations

from importlib.util import find_spec

import pytest


def needs(*modules: str) -> None:
    """Skip a test, or a file, if a module is not installed. Imports none: each worker collects each file."""
    for module in modules:
        package, _, rest = module.partition(".")
        if find_spec(package) is None or (rest and find_spec(module) is None):
            pytest.skip(f"{module} is not installed", allow_module_level=True)
