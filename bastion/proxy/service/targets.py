"""Addresses of the JSON API that the proxy itself asks.

Layer: proxy. Pure. What a client said in its query stays as it wrote it, but for parameters that are left out by name.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from urllib.parse import quote, unquote_plus, urlencode

# What a request about an object must keep of the one that stored it: who pays, and whose quota counts.
_CARRIED = ("key", "quotaUser", "userIp", "userProject")
_NOTHING: Mapping[str, str] = {}


def target(path: str, query: str) -> str:
    """`/path?query` of a percent-encoded path and a raw query."""
    return f"{path}?{query}" if query else path


def requeried(query: str, *, without: Collection[str] = (), added: Mapping[str, str] = _NOTHING) -> str:
    """A raw query without some parameters, and with others after it.

    Args:
        without: Names, decoded; those of `added` are left out anyway.
    """
    dropped = {*without, *added}
    kept = [item for item in query.split("&") if item and unquote_plus(item.partition("=")[0]) not in dropped]
    if added:
        kept.append(urlencode(added))
    return "&".join(kept)


def insert_target(bucket: str, query: str) -> str:
    """Where objects are uploaded to.

    Args:
        query: Raw.
    """
    return f"/upload/storage/v1/b/{quote(bucket, safe='')}/o?{query}"


def object_target(bucket: str, name: str, query: str, added: Mapping[str, str]) -> str:
    """An object, for a request that follows the one with this raw query; it keeps what every request needs."""
    items = query.split("&")
    kept = [item for item in items if unquote_plus(item.partition("=")[0]) in _CARRIED]
    return f"/storage/v1/b/{quote(bucket, safe='')}/o/{quote(name, safe='')}?{'&'.join([*kept, urlencode(added)])}"
