"""The `Kms` port in memory, with counters, failures and delays."""

from __future__ import annotations

import os
import threading
from contextlib import suppress

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from bastion.core.errors import KmsError, KmsRefused
from bastion.ports import WrappedKey

_NONCE_BYTES = 12


class MemoryKms:
    """Keys that last as long as this object; thread-safe.

    `calls` are in order; every call raises `fails`, if set, and waits for `gate`.
    """

    def __init__(self, *keys: str) -> None:
        self.calls: list[str] = []
        self.fails: KmsError | None = None
        self.gate = threading.Event()
        self.gate.set()
        self._versions = {key: {1: os.urandom(32)} for key in keys}

    def rotate(self, key: str) -> None:
        versions = self._versions[key]
        versions[max(versions) + 1] = os.urandom(32)

    def destroy(self, key: str, version: str) -> None:
        del self._versions[key][int(version)]

    def wrap(self, key: str, data: bytes, *, associated: bytes) -> WrappedKey:
        versions = self._asked(f"wrap {key}", key)
        version = max(versions)
        nonce = os.urandom(_NONCE_BYTES)
        return WrappedKey(version=str(version), data=nonce + AESGCM(versions[version]).encrypt(nonce, data, associated))

    def unwrap(self, key: str, version: str, data: bytes, *, associated: bytes) -> bytes:
        versions = self._asked(f"unwrap {key} {version}", key)
        if int(version) not in versions:
            raise KmsRefused(f"version {version} of {key} was destroyed; its data cannot be unwrapped")
        with suppress(InvalidTag, ValueError):
            return AESGCM(versions[int(version)]).decrypt(data[:_NONCE_BYTES], data[_NONCE_BYTES:], associated)
        raise KmsRefused(f"version {version} of {key} did not wrap this; the wrapped key was changed")

    def primary(self, key: str) -> str:
        return str(max(self._asked(f"primary {key}", key)))

    def _asked(self, call: str, key: str) -> dict[int, bytes]:
        self.calls.append(call)
        self.gate.wait()
        if self.fails is not None:
            raise self.fails
        if key not in self._versions:
            raise KmsRefused(f"no such key: {key}; create it, or name another one")
        return self._versions[key]
