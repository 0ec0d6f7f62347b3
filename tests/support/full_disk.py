"""Disks that are full: a small one of its own where this machine allows mounting, and one that only seems so."""

from __future__ import annotations

import contextlib
import errno
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from bastion.folder_format import files
from bastion.folder_format.reserve import Reserve


@contextlib.contextmanager
def small_disk(folder: Path, *, mib: int) -> Iterator[Path]:
    """Mount a disk of that size; skip the test where that is not permitted."""
    folder.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", f"size={mib}m", "tmpfs", str(folder)]
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False)
    except FileNotFoundError:
        pytest.skip("this machine has no mount command")
    if done.returncode:
        pytest.skip(f"this user may not mount a small disk: {done.stderr.strip()}")
    try:
        yield folder
    finally:
        subprocess.run(["umount", "-l", str(folder)], check=True)


def fill(folder: Path, name: str = "filler") -> Path:
    """Take all room of a disk."""
    path = folder / name
    with path.open("wb", buffering=0) as file, contextlib.suppress(OSError):
        while True:
            file.write(bytes(64 * 1024))
    with path.open("ab", buffering=0) as file, contextlib.suppress(OSError):
        while True:
            file.write(b"x")
    return path


def seem_full(monkeypatch: pytest.MonkeyPatch, bucket: Path) -> None:
    """Let writes of objects fail as on a disk on which the reserve is all there is besides the files."""
    reserve = Reserve(bucket)
    allowed = reserve.held_bytes
    real = files.write_all
    used = 0

    def write_all(file: int, data: bytes) -> None:
        nonlocal used
        if used + len(data) > allowed - reserve.held_bytes:
            raise OSError(errno.ENOSPC, "No space left on device")
        used += len(data)
        real(file, data)

    monkeypatch.setattr(files, "write_all", write_all)
