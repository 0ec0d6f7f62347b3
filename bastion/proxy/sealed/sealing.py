"""Seal and open the segments of one object: Tink's AES-GCM-HKDF streaming, with 256 KiB segments.

The AES-256-GCM key derives from the object's key, the salt in the header and `ASSOCIATED`. A segment's nonce holds its
index and whether it is the last, so no segment can be omitted, moved or added. `ASSOCIATED` names no object, so that
copies keep key and header; the wrapping of the key does (`envelopes`).

Invariant for callers: never seal different bytes under an index whose sealed form has left the process. Two plaintexts
under one nonce reveal both.
"""

from __future__ import annotations

import os
from collections.abc import Callable

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

from bastion.core.errors import SealBroken
from bastion.proxy.sealed.segments import HEADER_BYTES, SEGMENTS_MAX, TAG_BYTES, plain_capacity

__all__ = ["ASSOCIATED", "KEY_BYTES", "Buffer", "SealBroken", "Sealing", "is_header", "new_header"]

KEY_BYTES = 32
# Tink's "associated data" of the stream.
ASSOCIATED = b"bastion proxy 1 content"

_SALT_BYTES = 32
_WHOLE_BYTES = plain_capacity(1)

Buffer = bytes | bytearray | memoryview


def new_header(random: Callable[[int], bytes] = os.urandom) -> bytes:
    """Return a new header: its length, a salt and the nonce prefix."""
    return bytes([HEADER_BYTES]) + random(HEADER_BYTES - 1)


def is_header(data: bytes) -> bool:
    return len(data) == HEADER_BYTES and data[0] == HEADER_BYTES


class Sealing:
    """The sealing of one object; thread-safe. Releases the interpreter's lock.

    `header` is the first 40 bytes of the sealed form, before segment 0.
    """

    __slots__ = ("_cipher", "_prefix", "header")

    def __init__(self, key: bytes, header: bytes | None = None) -> None:
        """Take the object's key, and the header of an existing object. Raises ValueError if one is invalid."""
        if len(key) != KEY_BYTES:
            raise ValueError(f"an object's key has {KEY_BYTES} bytes, not {len(key)}")
        self.header = new_header() if header is None else bytes(header)
        if not is_header(self.header):
            raise ValueError(f"a header has {HEADER_BYTES} bytes, and the first of them says so")
        salt, self._prefix = self.header[1 : 1 + _SALT_BYTES], self.header[1 + _SALT_BYTES :]
        derived = HKDF(algorithm=hashes.SHA256(), length=KEY_BYTES, salt=salt, info=ASSOCIATED).derive(key)
        self._cipher = AESGCM(derived)

    def seal(self, index: int, plain: Buffer, *, last: bool) -> bytes:
        """Seal segment `index`: ciphertext and tag, without the header."""
        if not _fits(index, len(plain), last=last):
            raise ValueError(f"{len(plain)} bytes do not fit segment {index} ({last=})")
        return self._cipher.encrypt(self._nonce(index, last=last), plain, None)

    def seal_into(self, index: int, plain: Buffer, out: bytearray | memoryview, *, last: bool) -> None:
        """Like `seal`, into a separate buffer 16 bytes longer than `plain`."""
        # A shortcut for full segments.
        whole = len(plain) == _WHOLE_BYTES and 0 < index < SEGMENTS_MAX
        if not whole and not _fits(index, len(plain), last=last):
            raise ValueError(f"{len(plain)} bytes do not fit segment {index} ({last=})")
        self._cipher.encrypt_into(self._nonce(index, last=last), plain, None, out)

    def open(self, index: int, sealed: Buffer, *, last: bool) -> bytes:
        """Return the plaintext of segment `index`, given ciphertext and tag without the header.

        Raises SealBroken if they were not sealed under this key at this index.
        """
        self._check_sealed(index, len(sealed), last=last)
        try:
            return self._cipher.decrypt(self._nonce(index, last=last), sealed, None)
        except InvalidTag:
            pass
        raise _broken(index)

    def open_into(self, index: int, sealed: Buffer, out: bytearray | memoryview, *, last: bool) -> None:
        """Like `open`, into a separate buffer 16 bytes shorter than `sealed`; invalid after SealBroken."""
        self._check_sealed(index, len(sealed), last=last)
        try:
            self._cipher.decrypt_into(self._nonce(index, last=last), sealed, None, out)
        except InvalidTag:
            pass
        else:
            return
        raise _broken(index)

    def _check_sealed(self, index: int, sealed: int, *, last: bool) -> None:
        if not _fits(index, sealed - TAG_BYTES, last=last):
            raise SealBroken(f"segment {index} has {sealed} bytes, which is not a valid size: the object was truncated")

    def _nonce(self, index: int, *, last: bool) -> bytes:
        return self._prefix + index.to_bytes(4, "big") + (b"\x01" if last else b"\x00")


def _fits(index: int, plain: int, *, last: bool) -> bool:
    if not 0 <= index < SEGMENTS_MAX:
        return False
    capacity = plain_capacity(index)
    return (0 if index == 0 else 1) <= plain <= capacity if last else plain == capacity


def _broken(index: int) -> SealBroken:
    return SealBroken(
        f"segment {index} was changed: someone without the key modified, truncated or recombined the object"
    )
