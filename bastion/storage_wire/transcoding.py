"""Decompressive transcoding: when and how a gzipped object is served decompressed."""

from __future__ import annotations

import zlib
from collections.abc import Iterable, Iterator

from bastion.net.http1 import Disconnect, Headers

_MAGIC = b"\x1f\x8b"
# Input pieces; deflate compresses up to a thousandfold, so the output is bounded separately.
_STORED_BYTES = 32 * 1024
_CONTENT_BYTES = 256 * 1024
_GZIP_WINDOW = 16 + zlib.MAX_WBITS


def is_decompressed(content_encoding: str, cache_control: str, headers: Headers) -> bool:
    """Whether a reader gets the decompressed content.

    True for `Content-Encoding: gzip`, unless the reader accepts gzip or `Cache-Control` says `no-transform`.
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
    """Whether bytes look like gzip; otherwise they are served unchanged, whatever the attributes say."""
    return data[: len(_MAGIC)] == _MAGIC


def decompressed(stored: Iterable[bytes | memoryview]) -> Iterator[bytes]:
    """Yield the decompressed content in pieces of limited size; each input piece is used up before the next.

    Raises Disconnect (a reset) if the bytes are not gzip or are truncated: the head is already sent, and partial
    content must not look complete.
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
