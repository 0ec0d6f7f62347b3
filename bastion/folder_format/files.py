"""Files as objects: folders opened without following links, generations from times, consistent reads.

A file's generation is computed from its status alone, so that `cp`, `cp -p`, `mv` or an editor changes it:

* the upper bits, the *stamp*, are the later of its mtime and ctime in units of 1024 ns. `cp -p` and `touch` can set the
  first but not the second; our writers set the first, so that it increases even if the clock does not;
* the lower ten bits mix everything else that changes with the content: inode, size and both times. Older kernels update
  a file's times every few milliseconds only, so `cp` can truncate and fill a file within one step.
"""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Sequence

from bastion.core.bucket.objects import FileFacts, ObjectMeta
from bastion.core.errors import AccessDenied, StoreError, StoreFull, StoreUnavailable

STAMP_BITS = 10
# An mtime beyond the year 2116 is a mistake or an attack: counting on from it would overflow.
_TIME_HORIZON_NS = 1 << 62

# Search permission suffices to open what is below; systems without such a flag need read permission.
_FOLDER = getattr(os, "O_PATH", os.O_RDONLY) | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
# Never blocks (on a fifo), never follows a link.
FILE = os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC

# Errors for a name that is absent, or impossible here.
BARRED = frozenset({errno.ENOTDIR, errno.ELOOP, errno.EISDIR, errno.ENAMETOOLONG, errno.EINVAL, errno.EILSEQ})
ABSENT = BARRED | {errno.ENOENT}

# Modes before the umask: others get no access, because specs hold environments, and orders and claims hold run tokens.
# A team shares a bucket's folder by its group.
FILE_MODE = 0o660
FOLDER_MODE = 0o770
# A file that proves who wrote it: nobody else may change it.
PROOF_MODE = 0o640
_GROUP_AND_OTHERS_WRITE = 0o022

# Looks at a file that is constantly replaced, before the store counts as unavailable.
_LOOKS = 100


def stamp(generation: int) -> int:
    """Return the time part of a generation, in units of 1024 ns since the epoch."""
    return generation >> STAMP_BITS


def stamp_of(status: os.stat_result) -> int:
    return stamp(generation_of(status))


def stamp_time_ns(value: int) -> int:
    """Return the mtime for a stamp, also on a file system that rounds down to microseconds."""
    return (value << STAMP_BITS) | ((1 << STAMP_BITS) - 1)


def next_stamp(now_ns: int, mark: int, generation: int) -> int:
    """Return the stamp of a new file: above those of the replaced object and of all earlier objects of its key.

    Args:
        now_ns: The preferred value, nanoseconds since the epoch.
        mark: The highest stamp ever given to the key (`lock.HighWaterMark`).
        generation: Of the replaced object; 0: none.
    """
    return max(stamp(now_ns), stamp(generation) + 1, mark + 1)


def set_stamp(file: int, value: int, *, path: str) -> os.stat_result:
    """Set an open file's stamp and return its status; raises StoreError if the file system cannot store it."""
    time_ns = stamp_time_ns(value)
    os.utime(file, ns=(time_ns, time_ns))
    status = os.fstat(file)
    if stamp_of(status) < value:
        raise StoreError(
            f"the file system of {path} does not store file times to the microsecond, or has times after 2116; "
            "use a folder on another file system"
        )
    return status


def generation_of(status: os.stat_result) -> int:
    """Return the generation of the file with that status; see the module's docstring."""
    modified, changed = status.st_mtime_ns, status.st_ctime_ns
    latest = modified if changed < modified < _TIME_HORIZON_NS else changed
    mixture = (
        status.st_size * 0x9E3779B97F4A7C15
        ^ status.st_ino * 0xC2B2AE3D27D4EB4F
        ^ modified * 0x165667B19E3779F9
        ^ changed
    )
    return (latest >> STAMP_BITS << STAMP_BITS) | ((mixture ^ (mixture >> 23) ^ (mixture >> 47)) & 0x3FF)


def meta_of(key: str, status: os.stat_result, proved_below: str = "") -> ObjectMeta:
    """Return an object's metadata. `updated` is the ctime, which nobody can set.

    `proved_below`: keys with this prefix get the facts that prove who wrote the file; empty: none do.
    """
    facts = None
    if proved_below and key.startswith(proved_below):
        facts = FileFacts(uid=status.st_uid, mode=stat.S_IMODE(status.st_mode), links=status.st_nlink)
    return ObjectMeta(
        key=key,
        size=status.st_size,
        generation=generation_of(status),
        updated=status.st_ctime_ns / 1_000_000_000,
        file=facts,
    )


def open_folder(parent: int, names: Sequence[str], *, create: bool = False, sync: bool = False) -> int:
    """Open the folder `names` below an open folder without following links; the caller closes it.

    `names` may be empty: the parent itself. `create` makes missing folders, and `sync` makes them durable. Raises
    OSError: one of `ABSENT` if missing; with `create`, ENOENT if someone removed it meanwhile.
    """
    if not names:
        return os.dup(parent)
    folder = parent
    for name in names:
        above = folder
        try:
            try:
                folder = os.open(name, _FOLDER, dir_fd=above)
            except FileNotFoundError:
                if not create:
                    raise
                _make_folder(above, name, sync=sync)
                folder = os.open(name, _FOLDER, dir_fd=above)
        finally:
            if above != parent:
                os.close(above)
    return folder


