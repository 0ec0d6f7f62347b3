"""Removes everything of a user: `python -I -m bastion.adapters.bastion_host_remains UID:GID PLACES [FOLDER ...]`.

PLACES are folders that everybody may write to, comma-separated; the FOLDERs are the user's own.

This process kills all of the user at once, also those that fork faster than any list of them. Then it becomes the
user, so nothing that the user planted misleads it into more than the user may do. Exits with 1 if something is left,
and says what.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import platform
import stat
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

from bastion import job_user

# In folders of others; what is deeper is not looked at.
_DEPTH = 2
_IPC_RMID = 0
_KEYCTL = {"x86_64": 250, "aarch64": 219}
_KEYCTL_CLEAR = 7
_USER_KEYRINGS = (-4, -5)  # the user's, and the one of its sessions
_LIBC = ctypes.CDLL(None, use_errno=True)


def main(user: str, places: str, folders: Sequence[str]) -> int:
    whose = job_user.resolve(user)
    job_user.kill_all_from_a_child(whose)  # before this process is one that they can kill
    job_user.become(whose)
    me = os.getuid()
    left = []
    for path in (*folders, *(path for place in places.split(",") for path in of_user(place, me))):
        _remove(path)
        if _exists(path):
            left.append(path)
    _remove_ipc(me)
    number = _KEYCTL.get(platform.machine())
    for keyring in _USER_KEYRINGS if number else ():
        _LIBC.syscall(number, _KEYCTL_CLEAR, keyring, 0, 0, 0)
    if left:
        sys.stdout.write(f"{len(left)} paths are left, the first is {left[0]!r}\n")
    return 1 if left else 0


def of_user(folder: str, user: int, depth: int = _DEPTH) -> Iterator[str]:
    """Yield the topmost entries of that user below a folder."""
    with contextlib.suppress(OSError), os.scandir(folder) as entries:
        for entry in entries:
            with contextlib.suppress(OSError):
                found = entry.stat(follow_symlinks=False)
                if found.st_uid == user:
                    yield entry.path
                elif stat.S_ISDIR(found.st_mode) and depth:
                    yield from of_user(entry.path, user, depth - 1)


def _remove(path: str) -> None:
    """Remove a file or a tree of any depth."""
    if not Path(path).is_symlink():
        _run("chmod", "-R", "u+rwX", "--", path)  # follows no link below it
    _run("rm", "-rf", "--", path)


def _exists(path: str) -> bool:
    """Whether it is there, or out of reach."""
    try:
        os.lstat(path)
    except OSError as error:
        return not isinstance(error, FileNotFoundError)
    return True


def _run(*command: str) -> None:
    subprocess.run(command, stdin=subprocess.DEVNULL, stderr=subprocess.DEVNULL, check=False)


def _remove_ipc(user: int) -> None:
    """Remove System V objects."""
    for kind, name in (("shm", "shmid"), ("sem", "semid"), ("msg", "msqid")):
        with contextlib.suppress(OSError):
            head, *rows = Path(f"/proc/sysvipc/{kind}").read_text().splitlines()
            columns = head.split()
            number, owner = columns.index(name), columns.index("uid")
            for row in map(str.split, rows):
                if int(row[owner]) != user:
                    continue
                match kind:
                    case "shm":
                        _LIBC.shmctl(int(row[number]), _IPC_RMID, None)
                    case "sem":
                        _LIBC.semctl(int(row[number]), 0, _IPC_RMID, 0)
                    case "msg":
                        _LIBC.msgctl(int(row[number]), _IPC_RMID, None)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], sys.argv[2], sys.argv[3:]))
