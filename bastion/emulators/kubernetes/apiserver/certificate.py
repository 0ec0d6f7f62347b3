"""The API server's TLS certificate for 127.0.0.1, from an authority of its own.

The authority's key is discarded after one signature. Both files survive restarts; they are renewed before they expire.
"""

from __future__ import annotations

import datetime
import ssl
from pathlib import Path

from bastion.emulators.state_folder import write_private
from bastion.net.tls import Authority, new_key, server_context, server_from_pem

_HOSTS = ("localhost", "127.0.0.1", "kubernetes.default.svc")
_LIFETIME = datetime.timedelta(days=800)
_RENEWAL = datetime.timedelta(days=30)


def ensure(folder: Path, *, now: datetime.datetime) -> tuple[Path, ssl.SSLContext]:
    """The authority's file for clients, and the server's TLS settings. `now` has a time zone."""
    ca_file, server_file = folder / "ca.pem", folder / "server.pem"
    if not _is_valid(ca_file, server_file, now):
        authority = Authority.new("bastion Kubernetes emulator CA", now=now, lifetime=_LIFETIME)
        server = authority.sign("bastion Kubernetes emulator", _HOSTS, key=new_key(), now=now, lifetime=_LIFETIME)
        write_private(server_file, server.private_pem)
        write_private(ca_file, authority.public_pem)
    return ca_file, server_context(server_file)


def _is_valid(ca_file: Path, server_file: Path, now: datetime.datetime) -> bool:
    try:
        found = server_from_pem(server_file.read_bytes(), ca_file.read_bytes()).certificate
    except (OSError, ValueError):
        return False
    return found.not_valid_before_utc <= now < found.not_valid_after_utc - _RENEWAL
