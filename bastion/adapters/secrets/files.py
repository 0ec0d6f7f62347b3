"""Secrets in files of the host, such as those of a mounted Secret of Kubernetes."""

from __future__ import annotations

import os
import stat

from bastion.adapters.secrets.values import checked, too_large, without_line_end
from bastion.core import limits
from bastion.core.errors import SecretUnreadable


class FileSecrets:
    """Reads `file:PATH`. One line end at the end of the file is not part of the value: editors add it."""

    def read(self, where: str) -> str:
        what = f"the file {where} on the host"
        missing = (
            f"{what} does not exist; put it there (on Kubernetes by a volume with a Secret in the pod settings), "
            "or correct the path"
        )
        return read_file(where, what, missing=missing, closed="let the job's user read it")


def read_file(path: str, what: str, *, missing: str, closed: str) -> str:
    """Return the value in a file.

    Args:
        missing: The message if there is no file.
        closed: What to do if it cannot be opened.

    Raises:
        SecretUnreadable: There is no value.
    """
    try:
        # Not O_NOFOLLOW: the files of a mounted Secret are links. A pipe without a writer would wait.
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY)
    except FileNotFoundError as error:
        raise SecretUnreadable(missing) from error
    except OSError as error:
        raise SecretUnreadable(f"{what} cannot be read: {error.strerror}; {closed}") from error
    try:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            raise SecretUnreadable(f"{what} is not a regular file; name the file with the value")
        # A line end may follow the longest value.
        data = _read(descriptor, limits.SECRET_MAX_BYTES + len(b"\r\n") + 1)
    except OSError as error:
        raise SecretUnreadable(f"{what} cannot be read: {error.strerror}; check the host's disks") from error
    finally:
        os.close(descriptor)
    if len(data) > limits.SECRET_MAX_BYTES + len(b"\r\n"):
        raise too_large(what)
    return checked(without_line_end(os.fsdecode(data)), what)


def _read(descriptor: int, most: int) -> bytes:
    data = b""
    while len(data) < most and (more := os.read(descriptor, most - len(data))):
        data += more
    return data
