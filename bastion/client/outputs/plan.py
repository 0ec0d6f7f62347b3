"""What a fetch does with each file, decided before anything is written: is it there, what is missing.

Invariant: a file that the same job did not write is never replaced, unless that is asked for.
"""

from __future__ import annotations

import hashlib
import os
import stat
import unicodedata
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from bastion.client.outputs.destination import Blocked, Destination, check_local_path
from bastion.client.outputs.stored import FileType, OutputFile, Outputs, Piece
from bastion.core.errors import Refused
from bastion.core.plurals import count

_SHOWN = 5
# As Linux, before it says that there are too many links.
_LINKS_FOLLOWED_MAX = 40
_READ_BYTES = 1 << 20


@dataclass(slots=True)
class Planned:
    """A file, link or folder that is to be written. `missing`: the numbers of the pieces that are not there yet."""

    path: str
    file: OutputFile
    version: str
    missing: list[int] = field(default_factory=list)

    @property
    def missing_bytes(self) -> int:
        return sum(self.file.pieces[number].size for number in self.missing)


@dataclass(slots=True)
class Plan:
    """`failures`: why a file cannot be written, by path; `present`: bytes and number of what is there already."""

    wanted: list[Planned] = field(default_factory=list)
    failures: dict[str, str] = field(default_factory=dict)
    present: int = 0
    present_bytes: int = 0


def make_plan(into: Destination, found: Outputs, *, force: bool) -> Plan:
    """Compare the folder with the outputs. Raises Refused if it has files that another wrote."""
    plan = Plan()
    several = len(found.sources) > 1
    files = {f"{file.source}/{file.path}" if several else file.path: file for file in found.files}
    plan.failures = _refused(files, folds_case=into.folds_case)
    others: dict[str, str] = {}
    for path, file in files.items():
        if path in plan.failures:
            continue
        planned = Planned(path, file, version_of(path, file))
        try:
            problem = _compare(into, planned, plan, force=force)
        except Blocked as error:
            problem = str(error)
        except OSError as error:
            plan.failures[path] = f"{path} cannot be read: {error.strerror}"
            continue
        if problem:
            others[path] = problem
    if others:
        shown = "; ".join(list(others.values())[:_SHOWN])
        more = f"; and {len(others) - _SHOWN} more" if len(others) > _SHOWN else ""
        raise Refused(
            f"{count(len(others), 'file')} in {into.path} would be replaced: {shown}{more}; nothing was fetched; "
            "choose an empty folder, or replace files with --force"
        )
    return plan


def version_of(path: str, file: OutputFile) -> str:
    """A name for these bytes at that path."""
    said = [path, file.target, *(f"{p.key}:{p.start}:{p.size}:{p.sha256}:{p.generation}" for p in file.pieces)]
    return hashlib.sha256("\0".join(said).encode("utf-8", "surrogateescape")).hexdigest()[:32]


def _refused(files: Mapping[str, OutputFile], *, folds_case: bool) -> dict[str, str]:
    """Why a file has no place, by path."""
    failures = {path: problem for path in files if (problem := check_local_path(path))}
    above = {
        "/".join(parts[:number])
        for path in files
        if path not in failures
        for parts in (path.split("/"),)
        for number in range(1, len(parts))
    }
    folded: dict[str, str] = {}
    for path, file in files.items():
        if path in failures:
            continue
        if path in above and file.file_type is not FileType.FOLDER:
            failures[path] = "other outputs are in a folder of this name"
        elif folds_case and folded.setdefault(unicodedata.normalize("NFC", path).casefold(), path) != path:
            failures[path] = "another output's name differs in upper and lower case only, which is one file here"
    for source in {file.source for file in files.values()}:
        links = {file.path: file.target for file in files.values() if file.source == source and file.target}
        for path, file in files.items():
            if file.source == source and file.target and path not in failures and leads_out(file.path, links):
                failures[path] = "it is a link that leads out of the folder, or around in a circle"
    return failures


