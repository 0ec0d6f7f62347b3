"""An emulator's private state folder: held by one process, with a file that tells clients its address.

The CLI and the wiring import this, so it imports no grpc and no google. The file is written when the emulator is ready.
It names the process, so that a file from before a crash is recognized.
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
    """Create the folder if missing, private to this user. Raises Refused."""
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        folder.chmod(0o700)
    except PermissionError as error:
        raise Refused(
            f"cannot make {folder} private to this user ({error.strerror}), as an emulator's state must be; "
            "choose another folder"
        ) from error
    except FileExistsError as error:
        raise Refused(f"{folder} is not a folder; remove it, or choose another path") from error


def hold(folder: Path) -> int:
    """Hold the folder until the returned descriptor is closed or the process ends; not inherited.

    Raises EmulatorRunning.
    """
    descriptor = os.open(folder / _LOCK_FILE, os.O_RDWR | os.O_CREAT, 0o600)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        os.close(descriptor)
        if error.errno not in (errno.EAGAIN, errno.EACCES):
            raise
        raise EmulatorRunning(
            f"an emulator already serves {folder}; use it, stop it, or choose another folder"
        ) from error
    return descriptor


def publish(file: Path, facts: Mapping[str, Any], process: ProcessId) -> None:
    """Publish a process's facts for clients, readable by this user only."""
    write_private(file, json.dumps({**facts, "pid": process.pid, "started": process.started}).encode())


def published(file: Path) -> tuple[dict[str, Any], ProcessId] | None:
    """What a live process has published; None if none is ready."""
    document = read_document(file)
    try:
        process = ProcessId(int(document["pid"]), int(document["started"]))
    except (ValueError, KeyError, TypeError):
        return None
    return (document, process) if process.alive else None


def this_process() -> ProcessId:
    """The publishing process. Raises Refused if /proc does not say."""
    me = ProcessId.of(os.getpid())
    if me is None:
        raise Refused("an emulator requires Linux: it finds live processes in /proc")
    return me


def read_document(file: Path) -> dict[str, Any]:
    """The JSON object in a file; empty if missing or invalid."""
    try:
        document = json.loads(file.read_bytes())
    except (OSError, ValueError):
        return {}
    return document if isinstance(document, dict) else {}


def write_private(path: Path, data: bytes) -> None:
    """Replace a file atomically, private to this user at every moment."""
    draft = path.with_name(f".{path.name}.{os.getpid()}")
    with contextlib.suppress(FileNotFoundError):
        draft.unlink()
    descriptor = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(descriptor, "wb") as stream:
        stream.write(data)
    draft.replace(path)
