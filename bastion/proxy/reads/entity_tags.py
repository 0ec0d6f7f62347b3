"""Entity tags of the XML API. Pure.

The service derives them from the ciphertext's MD5, which old clients would compare with the plaintext's. The suffix
`-1`, as on multipart objects, prevents that; it is removed from conditions.
"""

from __future__ import annotations

import re

_MD5 = re.compile(r'"[0-9a-f]{32}"')
_SHOWN = re.compile(r'"([0-9a-f]{32})-1"')


def shown_tag(tag: str) -> str:
    """The tag that the client sees; a tag that is not an MD5 stays."""
    return f'{tag[:-1]}-1"' if _MD5.fullmatch(tag) else tag


def demanded_tags(header: str) -> str:
    """`If-Match` or `If-None-Match` in the service's terms."""
    return _SHOWN.sub(r'"\1"', header)
