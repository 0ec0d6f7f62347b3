"""Entity tags of the XML API: the service derives them from the ciphertext's MD5, and old clients compare them with
theirs.

Pure. Such a tag gets the suffix `-1`, like that of a multipart object, which no client takes for an MD5. The suffix is
removed from conditions.
"""

from __future__ import annotations

import re

_MD5 = re.compile(r'"[0-9a-f]{32}"')
_SHOWN = re.compile(r'"([0-9a-f]{32})-1"')


def shown_tag(tag: str) -> str:
    """A tag as the client sees it; a tag that is not an MD5 stays."""
    return f'{tag[:-1]}-1"' if _MD5.fullmatch(tag) else tag


def demanded_tags(header: str) -> str:
    """`If-Match` or `If-None-Match` in the service's terms."""
    return _SHOWN.sub(r'"\1"', header)
