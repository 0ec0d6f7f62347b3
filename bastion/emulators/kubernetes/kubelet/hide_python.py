"""Run a command where the system's folders have no Python: `python -I hide_python.py PROGRAM ARGUMENT...`.

In a mount namespace of its own, each interpreter is covered by /dev/null. Linux only; without CAP_SYS_ADMIN it needs
user namespaces. Run as a file: imports the standard library only.
"""

from __future__ import annotations

import ctypes
import os
import sys
from collections.abc import Iterator
from pathlib import Path

FOLDERS = ("/usr/local/sbin", "/usr/local/bin", "/usr/sbin", "/usr/bin", "/sbin", "/bin")

_CLONE_NEWNS = 0x00020000
_CLONE_NEWUSER = 0x10000000
_MS_BIND = 4096
_MS_PRIVATE_RECURSIVE = (1 << 18) | (1 << 14)


def main(argv: list[str]) -> None:
    """Does not return. Raises OSError."""
    libc = ctypes.CDLL(None, use_errno=True)
    uid, gid = os.getuid(), os.getgid()
    if libc.unshare(_CLONE_NEWNS) != 0:
        _check(libc.unshare(_CLONE_NEWNS | _CLONE_NEWUSER), "unshare")
        Path("/proc/self/setgroups").write_text("deny")
        Path("/proc/self/uid_map").write_text(f"{uid} {uid} 1")
        Path("/proc/self/gid_map").write_text(f"{gid} {gid} 1")
    _check(libc.mount(None, b"/", None, _MS_PRIVATE_RECURSIVE, None), "mount")
    for interpreter in set(_interpreters()):
        _check(libc.mount(b"/dev/null", os.fsencode(interpreter), None, _MS_BIND, None), f"mount {interpreter}")
    os.execvp(argv[0], argv)


def _interpreters() -> Iterator[Path]:
    """The files behind all names, because a link cannot be covered."""
    for folder in FOLDERS:
        for pattern in ("python*", "pypy*"):
            for found in Path(folder).glob(pattern):
                if found.exists():
                    yield found.resolve()


def _check(result: int, what: str) -> None:
    if result != 0:
        number = ctypes.get_errno()
        raise OSError(number, f"an image without Python cannot be emulated here: {what}: {os.strerror(number)}")


if __name__ == "__main__":
    main(sys.argv[1:])
