"""Where a running emulator is found: `emulator.json` in its state folder.

Light on purpose (no grpc, no google): the CLI, the wiring and every emulated VM read it. The file is written when the
emulator is ready to answer and names the process, so that one left behind by a crash is recognised.
"""

from __future__ import annotations

import contextlib
import json
import os
from dataclasses import dataclass
from pathlib import Path

from bastion.processes import ProcessId

ADDRESS_FILE = "emulator.json"


@dataclass(frozen=True, slots=True, kw_only=True)
class EmulatorAddress:
    """A live emulator.

    Attributes:
        endpoint: `127.0.0.1:port` of its gRPC server.
        token: What every RPC carries as `authorization: Bearer <token>`.
        process: The emulator itself.
    """

    endpoint: str
    token: str
    process: ProcessId


def locate(state_dir: Path) -> EmulatorAddress | None:
    """The emulator that serves this state folder; None if none is ready (never started, starting, crashed)."""
    try:
        document = json.loads((state_dir / ADDRESS_FILE).read_bytes())
        address = EmulatorAddress(
            endpoint=str(document["address"]),
            token=str(document["token"]),
            process=ProcessId(int(document["pid"]), int(document["started"])),
        )
    except (OSError, ValueError, KeyError, TypeError):
        return None
    return address if address.process.alive else None


def publish(state_dir: Path, address: EmulatorAddress) -> None:
    """Tells clients where the emulator is; readable by this user only, because it holds the token."""
    document = {
        "address": address.endpoint,
        "pid": address.process.pid,
        "started": address.process.started,
        "token": address.token,
    }
    write_private(state_dir / ADDRESS_FILE, json.dumps(document).encode())


def write_private(path: Path, data: bytes) -> None:
    """Replaces a file atomically; nobody but this user may read it, at no moment."""
    draft = path.with_name(f".{path.name}.{os.getpid()}")
    with contextlib.suppress(FileNotFoundError):
        draft.unlink()
    descriptor = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(descriptor, "wb") as stream:
        stream.write(data)
    draft.replace(path)
