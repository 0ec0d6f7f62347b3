"""The query of a request, and what it demands: numbers, flags, preconditions, checksums.

Layer: emulator. Unknown parameters are never looked at, so they are tolerated.
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Iterable
from urllib.parse import parse_qsl, unquote_to_bytes

from bastion.emulator.gcs.refusals import Refusal, invalid, invalid_parameter
from bastion.emulator.gcs.resources import ConditionFailed, Declared, NotModified, Preconditions
from bastion.http1 import Headers

_NO_PRECONDITIONS = Preconditions()
_NOTHING_DECLARED = Declared()
_GENERATION_MAX = 2**63 - 1


class Parameters:
    """The query parameters of one request; of a repeated one the last value counts."""

    __slots__ = ("_pairs", "_values")

    def __init__(self, query: str) -> None:
        try:
            self._pairs = parse_qsl(query, keep_blank_values=True, errors="strict") if query else []
        except ValueError as error:
            raise invalid("The query is not percent-encoded UTF-8.") from error
        self._values = dict(self._pairs)

    def __contains__(self, name: str) -> bool:
        return name in self._values

    def get(self, name: str, default: str = "") -> str:
        return self._values.get(name, default)

    def all(self, name: str) -> list[str]:
        """Every value of a parameter that may repeat."""
        return [value for present, value in self._pairs if present == name]

    def flag(self, name: str) -> bool:
        return self._values.get(name, "").lower() == "true"

    def number(self, name: str) -> int | None:
        """A number from 0; None where the parameter is not given."""
        value = self._values.get(name)
        if value is None or value == "":
            return None
        return natural_number(name, value)

    def preconditions(self) -> Preconditions:
        """What `ifGenerationMatch` and its three relatives demand."""
        return self._preconditions("if")

    def source_preconditions(self) -> Preconditions:
        """What `ifSourceGenerationMatch` and its three relatives demand."""
        return self._preconditions("ifSource")

    def _preconditions(self, prefix: str) -> Preconditions:
        if not any(name.startswith(prefix) for name in self._values):
            return _NO_PRECONDITIONS
        return Preconditions(
            generation_match=self.number(f"{prefix}GenerationMatch"),
            generation_not_match=self.number(f"{prefix}GenerationNotMatch"),
            metageneration_match=self.number(f"{prefix}MetagenerationMatch"),
            metageneration_not_match=self.number(f"{prefix}MetagenerationNotMatch"),
        )


def natural_number(name: str, value: str) -> int:
    """A number from 0 to 2^63-1 as text; a `Refusal` (400) if it is none."""
    if not (value.isascii() and value.isdigit()) or len(value) > 19 or int(value) > _GENERATION_MAX:
        raise invalid_parameter(name, value[:80])
    return int(value)


def decoded(segment: str) -> str:
    """A percent-encoded piece of a path; in paths, `+` is a plus.

    Raises:
        Refusal: it is not UTF-8.
    """
    if "%" not in segment and segment.isascii():
        return segment
    try:
        return unquote_to_bytes(segment.encode("latin-1")).decode()
    except UnicodeError as error:
        raise invalid("The path is not percent-encoded UTF-8.") from error


def declared_in_headers(headers: Headers) -> Declared:
    """Checksums in `x-goog-hash` (repeated or joined with commas) and `Content-MD5`."""
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
    """What either declares; of two values for one checksum, that of `second`."""
    if second is _NOTHING_DECLARED:
        return first
    return Declared(
        crc32c=first.crc32c if second.crc32c is None else second.crc32c,
        md5=first.md5 if second.md5 is None else second.md5,
    )


def digest(name: str, value: str, length: int) -> bytes:
    """The bytes of a checksum that came as base64."""
    try:
        raw = base64.b64decode(value.encode(), validate=True)
    except (binascii.Error, ValueError):
        raw = b""
    if len(raw) != length:
        raise Refusal(
            400, "invalid", f"The value {value[:80]!r} of {name} is not base64 of {length} bytes.", code="InvalidDigest"
        )
    return raw


def check_tags(headers: Headers, tag: str) -> None:
    """Holds `If-Match` and `If-None-Match` of a read against an entity tag.

    Raises:
        ConditionFailed, NotModified: one of them does not hold.
    """
    wanted = headers.get("If-Match")
    if wanted and not _names_tag(wanted, tag):
        raise ConditionFailed(f"the entity tag is {tag}, not {wanted[:80]}")
    unwanted = headers.get("If-None-Match")
    if unwanted and _names_tag(unwanted, tag):
        raise NotModified(f"the entity tag is {tag}")


def _names_tag(header: str, tag: str) -> bool:
    given = (item.strip().removeprefix("W/").strip('"') for item in header.split(","))
    return any(item in ("*", tag.strip('"')) for item in given)
