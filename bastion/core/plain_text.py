"""External text without characters that could control a terminal.

User ids, project ids, file names and messages of hosts and APIs pass `plain` before they are stored, and again when
they are shown, because older versions or foreign programs may have stored them.
"""

from __future__ import annotations

import re

# C0, DEL and C1 (an 8-bit terminal reads U+009B as ESC [), lone surrogates, line separators, and characters without
# width or that reorder text: a name must not look like another one.
_UNSAFE = re.compile(
    "[\x00-\x1f\x7f-\x9f\u00ad\u061c\u180e\u200b-\u200f\u2028-\u202e\u2060-\u206f\ufeff\ufff9-\ufffb"
    "\ud800-\udfff\U000e0000-\U000e007f]"
)


def plain(text: object) -> str:
    r"""The text with each unsafe character as an escape, such as `\x1b`."""
    line = str(text)
    if line.isascii() and line.isprintable():  # nearly all texts, in half the time
        return line
    return _UNSAFE.sub(lambda found: visible(found[0]), line)


def plain_line(text: object) -> str:
    """Return the text in one line: whitespace runs become one space, the rest as in `plain`."""
    return plain(" ".join(str(text).split()))


def visible(characters: str) -> str:
    return characters.encode("unicode_escape").decode("ascii")
