"""A listing of an output folder: its files, links and folders, and a fingerprint of each file.

Invariant: links are never followed, and only plain files are opened. A command may create pipes, and links to anywhere.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from bastion.core import limits
from bastion.core.bucket import bundles
from bastion.core.errors import Refused


@dataclass(frozen=True, slots=True)
class Fingerprint:
    """Changes when the file does. A program cannot set the ctime, so it shows what mtime may hide."""

    device: int
    inode: int
    size: int
    mtime_ns: int
    ctime_ns: int

    @staticmethod
    def of(found: os.stat_result) -> Fingerprint:
        return Fingerprint(found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns, found.st_ctime_ns)


@dataclass(slots=True, kw_only=True)
class OutputTree:
    """One listing; paths are relative to the folder, with `/`.

    Attributes:
        modes: Permission bits of the files.
        left_out: What cannot be stored, and why.
    """

    files: dict[str, Fingerprint] = field(default_factory=dict)
    modes: dict[str, int] = field(default_factory=dict)
    links: dict[str, str] = field(default_factory=dict)
    folders: list[str] = field(default_factory=list)
    left_out: dict[str, str] = field(default_factory=dict)

    def same_names(self, other: OutputTree) -> bool:
        """Whether no name appeared or vanished, and no link changed."""
        return (self.files.keys(), self.links, self.folders) == (other.files.keys(), other.links, other.folders)


def look(folder: Path) -> OutputTree:
    """List the folder; a missing one is empty. Raises Refused if it has too many files."""
    tree = OutputTree()
    for path, entry in _entries(folder, tree.left_out):
        try:
            _check(path)
            _add(tree, path, entry)
        except FileNotFoundError:
            continue
        except ValueError as error:
            tree.left_out[path.encode("utf-8", "replace").decode()] = str(error)
        if len(tree.files) + len(tree.links) + len(tree.folders) > limits.OUTPUT_FILES_MAX:
            raise Refused(f"the output folder has more than {limits.OUTPUT_FILES_MAX} files; none is stored")
    tree.folders.sort()
    return tree


def _entries(folder: Path, closed: dict[str, str]) -> Iterator[tuple[str, os.DirEntry[str]]]:
    """Yield all below a folder. `closed`: gets the folders below it that cannot be read. Raises PermissionError."""
    waiting = [""]
    while waiting:
        path = waiting.pop()
        try:
            entries = list(os.scandir(folder / path))
        except (FileNotFoundError, NotADirectoryError):
            continue  # it vanished or changed its type meanwhile
        except PermissionError as error:
            if not path:
                raise
            closed[path] = error.strerror or str(error)
            continue
        for entry in entries:
            name = f"{path}/{entry.name}" if path else entry.name
            yield name, entry
            if entry.is_dir(follow_symlinks=False) and _is_text(name):
                waiting.append(name)


def _check(path: str) -> None:
    if not _is_text(path):
        raise ValueError("its name is not valid UTF-8")
    bundles.check_path(path)


def _is_text(path: str) -> bool:
    try:
        path.encode()
    except UnicodeEncodeError:
        return False
    return True


def _add(tree: OutputTree, path: str, entry: os.DirEntry[str]) -> None:
    found = entry.stat(follow_symlinks=False)
    if stat.S_ISREG(found.st_mode):
        tree.files[path] = Fingerprint.of(found)
        tree.modes[path] = found.st_mode & 0o777
    elif stat.S_ISDIR(found.st_mode):
        tree.folders.append(path)
    elif stat.S_ISLNK(found.st_mode):
        target = str(Path(entry.path).readlink())
        if not _is_text(target):
            raise ValueError("its target is not valid UTF-8")
        bundles.check_link(path, target)
        tree.links[path] = target
    else:
        raise ValueError("is not a regular file")
