"""Loopback addresses of pods: the pods of one Job share a block, by completion index.

The listening sockets of a whole Job are taken at once, and kept until its pods start. So each pod can be told all
addresses before the others run.
"""

from __future__ import annotations

import socket
from collections.abc import Collection

from bastion.emulators.loopback import METADATA_PORT, AddressBlocks


class PodAddresses:
    """Hands out the addresses of groups, which are Jobs or single pods. Not thread-safe."""

    def __init__(self) -> None:
        self._blocks = AddressBlocks()
        self._of: dict[str, tuple[str, ...]] = {}
        self._held: dict[str, dict[int, socket.socket]] = {}

    def take(self, group: str, index: int, size: int) -> tuple[socket.socket, tuple[str, ...]]:
        """Return one pod's listening socket and all addresses of its group.

        Raises OSError if the address is in use, NoAddressesLeft if no block is free.
        """
        size = max(size, index + 1)
        if group not in self._of:
            listeners = self._blocks.take(size)
            self._of[group] = tuple(listener.getsockname()[0] for listener in listeners)
            self._held[group] = dict(enumerate(listeners))
        addresses = self._of[group]
        if len(addresses) < size:
            prefix = addresses[0].rpartition(".")[0]
            addresses = tuple(f"{prefix}.{number}" for number in range(1, size + 1))
            self._of[group] = addresses
        listener = self._held.get(group, {}).pop(index, None)
        return listener or socket.create_server((addresses[index], METADATA_PORT)), addresses

    def adopt(self, group: str, address: str) -> None:
        """Note the block of a group whose pod already runs."""
        prefix, _, number = address.rpartition(".")
        known = self._of.get(group, ())
        size = max(len(known), int(number))
        self._of[group] = tuple(f"{prefix}.{each}" for each in range(1, size + 1))

    def keep_only(self, groups: Collection[str]) -> None:
        """Free the addresses of all other groups."""
        for group in [group for group in self._of if group not in groups]:
            del self._of[group]
            for listener in self._held.pop(group, {}).values():
                listener.close()

    def close(self) -> None:
        self.keep_only(())
