"""Decompressive transcoding: when an object stored gzipped is served as what it was before, and how.

Layer: storage_api.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterable, Iterator

from bastion.net.http1 import Disconnect, Headers

_MAGIC = b"\x1f\x8b"
# Pieces of what is stored; deflate packs up to a thousandfold, so what comes out is bounded on its own.
_STORED_BYTES = 32 * 1024
_CONTENT_BYTES = 256 * 1024
_GZIP_WINDOW = 16 + zlib.MAX_WBITS


def is_decompressed(content_encoding: str, cache_control: str, headers: Headers) -> bool:
    """Whether a reader with these request headers gets an object's content instead of its stored bytes.

    It does if the object is stored with `Content-Encoding: gzip`, unless the reader accepts gzip or the object's
    `Cache-Control` says `no-transform`.
    """
    if content_encoding.strip().lower() != "gzip":
        return False
    if "no-transform" in cache_control.lower():
        return False
    return not any(_accepts_gzip(value) for value in headers.get_all("Accept-Encoding"))


def _accepts_gzip(header: str) -> bool:
    for item in header.lower().split(","):
        coding, *options = (part.strip() for part in item.split(";"))
        if coding in ("gzip", "x-gzip"):
            return "q=0" not in options
    return False


def starts_like_gzip(data: bytes | memoryview) -> bool:
    """Whether bytes begin as gzip does; if not, they are served as they are whatever the object's attributes say."""
    return data[: len(_MAGIC)] == _MAGIC


def decompressed(stored: Iterable[bytes | memoryview]) -> Iterator[bytes]:
    """The content of gzipped bytes, in pieces of limited size; each stored piece is done with before the next.

    Raises:
        Disconnect: with a reset, the bytes are not gzip, or end too early; the head has been sent by then, and a client
            must not take half of an object for the whole.
    """
    inflater = zlib.decompressobj(_GZIP_WINDOW)
    try:
        for piece in stored:
            for start in range(0, len(piece), _STORED_BYTES):
                left = bytes(piece[start : start + _STORED_BYTES])
                while left:
                    if inflater.eof:  # a gzip file may have several members
                        inflater = zlib.decompressobj(_GZIP_WINDOW)
                    if content := inflater.decompress(left, _CONTENT_BYTES):
                        yield content
                    left = inflater.unused_data or inflater.unconsumed_tail
    except zlib.error as error:
        raise Disconnect(reset=True) from error
    if not inflater.eof:
        raise Disconnect(reset=True)
