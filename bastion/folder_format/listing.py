"""List a folder as a bucket: all objects under a prefix, in the order of the keys' UTF-8 bytes.

A folder `a` sorts as `a/`: `a.b` comes before `a/b` and after `a`. Reads only folders that can hold a wanted key, and
statuses lazily. Skips links, special files, names that are not UTF-8 or contain CR or LF, and our hidden folder.
Nothing stays open between two objects.
"""

from __future__ import annotations

import heapq
import logging
import os
from collections.abc import Iterator
from operator import itemgetter
from typing import NamedTuple

from bastion.core import limits
from bastion.core.bucket.objects import ObjectMeta, can_begin_key
from bastion.core.errors import StoreError
from bastion.folder_format import files
from bastion.folder_format.keys import HIDDEN_FOLDER, KEY_SUFFIX, hidden_name, natural_path

_log = logging.getLogger(__name__)
_KEY_FILE_MAX_BYTES = limits.OBJECT_KEY_MAX_BYTES
# Statuses read at once: few enough that a page of a large folder costs about a page.
_BATCH = 128


class Found(NamedTuple):
    """An object: its key, and the status of its file."""

    key: str
    status: os.stat_result


class Fold(NamedTuple):
    """All wanted objects whose keys begin with `key`, which ends with the delimiter."""

    key: str
    own: Found | None  # the object with exactly that key, if wanted


class _Files(NamedTuple):
    """File names in the folder with that key prefix, in key order, not yet examined."""

    base: str
    names: list[str]


def natural_entries(
    root: str, prefix: str, start_after: str, end_before: str, delimiter: str = "", *, whole: bool = False
) -> Iterator[Found | Fold]:
    """Yield objects at their natural paths below `root`, folded at the delimiter.

    Raises OSError if the prefix's folder cannot be read. Unreadable folders below it are skipped with a warning, or
    raise AccessDenied if the listing must be `whole`, as then do names that no key can have (StoreError).
    """
    base = prefix[: prefix.rfind("/") + 1]
    if base and natural_path(base[:-1]) is None:
        return
    folded = ""
    # A stack of what is still to be listed: files, and unread folders (as key prefixes).
    pending: list[_Files | str] = [base]
    while pending:
        item = pending.pop()
        if isinstance(item, _Files):
            for found in _statuses(root, item, prefix, folded, delimiter):
                yield found
                if isinstance(found, Fold):
                    folded = found.key
            continue
        fold = _fold_of(item, prefix, delimiter)
        if fold:
            # One object proves the fold.
            if fold != folded and any(natural_entries(root, item, start_after, end_before)):
                folded = fold
                yield Fold(fold, None)
            continue
        try:
            pending.extend(reversed(_read_folder(root, item, prefix, start_after, end_before, whole=whole)))
        except PermissionError as error:
            if item == base:
                raise
            if whole:
                needs = "read and search permission on that folder"
                raise files.explain(error, doing="listing", path=f"{root}/{item}", needs=needs) from error
            _log.warning("the folder %s/%s cannot be read: its objects are not listed", root, item)


def _fold_of(key: str, prefix: str, delimiter: str) -> str:
    """Return the fold of a key; empty if the key itself is listed."""
    if not delimiter:
        return ""
    position = key.find(delimiter, len(prefix))
    return "" if position < 0 else key[: position + len(delimiter)]


def _statuses(root: str, item: _Files, prefix: str, folded: str, delimiter: str) -> list[Found | Fold]:
    """Return the existing files as entries, without the fold that was already listed."""
    folder = _open_for_reading(root, item.base)
    if folder is None:
        return []
    entries: list[Found | Fold] = []
    try:
        for name in item.names:
            key = item.base + name
            fold = _fold_of(key, prefix, delimiter)
            if fold and fold == folded:
                continue
            status = files.status_of(folder, name)
            if status is None:
                continue
            found = Found(key, status)
            if fold:
                folded = fold
                entries.append(Fold(fold, found if key == fold else None))
            else:
                entries.append(found)
    finally:
        os.close(folder)
    return entries


