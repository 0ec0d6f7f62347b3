"""What the proxy asks for: a client's target with parameters of the query left out or added.

Layer: proxy. Pure. What is not named stays as the client wrote it, percent-encoding included.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from urllib.parse import quote, unquote_plus


def edited(query: str, *, without: Collection[str] = (), added: Mapping[str, str] | None = None) -> str:
    """A raw query without the parameters of those names, and with others at its end.

    A parameter that is added replaces one of its name.
    """
    added = added or {}
    kept = [pair for pair in query.split("&") if pair and not _is_any(pair, without) and not _is_any(pair, added)]
    return "&".join([*kept, *(f"{quote(name)}={quote(value, safe='')}" for name, value in added.items())])


def _is_any(pair: str, names: Collection[str]) -> bool:
    return unquote_plus(pair.partition("=")[0]) in names


def target(path: str, query: str) -> str:
    """`/path?query`."""
    return f"{path}?{query}" if query else path