def leads_out(path: str, links: Mapping[str, str]) -> bool:
    """Whether a link ends outside the folder, through other links, too."""
    place, waiting, followed = path.split("/")[:-1], [path.rpartition("/")[2]], 0
    while waiting:
        name = waiting.pop(0)
        if name in ("", "."):
            continue
        if name == "..":
            if not place:
                return True
            place.pop()
            continue
        target = links.get("/".join([*place, name]))
        if target is None:
            place.append(name)
            continue
        followed += 1
        if target.startswith("/") or followed > _LINKS_FOLLOWED_MAX:
            return True
        waiting[:0] = target.split("/")
    return False


def _compare(into: Destination, planned: Planned, plan: Plan, *, force: bool) -> str:
    """Add the file to the plan, as present or wanted; return why it may not be written, if so. Raises OSError."""
    path, file = planned.path, planned.file
    status = into.find(path)
    if status is None:
        if file.file_type is FileType.FILE:
            planned.missing = _missing(into, planned)
        plan.wanted.append(planned)
        return ""
    if file.file_type is FileType.FOLDER:
        return "" if stat.S_ISDIR(status.st_mode) else f"{path} is no folder"
    if stat.S_ISDIR(status.st_mode):
        return f"{path} is a folder; move it away"
    ours = is_ours(into, path, status)
    same = _same_link(into, planned, status) if file.target else _same_file(into, planned, status, ours=ours)
    if same:
        plan.present += 1
        plan.present_bytes += file.size
        return ""
    if ours is None and not force:
        return f"{path} (not fetched from this job)"
    if not file.target:
        planned.missing = _missing(into, planned)
    plan.wanted.append(planned)
    return ""


def is_ours(into: Destination, path: str, status: os.stat_result) -> str | None:
    """The version that a fetch of this job has written there, if nobody has changed it since."""
    version, *identity = into.written.files.get(path, ("", 0, 0, 0))
    return version if version and identity == [status.st_size, status.st_mtime_ns, status.st_ino] else None


def _same_link(into: Destination, planned: Planned, status: os.stat_result) -> bool:
    if not stat.S_ISLNK(status.st_mode):
        return False
    folder, _, name = planned.path.rpartition("/")
    with into.folder(folder, create=False) as opened:
        return os.readlink(name, dir_fd=opened) == planned.file.target


def _same_file(into: Destination, planned: Planned, status: os.stat_result, *, ours: str | None) -> bool:
    """By its bytes; without a digest of these, by the version that was written."""
    if not stat.S_ISREG(status.st_mode) or status.st_size != planned.file.size:
        return False
    if not all(piece.sha256 for piece in planned.file.pieces):
        return ours == planned.version
    opened = into.open_file(planned.path)
    try:
        return not _differing(opened, planned.file.pieces, [piece.sha256 for piece in planned.file.pieces])
    finally:
        os.close(opened)


def _missing(into: Destination, planned: Planned) -> list[int]:
    """The pieces that an earlier fetch did not get."""
    pieces = planned.file.pieces
    known = into.written.parts.get(planned.version, {})
    try:
        opened = os.open(planned.version, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=into.partial)
    except FileNotFoundError:
        return [number for number, piece in enumerate(pieces) if piece.size]
    try:
        digests = [piece.sha256 or known.get(str(number), "") for number, piece in enumerate(pieces)]
        return [number for number in _differing(opened, pieces, digests) if pieces[number].size]
    finally:
        os.close(opened)


def _differing(opened: int, pieces: Sequence[Piece], digests: Sequence[str]) -> list[int]:
    """The numbers of the pieces that the file has not, by their digests."""
    found, at = [], 0
    for number, piece in enumerate(pieces):
        if not digests[number] or _digest(opened, at, piece.size) != digests[number]:
            found.append(number)
        at += piece.size
    return found


def _digest(opened: int, start: int, size: int) -> str:
    digest = hashlib.sha256()
    while size > 0:
        data = os.pread(opened, min(size, _READ_BYTES), start)
        if not data:
            break
        digest.update(data)
        start += len(data)
        size -= len(data)
    return digest.hexdigest()
