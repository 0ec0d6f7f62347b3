"""The address of a running storage endpoint, for clients.

The CLI and the wiring import this, so it imports little. An endpoint keeps its own files in `.endpoint` in the folder
of its buckets; no bucket can have that name.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from bastion.emulators import state_folder
from bastion.processes import ProcessId

STATE_FOLDER = ".endpoint"
ADDRESS_FILE = "endpoint.json"


@dataclass(frozen=True, slots=True, kw_only=True)
class StorageAddress:
    """A live endpoint.

    Attributes:
        url: `http://127.0.0.1:PORT`.
        https_url: The same over TLS; empty if not served.
        ca_file: The authority that clients of `https_url` must trust.
    """

    url: str
    https_url: str = ""
    ca_file: str = ""
    process: ProcessId

    @property
    def environment(self) -> dict[str, str]:
        """Variables for google-cloud-storage, gcsfs and tensorstore."""
        return {"STORAGE_EMULATOR_HOST": self.url, "TENSORSTORE_GCS_HTTP_URL": self.url}


def state_of(folder: Path) -> Path:
    """The folder with the endpoint's own files."""
    return folder / STATE_FOLDER


def locate(folder: Path) -> StorageAddress | None:
    """The endpoint that serves this folder of buckets; None if none is ready."""
    found = state_folder.published(state_of(folder) / ADDRESS_FILE)
    if found is None:
        return None
    document, process = found
    url, https_url, ca_file = (document.get(name) for name in ("url", "https_url", "ca_file"))
    if not (isinstance(url, str) and isinstance(https_url, str) and isinstance(ca_file, str)):
        return None
    return StorageAddress(url=url, https_url=https_url, ca_file=ca_file, process=process)


def publish(folder: Path, address: StorageAddress) -> None:
    facts = {"url": address.url, "https_url": address.https_url, "ca_file": address.ca_file}
    state_folder.publish(state_of(folder) / ADDRESS_FILE, facts, address.process)


def withdraw(folder: Path) -> None:
    """Remove the address, before the endpoint ends."""
    (state_of(folder) / ADDRESS_FILE).unlink(missing_ok=True)
