"""The certificate authorities that this machine trusts.

`SSL_CERT_FILE` and `SSL_CERT_DIR` count first, then the system's files, then certifi, because small images have none.
"""

from __future__ import annotations

import os
import ssl
from pathlib import Path

import certifi


def trusting() -> ssl.SSLContext:
    """A client's TLS settings: verified certificates and names, HTTP/1.1 only."""
    context = ssl.create_default_context()
    if not _system_roots():
        context.load_verify_locations(certifi.where())
    context.set_alpn_protocols(["http/1.1"])
    return context


def roots() -> bytes:
    """PEM of all trusted authorities, for clients that read one file. Raises OSError."""
    return b"\n".join(file.read_bytes().strip() for file in _system_roots() or [Path(certifi.where())]) + b"\n"


def _system_roots() -> list[Path]:
    """The system's authority files, each authority once."""
    paths = ssl.get_default_verify_paths()
    if paths.cafile:
        return [Path(paths.cafile)]
    if not paths.capath:
        return []
    whole = Path(paths.capath) / "ca-certificates.crt"
    if whole.is_file():
        return [whole]
    # OpenSSL finds certificates in a folder by hash, so other names do not count.
    hashed = [entry for entry in os.scandir(paths.capath) if entry.is_file() and entry.name[:8].isalnum()]
    return [Path(entry.path) for entry in hashed if entry.name[8:9] == "." and entry.name[9:].isdigit()]
