"""Entity tags of the XML API: the service makes them of the ciphertext's MD5, and old clients compare them with theirs.

Layer: proxy. Pure. Such a tag is shown with `-1` behind it, as a tag of an object of several parts: every client knows
that one for no MD5. It is taken off again where a client demands a tag.
"""

from __future__ import annotations

import re

_MD5 = re.compile(r'"[0-9a-f]{32}"')
_SHOWN = re.compile(r'"([0-9a-f]{32})-1"')


def shown_tag(tag: str) -> str:
    """A tag as the client sees it; what is no MD5 stays."""
    return f'{tag[:-1]}-1"' if _MD5.fullmatch(tag) else tag


def demanded_tags(header: str) -> str:
    """The value of `If-Match` or `If-None-Match` as the service means it."""
    return _SHOWN.sub(r'"\1"', header)
