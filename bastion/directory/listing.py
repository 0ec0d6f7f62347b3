"""Listing a folder as a bucket: every object under a prefix, in the order of the keys' UTF-8 bytes.

Layer: directory.

A folder `a` sorts as `a/`, so that `a.b` comes before `a/b` and after `a`. Only folders that can hold a wanted key are
read. What cannot be an object is left out: links, special files, names that are not UTF-8 or hold CR or LF, and our
own hidden folder. Nothing stays open between two objects.
"""

from __future__ import annotations

import heapq
import logging
import os
from collections.abc import Iterator
from operator import attrgetter, itemgetter

from bastion.core import limits
from bastion.core.objects import ObjectMeta, can_begin_key
from bastion.directory import files
from bastion.directory.keys import HIDDEN_FOLDER, KEY_SUFFIX, hidden_name, natural_path

_log = logging.getLogger(__name__)
_KEY_FILE_MAX_BYTES = limits.OBJECT_KEY_MAX_BYTES


def natural_objects(root: str, prefix: str, start_after: str, end_before: str) -> Iterator[ObjectMeta]:
    """Objects that lie at their natural paths below the folder `root`.

    Raises:
        OSError: the folder that the prefix names cannot be read. Folders below it that cannot be read are left out
            with a warning: one stranger's folder must not hide everybody's objects.
    """
    base = prefix[: prefix.rfind("/") + 1]
    if base and natural_path(base[:-1]) is None:
        return
    # What is still to be given out, the next on top: objects, and folders (as key prefixes) not yet read.
    pending: list[ObjectMeta | str] = [base]
    while pending:
        item = pending.pop()
        if isinstance(item, ObjectMeta):
            yield item
            continue
        try:
            found = _read_folder(root, item, prefix, start_after, end_before)
        except PermissionError:
            if item == base:
                raise
            _log.warning("the folder %s/%s cannot be read: its objects are not listed", root, item)
            continue
        pending.extend(reversed(found))


def _read_folder(root: str, base: str, prefix: str, start_after: str, end_before: str) -> list[ObjectMeta | str]:
    """One folder's wanted objects and subfolders, in key order; nothing if it is gone.

    Args:
        root: The bucket's folder.
        base: The folder's key prefix: empty or ending in `/`.
        prefix: Of the wanted keys.
        start_after: Wanted keys are greater.
        end_before: Wanted keys are less, unless it is empty.
    """
    wanted = prefix[len(base) :]
    rows: list[tuple[str, ObjectMeta | str]] = []
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
                if not can_begin_key(key) or key == HIDDEN_FOLDER or (end_before and key >= end_before):
                    continue
                if entry.is_dir(follow_symlinks=False):
                    key += "/"
                    # Either every key in there is greater, or the start lies in there.
                    if (key > start_after or start_after.startswith(key)) and not (end_before and key >= end_before):
                        rows.append((name + "/", key))
                elif key > start_after and key.startswith(prefix) and entry.is_file(follow_symlinks=False):
                    status = files.status_of(folder, name)
                    if status is not None:
                        rows.append((name, files.meta_of(key, status)))
    finally:
        os.close(folder)
    rows.sort(key=itemgetter(0))
    return [row[1] for row in rows]


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


def hidden_objects(root: str, prefix: str, start_after: str, end_before: str) -> list[ObjectMeta]:
    """Objects whose keys cannot be files, in key order; reads the key of each, so they had better be few."""
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
                found.append(files.meta_of(key, status))
    finally:
        os.close(folder)
    return sorted(found, key=attrgetter("key"))


def _stored_key(folder: int, name: str) -> str | None:
    """The key that a hidden object has; None if the file is not one of ours."""
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


def objects(root: str, prefix: str, start_after: str, end_before: str) -> Iterator[ObjectMeta]:
    """All objects under a prefix; where a key has a natural file and a hidden one, the natural one counts."""
    if not can_begin_key(prefix):
        return
    hidden = hidden_objects(root, prefix, start_after, end_before)
    natural = natural_objects(root, prefix, start_after, end_before)
    if not hidden:
        yield from natural
        return
    last = ""
    for meta in heapq.merge(natural, hidden, key=attrgetter("key")):
        if meta.key != last:
            yield meta
        last = meta.key
