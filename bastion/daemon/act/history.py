"""The history: one line per transition, appended so that none is lost and none is doubled.

A transition's line lies in the record until it is known to be appended, under its number. Each appended line carries
`<uid>#<number>`; after a restart or an ambiguous failure the file itself says which lines it holds.

A line counts only with its newline. What a crash left of a line is completed if it is a line that is to be appended;
otherwise it is marked as cut off, and never counts.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass, field

from bastion.core import limits
from bastion.core.bucket import keys
from bastion.core.errors import NotFound, PreconditionFailed, StoreError
from bastion.core.instants import to_rfc3339, utc_day
from bastion.core.model.job_record import HistoryLine, JobRecord
from bastion.core.plain_text import plain_line
from bastion.daemon.thread_pool import ThreadPool
from bastion.ports import ObjectStore

_MARK = re.compile(rb"^\S+ (?:\S+ )?([a-z2-7]{10})#([0-9]{1,18}) [^\n]*\n", re.MULTILINE)
_CUT_OFF = b" (this line was cut off)\n"
_TRIES = 5
LEASE_RAN_OUT = "the lease ran out within the tick; the next one goes on"


@dataclass(slots=True)
class _File:
    """What this daemon knows of one history file: its generation, and by uid the number of the last line it has.

    Lines of a job are appended in the order of their numbers, so it has all that belong there up to that one.

    Attributes:
        torn: What the file has after its last newline.
    """

    generation: int
    last: dict[str, int] = field(default_factory=dict)
    torn: bytes = b""


@dataclass(frozen=True, slots=True)
class _Line:
    """One line as it lies in a file."""

    uid: str
    number: int
    text: str


def mark(uid: str, line: HistoryLine) -> str:
    return f"{uid}#{line.number}"


def job_line(record: JobRecord, line: HistoryLine) -> str:
    """`<instant> <uid>#<n> <STATUS> <text>`"""
    return f"{to_rfc3339(line.at)} {mark(record.uid, line)} {line.status.value} {_one_line(line.text)}\n"


def project_line(record: JobRecord, line: HistoryLine) -> str:
    """`<instant> <job> <uid>#<n> <STATUS> <text>`"""
    return f"{to_rfc3339(line.at)} {record.name} {mark(record.uid, line)} {line.status.value} {_one_line(line.text)}\n"


def _one_line(text: str) -> str:
    return plain_line(text)  # what an older version left in a record may not be plain


class HistoryWriter:
    """Appends the lines of many records at once: one append per file, however many jobs of a project moved."""

    def __init__(self, store: ObjectStore, threads: ThreadPool) -> None:
        self._store = store
        self._threads = threads
        self._files: dict[str, _File] = {}
        # Project histories that were written, by day.
        self._project_files: dict[str, set[str]] = {}

    def append(
        self,
        records: Iterable[JobRecord],
        *,
        known_projects: Iterable[str],
        may_act: Callable[[], bool],
        fresh: Collection[str] = (),
    ) -> dict[str, str]:
        """Appends every line the records carry, to their job's history, their project's, and a slice job's log.

        Args:
            records: One per job.
            known_projects: Project ids become keys only when the quota file has them.
            may_act: Whether the lease still holds; asked before every append.
            fresh: Uids whose state was first written in this very tick: most of them have no files yet, so theirs are
                created without a look first.

        Returns:
            By uid, why some of its lines are not appended; the same record once more appends just those.
        """
        projects = set(known_projects)
        new: set[str] = set()
        files: dict[str, list[_Line]] = {}
        for record in records:
            spec = record.job
            if record.uid in fresh:
                new |= {keys.job_history(record.name), keys.log(record.name)}
            for line in record.history:
                own = _Line(record.uid, line.number, job_line(record, line))
                files.setdefault(keys.job_history(record.name), []).append(own)
                if spec.runner is not None:
                    files.setdefault(keys.log(record.name), []).append(own)
                if spec.project_id in projects:
                    day = utc_day(line.at)
                    key = keys.project_history(spec.project_id, day)
                    self._project_files.setdefault(day, set()).add(key)
                    shared = _Line(record.uid, line.number, project_line(record, line))
                    files.setdefault(key, []).append(shared)

        def append_to(key: str) -> str:
            try:
                if not may_act():
                    return LEASE_RAN_OUT
                self._append(key, files[key], new=key in new)
            except StoreError as error:
                return str(error)
            return ""

        problems: dict[str, str] = {}
        order = sorted(files)
        for key, problem in zip(order, self._threads.each(append_to, order), strict=True):
            if problem:
                problems |= {line.uid: problem for line in files[key]}
        self._forget_past_days()
        return problems

    def _forget_past_days(self) -> None:
        """A daemon runs for months. Two days are kept: around midnight lines of both come."""
        for day in sorted(self._project_files)[:-2]:
            for key in self._project_files.pop(day):
                self._files.pop(key, None)

    def forget(self, job: str, uid: str = "") -> None:
        """Drops what is remembered of a finished job: its files, and its place in those of its project."""
        self._files.pop(keys.job_history(job), None)
        self._files.pop(keys.log(job), None)
        for shared in [*self._project_files.values()]:
            for key in [*shared]:
                if (known := self._files.get(key)) is not None:
                    known.last.pop(uid, None)

    def __len__(self) -> int:
        """Files that are remembered, and jobs in each of them."""
        return sum(1 + len(known.last) for known in self._files.values())

    def _append(self, key: str, lines: list[_Line], *, new: bool) -> None:
        for _ in range(_TRIES):
            known = self._files.get(key) or (_File(0) if new else self._read(key))
            missing = [line for line in lines if line.number > known.last.get(line.uid, 0)]
            if not missing:
                return
            data = _behind(known.torn, missing)
            try:
                meta = self._store.append(key, data, generation=known.generation)
            except PreconditionFailed:
                self._files.pop(key, None)  # somebody else appended, or our own lost reply did
                new = False
                continue
            known.generation, known.torn = meta.generation, b""
            known.last.update((line.uid, line.number) for line in missing)
            self._files[key] = known
            return
        raise PreconditionFailed(f"{key} keeps changing under us; another daemon may be appending to it")

    def _read(self, key: str) -> _File:
        meta = self._store.head(key)
        start = max(0, (meta.size if meta else 0) - limits.HISTORY_TAIL_BYTES)
        try:
            # It may have grown since; twice as much is read of one that grows while it is looked at.
            stored = self._store.get(key, start=start, max_bytes=2 * limits.HISTORY_TAIL_BYTES)
        except NotFound:
            known = _File(0)
        else:
            whole, newline, torn = stored.data.rpartition(b"\n")
            if start:  # in the midst of a line
                whole = whole.partition(b"\n")[2]
            known = _File(stored.meta.generation, torn=torn)
            for match in _MARK.finditer(whole + newline):
                uid, number = match[1].decode(), int(match[2])
                if not match[0].endswith(_CUT_OFF):
                    known.last[uid] = max(known.last.get(uid, 0), number)
        self._files[key] = known
        return known


def _behind(torn: bytes, lines: list[_Line]) -> bytes:
    """What to append so that the file has these lines, each whole; a job's lines stay in the order of their numbers."""
    texts = {id(line): line.text.encode() for line in lines}
    if not torn:
        return b"".join(texts.values())
    first_of = {line.uid: line for line in reversed(lines)}
    begun = next((line for line in first_of.values() if texts[id(line)].startswith(torn)), None)
    if begun is None:
        return _CUT_OFF + b"".join(texts.values())
    return texts.pop(id(begun))[len(torn) :] + b"".join(texts.values())
