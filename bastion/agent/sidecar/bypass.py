"""Find processes of the command that connect to the storage service directly, around the encrypting proxy.

A thread reads /proc and asks the name server. The job's log names each such process once. This is a diagnosis, not a
protection; use a firewall for that. It misses other users' processes, short connections, and addresses that the name
server did not return. It never fails or blocks the command.
"""

from __future__ import annotations

import ipaddress
import os
import socket
import threading
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

from bastion.processes import ProcessId

STORAGE_HOST = "storage.googleapis.com"
_PROC = Path("/proc")
# The states ESTABLISHED and SYN_SENT, as the kernel writes them.
_OPEN = ("01", "02")
# Name servers return some of many addresses at a time; keep the last ones.
_ADDRESSES_KEPT = 256
_HTTPS_PORT = 443

Endpoint = tuple[str, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class Bypass:
    """A process, its name in /proc, and the IP address it is connected to."""

    process: ProcessId
    program: str
    address: str

    def __str__(self) -> str:
        return (
            f"process {self.process.pid} ({self.program}) is connected to {self.address} directly, not through the "
            "storage proxy: its data is not encrypted. Make its client use $https_proxy and $SSL_CERT_FILE, or "
            "block direct connections with a firewall"
        )


def storage_endpoints(upstream: str) -> set[Endpoint]:
    """The storage service's current addresses and ports; empty if no name server answers.

    `upstream`: URL of its replacement, or empty.
    """
    host, port = STORAGE_HOST, _HTTPS_PORT
    if upstream:
        try:
            parts = urlsplit(upstream)
            host, port = parts.hostname or "", parts.port or (_HTTPS_PORT if parts.scheme == "https" else 80)
        except ValueError:
            return set()
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    except OSError:
        return set()
    return {(str(address[0]), port) for *_, address in found}


def find(members: Iterable[ProcessId], endpoints: set[Endpoint]) -> list[Bypass]:
    """The processes that are connected to one of the endpoints; of several that share a connection, the first."""
    found = []
    shared: set[str] = set()
    tables: dict[str, dict[str, str]] = {}
    for process in members:
        folder = _PROC / str(process.pid)
        try:
            network = str((folder / "ns/net").readlink())
            if network not in tables:
                tables[network] = _sockets_to(folder, endpoints)
            addresses = tables[network]
            held = _sockets_of(folder) if addresses else []
            own = [inode for inode in held if inode in addresses and inode not in shared]
            if own:
                shared.update(own)
                address = addresses[own[0]]
                program = (folder / "comm").read_text("utf-8", "replace").strip()
                found.append(Bypass(process=process, program=program, address=address))
        except OSError:
            continue  # it has ended, or we may not inspect it
    return found


def _sockets_of(folder: Path) -> Sequence[str]:
    inodes = []
    for entry in os.scandir(folder / "fd"):
        try:
            target = str(Path(entry.path).readlink())
        except OSError:
            continue  # closed meanwhile
        if target.startswith("socket:["):
            inodes.append(target[8:-1])
    return inodes


def _sockets_to(folder: Path, endpoints: set[Endpoint]) -> dict[str, str]:
    """Open connections to the endpoints in a process's network: inodes and addresses."""
    found = {}
    for name in ("tcp", "tcp6"):
        try:
            lines = (folder / "net" / name).read_text("ascii", "replace").splitlines()[1:]
        except OSError:
            continue
        for line in lines:
            fields = line.split()
            if len(fields) > 9 and fields[3] in _OPEN:
                address, port = _endpoint(fields[2])
                if (address, port) in endpoints:
                    found[fields[9]] = address
    return found


def _endpoint(text: str) -> Endpoint:
    """Parse `0100007F:1F90` as 127.0.0.1 and 8080: four-byte integers in the machine's byte order."""
    digits, _, port = text.partition(":")
    raw = b"".join(bytes.fromhex(digits[i : i + 8])[::-1] for i in range(0, len(digits), 8))
    address = ipaddress.ip_address(raw)
    if isinstance(address, ipaddress.IPv6Address) and address.ipv4_mapped is not None:
        address = address.ipv4_mapped
    return str(address), int(port, 16)


class BypassWatch:
    """Looks periodically while there is a command."""

    def __init__(self, *, upstream: str, period_seconds: float, notify: Callable[[str], None]) -> None:
        """`notify`: called from the watch's thread with a line for the job's log."""
        self._upstream = upstream
        self._period = period_seconds
        self._notify = notify
        self._members: Callable[[], Sequence[ProcessId]] | None = None
        self._reported: set[ProcessId] = set()
        self._endpoints: dict[Endpoint, None] = {}
        self._ending = threading.Event()
        self._thread = threading.Thread(target=self._work, name="proxy-bypass", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        """Stop without waiting: a name server may hang."""
        self._ending.set()

    def of(self, members: Callable[[], Sequence[ProcessId]] | None) -> None:
        """Watch these processes from now on."""
        self._members = members

    def look(self) -> None:
        members = self._members
        if members is None:
            return
        for endpoint in storage_endpoints(self._upstream):
            self._endpoints.pop(endpoint, None)
            self._endpoints[endpoint] = None
        while len(self._endpoints) > _ADDRESSES_KEPT:
            del self._endpoints[next(iter(self._endpoints))]
        if not self._endpoints:
            return
        for bypass in find(members(), set(self._endpoints)):
            if bypass.process not in self._reported:
                self._reported.add(bypass.process)
                self._notify(str(bypass))

    def _work(self) -> None:
        while not self._ending.wait(self._period):
            self.look()
