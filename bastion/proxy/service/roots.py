"""The authorities that this machine trusts, where they are to be found as one file or folder.

Layer: proxy. `SSL_CERT_FILE` and `SSL_CERT_DIR` go first, as everywhere; then what the system has; then certifi,
because small images have no certificates at all.
"""

from __future__ import annotations

import os
import ssl
from pathlib import Path

import certifi


def trusting() -> ssl.SSLContext:
    """A client's settings: the other side's certificate and name are always verified; HTTP/1.1 and nothing newer."""
    context = ssl.create_default_context()
    if not _system_roots():
        context.load_verify_locations(certifi.where())
    context.set_alpn_protocols(["http/1.1"])
    return context


def roots() -> bytes:
    """PEM of all trusted authorities, for clients that take one file and then know nothing else.

    Raises:
        OSError: the file or folder cannot be read.
    """
    return b"\n".join(file.read_bytes().strip() for file in _system_roots() or [Path(certifi.where())]) + b"\n"


def _system_roots() -> list[Path]:
    """The files of the system's authorities, each authority once."""
    paths = ssl.get_default_verify_paths()
    if paths.cafile:
        return [Path(paths.cafile)]
    if not paths.capath:
        return []
    whole = Path(paths.capath) / "ca-certificates.crt"
    if whole.is_file():
        return [whole]
    # OpenSSL finds a certificate in a folder by its hash: such names are what counts there.
    hashed = [entry for entry in os.scandir(paths.capath) if entry.is_file() and entry.name[:8].isalnum()]
    return [Path(entry.path) for entry in hashed if entry.name[8:9] == "." and entry.name[9:].isdigit()]
