"""An emulator's state folder: private, held by one process at a time, with a file that tells clients where that is.

Layer: emulator; light on purpose (no grpc, no google): the CLI and the wiring find running emulators with it. The file
is written when the emulator is ready to answer and names the process, so that one left behind by a crash is recognised.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from bastion.core.errors import BastionError, Refused
from bastion.processes import ProcessId

_LOCK_FILE = "lock"


class EmulatorRunning(BastionError):
    """Another emulator holds this state folder."""


def make_private(folder: Path) -> None:
    """Makes the folder if it is missing; nobody but this user may look into it.

    Raises:
        Refused: it belongs to somebody else, or cannot be made.
    """
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        folder.chmod(0o700)
    except PermissionError as error:
        raise Refused(
            f"{folder} cannot be made this user's own ({error.strerror}), and an emulator's state must be private; "
            "choose another folder"
        ) from error
    except FileExistsError as error:
        raise Refused(f"{folder} is not a folder; remove it, or choose another place") from error


def hold(folder: Path) -> int:
    """Holds the folder until the returned descriptor is closed or the process ends; it is not inherited.

    Raises:
        EmulatorRunning: another process holds it.
    """
    descriptor = os.open(folder / _LOCK_FILE, os.O_RDWR | os.O_CREAT, 0o600)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        os.close(descriptor)
        if error.errno not in (errno.EAGAIN, errno.EACCES):
            raise
        raise EmulatorRunning(
            f"an emulator serves {folder} already; use it, end it, or choose another folder"
        ) from error
    return descriptor


def publish(file: Path, facts: Mapping[str, Any], process: ProcessId) -> None:
    """Tells clients where a process is to be found; readable by this user only."""
    write_private(file, json.dumps({**facts, "pid": process.pid, "started": process.started}).encode())


def published(file: Path) -> tuple[dict[str, Any], ProcessId] | None:
    """What a process that still lives has published; None if there is none (never started, starting, crashed)."""
    document = read_document(file)
    try:
        process = ProcessId(int(document["pid"]), int(document["started"]))
    except (ValueError, KeyError, TypeError):
        return None
    return (document, process) if process.alive else None


def this_process() -> ProcessId:
    """The process that publishes.

    Raises:
        Refused: the system does not tell.
    """
    me = ProcessId.of(os.getpid())
    if me is None:
        raise Refused("an emulator needs Linux: /proc tells it which processes live")
    return me


def read_document(file: Path) -> dict[str, Any]:
    """The JSON object in a file; empty if there is no such file, or something else in it."""
    try:
        document = json.loads(file.read_bytes())
    except (OSError, ValueError):
        return {}
    return document if isinstance(document, dict) else {}


def write_private(path: Path, data: bytes) -> None:
    """Replaces a file atomically; nobody but this user may read it, at no moment."""
    draft = path.with_name(f".{path.name}.{os.getpid()}")
    with contextlib.suppress(FileNotFoundError):
        draft.unlink()
    descriptor = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(descriptor, "wb") as stream:
        stream.write(data)
    draft.replace(path)
