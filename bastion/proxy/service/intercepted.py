"""Names of hosts: how a client may write them, and which of them are the storage service.

Layer: proxy. Pure. Whatever spelling a resolver would take for a storage host must be recognised as one here, or it
would be tunnelled, and what a job stores through the tunnel would lie in the bucket unencrypted.
"""

from __future__ import annotations

import re

_AUTHORITY = re.compile(r"(?:\[([0-9A-Fa-f:.]+)\]|([0-9A-Za-z_.-]+))(?::([0-9]{1,5}))?")
_STORAGE = re.compile(
    r"""(?:(?P<bucket>.+)\.)?(?:              # a bucket's own name may stand in front
        (?:[a-z0-9-]+-)?storage(?:-[a-z0-9-]+)?\.googleapis\.com  # us-central1-storage, storage-download
      | storage(?:\.[a-z0-9-]+)+\.googleapis\.com  # storage.mtls, storage.us-central1.rep
      | storage-[a-z0-9-]+\.p\.googleapis\.com
      | commondatastorage\.googleapis\.com
      )
      # Paths tell storage from the rest.
      | (?P<shared>(?:www|content|private|restricted)\.(?:mtls\.)?googleapis\.com|firebasestorage\.googleapis\.com)
    """,
    re.VERBOSE,
)


def split_authority(authority: str) -> tuple[str, int | None]:
    """Host, in lower case and without a dot at its end, and port; None: none is named.

    Raises:
        ValueError: it is not `host`, `host:port` or `[address]:port`.
    """
    found = _AUTHORITY.fullmatch(authority)
    if found is None:
        raise ValueError(f"{authority!r} is not a host with or without a port")
    address, name, port = found.groups()
    host = address or name.lower().rstrip(".")
    if not host or (port and not 0 < int(port) < 1 << 16):
        raise ValueError(f"{authority!r} is not a host with or without a port")
    return host, int(port) if port else None


def is_storage(host: str) -> bool:
    """Whether a host, as `split_authority` gives it, serves storage (and, of some, other things too)."""
    return _STORAGE.fullmatch(host) is not None


def is_shared(host: str) -> bool:
    """Whether a storage host serves other things, too."""
    found = _STORAGE.fullmatch(host)
    return found is not None and found["shared"] is not None


def bucket_in(host: str) -> str:
    """The bucket that a storage host names, as `BUCKET.storage.googleapis.com` does; empty: the path names it."""
    found = _STORAGE.fullmatch(host)
    return (found["bucket"] or "") if found else ""
