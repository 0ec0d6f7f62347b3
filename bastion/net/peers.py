"""The owner of the process at the other end of a loopback connection.

Any local user can connect to a loopback address, and our servers act as their user: the emulators hand out run tokens
and store job specs, and the storage proxy decrypts. So the peer's socket must belong to this user or root. If the
kernel does not answer, only the address protects.
"""

from __future__ import annotations

import contextlib
import os
import socket
import struct
import sys
from collections.abc import Collection
from pathlib import Path
from typing import Any

TRUSTED_UIDS = (0,)

_SOCK_DIAG = 4
_SOCK_DIAG_BY_FAMILY = 20
_REQUEST = 1
_ANY_COOKIE = 0xFFFFFFFF
# The header of a message, then the answer's fields before owner and inode.
_HEADER_BYTES = 16
_OWNER_AT = _HEADER_BYTES + 4 + 48 + 12
_ANSWER_SECONDS = 1.0

# IPv6 has two more numbers.
Address = tuple[Any, ...]


def is_ours(client: Address, server: Address, *, others: Collection[int] = ()) -> bool:
    """Whether the client's end of a local connection belongs to this user, root, or one of `others`.

    `client` is as `accept` returns it, `server` our end.
    """
    try:
        found = _ask_kernel(client, server) or _look_up(client, server)
    except (FileNotFoundError, PermissionError):
        return True
    except OSError:
        # Out of descriptors, for example; causing that must not admit a peer.
        return False
    if found is None:
        return False
    owner, inode = found
    # A closed socket has no inode, and may show root as its owner.
    return inode != 0 and owner in (os.getuid(), *TRUSTED_UIDS, *others)


def _ask_kernel(client: Address, server: Address) -> tuple[int, int] | None:
    """Owner and inode of the client's socket by one kernel query; None if unanswered.

    `/proc/net/tcp` says the same, but walks all kernel tables: milliseconds per connection.
    """
    identity = struct.pack("!HH16s16s", client[1], server[1], _packed(client), _packed(server))
    identity += struct.pack("=III", 0, _ANY_COOKIE, _ANY_COOKIE)
    question = struct.pack("=BBBBI", _address_family(client), socket.IPPROTO_TCP, 0, 0, 0xFFFFFFFF) + identity
    header = struct.pack("=IHHII", _HEADER_BYTES + len(question), _SOCK_DIAG_BY_FAMILY, _REQUEST, 0, 0)
    with contextlib.suppress(OSError), socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, _SOCK_DIAG) as kernel:
        kernel.settimeout(_ANSWER_SECONDS)
        kernel.send(header + question)
        answer = kernel.recv(4096)
        if len(answer) >= _OWNER_AT + 8 and struct.unpack_from("=H", answer, 4)[0] == _SOCK_DIAG_BY_FAMILY:
            owner, inode = struct.unpack_from("=II", answer, _OWNER_AT)
            return owner, inode
    return None


def _look_up(client: Address, server: Address) -> tuple[int, int] | None:
    """The same from `/proc/net/tcp`; None if there is no such socket. Raises OSError."""
    local, remote = _hex_port(client), _hex_port(server)
    for table in ("tcp", "tcp6"):
        for line in Path("/proc/net", table).read_text("ascii").splitlines()[1:]:
            fields = line.split()
            # IPv6 sockets show a mapped IPv4 address, which ends in the same eight digits.
            if fields[1].endswith(local) and fields[2].endswith(remote):
                return int(fields[7]), int(fields[9])
    return None


def _hex_port(address: Address) -> str:
    """An address in the format of `/proc/net/tcp`: four-byte groups in machine order, then the port."""
    packed = _packed(address)
    numbers = [int.from_bytes(packed[at : at + 4], sys.byteorder) for at in range(0, len(packed), 4)]
    return f"{''.join(f'{word:08X}' for word in numbers)}:{address[1]:04X}"


def _packed(address: Address) -> bytes:
    return socket.inet_pton(_address_family(address), address[0])


def _address_family(address: Address) -> int:
    return socket.AF_INET6 if ":" in address[0] else socket.AF_INET
