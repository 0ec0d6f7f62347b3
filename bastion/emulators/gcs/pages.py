"""Pages of a listing: bounds, folding, tokens. `bastion.folder_format.listing` walks the folder."""

from __future__ import annotations

import base64
import binascii
from collections.abc import Callable
from dataclasses import dataclass
from os import stat_result

from bastion.emulators.gcs.globs import Glob, compiled
from bastion.emulators.gcs.resources import InvalidRequest, ObjectResource, Page
from bastion.folder_format import listing
from bastion.folder_format.listing import Fold

# A page ends after this many bytes were read for checksums, so that clients do not wait long.
_READ_MAX_BYTES = 1 << 30
_LAST_CHARACTER = "\U0010ffff"
_AFTER_NAME = "n"
_AFTER_PREFIX = "p"


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """The parameters of a listing; see `Bucket.list`."""

    prefix: str
    delimiter: str
    start_offset: str
    end_offset: str
    page_token: str
    page_size: int
    include_trailing_delimiter: bool
    match_glob: str


# The resource of a listed object, and the bytes that were read for it; None: it was deleted.
Look = Callable[[str, stat_result], tuple[ObjectResource, int] | None]


def page(root: str, wanted: Wanted, look: Look) -> Page:
    """Return one page of the folder `root`; `look` looks up an object. Raises InvalidRequest."""
    marker, last = _decoded(wanted.page_token)
    passed_prefix = last if marker == _AFTER_PREFIX else ""
    start_after = max(_just_before(wanted.start_offset), last + _LAST_CHARACTER if passed_prefix else last)
    glob = compiled(wanted.match_glob) if wanted.match_glob else None
    items: list[ObjectResource] = []
    prefixes: list[str] = []
    token = ""
    bytes_read = 0
    for entry in listing.entries(root, wanted.prefix, start_after, wanted.end_offset, wanted.delimiter):
        if passed_prefix and entry.key.startswith(passed_prefix):
            continue
        folded = isinstance(entry, Fold)
        if isinstance(entry, Fold):
            found = entry.own if wanted.include_trailing_delimiter else None
        elif entry.key < wanted.start_offset:
            continue
        else:
            found = entry
        if glob is not None and not _matches(glob, entry.key, wanted.delimiter if folded else ""):
            continue
        count = len(items) + len(prefixes)
        needed = folded + (found is not None)
        if count and (count + needed > wanted.page_size or bytes_read >= _READ_MAX_BYTES):
            return Page(items=tuple(items), prefixes=tuple(prefixes), next_page_token=token)
        if found is not None:
            listed = look(found.key, found.status)
            if listed is not None:
                items.append(listed[0])
                bytes_read += listed[1]
        if folded:
            prefixes.append(entry.key)
        token = _encoded(_AFTER_PREFIX if folded else _AFTER_NAME, entry.key)
    return Page(items=tuple(items), prefixes=tuple(prefixes))


def _matches(glob: Glob, key: str, delimiter: str) -> bool:
    """Whether a name or folded prefix matches, with or without its final delimiter."""
    return bool(glob.fullmatch(key) or (delimiter and glob.fullmatch(key.removesuffix(delimiter))))


def _just_before(name: str) -> str:
    """A text just below a name, with almost no possible name between the two."""
    if not name:
        return ""
    head, last = name[:-1], name[-1]
    # No name contains a NUL, so a name that is not less than `a\0` is greater than `a`.
    return head if last == "\0" else head + chr(ord(last) - 1) + _LAST_CHARACTER


def _encoded(marker: str, name: str) -> str:
    return base64.urlsafe_b64encode((marker + name).encode()).decode()


def _decoded(token: str) -> tuple[str, str]:
    """Where a page ended, and at what type of entry. Raises InvalidRequest for a foreign token."""
    if not token:
        return "", ""
    try:
        text = base64.b64decode(token.encode(), altchars=b"-_", validate=True).decode()
    except (binascii.Error, UnicodeError, ValueError):
        text = ""
    if text[:1] not in (_AFTER_NAME, _AFTER_PREFIX) or len(text) < 2:
        raise InvalidRequest(f"Invalid page token: {token[:80]!r}")
    return text[0], text[1:]
