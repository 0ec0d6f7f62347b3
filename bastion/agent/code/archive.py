"""Unpack an untrusted tar file: nothing escapes its folder, and nothing fills the disk.

Parses the format itself: older supported Pythons lack tarfile's safety filters, and no version bounds memory.

Invariants:
* Creates only files, folders and links below the folder, with read, write and execute permissions only.
* Never writes through a link: links are made last, and a link that leads out of the folder is refused.
* Memory, disk bytes and number of entries are bounded, whatever the headers say.
"""

from __future__ import annotations

import errno
import gzip
import io
import os
import re
import tarfile
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from bastion.agent.download import Cancelled
from bastion.core import limits
from bastion.core.bucket import bundles

_BLOCK = 512
_CHUNK_BYTES = 1024 * 1024
# A path, a link target and other header data.
_HEADER_MAX_BYTES = 1024 * 1024
# Header blocks of one entry.
_HEADER_BLOCKS = 8
_FILES = (tarfile.REGTYPE, tarfile.AREGTYPE, tarfile.CONTTYPE)
# Errors of a name, not of the file system.
_NAME_ERRORS = (errno.ENAMETOOLONG, errno.EILSEQ, errno.EINVAL, errno.EEXIST)


class BadArchive(Exception):
    """The file is not a tar file, or holds something that must not be unpacked."""


@dataclass(slots=True)
class _Extended:
    """Extended headers that precede an entry."""

    path: str = ""
    target: str = ""
    size: int | None = None


class _Stream:
    """The archive's bytes, decompressed, forwards only and bounded."""

    def __init__(self, data: bytes) -> None:
        raw = io.BytesIO(data)
        if data[:4] == b"PK\x03\x04":
            raise BadArchive("it is a zip file; use a tar file, plain or compressed with gzip")
        self._file: IO[bytes] | gzip.GzipFile = gzip.GzipFile(fileobj=raw) if data[:2] == b"\x1f\x8b" else raw
        self._left = limits.BUNDLE_UNPACKED_MAX_BYTES + limits.BUNDLE_ENTRIES_MAX * _HEADER_BLOCKS * _BLOCK

    def read(self, size: int) -> bytes:
        """Read exactly `size` bytes; fewer only at the end."""
        try:
            data = self._file.read(size)
        except (OSError, EOFError, zlib.error) as error:
            raise BadArchive(f"decompression failed: {error}") from error
        self._left -= len(data)
        if self._left < 0:
            raise BadArchive(f"it unpacks to more than {limits.BUNDLE_UNPACKED_MAX_BYTES} bytes")
        return data

    def exactly(self, size: int) -> bytes:
        data = self.read(size)
        if len(data) != size:
            raise BadArchive("it is truncated")
        return data

    def content(self, size: int) -> Iterator[bytes]:
        """Yield an entry's content in pieces, and skip the padding of its last block."""
        left = size
        while left:
            piece = self.exactly(min(left, _CHUNK_BYTES))
            left -= len(piece)
            yield piece
        self.exactly(-size % _BLOCK)


def unpack(data: bytes, folder: Path, *, is_cancelled: Callable[[], bool] = lambda: False) -> int:
    """Unpack a tar file, plain or gzip, into a folder that it creates; return the number of files.

    Raises:
        BadArchive: The data is not a tar file, or holds something forbidden. The caller removes the folder.
        Cancelled: `is_cancelled` returned true.
        OSError: A disk error.
    """
    folder.mkdir()
    return _Unpacking(folder, is_cancelled).run(_Stream(data))


