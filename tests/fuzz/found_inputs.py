"""Inputs that showed a fault once, kept as files, and what tells two faults apart."""

from __future__ import annotations

import hashlib
import traceback
from collections.abc import Iterator
from pathlib import Path

FOUND = Path(__file__).parent / "found"
_CODE = ("/bastion/", "/quota/", "/scheduler/", "/tests/fuzz/")


def replayed() -> Iterator[tuple[str, Path]]:
    """Each kept input with the name of its target: `found/<target>/<digest>`."""
    for path in sorted(FOUND.glob("*/*")):
        yield path.parent.name, path


def place_of(error: BaseException) -> str:
    """The error's class and the last lines of our code that it came through: one fault has one place."""
    frames = [
        frame for frame in traceback.extract_tb(error.__traceback__) if any(part in frame.filename for part in _CODE)
    ]
    lines = [f"{Path(frame.filename).name}:{frame.lineno}" for frame in frames[-2:]]
    return " ".join([type(error).__name__, *lines])


def keep(folder: Path, target: str, data: bytes) -> Path:
    """Write an input below a folder, unless it is there."""
    path = folder / target / hashlib.sha256(data).hexdigest()[:16]
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data)
    return path
