"""Where the object of a key lies in a folder: key K is the file K wherever a file can have that name.

Layer: directory. Pure mapping, no I/O.

Every other key lies in the hidden folder, under its hash, with a second file beside it that holds the key itself. A
key can be *natural* by its spelling and yet be barred by what lies in the folder (a file `a` bars `a/b`); that is
found out by trying, in `directory_store`.
"""

from __future__ import annotations

import hashlib

HIDDEN_FOLDER = ".objects"
KEY_SUFFIX = ".key"
_NAME_MAX_BYTES = 255
_STRIPES = 64


def natural_path(key: str) -> list[str] | None:
    """The names of the folders and the file of a key; None if no file can have that path or it is ours."""
    names = key.split("/")
    if names[0] == HIDDEN_FOLDER:
        return None
    for name in names:
        # Three quarters of the limit in characters may already be over it in bytes, so only short names skip the count.
        if name in ("", ".", "..") or (len(name) > _NAME_MAX_BYTES // 4 and len(name.encode()) > _NAME_MAX_BYTES):
            return None
    return names


def hidden_name(key: str) -> str:
    """The name in the hidden folder of a key that cannot be a file."""
    return hashlib.sha256(key.encode()).hexdigest()


def stripes() -> list[str]:
    """The names of all lock files, in the order in which whoever needs several takes them."""
    return [f"{number:02x}" for number in range(_STRIPES)]


def stripe(key: str) -> str:
    """The name of the lock file that the writers of a key share: `00` to `3f`."""
    return f"{hashlib.sha256(key.encode()).digest()[0] % _STRIPES:02x}"