class _Unpacking:
    def __init__(self, folder: Path, is_cancelled: Callable[[], bool]) -> None:
        self._folder = folder
        self._is_cancelled = is_cancelled
        # The type of each path: "folder", "file" or "link".
        self._types: dict[str, str] = {"": "folder"}
        self._links: dict[str, str] = {}
        self._written = 0

    def run(self, stream: _Stream) -> int:
        for header, extended in _headers(stream):
            path = extended.path or header.name
            try:
                self._entry(bundles.check_path(path), header, extended, stream)
            except bundles.UnsafePath as error:
                raise BadArchive(f"the entry {path[:200]!r} {error}") from error
            except OSError as error:
                if error.errno in _NAME_ERRORS:
                    raise BadArchive(f"the entry {path[:200]!r} cannot be created: {error.strerror}") from error
                raise
        # The end of the compressed stream holds the checksum.
        while stream.read(_CHUNK_BYTES):
            self._check_wanted()
        self._make_links()
        return sum(entry_type != "folder" for entry_type in self._types.values())

    def _entry(self, path: str, header: tarfile.TarInfo, extended: _Extended, stream: _Stream) -> None:
        self._check_wanted()
        if header.type == tarfile.DIRTYPE:
            if path:
                self._make_folders(f"{path}/")
        elif header.type in _FILES:
            self._note(path, "file")
            self._write(path, header.mode, stream.content(header.size if extended.size is None else extended.size))
        elif header.type == tarfile.SYMTYPE:
            target = extended.target or header.linkname
            bundles.check_link(path, target)
            self._note(path, "link")
            self._links[path] = target
        elif header.type == tarfile.LNKTYPE:
            target = bundles.check_path(extended.target or header.linkname)
            if self._types.get(target) != "file":
                raise bundles.UnsafePath("is a hard link to a file that does not precede it")
            self._note(path, "file")
            os.link(self._folder / target, self._folder / path, follow_symlinks=False)
        else:
            raise bundles.UnsafePath(f"is not a file, folder or link (type {header.type!r})")

    def _note(self, path: str, entry_type: str) -> None:
        if not path or path in self._types:
            raise bundles.UnsafePath("appears twice")
        self._make_folders(path)
        self._add(path, entry_type)

    def _make_folders(self, path: str) -> None:
        for slash in re.finditer("/", path):
            above = path[: slash.start()]
            entry_type = self._types.get(above)
            if entry_type is None:
                self._add(above, "folder")
                (self._folder / above).mkdir()
            elif entry_type != "folder":
                raise bundles.UnsafePath(f"is below {above[:200]!r}, which is a {entry_type}")

    def _add(self, path: str, entry_type: str) -> None:
        if len(self._types) > limits.BUNDLE_ENTRIES_MAX:
            raise BadArchive(f"it has more than {limits.BUNDLE_ENTRIES_MAX} entries")
        self._types[path] = entry_type

    def _write(self, path: str, mode: int, content: Iterator[bytes]) -> None:
        rights = 0o755 if mode & 0o100 else 0o644
        descriptor = os.open(self._folder / path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, rights)
        with os.fdopen(descriptor, "wb") as file:
            for piece in content:
                self._check_wanted()
                self._written += len(piece)
                if self._written > limits.BUNDLE_UNPACKED_MAX_BYTES:
                    raise BadArchive(f"it unpacks to more than {limits.BUNDLE_UNPACKED_MAX_BYTES} bytes")
                file.write(piece)

    def _make_links(self) -> None:
        for path, target in self._links.items():
            (self._folder / path).symlink_to(target)
        top = os.path.realpath(self._folder)
        for path in self._links:
            self._check_wanted()
            # A link through another link may end elsewhere than its text says.
            try:
                end = os.path.realpath(self._folder / path)
            except RecursionError as error:  # no kernel follows that many either
                raise BadArchive(f"the link {path[:200]!r} goes through too many other links") from error
            if end != top and not end.startswith(top + "/"):
                raise BadArchive(f"the link {path[:200]!r} points outside the folder")

    def _check_wanted(self) -> None:
        if self._is_cancelled():
            raise Cancelled


def _headers(stream: _Stream) -> Iterator[tuple[tarfile.TarInfo, _Extended]]:
    """Yield each entry's header. The consumer reads the entry's content before the next one."""
    extended = _Extended()
    while True:
        block = stream.exactly(_BLOCK)
        if not block.strip(b"\0"):
            return
        try:
            header = tarfile.TarInfo.frombuf(block, "utf-8", "surrogateescape")
        except tarfile.HeaderError as error:
            raise BadArchive(f"it is not a valid tar file: {error}") from error
        if header.size < 0:
            raise BadArchive("it is damaged: an entry has a negative size")
        if header.type in (tarfile.GNUTYPE_LONGNAME, tarfile.GNUTYPE_LONGLINK):
            text = _extra(stream, header).rstrip(b"\0").decode("utf-8", "surrogateescape")
            if header.type == tarfile.GNUTYPE_LONGNAME:
                extended.path = text
            else:
                extended.target = text
        elif header.type in (tarfile.XHDTYPE, tarfile.SOLARIS_XHDTYPE):
            _read_records(_extra(stream, header), extended)
        elif header.type == tarfile.XGLTYPE:
            _extra(stream, header)  # a comment, as `git archive` writes it
        else:
            yield header, extended
            extended = _Extended()


def _extra(stream: _Stream, header: tarfile.TarInfo) -> bytes:
    if header.size > _HEADER_MAX_BYTES:
        raise BadArchive(f"it has a header of {header.size} bytes")
    return b"".join(stream.content(header.size))


def _read_records(data: bytes, extended: _Extended) -> None:
    r"""Parse pax records such as `30 path=a/b\n`; the number is the length of the record."""
    while data:
        match = re.match(rb"([0-9]{1,7}) ([^=]+)=", data)
        length = int(match[1]) if match else 0
        if match is None or not match.end() < length <= len(data):
            raise BadArchive("it is damaged: a header cannot be read")
        value = data[match.end() : length - 1].decode("utf-8", "surrogateescape")
        data = data[length:]
        name = match[2]
        if name == b"path":
            extended.path = value
        elif name == b"linkpath":
            extended.target = value
        elif name == b"size":
            if not re.fullmatch("[0-9]{1,18}", value):
                raise BadArchive("it is damaged: the size of an entry cannot be read")
            extended.size = int(value)
        elif name.startswith(b"GNU.sparse."):
            raise BadArchive("it holds sparse files; create it without tar --sparse")
