"""The keys of runs: what the hosts of one run can prove, and those of another cannot.

The daemon has one secret of its root. The secret of each run follows from it, so none is stored, and a daemon that was
restarted knows them all. A run's hosts get theirs with the gang, and sign what they write (Ed25519, RFC 8032); whoever
reads it needs the public key only, which is in the job's state.
"""

from __future__ import annotations

import hashlib
import hmac
from functools import cached_property, lru_cache
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:  # cryptography takes a sixth of the time in which `bastion list` starts, and it verifies nothing
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey

SECRET_BYTES: Final = 32
_TAG_LETTERS: Final = 32  # 128 bits
# Of live runs, which every tick needs.
_KEYS_KEPT: Final = 65536


class RunKey:
    """The secret of one run."""

    def __init__(self, secret: bytes) -> None:
        """`secret`: 32 bytes. Raises ValueError."""
        if len(secret) != SECRET_BYTES:
            raise ValueError(f"a run's secret has {SECRET_BYTES} bytes, not {len(secret)}")
        self._secret = secret

    @classmethod
    def from_text(cls, text: str) -> RunKey:
        """The inverse of `text`. Raises ValueError."""
        return cls(bytes.fromhex(text))

    @property
    def text(self) -> str:
        """The secret, for this run's hosts and nobody else."""
        return self._secret.hex()

    @cached_property
    def claim_tag(self) -> str:
        """A part of the claim's name that nobody can know before the claim exists: nobody claims in advance."""
        return self._tag(b"claim")

    @cached_property
    def inputs_tag(self) -> str:
        """The same for the listings of the run's inputs."""
        return self._tag(b"inputs")

    @cached_property
    def public(self) -> str:
        """The public key, in hexadecimal."""
        return self._private.public_key().public_bytes_raw().hex()

    def sign(self, purpose: str, data: bytes) -> str:
        """Return a signature in hexadecimal; `purpose` keeps what was signed as one thing from passing as another."""
        return self._private.sign(_message(purpose, data)).hex()

    def _tag(self, purpose: bytes) -> str:
        return hmac.new(self._secret, purpose, hashlib.sha256).hexdigest()[:_TAG_LETTERS]

    @cached_property
    def _private(self) -> Ed25519PrivateKey:
        from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

        return Ed25519PrivateKey.from_private_bytes(self._secret)


class RunKeys:
    """The keys of all runs of a root."""

    def __init__(self, root_secret: bytes) -> None:
        """`root_secret`: 32 bytes that only the daemon knows. Raises ValueError."""
        if len(root_secret) != SECRET_BYTES:
            raise ValueError(f"the secret of a root has {SECRET_BYTES} bytes, not {len(root_secret)}")
        self._root_secret = root_secret
        self._known: dict[tuple[str, str], RunKey] = {}

    def of(self, run: str, token: str) -> RunKey:
        """Return the key of a run; `token`: the one in its record, which is no secret."""
        known = self._known.get((run, token))
        if known is None:
            if len(self._known) >= _KEYS_KEPT:
                self._known.clear()
            known = RunKey(hmac.new(self._root_secret, f"run {run} {token}".encode(), hashlib.sha256).digest())
            self._known[run, token] = known
        return known


def is_signed(public: str, purpose: str, data: bytes, signature: str) -> bool:
    """Whether the hosts of the run with this public key signed these bytes for this purpose. Never raises."""
    from cryptography.exceptions import InvalidSignature

    try:
        _public_key(public).verify(bytes.fromhex(signature), _message(purpose, data))
    except (InvalidSignature, ValueError):
        return False
    return True


@lru_cache(maxsize=1024)
def _public_key(public: str) -> Ed25519PublicKey:
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

    return Ed25519PublicKey.from_public_bytes(bytes.fromhex(public))


def _message(purpose: str, data: bytes) -> bytes:
    return purpose.encode() + b"\0" + data
