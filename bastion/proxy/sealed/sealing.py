"""Seals and opens the segments of one object: Tink's AES-GCM-HKDF streaming, with 256 KiB segments.

Layer: proxy. A key for AES-256-GCM is derived from the object's key, the salt in the header and `ASSOCIATED`. A
segment's nonce holds its index and whether it is the last, so no segment can be left out, moved or added. An object
keeps its key and header when it is copied: `ASSOCIATED` names no object, the wrapping of the key does
(`bastion.proxy.sealed.envelopes`).

The caller never seals different bytes under an index whose sealed form has left the process: two plaintexts under one
nonce give both away.

Both directions let other threads run. A buffer for the result spares a copy, but `google_crc32c` takes `bytes` alone.
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
    """A fresh header: its own length, a salt and the nonces' prefix."""
    return bytes([HEADER_BYTES]) + random(HEADER_BYTES - 1)


def is_header(data: bytes) -> bool:
    """Whether these bytes can be a header."""
    return len(data) == HEADER_BYTES and data[0] == HEADER_BYTES


class Sealing:
    """The sealing of one object; thread-safe.

    Attributes:
        header: The first 40 bytes of the sealed form, before segment 0.
    """

    __slots__ = ("_cipher", "_prefix", "header")

    def __init__(self, key: bytes, header: bytes | None = None) -> None:
        """Derives the key of the segments.

        Args:
            key: The object's, 32 bytes.
            header: Of an object that exists; None for a new one.

        Raises:
            ValueError: the key or the header is none.
        """
        if len(key) != KEY_BYTES:
            raise ValueError(f"an object's key has {KEY_BYTES} bytes, not {len(key)}")
        self.header = new_header() if header is None else bytes(header)
        if not is_header(self.header):
            raise ValueError(f"a header has {HEADER_BYTES} bytes, and the first of them says so")
        salt, self._prefix = self.header[1 : 1 + _SALT_BYTES], self.header[1 + _SALT_BYTES :]
        derived = HKDF(algorithm=hashes.SHA256(), length=KEY_BYTES, salt=salt, info=ASSOCIATED).derive(key)
        self._cipher = AESGCM(derived)

    def seal(self, index: int, plain: Buffer, *, last: bool) -> bytes:
        """Segment `index` sealed: ciphertext and tag, without the header.

        Raises:
            ValueError: no segment of this index can hold so many bytes.
        """
        if not _fits(index, len(plain), last=last):
            raise ValueError(f"{len(plain)} bytes are no plaintext of segment {index} ({last=})")
        return self._cipher.encrypt(self._nonce(index, last=last), plain, None)

    def seal_into(self, index: int, plain: Buffer, out: bytearray | memoryview, *, last: bool) -> None:
        """As `seal`, into a buffer of exactly 16 bytes more than `plain`, which it must not overlap."""
        # Nearly all are whole, and the check is short for those.
        whole = len(plain) == _WHOLE_BYTES and 0 < index < SEGMENTS_MAX
        if not whole and not _fits(index, len(plain), last=last):
            raise ValueError(f"{len(plain)} bytes are no plaintext of segment {index} ({last=})")
        self._cipher.encrypt_into(self._nonce(index, last=last), plain, None, out)

    def open(self, index: int, sealed: Buffer, *, last: bool) -> bytes:
        """The plaintext of segment `index`, given its ciphertext and tag, without the header.

        Raises:
            SealBroken: these are not the bytes that were sealed, under this key, at this place.
        """
        self._check_sealed(index, len(sealed), last=last)
        try:
            return self._cipher.decrypt(self._nonce(index, last=last), sealed, None)
        except InvalidTag:
            pass
        raise _broken(index)

    def open_into(self, index: int, sealed: Buffer, out: bytearray | memoryview, *, last: bool) -> None:
        """As `open`, into a buffer of exactly 16 bytes less than `sealed`, which it must not overlap.

        Raises:
            SealBroken: as `open`; nobody may look at the buffer then.
        """
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
            raise SealBroken(f"segment {index} has {sealed} bytes, which no sealed segment has: something was cut off")

    def _nonce(self, index: int, *, last: bool) -> bytes:
        return self._prefix + index.to_bytes(4, "big") + (b"\x01" if last else b"\x00")


def _fits(index: int, plain: int, *, last: bool) -> bool:
    if not 0 <= index < SEGMENTS_MAX:
        return False
    capacity = plain_capacity(index)
    return (0 if index == 0 else 1) <= plain <= capacity if last else plain == capacity


def _broken(index: int) -> SealBroken:
    return SealBroken(
        f"segment {index} is not what was sealed; the object was changed, cut or put together by somebody without the "
        "key"
    )
