"""Wheel tags that an interpreter can use (`cp311-abi3-manylinux_2_34_x86_64`).

Imports only the standard library, because nodes read it before they have any package. On Linux the answers equal pip's,
for CPython with the usual ABI.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

OLDEST_MINOR = 10
NEWEST_MINOR = 14
_OLD_MANYLINUX = {"manylinux1": (2, 5), "manylinux2010": (2, 12), "manylinux2014": (2, 17)}


@dataclass(frozen=True, slots=True, kw_only=True)
class Platform:
    """An interpreter's platform: `linux` or `darwin`, and its machine. `glibc` is None with another C library."""

    system: str
    machine: str
    glibc: tuple[int, int] | None = None


def expand(tag: str) -> list[str]:
    """Return the single tags of a compressed one (`py2.py3-none-any` is two); none if it is not a tag."""
    pieces = tag.split("-")
    if len(pieces) != 3:
        return []
    pythons, abis, platforms = (piece.split(".") for piece in pieces)
    return [f"{python}-{abi}-{platform}" for python in pythons for abi in abis for platform in platforms]


def of_file_name(name: str) -> list[str]:
    return expand("-".join(name.removesuffix(".whl").split("-")[-3:]))


def suits_python(tag: str, minor: int) -> bool:
    """Whether CPython 3.`minor` can use it, on its platform."""
    python, abi, _ = tag.split("-")
    if python == "py3" or re.fullmatch(r"py3\d+", python):
        return abi == "none" and int(python[3:] or 0) <= minor
    match = re.fullmatch(r"cp3(\d+)", python)
    if match is None:
        return False
    if abi == "abi3":
        return int(match[1]) <= minor
    return int(match[1]) == minor and abi in ("none", python)


def suits_platform(tag: str, platform: Platform) -> bool:
    made_for = tag.split("-")[2]
    if made_for == "any":
        return True
    if platform.system == "darwin":
        return made_for.startswith("macosx_") and made_for.endswith((platform.machine, "universal2"))
    if not made_for.endswith(f"_{platform.machine}"):
        return False
    base = made_for.removesuffix(f"_{platform.machine}")
    if base == "linux":
        return True
    if base.startswith("musllinux_"):
        return platform.glibc is None
    match = re.fullmatch(r"manylinux_(\d+)_(\d+)", base)
    needed = (int(match[1]), int(match[2])) if match else _OLD_MANYLINUX.get(base)
    return needed is not None and platform.glibc is not None and needed <= platform.glibc
