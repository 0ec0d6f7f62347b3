"""The endpoint's TLS certificate for this machine and the storage hosts, from an authority of its own.

The authority's key is discarded after one signature: `ca.pem` vouches for this endpoint only. Both files survive
restarts; they are renewed before they expire, or if they do not match.
"""

from __future__ import annotations

import datetime
import ssl
from dataclasses import dataclass
from pathlib import Path

from bastion.emulators.state_folder import write_private
from bastion.net.tls import Authority, new_key, server_context, server_from_pem

_HOSTS = (
    "localhost",
    "storage.googleapis.com",
    "*.storage.googleapis.com",
    "www.googleapis.com",
    "127.0.0.1",
    "::1",
)
_LIFETIME = datetime.timedelta(days=800)
_RENEWAL = datetime.timedelta(days=30)


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerIdentity:
    """The files of a TLS server: the authority's certificate for clients, and the server's certificate with its key.

    Only this user can read the key.
    """

    ca_file: Path
    server_file: Path

    def context(self) -> ssl.SSLContext:
        return server_context(self.server_file)


def ensure(folder: Path, *, now: datetime.datetime) -> ServerIdentity:
    """Return the identity in an existing private folder; create it if missing or invalid. `now` has a time zone."""
    identity = ServerIdentity(ca_file=folder / "ca.pem", server_file=folder / "server.pem")
    if not _is_valid(identity, now):
        authority = Authority.new("bastion storage endpoint CA", now=now, lifetime=_LIFETIME)
        server = authority.sign("bastion storage endpoint", _HOSTS, key=new_key(), now=now, lifetime=_LIFETIME)
        write_private(identity.server_file, server.private_pem)
        write_private(identity.ca_file, authority.public_pem)
    return identity


def _is_valid(identity: ServerIdentity, now: datetime.datetime) -> bool:
    try:
        certificate = server_from_pem(identity.server_file.read_bytes(), identity.ca_file.read_bytes()).certificate
    except (OSError, ValueError):
        return False
    return certificate.not_valid_before_utc <= now < certificate.not_valid_after_utc - _RENEWAL
