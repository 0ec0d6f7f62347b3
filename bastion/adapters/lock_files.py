"""Read lock files: the versions that a bastion's machines install, and the SHA-256 of the files of each.

The files are part of the package, so the digest of a wheel of Bastion fixes all that is installed with it. `make lock`
writes them (`tools/lock.py`), in pip's format for `--require-hashes`.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

import bastion

FOLDER = Path(bastion.__file__).parent / "requirements"
SUFFIX = ".lock"
_ENTRY = re.compile(
    r"(?P<name>[a-z0-9]+(?:-[a-z0-9]+)*)==(?P<version>[A-Za-z0-9.!+_-]+)(?: ; (?P<marker>[^\\\n]+?))?"
    r"(?P<hashes>(?: \\\n    --hash=sha256:[0-9a-f]{64})+)"
)


@dataclass(frozen=True, slots=True, kw_only=True, order=True)
class Entry:
    """One version of a package; `marker` says on which Pythons, empty for all. Hashes are 64 hexadecimal digits."""

    name: str
    version: str
    marker: str
    hashes: tuple[str, ...]

    def render(self) -> str:
        condition = f" ; {self.marker}" if self.marker else ""
        return " \\\n    ".join(
            (f"{self.name}=={self.version}{condition}", *(f"--hash=sha256:{h}" for h in self.hashes))
        )


def parse(text: str) -> list[Entry]:
    """Return the entries, comments left out; raises ValueError for anything but exact versions with hashes."""
    body = "".join(line for line in text.splitlines(keepends=True) if not line.startswith("#"))
    found = []
    for block in re.split(r"\n(?! )", body):
        if not block.strip():
            continue
        match = _ENTRY.fullmatch(block.rstrip())
        if match is None:
            raise ValueError(f"{block.splitlines()[0]!r} is not an exact version with hashes")
        hashes = tuple(re.findall(r"sha256:(\w+)", match["hashes"]))
        found.append(Entry(name=match["name"], version=match["version"], marker=match["marker"] or "", hashes=hashes))
    return found


def render(entries: Iterable[Entry]) -> str:
    return "".join(f"{entry.render()}\n" for entry in entries)


def digest(entries: Iterable[Entry]) -> str:
    return hashlib.sha256(render(entries).encode()).hexdigest()


def hashes(folder: Path | None = None) -> dict[str, tuple[str, ...]]:
    """Return the hashes of each locked version, by `name==version`; raises OSError, ValueError."""
    found: dict[str, tuple[str, ...]] = {}
    for path in sorted((folder or FOLDER).glob(f"*{SUFFIX}")):
        for entry in parse(path.read_text("utf-8")):
            found[f"{entry.name}=={entry.version}"] = entry.hashes
    return found
