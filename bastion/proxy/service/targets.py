"""Targets of the proxy's own requests to the JSON API. Pure.

A client's query is kept as written, except for parameters that are removed by name.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from urllib.parse import quote, unquote_plus, urlencode

# Parameters about billing and quota, which a follow-up request keeps.
_CARRIED = ("key", "quotaUser", "userIp", "userProject")
_NOTHING: Mapping[str, str] = {}


def target(path: str, query: str) -> str:
    return f"{path}?{query}" if query else path


def requeried(query: str, *, without: Collection[str] = (), added: Mapping[str, str] = _NOTHING) -> str:
    """A raw query without some parameters (decoded names), and with others added or replaced."""
    dropped = {*without, *added}
    kept = [item for item in query.split("&") if item and unquote_plus(item.partition("=")[0]) not in dropped]
    if added:
        kept.append(urlencode(added))
    return "&".join(kept)


def insert_target(bucket: str, query: str) -> str:
    """The target of uploads."""
    return f"/upload/storage/v1/b/{quote(bucket, safe='')}/o?{query}"


def object_target(bucket: str, name: str, query: str, added: Mapping[str, str]) -> str:
    """An object, for a request that follows the one with this raw query."""
    items = query.split("&")
    kept = [item for item in items if unquote_plus(item.partition("=")[0]) in _CARRIED]
    return f"/storage/v1/b/{quote(bucket, safe='')}/o/{quote(name, safe='')}?{'&'.join([*kept, urlencode(added)])}"
