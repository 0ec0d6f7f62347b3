"""The address of a running emulator: `emulator.json` in its state folder. Imports no grpc or google."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from bastion.emulators import state_folder
from bastion.processes import ProcessId

ADDRESS_FILE = "emulator.json"


@dataclass(frozen=True, slots=True, kw_only=True)
class EmulatorAddress:
    """A live emulator: `endpoint` is `127.0.0.1:port` of its gRPC server.

    Every RPC needs `authorization: Bearer <token>`.
    """

    endpoint: str
    token: str
    process: ProcessId


def locate(state_dir: Path) -> EmulatorAddress | None:
    """The emulator that serves this state folder; None if none is ready."""
    found = state_folder.published(state_dir / ADDRESS_FILE)
    if found is None:
        return None
    document, process = found
    endpoint, token = document.get("address"), document.get("token")
    if not isinstance(endpoint, str) or not isinstance(token, str):
        return None
    return EmulatorAddress(endpoint=endpoint, token=token, process=process)


def publish(state_dir: Path, address: EmulatorAddress) -> None:
    """Publish the address and token, readable by this user only."""
    facts = {"address": address.endpoint, "token": address.token}
    state_folder.publish(state_dir / ADDRESS_FILE, facts, address.process)
