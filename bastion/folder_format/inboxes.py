"""The folders of inboxes in a folder bucket: a file proves who wrote it, so only he and the daemon may change it.

    inbox/, inbox/<user>/                  made by the daemon or an administrator only
    inbox/<user>/active/, .../user_states/, .../requests/
                                           for the bucket's group, with the sticky bit: nobody removes another's file

Everything else that the daemon decides by is closed to the group's writing. Users still write code and benchmarks.
"""

from __future__ import annotations

import contextlib
import os
import stat
from collections.abc import Iterable, Iterator

from bastion.folder_format import files
from bastion.folder_format.keys import HIDDEN_FOLDER, is_hidden_object, stripes
from bastion.folder_format.lock import LOCK_FOLDER
from bastion.folder_format.places import TEMPORARY_FOLDER

_SHARED_MODE = stat.S_ISVTX | stat.S_ISGID | 0o770
_OWN_MODE = stat.S_ISGID | 0o750
# Below the ROOT; users write there, and nobody decides by it.
_OF_USERS = ("bundles", "benchmarks")
_INBOX = "inbox"
_KINDS = ("active", "user_states", "requests")
_GROUP_AND_OTHERS_WRITE = 0o022


def keep_closed() -> None:
    """Let this process make nothing that others may write."""
    os.umask(os.umask(0o077) | _GROUP_AND_OTHERS_WRITE)


def make(root: str, users: Iterable[str]) -> None:
    """Make the folders of these users' inboxes, with their modes; raises OSError."""
    _make_one(f"{root}/{_INBOX}", _OWN_MODE)
    for user in users:
        _make_one(f"{root}/{_INBOX}/{user}", _OWN_MODE)
        for kind in _KINDS:
            _make_one(f"{root}/{_INBOX}/{user}/{kind}", _SHARED_MODE)


def _make_one(path: str, mode: int) -> None:
    with contextlib.suppress(FileExistsError):
        os.mkdir(path, 0o700)  # noqa: PTH102 - of a path as text, as everywhere in this package
    folder = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        if stat.S_IMODE(os.fstat(folder).st_mode) != mode:
            os.fchmod(folder, mode)
    finally:
        os.close(folder)


def close(bucket: str, bastion: str) -> list[str]:
    """Take the group's and others' right to write from what the daemon decides by; return what belongs to others."""
    root = f"{bucket}/{bastion}"
    foreign = []
    hidden = f"{bucket}/{HIDDEN_FOLDER}"
    for path in (root, hidden, *_hidden_objects(hidden), *_below(root)):
        with contextlib.suppress(FileNotFoundError):
            if not _close_one(path):
                foreign.append(path)
    for name in _OF_USERS:
        with contextlib.suppress(FileExistsError):
            os.mkdir(f"{root}/{name}", 0o770)  # noqa: PTH102
        with contextlib.suppress(PermissionError):
            os.chmod(f"{root}/{name}", _SHARED_MODE)  # noqa: PTH101
    _make_one(f"{hidden}/{TEMPORARY_FOLDER}", _SHARED_MODE)
    _make_locks(f"{hidden}/{LOCK_FOLDER}")
    return foreign


def _make_locks(folder: str) -> None:
    """Make all locks: a writer's own umask could keep the others from one that he makes."""
    _make_one(folder, _OWN_MODE)
    for name in stripes():
        file = os.open(f"{folder}/{name}", os.O_RDWR | os.O_CREAT | files.FILE, files.FILE_MODE)
        try:
            if stat.S_IMODE(os.fstat(file).st_mode) != files.FILE_MODE:
                os.fchmod(file, files.FILE_MODE)
        finally:
            os.close(file)


def _hidden_objects(hidden: str) -> Iterator[str]:
    """Objects whose keys are no paths, of all ROOTs of the bucket."""
    with contextlib.suppress(FileNotFoundError), os.scandir(hidden) as entries:
        yield from (entry.path for entry in entries if is_hidden_object(entry.name))


def _below(root: str) -> Iterator[str]:
    for folder, folders, names in os.walk(root):
        if folder == root:
            folders[:] = [name for name in folders if name not in (*_OF_USERS, _INBOX)]
        yield from (f"{folder}/{name}" for name in (*folders, *names))


def _close_one(path: str) -> bool:
    """Return whether others cannot write it now; links have no mode."""
    status = os.lstat(path)
    if stat.S_ISLNK(status.st_mode):
        return True
    if status.st_uid not in (os.geteuid(), 0) and os.geteuid() != 0:
        return False
    if status.st_mode & _GROUP_AND_OTHERS_WRITE:
        os.chmod(path, stat.S_IMODE(status.st_mode) & ~_GROUP_AND_OTHERS_WRITE)  # noqa: PTH101
    return True
