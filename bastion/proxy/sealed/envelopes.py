"""Make and open envelopes: key service → session key → object key → checksums and size.

The key service wraps a session key. For five minutes this key wraps the keys of new objects, and stays in memory. The
wrapping of an object's key is bound to bucket and name, so objects that are swapped in the bucket do not open.

Only `trusted` keys are used. Otherwise a writer to the bucket could pass off objects under their own key as a user's.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Collection
from dataclasses import dataclass, field, replace

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

from bastion.core.errors import EnvelopeBroken, KmsRefused
from bastion.ports import Clock, Kms, WrappedKey
from bastion.proxy.sealed.envelope import VERSION, Envelope
from bastion.proxy.sealed.sealing import KEY_BYTES, new_header
from bastion.proxy.sealed.single_flight import SingleFlight

# Binds wrapped session keys to this use in the key service.
SESSION_CONTEXT = b"bastion proxy 1 session key"
SESSION_SECONDS = 300.0

_SUMS_INFO = b"bastion proxy 1 sums"
_SIZE_INFO = b"bastion proxy 1 size"
_NONCE_BYTES = 12
_SUMS_BYTES = 4
_SIZE_BYTES = 8
# Each is about 300 bytes: one session of a proxy in five minutes.
_SESSIONS_KEPT = 4096


@dataclass(frozen=True, slots=True, kw_only=True)
class _Session:
    key: bytes = field(repr=False)
    wrapped: WrappedKey


class Envelopes:
    """The envelopes of all objects; thread-safe."""

    def __init__(
        self,
        kms: Kms,
        *,
        clock: Clock,
        random: Callable[[int], bytes] = os.urandom,
        trusted: Collection[str] | None = None,
    ) -> None:
        """Args:
        random: Returns that many random bytes.
        trusted: Names of the allowed keys; None: any that `kms` can use.
        """
        self._kms = kms
        self._random = random
        self._trusted = None if trusted is None else frozenset(trusted)
        self._made: SingleFlight[str, _Session] = SingleFlight(clock, seconds=SESSION_SECONDS, most=_SESSIONS_KEPT)
        self._opened: SingleFlight[tuple[str, str, bytes], bytes] = SingleFlight(
            clock, seconds=SESSION_SECONDS, most=_SESSIONS_KEPT
        )
        self._primaries: SingleFlight[str, str] = SingleFlight(clock, seconds=SESSION_SECONDS, most=_SESSIONS_KEPT)

    def new(self, kek: str, bucket: str, name: str) -> tuple[Envelope, bytes]:
        """Make an envelope for the new object `name`, and the key to seal it with.

        Raises KmsUnavailable if the key service does not answer; KmsRefused if it refuses or `kek` is not trusted.
        """
        key = self._random(KEY_BYTES)
        envelope = self._under(self._session(kek), kek, key, bucket, name, new_header(self._random))
        return envelope, key

    def open(self, envelope: Envelope, bucket: str, name: str) -> bytes:
        """Return the key of the object `name`.

        Raises like `new`, and EnvelopeBroken if the envelope belongs to another object or was changed.
        """
        session = self._opened_session(envelope)
        data = envelope.wrapped_object
        try:
            key = AESGCM(session).decrypt(data[:_NONCE_BYTES], data[_NONCE_BYTES:], _place(bucket, name))
        except (InvalidTag, ValueError):
            key = b""
        if len(key) != KEY_BYTES:
            raise EnvelopeBroken(
                f"the key of {name!r} in {bucket} belongs to another object, or was changed; the object was moved or "
                "replaced in the bucket by someone without the key"
            )
        return key

    def moved(self, envelope: Envelope, source: tuple[str, str], destination: tuple[str, str], kek: str) -> Envelope:
        """Return the envelope of a copy with the same sealed bytes, under the key `kek`. Raises like `open`.

        `source` and `destination` are bucket and name.
        """
        key = self.open(envelope, *source)
        fresh = self._under(self._session(kek), kek, key, *destination, envelope.header)
        return replace(fresh, sums=envelope.sums, size=envelope.size, content_encoding=envelope.content_encoding)

    def rewrapped(self, envelope: Envelope, bucket: str, name: str, kek: str) -> Envelope | None:
        """Return the envelope under the primary version of `kek`; None if it is already. Raises like `open`."""
        self._check_trusted(kek)
        primary = self._primaries.get(kek, lambda: self._kms.primary(kek))
        if (envelope.kek, envelope.kek_version) == (kek, primary):
            return None
        session = self._session(kek)
        if session.wrapped.version != primary:  # made before the rotation
            self._made.forget(kek, session)
            session = self._session(kek)
        if (envelope.kek, envelope.kek_version) == (kek, session.wrapped.version):
            return None
        key = self.open(envelope, bucket, name)
        fresh = self._under(session, kek, key, bucket, name, envelope.header)
        return replace(fresh, sums=envelope.sums, size=envelope.size, content_encoding=envelope.content_encoding)

    def with_sums(self, envelope: Envelope, object_key: bytes, crc32c: int) -> Envelope:
        return replace(envelope, sums=self._sealed(object_key, _SUMS_INFO, crc32c.to_bytes(_SUMS_BYTES, "big")))

    def with_size(self, envelope: Envelope, object_key: bytes, size: int) -> Envelope:
        return replace(envelope, size=self._sealed(object_key, _SIZE_INFO, size.to_bytes(_SIZE_BYTES, "big")))

    def crc32c(self, envelope: Envelope, object_key: bytes) -> int | None:
        """The plaintext's crc32c; None if unknown. Raises EnvelopeBroken if it is another object's."""
        return _unsealed(object_key, _SUMS_INFO, envelope.sums, _SUMS_BYTES)

    def size(self, envelope: Envelope, object_key: bytes) -> int | None:
        """The plaintext's length in bytes; None if unknown. Raises EnvelopeBroken if it is another object's."""
        return _unsealed(object_key, _SIZE_INFO, envelope.size, _SIZE_BYTES)

    def _sealed(self, object_key: bytes, info: bytes, data: bytes) -> bytes:
        nonce = self._random(_NONCE_BYTES)
        return nonce + _derived_cipher(object_key, info).encrypt(nonce, data, None)

    def _session(self, kek: str) -> _Session:
        self._check_trusted(kek)
        return self._made.get(kek, lambda: self._make(kek))

    def _make(self, kek: str) -> _Session:
        key = self._random(KEY_BYTES)
        wrapped = self._kms.wrap(kek, key, associated=SESSION_CONTEXT)
        # Saves the call when this process reads what it stored.
        self._opened.put((kek, wrapped.version, wrapped.data), key)
        return _Session(key=key, wrapped=wrapped)

    def _opened_session(self, envelope: Envelope) -> bytes:
        kek, version, data = envelope.kek, envelope.kek_version, envelope.wrapped_session
        self._check_trusted(kek)
        key = self._opened.get(
            (kek, version, data), lambda: self._kms.unwrap(kek, version, data, associated=SESSION_CONTEXT)
        )
        if len(key) != KEY_BYTES:
            raise EnvelopeBroken(f"{kek} did not wrap a session key; someone changed the metadata")
        return key

    def _check_trusted(self, kek: str) -> None:
        if self._trusted is not None and kek not in self._trusted:
            raise KmsRefused(f"{kek} is not a key of this proxy; if it was one before, add it to GCS_PROXY_FORMER_KEYS")

    def _under(self, session: _Session, kek: str, key: bytes, bucket: str, name: str, header: bytes) -> Envelope:
        nonce = self._random(_NONCE_BYTES)
        return Envelope(
            kek=kek,
            kek_version=session.wrapped.version,
            wrapped_session=session.wrapped.data,
            wrapped_object=nonce + AESGCM(session.key).encrypt(nonce, key, _place(bucket, name)),
            header=header,
        )


def _place(bucket: str, name: str) -> bytes:
    """What an object key's wrapping is bound to; lengths keep any two places apart."""
    parts = (str(VERSION).encode(), bucket.encode(), name.encode())
    return b"".join(len(part).to_bytes(4, "big") + part for part in parts)


def _unsealed(object_key: bytes, info: bytes, sealed: bytes, length: int) -> int | None:
    """The number in a sealed entry; None if empty. Raises EnvelopeBroken if it is another object's."""
    if not sealed:
        return None
    try:
        data = _derived_cipher(object_key, info).decrypt(sealed[:_NONCE_BYTES], sealed[_NONCE_BYTES:], None)
    except (InvalidTag, ValueError):
        data = b""
    if len(data) != length:
        raise EnvelopeBroken("the object's checksums or its size belong to another object, or were changed")
    return int.from_bytes(data, "big")


def _derived_cipher(object_key: bytes, info: bytes) -> AESGCM:
    return AESGCM(HKDF(algorithm=hashes.SHA256(), length=KEY_BYTES, salt=None, info=info).derive(object_key))
