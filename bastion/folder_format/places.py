"""The one or two possible places of an object in a folder: find, fill and empty them. Writers hold the key's lock.

A key's place does not change during its object's life. A reader that finds first the natural and then the hidden place
empty has therefore seen a moment without the object.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import stat
from collections.abc import Collection, Iterator
from dataclasses import dataclass

from bastion.core.errors import StoreUnavailable
from bastion.folder_format import files
from bastion.folder_format.keys import HIDDEN_FOLDER, KEY_SUFFIX, hidden_name, natural_path

TEMPORARY_FOLDER = "tmp"
# An empty folder that we created may be removed before we use it.
_TRIES = 100


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """The place of an object; entering it closes `folder` at the end."""

    folder: int  # open until the `with` block ends
    name: str  # file name in `folder`
    natural: bool  # whether it is the key's own path
    status: os.stat_result  # of the file when it was found

    @property
    def generation(self) -> int:
        return files.generation_of(self.status)

    def __enter__(self) -> Place:
        return self

    def __exit__(self, *_: object) -> None:
        os.close(self.folder)


@dataclass(frozen=True, slots=True, kw_only=True)
class Temporary:
    """A complete file without a place: `name` in the open folder `folder`, open as `file`."""

    folder: int
    name: str
    file: int

    def discard(self) -> None:
        """Close it, and remove it unless it was moved."""
        try:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(self.name, dir_fd=self.folder)
        finally:
            os.close(self.file)
            os.close(self.folder)


def find(root: int, key: str) -> Place | None:
    """Return the object's place, if it exists."""
    names = natural_path(key)
    found = None if names is None else _look(root, names[:-1], names[-1], natural=True)
    return found or _look(root, [HIDDEN_FOLDER], hidden_name(key), natural=False)


def _look(root: int, folders: list[str], name: str, *, natural: bool) -> Place | None:
    try:
        folder = files.open_folder(root, folders)
    except OSError as error:
        if error.errno in files.ABSENT:
            return None
        raise
    status = None
    try:
        status = files.status_of(folder, name)
    finally:
        if status is None:
            os.close(folder)
    return None if status is None else Place(folder=folder, name=name, natural=natural, status=status)


def new_temporary(objects: int) -> Temporary:
    """Make an empty file in the hidden folder `objects`; the caller always discards it.

    With inboxes that folder is sticky, and the group may write no file, whatever the writer's umask. This holds from
    the beginning: who has it open for writing could still change it in its place.
    """
    folder = files.open_folder(objects, [TEMPORARY_FOLDER], create=True)
    name = f"{os.getpid()}-{secrets.token_hex(8)}"
    try:
        mode = files.PROOF_MODE if os.fstat(folder).st_mode & stat.S_ISVTX else files.FILE_MODE
        file = os.open(name, os.O_RDWR | os.O_CREAT | os.O_EXCL | files.FILE, mode, dir_fd=folder)
    except BaseException:
        os.close(folder)
        raise
    return Temporary(folder=folder, name=name, file=file)


@contextlib.contextmanager
def temporary(objects: int, data: bytes, *, sync: bool) -> Iterator[Temporary]:
    """Make a file with these bytes in the hidden folder; removed at the end unless moved."""
    content = new_temporary(objects)
    try:
        files.write_all(content.file, data)
        if sync:
            os.fsync(content.file)
        yield content
    finally:
        content.discard()


def fill(root: int, objects: int, key: str, content: Temporary, present: Place | None, *, sync: bool) -> None:
    """Move a complete file to a key's place; `present` is the current place, if there is an object.

    `root` and the hidden folder `objects` are open. With `sync` the new name survives a power cut.
    """
    if present is not None and present.natural and _replace(content, present, sync=sync):
        _empty_hidden(objects, key)
        return
    stays_hidden = present is not None and not present.natural
    if stays_hidden or not _fill_natural(root, key, content, sync=sync):
        _fill_hidden(objects, key, content, sync=sync)
    elif present is not None:
        # A hidden object from before someone copied a file to the natural path.
        _empty_hidden(objects, key)


