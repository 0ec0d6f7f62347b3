"""Checksums that a client declares for its bytes. Pure."""

from __future__ import annotations

import base64
import binascii
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from bastion.net.http1 import Headers
from bastion.storage_wire.documents import text_field
from bastion.storage_wire.refusals import Refusal


@dataclass(frozen=True, slots=True, kw_only=True)
class Declared:
    """Declared checksums; None: not declared."""

    crc32c: int | None = None
    md5: bytes | None = None


_NOTHING_DECLARED = Declared()


def declared_in_headers(headers: Headers) -> Declared:
    """Return the checksums in `x-goog-hash` (repeated or joined with commas) and `Content-MD5`."""
    given = headers.get_all("x-goog-hash")
    content_md5 = headers.get("Content-MD5")
    if not given and not content_md5:
        return _NOTHING_DECLARED
    crc32c: int | None = None
    md5: bytes | None = digest("Content-MD5", content_md5, 16) if content_md5 else None
    for name, value in _hashes(given):
        if name == "crc32c":
            crc32c = int.from_bytes(digest("x-goog-hash: crc32c", value, 4), "big")
        elif name == "md5":
            md5 = digest("x-goog-hash: md5", value, 16)
    return Declared(crc32c=crc32c, md5=md5)


def _hashes(values: Iterable[str]) -> Iterable[tuple[str, str]]:
    for value in values:
        for item in value.split(","):
            name, _, encoded = item.strip().partition("=")
            yield name.lower(), encoded


def both_declared(first: Declared, second: Declared) -> Declared:
    """Merge declarations; `second` wins."""
    if second is _NOTHING_DECLARED:
        return first
    return Declared(
        crc32c=first.crc32c if second.crc32c is None else second.crc32c,
        md5=first.md5 if second.md5 is None else second.md5,
    )


def digest(name: str, value: str, length: int) -> bytes:
    """Decode a base64 checksum."""
    try:
        raw = base64.b64decode(value.encode(), validate=True)
    except (binascii.Error, ValueError):
        raw = b""
    if len(raw) != length:
        raise Refusal(
            400, "invalid", f"The value {value[:80]!r} of {name} is not base64 of {length} bytes.", code="InvalidDigest"
        )
    return raw


def declared_in_resource(document: dict[str, Any]) -> Declared:
    """Return the checksums in a resource; they apply to the upload that it begins."""
    crc32c = text_field(document, "crc32c")
    md5 = text_field(document, "md5Hash")
    return Declared(
        crc32c=int.from_bytes(digest("crc32c", crc32c, 4), "big") if crc32c else None,
        md5=digest("md5Hash", md5, 16) if md5 else None,
    )


def crc32c_text(crc32c: int) -> str:
    """Return base64 of the four bytes, big-endian."""
    return binascii.b2a_base64(crc32c.to_bytes(4, "big"), newline=False).decode()
