"""An object's envelope in its metadata: the name of the wrapping key, the wrapped keys, sealed checksums. Pure.

Entries are custom metadata named `gcsproxy-*` in any case, which clients neither see nor change. Nothing here is secret
or trusted until `envelopes` has opened it.
"""

from __future__ import annotations

import base64
import binascii
import re
from collections.abc import Mapping
from dataclasses import dataclass, field

from bastion.core.encryption.key_names import is_key_name, is_version
from bastion.core.errors import EnvelopeBroken
from bastion.proxy.sealed.sealing import is_header

__all__ = ["PREFIX", "VERSION", "Envelope", "EnvelopeBroken", "is_ours", "visible"]

VERSION = 1
PREFIX = "gcsproxy-"

_VERSION = PREFIX + "version"
_KEK = PREFIX + "kek"
_KEK_VERSION = PREFIX + "kek-version"
_SESSION = PREFIX + "session-key"
_OBJECT = PREFIX + "object-key"
_HEADER = PREFIX + "header"
_SUMS = PREFIX + "sums"
_SIZE = PREFIX + "size"
_CONTENT_ENCODING = PREFIX + "content-encoding"

# Far above the size of a wrapped key; the storage service allows 8 KiB of custom metadata.
_WRAPPED_MAX = 2048
_ENCODING = re.compile(r"[!-~](?:[ -~]{0,98}[!-~])?")


@dataclass(frozen=True, slots=True, kw_only=True)
class Envelope:
    """The wrapped keys of one object, and what else is needed to show it as stored.

    Attributes:
        kek: Name of the key in the key service that wrapped the session key.
        wrapped_session: The session key under `kek`.
        wrapped_object: The object's key under the session key, bound to bucket and name.
        header: The first 40 bytes of the sealed content; saves a request for range reads.
        sums: Sealed plaintext checksums; empty if unknown.
        size: Sealed plaintext length; empty if unknown.
        content_encoding: As the client set it. Hidden from the service, which would try to decompress ciphertext.
    """

    version: int = VERSION
    kek: str
    kek_version: str
    wrapped_session: bytes = field(repr=False)
    wrapped_object: bytes = field(repr=False)
    header: bytes = field(repr=False)
    sums: bytes = field(default=b"", repr=False)
    size: bytes = field(default=b"", repr=False)
    content_encoding: str = ""

    def to_metadata(self) -> dict[str, str]:
        """Return our entries of the object's custom metadata, about 500 bytes."""
        entries = {
            _VERSION: str(self.version),
            _KEK: self.kek,
            _KEK_VERSION: self.kek_version,
            _SESSION: _text(self.wrapped_session),
            _OBJECT: _text(self.wrapped_object),
            _HEADER: _text(self.header),
        }
        if self.sums:
            entries[_SUMS] = _text(self.sums)
        if self.size:
            entries[_SIZE] = _text(self.size)
        if self.content_encoding:
            entries[_CONTENT_ENCODING] = self.content_encoding
        return entries

    @classmethod
    def from_metadata(cls, metadata: Mapping[str, str]) -> Envelope | None:
        """Read the envelope from custom metadata; None for plaintext.

        Raises EnvelopeBroken if our entries are incomplete or of an unknown version.
        """
        ours: dict[str, str] = {}
        for name, value in metadata.items():
            if is_ours(name):
                if name.lower() in ours:
                    raise EnvelopeBroken(f"the metadata has {name.lower()} twice; someone changed it")
                ours[name.lower()] = value
        if not ours:
            return None
        if ours.get(_VERSION) != str(VERSION):
            raise EnvelopeBroken(
                f"the metadata has no {_VERSION} that this program knows (it knows {VERSION}); a newer one wrote the "
                "object, or someone changed its metadata"
            )
        envelope = cls(
            kek=ours.get(_KEK, ""),
            kek_version=ours.get(_KEK_VERSION, ""),
            wrapped_session=_bytes(ours, _SESSION),
            wrapped_object=_bytes(ours, _OBJECT),
            header=_bytes(ours, _HEADER),
            sums=_bytes(ours, _SUMS) if _SUMS in ours else b"",
            size=_bytes(ours, _SIZE) if _SIZE in ours else b"",
            content_encoding=ours.get(_CONTENT_ENCODING, ""),
        )
        envelope._check()
        return envelope

    def _check(self) -> None:
        checks = {
            _KEK: is_key_name(self.kek),
            _KEK_VERSION: is_version(self.kek_version),
            _HEADER: is_header(self.header),
            _CONTENT_ENCODING: not self.content_encoding or _ENCODING.fullmatch(self.content_encoding),
        }
        for name, good in checks.items():
            if not good:
                raise _broken(name)


def is_ours(name: str) -> bool:
    """Whether a custom metadata name (without `x-goog-meta-`) is ours."""
    return name.lower().startswith(PREFIX)


def visible(metadata: Mapping[str, str]) -> dict[str, str]:
    return {name: value for name, value in metadata.items() if not is_ours(name)}


def _text(data: bytes) -> str:
    return base64.b64encode(data).decode("ascii")


def _bytes(ours: Mapping[str, str], name: str) -> bytes:
    try:
        data = base64.b64decode(ours.get(name, ""), validate=True)
    except (binascii.Error, ValueError):
        data = b""
    if not 0 < len(data) <= _WRAPPED_MAX:
        raise _broken(name)
    return data


def _broken(name: str) -> EnvelopeBroken:
    return EnvelopeBroken(
        f"the metadata's {name} is missing or was changed. Restoring a copy of the earlier "
        "metadata makes the object readable again"
    )
