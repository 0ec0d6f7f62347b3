"""Loopback addresses of emulated hosts and pods.

Each slice has a block of loopback addresses, 127.100.N.1 for worker 0 and so on: ports of different slices never
collide, and peers look real. Listening on the metadata port of each address reserves a block. A supervisor inherits
that socket, so an address stays reserved exactly as long as its host is alive.
"""

from __future__ import annotations

import errno
import os
import socket
import threading

METADATA_PORT = 9254
_BLOCKS = 254


class NoAddressesLeft(OSError):
    """Every block of loopback addresses is in use."""


class AddressBlocks:
    """Hands out blocks of loopback addresses, least recently used first."""

    def __init__(self) -> None:
        # Emulators of several users or tests start at different blocks, so that they rarely compete.
        self._next = os.getpid() * 31 % _BLOCKS
        self._lock = threading.Lock()

    def take(self, hosts: int) -> list[socket.socket]:
        """Return listening sockets in one block, one for each worker. Raises NoAddressesLeft."""
        for _ in range(_BLOCKS):
            with self._lock:
                block = self._next + 1
                self._next = block % _BLOCKS
            listeners: list[socket.socket] = []
            try:
                for worker in range(1, hosts + 1):
                    listener = socket.create_server((f"127.100.{block}.{worker}", METADATA_PORT))
                    listeners.append(listener)
            except OSError as error:
                for listener in listeners:
                    listener.close()
                if error.errno != errno.EADDRINUSE:
                    raise
            else:
                return listeners
        raise NoAddressesLeft(
            f"all {_BLOCKS} blocks of loopback addresses 127.100.N.1 have port {METADATA_PORT} taken; "
            "delete nodes or pods, or end the program that listens on that port on every address"
        )