def _replace(content: Temporary, present: Place, *, sync: bool) -> bool:
    """Replace the current file; return False if its folder is gone, or something else has its name."""
    try:
        _move(content, present.folder, present.name, sync=sync)
    except OSError as error:
        if error.errno in files.ABSENT:
            return False
        raise
    return True


def _fill_natural(root: int, key: str, content: Temporary, *, sync: bool) -> bool:
    """Fill the natural place; return False if it is blocked."""
    names = natural_path(key)
    if names is None:
        return False
    for _ in range(_TRIES):
        try:
            folder = files.open_folder(root, names[:-1], create=True, sync=sync)
            try:
                if _is_barred(folder, names[-1]):
                    return False
                _move(content, folder, names[-1], sync=sync)
            finally:
                os.close(folder)
        except FileNotFoundError:
            continue
        except OSError as error:
            if error.errno in files.BARRED:
                return False
            raise
        return True
    raise StoreUnavailable(f"the folder of {key!r} was removed {_TRIES} times while we wrote into it; try again")


def _is_barred(folder: int, name: str) -> bool:
    """Whether something other than a file blocks the name; it is not ours to replace."""
    try:
        status = os.stat(name, dir_fd=folder, follow_symlinks=False)
    except FileNotFoundError:
        return False
    return not stat.S_ISREG(status.st_mode)


def _fill_hidden(objects: int, key: str, content: Temporary, *, sync: bool) -> None:
    name = hidden_name(key)
    # The key first: listings need it to identify the object.
    if files.status_of(objects, name + KEY_SUFFIX) is None:
        with temporary(objects, key.encode(), sync=sync) as key_content:
            _move(key_content, objects, name + KEY_SUFFIX, sync=False)
    _move(content, objects, name, sync=sync)


def _move(content: Temporary, folder: int, name: str, *, sync: bool) -> None:
    os.rename(content.name, name, src_dir_fd=content.folder, dst_dir_fd=folder)
    if sync:
        files.sync_folder(folder)


def _empty_hidden(objects: int, key: str) -> None:
    """Remove the hidden object of a key, if any."""
    name = hidden_name(key)
    for file in (name, name + KEY_SUFFIX):
        with contextlib.suppress(FileNotFoundError):
            os.unlink(file, dir_fd=objects)


def empty(objects: int, key: str, place: Place, *, sync: bool) -> None:
    """Remove the object from all its places."""
    # The hidden one first: otherwise a crash in between could reveal an old one.
    _empty_hidden(objects, key)
    if place.natural:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(place.name, dir_fd=place.folder)
    if sync:
        files.sync_folder(place.folder)


def remove_empty_folders(root: int, key: str, *, kept: Collection[str] = ()) -> None:
    """Remove a key's empty folders from the inside out, except kept ones."""
    names = natural_path(key) or []
    for depth in range(len(names) - 2, -1, -1):
        if "/".join(names[: depth + 1]) in kept:
            return
        try:
            above = files.open_folder(root, names[:depth])
        except OSError:
            return
        try:
            os.rmdir(names[depth], dir_fd=above)
        except OSError:
            # Not empty, already gone, or not ours; an empty folder is harmless.
            return
        finally:
            os.close(above)


def remove_orphans(objects: int, *, before_ns: int, name: str = TEMPORARY_FOLDER) -> None:
    """Remove temporary files in the folder `name` not changed since `before_ns`: their writers are dead."""
    try:
        folder = files.open_folder(objects, [name])
    except OSError:
        return
    try:
        listing = files.open_listing(folder)
        try:
            with os.scandir(listing) as entries:
                names = [entry.name for entry in entries]
        finally:
            os.close(listing)
        for orphan in names:
            status = files.status_of(folder, orphan)
            if status is not None and status.st_ctime_ns < before_ns:
                with contextlib.suppress(FileNotFoundError):
                    os.unlink(orphan, dir_fd=folder)
    finally:
        os.close(folder)
