"""Text from outside without anything that could control a terminal.

User ids, project ids, messages of hosts and of cloud APIs, names of files, and whatever else others
chose pass `plain` before they are written into the history, the daemon's log, the status or a result, and once more
when they are shown: what an older version or a foreign program wrote may not have.
"""

from __future__ import annotations

import re

# C0, DEL and C1 (as single characters: an 8-bit terminal takes U+009B for ESC [), lone surrogates, separators of lines,
# and what has no width or reorders text: a name must not look like another one.
_UNSAFE = re.compile(
    "[\x00-\x1f\x7f-\x9f\u00ad\u061c\u180e\u200b-\u200f\u2028-\u202e\u2060-\u206f\ufeff\ufff9-\ufffb"
    "\ud800-\udfff\U000e0000-\U000e007f]"
)


def plain(text: object) -> str:
    """Return the text with each such character shown as an escape, such as `\\x1b`."""
    return _UNSAFE.sub(lambda found: visible(found[0]), str(text))


def plain_line(text: object) -> str:
    """Return the text in one line: each run of whitespace becomes one space, the rest as `plain` does it."""
    return plain(" ".join(str(text).split()))


def visible(characters: str) -> str:
    """Return the characters as escapes."""
    return characters.encode("unicode_escape").decode("ascii")