def _make_folder(above: int, name: str, *, sync: bool) -> None:
    # The umask alone must not decide: an administrator's may be the team's.
    mode = FOLDER_MODE if os.fstat(above).st_mode & stat.S_IWGRP else FOLDER_MODE & ~_GROUP_AND_OTHERS_WRITE
    try:
        os.mkdir(name, mode, dir_fd=above)
    except FileExistsError:
        return
    if sync:
        sync_folder(above)


def close_to_others(path: str) -> None:
    """Remove other users' permissions from a folder of this user; leave another user's folder alone.

    Files keep their modes, because a change of mode changes their generation; they are unreachable anyway.
    """
    folder = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        status = os.fstat(folder)
        if status.st_uid == os.geteuid() and status.st_mode & 0o007:
            os.fchmod(folder, stat.S_IMODE(status.st_mode) & ~0o007)
    finally:
        os.close(folder)


def open_listing(folder: int) -> int:
    """Reopen a folder for listing or fsync; the caller closes it."""
    return os.open(".", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC, dir_fd=folder)


def sync_folder(folder: int) -> None:
    """Make creations, renames and removals in a folder durable."""
    readable = open_listing(folder)
    try:
        os.fsync(readable)
    finally:
        os.close(readable)


def status_of(folder: int, name: str) -> os.stat_result | None:
    """Return the status of a regular file; None if there is none of that name.

    A replaced file gets a new ctime just before it loses its name. The kernel reads a status in pieces, so one look may
    show both the new time and the name; a second one cannot. Raises StoreUnavailable if it changed at each look.
    """
    seen = 0
    for _ in range(_LOOKS):
        try:
            status = os.stat(name, dir_fd=folder, follow_symlinks=False)
        except OSError as error:
            if error.errno in ABSENT:
                return None
            raise
        if not stat.S_ISREG(status.st_mode):
            return None
        generation = generation_of(status)
        if status.st_nlink and generation == seen:
            return status
        seen = generation
    raise StoreUnavailable(f"the file {name!r} keeps changing; try again")


def read_file(folder: int, name: str, status: os.stat_result, start: int, end: int) -> bytes | None:
    """Return the bytes from `start` to `end` of the file that `status_of` has just found; None if it changed since."""
    try:
        file = os.open(name, os.O_RDONLY | FILE, dir_fd=folder)
    except OSError as error:
        if error.errno in ABSENT:
            return None
        raise
    try:
        data = _read_range(file, start, end)
        after = os.fstat(file)
    except IsADirectoryError:  # the file has gone, and an object below its name came
        return None
    finally:
        os.close(file)
    if generation_of(after) == generation_of(status) or (not after.st_nlink and is_same_content(after, status)):
        return data
    return None


def is_same_content(after: os.stat_result, before: os.stat_result) -> bool:
    """Whether only the name was removed, which changes the ctime but not the bytes."""
    return (after.st_ino, after.st_size, after.st_mtime_ns) == (before.st_ino, before.st_size, before.st_mtime_ns)


def _read_range(file: int, start: int, end: int) -> bytes:
    pieces = []
    while start < end:
        piece = os.pread(file, end - start, start)
        if not piece:
            break
        pieces.append(piece)
        start += len(piece)
    return pieces[0] if len(pieces) == 1 else b"".join(pieces)


def write_all(file: int, data: bytes) -> None:
    """Write all bytes; a single system call unless it is partial."""
    rest = memoryview(data)
    while rest:
        rest = rest[os.write(file, rest) :]


def append_all(file: int, data: bytes, size: int) -> None:
    """Append all bytes to a file of `size` bytes, or none and raise OSError."""
    try:
        write_all(file, data)
    except OSError:
        # No space. Truncate our part, unless someone has appended since.
        if os.fstat(file).st_size <= size + len(data):
            os.ftruncate(file, size)
        raise


def explain(error: OSError, *, doing: str, path: str, needs: str) -> StoreError:
    """Return the error of our tree for an OSError.

    Args:
        doing: A verb in its `-ing` form.
        path: Of the file or folder, as the user knows it.
        needs: The required permissions.
    """
    said = os.strerror(error.errno) if error.errno else str(error)
    what = f"{doing} {path} failed: {said}"
    match error.errno:
        case errno.EACCES | errno.EPERM | errno.EROFS:
            return AccessDenied(f"{what}; it needs {needs}")
        case errno.ENOSPC | errno.EDQUOT:
            return StoreFull(f"{what}; free some space (or raise the quota) on its file system, then try again")
        case errno.EIO | errno.ESTALE:
            return StoreUnavailable(f"{what}; check the disk or remount the file system, then try again")
        case errno.EMFILE | errno.ENFILE:
            return StoreUnavailable(f"{what}; raise the limit of open files (ulimit -n), then try again")
        case errno.EXDEV:
            return StoreError(f"{what}; another file system is mounted inside the bucket's folder: unmount it")
    return StoreUnavailable(f"{what}; try again")
