"""Decompressive transcoding: when an object stored gzipped is served as what it was before, and how.

Layer: emulator.
"""

from __future__ import annotations

import os
import zlib
from collections.abc import Iterator

from bastion.emulator.gcs.resources import Attributes
from bastion.http1 import Disconnect, Headers

_STORED_BYTES = 32 * 1024
# Deflate packs up to a thousandfold: what comes out is bounded on its own.
_CONTENT_BYTES = 256 * 1024
_GZIP_WINDOW = 16 + zlib.MAX_WBITS


def is_decompressed(attributes: Attributes, headers: Headers) -> bool:
    """Whether a reader with these request headers gets the object's content instead of its stored bytes.

    It does if the object is stored with `Content-Encoding: gzip`, unless the reader accepts gzip or the object's
    `Cache-Control` says `no-transform`.
    """
    if attributes.content_encoding.strip().lower() != "gzip":
        return False
    if "no-transform" in attributes.cache_control.lower():
        return False
    return not any(_accepts_gzip(value) for value in headers.get_all("Accept-Encoding"))


def _accepts_gzip(header: str) -> bool:
    for item in header.lower().split(","):
        coding, *options = (part.strip() for part in item.split(";"))
        if coding in ("gzip", "x-gzip"):
            return "q=0" not in options
    return False


class Decompressed:
    """The content of a gzipped file as a response body, in pieces; it owns the descriptor.

    Bytes that are not gzip end the connection where they begin: the head has been sent by then, and a client must not
    take half of an object for the whole.
    """

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        self._closed = False

    def __iter__(self) -> Iterator[bytes]:
        offset = 0
        inflater = zlib.decompressobj(_GZIP_WINDOW)
        try:
            while stored := os.pread(self._descriptor, _STORED_BYTES, offset):
                offset += len(stored)
                while stored:
                    if inflater.eof:  # a gzip file may have several members
                        inflater = zlib.decompressobj(_GZIP_WINDOW)
                    if content := inflater.decompress(stored, _CONTENT_BYTES):
                        yield content
                    stored = inflater.unused_data or inflater.unconsumed_tail
        except zlib.error as error:
            raise Disconnect from error
        if not inflater.eof:
            raise Disconnect

    def close(self) -> None:
        if not self._closed:
            self._closed = True
            os.close(self._descriptor)


def starts_like_gzip(descriptor: int) -> bool:
    """Whether the file begins as gzip does; if not, its stored bytes are served whatever its attributes say."""
    return os.pread(descriptor, 2, 0) == b"\x1f\x8b"
