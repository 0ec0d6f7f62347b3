"""Whether a disk has room for inputs, before anything is fetched."""

from __future__ import annotations

import os
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from bastion.agent.inputs.problems import too_large
from bastion.core import limits


@dataclass(frozen=True, slots=True)
class Room:
    """The disk of a folder: bytes and files that fit, beyond what the host needs itself."""

    device: int
    free: int
    files: int

    @staticmethod
    def of(folder: Path) -> Room:
        """`folder` may not exist yet."""
        while not folder.exists():
            folder = folder.parent
        found = os.statvfs(folder)
        floor = min(limits.DISK_FLOOR_BYTES, found.f_blocks * found.f_frsize // 20)
        # Some file systems have no limit of files, and say 0.
        files = found.f_favail if found.f_files else 2**63
        return Room(folder.stat().st_dev, max(0, found.f_bavail * found.f_frsize - floor), files)


def check(room: Room, *, size: int, files: int) -> None:
    """Raises InputProblem if what is still to be written does not fit."""
    if size > room.free:
        raise too_large(size, room.free, "is free there")
    if files > room.files:
        raise too_large(size, room.free, f"is free there, but only {room.files} of {files} files fit")


def used(folders: Iterable[Path]) -> tuple[int, int]:
    """Bytes on disk, and files, below these folders."""
    size = files = 0
    waiting = [str(folder) for folder in folders if folder.is_dir()]
    while waiting:
        with os.scandir(waiting.pop()) as entries:
            for entry in entries:
                if entry.is_dir(follow_symlinks=False):
                    waiting.append(entry.path)
                else:
                    files += 1
                    size += entry.stat(follow_symlinks=False).st_blocks * 512
    return size, files
