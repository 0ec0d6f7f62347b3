"""Recognize host names of the storage service. Pure.

Every spelling that a resolver accepts must match; otherwise a tunnel would store the data unencrypted.
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
    """Split into host (lower case, without a final dot) and port or None.

    Raises ValueError if it is not `host`, `host:port` or `[address]:port`.
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
    """Whether a host from `split_authority` serves storage, possibly among other things."""
    return _STORAGE.fullmatch(host) is not None


def is_shared(host: str) -> bool:
    """Whether a storage host also serves other things."""
    found = _STORAGE.fullmatch(host)
    return found is not None and found["shared"] is not None


def bucket_in(host: str) -> str:
    """The bucket in a host like `BUCKET.storage.googleapis.com`, or an empty string."""
    found = _STORAGE.fullmatch(host)
    return (found["bucket"] or "") if found else ""