def _read_folder(
    root: str, base: str, prefix: str, start_after: str, end_before: str, *, whole: bool = False
) -> list[_Files | str]:
    """Return one folder's wanted files and subfolders, in key order; empty if it is gone.

    Raises StoreError for the name of one that no key can have, if the listing must be `whole`.

    `base` is the folder's key prefix: empty or ending in `/`. The bounds are exclusive; `end_before` may be empty.
    """
    wanted = prefix[len(base) :]
    rows: list[str] = []
    folder = _open_for_reading(root, base)
    if folder is None:
        return []
    try:
        with os.scandir(folder) as entries:
            for entry in entries:
                name = entry.name
                if not name.startswith(wanted):
                    continue
                key = base + name
                if whole and not can_begin_key(key) and not entry.is_symlink():
                    raise StoreError(f"{root}/{base} has the name {name!r}, which no object can have; rename it")
                if not can_begin_key(key) or key == HIDDEN_FOLDER or (end_before and key >= end_before):
                    continue
                if entry.is_dir(follow_symlinks=False):
                    key += "/"
                    # Every key in there is greater, or the start is in there.
                    if (key > start_after or start_after.startswith(key)) and not (end_before and key >= end_before):
                        rows.append(name + "/")
                elif key > start_after and key.startswith(prefix) and entry.is_file(follow_symlinks=False):
                    rows.append(name)
    finally:
        os.close(folder)
    rows.sort()
    return _batches(base, rows)


def _batches(base: str, rows: list[str]) -> list[_Files | str]:
    """Group sorted names (folders end in `/`) into folders and batches of files."""
    batches: list[_Files | str] = []
    names: list[str] = []
    for row in rows:
        if row[-1] == "/":
            names = []
            batches.append(base + row)
            continue
        if not names or len(names) == _BATCH:
            names = []
            batches.append(_Files(base, names))
        names.append(row)
    return batches


def _open_for_reading(root: str, base: str) -> int | None:
    top = os.open(root, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    if not base:
        return top
    try:
        folder = files.open_folder(top, base[:-1].split("/"))
    except OSError as error:
        if error.errno in files.ABSENT:
            return None
        raise
    finally:
        os.close(top)
    try:
        return files.open_listing(folder)
    finally:
        os.close(folder)


def hidden_entries(root: str, prefix: str, start_after: str, end_before: str) -> list[Found]:
    """Return objects whose keys cannot be files, in key order; reads the key of each."""
    found = []
    folder = _open_for_reading(root, HIDDEN_FOLDER + "/")
    if folder is None:
        return []
    try:
        with os.scandir(folder) as entries:
            names = [entry.name for entry in entries]
        for name in names:
            if not name.endswith(KEY_SUFFIX):
                continue
            key = _stored_key(folder, name)
            if key is None or not key.startswith(prefix) or key <= start_after or (end_before and key >= end_before):
                continue
            status = files.status_of(folder, name.removesuffix(KEY_SUFFIX))
            if status is not None:
                found.append(Found(key, status))
    finally:
        os.close(folder)
    return sorted(found, key=itemgetter(0))


def _stored_key(folder: int, name: str) -> str | None:
    """Return the key of a hidden object; None if the file is not ours."""
    try:
        file = os.open(name, os.O_RDONLY | files.FILE, dir_fd=folder)
    except OSError:
        return None
    try:
        data = os.read(file, _KEY_FILE_MAX_BYTES + 1)
    except OSError:
        return None
    finally:
        os.close(file)
    try:
        key = data.decode()
    except UnicodeDecodeError:
        return None
    return key if hidden_name(key) == name.removesuffix(KEY_SUFFIX) else None


def entries(
    root: str, prefix: str, start_after: str, end_before: str, delimiter: str = "", *, whole: bool = False
) -> Iterator[Found | Fold]:
    """Yield all objects under a prefix; a natural file takes precedence over a hidden one.

    The bounds are exclusive; `end_before` may be empty. Keys that contain the delimiter after the prefix become one
    `Fold` each, without reading folders. `whole`: as in `natural_entries`.
    """
    if not can_begin_key(prefix):
        return
    hidden = hidden_entries(root, prefix, start_after, end_before)
    natural = natural_entries(root, prefix, start_after, end_before, delimiter, whole=whole)
    if not hidden:
        yield from natural
        return
    last: Found | Fold | None = None
    for entry in heapq.merge(natural, _folded(hidden, prefix, delimiter), key=itemgetter(0)):
        if last is not None and entry.key == last.key:
            if isinstance(last, Fold) and isinstance(entry, Fold):
                last = Fold(last.key, last.own or entry.own)
            continue
        if last is not None:
            yield last
        last = entry
    if last is not None:
        yield last


def _folded(found: list[Found], prefix: str, delimiter: str) -> Iterator[Found | Fold]:
    for item in found:
        fold = _fold_of(item.key, prefix, delimiter)
        yield Fold(fold, item if item.key == fold else None) if fold else item


def objects(
    root: str, prefix: str, start_after: str, end_before: str, *, whole: bool = False, proved_below: str = ""
) -> Iterator[ObjectMeta]:
    """Yield the metadata of all objects, without folding.

    `whole`: as in `natural_entries`. `proved_below`: as in `files.meta_of`.
    """
    for entry in entries(root, prefix, start_after, end_before, whole=whole):
        if isinstance(entry, Found):
            yield files.meta_of(entry.key, entry.status, proved_below)
