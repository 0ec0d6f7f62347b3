"""The generation of an object on S3, which has none: its Last-Modified and its ETag in 63 bits (ADR 50).

An ETag is the MD5 of the bytes, so it returns with the bytes; the time tells two such writes apart, to the second. The
object of a multipart upload has the time at which its upload began, which may be before that of the object it replaced:
its generation is the ETag's alone.
"""

from __future__ import annotations

import hashlib

_DIGEST_BITS = 31
_SECONDS_BITS = 32


def generation_of(etag: str, modified: float) -> int:
    """The generation of an object with that ETag and Last-Modified, in seconds since the epoch; positive."""
    name = etag.strip('"')
    if "-" in name:
        # `<digest>-<number of parts>`
        return _digest(name, _SECONDS_BITS + _DIGEST_BITS) | 1
    seconds = int(modified) & ((1 << _SECONDS_BITS) - 1)
    return (seconds << _DIGEST_BITS | _digest(name, _DIGEST_BITS)) or 1


def _digest(text: str, bits: int) -> int:
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "big") >> (64 - bits)
