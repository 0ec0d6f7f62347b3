"""Map keys to paths in a folder: key K is the file K if a file can have that name. Pure.

Every other key is stored in the hidden folder under its hash, beside a file with the key. A key can be *natural* by its
spelling and still be blocked by other files (`a` blocks `a/b`); writers find that out by trying.
"""

from __future__ import annotations

import hashlib
import re

HIDDEN_FOLDER = ".objects"
KEY_SUFFIX = ".key"
_NAME_MAX_BYTES = 255
_STRIPES = 64
_HIDDEN_OBJECT = re.compile(rf"[0-9a-f]{{64}}(?:{re.escape(KEY_SUFFIX)})?")


def natural_path(key: str) -> list[str] | None:
    """Return the folder and file names of a key; None if no file can have that path, or it is ours."""
    names = key.split("/")
    if names[0] == HIDDEN_FOLDER:
        return None
    for name in names:
        # Three quarters of the limit in characters may already exceed it in bytes; only shorter names skip the count.
        if name in ("", ".", "..") or (len(name) > _NAME_MAX_BYTES // 4 and len(name.encode()) > _NAME_MAX_BYTES):
            return None
    return names


def hidden_name(key: str) -> str:
    """Return the hidden name of a key that cannot be a file."""
    return hashlib.sha256(key.encode()).hexdigest()


def is_hidden_object(name: str) -> bool:
    """Whether a file in the hidden folder is an object, or has an object's key."""
    return _HIDDEN_OBJECT.fullmatch(name) is not None


def stripes() -> list[str]:
    """Return the names of all lock files, in locking order."""
    return [f"{number:02x}" for number in range(_STRIPES)]


def stripe(key: str) -> str:
    """Return the lock file of a key's writers: `00` to `3f`."""
    return f"{hashlib.sha256(key.encode()).digest()[0] % _STRIPES:02x}"
