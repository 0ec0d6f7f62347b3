"""The history: one line per transition, none lost, none doubled.

A line stays in the record, under its number, until it is known to be appended. Each appended line has `<uid>#<number>`,
so after a restart or an ambiguous failure the file shows which lines it has. A line counts only with its newline. A
torn line is completed if it is one to append; otherwise it is marked as cut off.
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
LEASE_RAN_OUT = "the lease expired during the tick; continuing in the next one"


@dataclass(slots=True)
class _File:
    """One history file: its generation, the last line's number by uid, and the text after the last newline (`torn`)."""

    generation: int
    last: dict[str, int] = field(default_factory=dict)
    torn: bytes = b""


@dataclass(frozen=True, slots=True)
class _Line:
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
    return plain_line(text)  # lines of older versions may not be plain


class HistoryWriter:
    """Appends the lines of many records with one append per file."""

    def __init__(self, store: ObjectStore, threads: ThreadPool) -> None:
        self._store = store
        self._threads = threads
        self._files: dict[str, _File] = {}
        # Written project histories, by day.
        self._project_files: dict[str, set[str]] = {}

    def append(
        self,
        records: Iterable[JobRecord],
        *,
        known_projects: Iterable[str],
        may_act: Callable[[], bool],
        fresh: Collection[str] = (),
    ) -> dict[str, str]:
        """Append every line of the records to the history of the job and the project, and to a slice job's log.

        Returns by uid why some lines are not appended; appending the record again adds just those.

        Args:
            records: One per job.
            known_projects: Projects of the quota file; only these become keys.
            may_act: Whether the lease still holds; asked before every append.
            fresh: Uids with a new state: their files are created without a look first, as most do not exist.
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
        """Keep two days, because around midnight lines of both arrive."""
        for day in sorted(self._project_files)[:-2]:
            for key in self._project_files.pop(day):
                self._files.pop(key, None)

    def forget(self, job: str, uid: str = "") -> None:
        self._files.pop(keys.job_history(job), None)
        self._files.pop(keys.log(job), None)
        for shared in [*self._project_files.values()]:
            for key in [*shared]:
                if (known := self._files.get(key)) is not None:
                    known.last.pop(uid, None)

    def __len__(self) -> int:
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
                self._files.pop(key, None)  # another writer appended, or our own write with a lost reply
                new = False
                continue
            known.generation, known.torn = meta.generation, b""
            known.last.update((line.uid, line.number) for line in missing)
            self._files[key] = known
            return
        raise PreconditionFailed(f"{key} keeps changing; another daemon may be appending to it")

    def _read(self, key: str) -> _File:
        meta = self._store.head(key)
        start = max(0, (meta.size if meta else 0) - limits.HISTORY_TAIL_BYTES)
        try:
            # It may have grown since; read twice as much after each growth.
            stored = self._store.get(key, start=start, max_bytes=2 * limits.HISTORY_TAIL_BYTES)
        except NotFound:
            known = _File(0)
        else:
            whole, newline, torn = stored.data.rpartition(b"\n")
            if start:  # in the middle of a line
                whole = whole.partition(b"\n")[2]
            known = _File(stored.meta.generation, torn=torn)
            for match in _MARK.finditer(whole + newline):
                uid, number = match[1].decode(), int(match[2])
                if not match[0].endswith(_CUT_OFF):
                    known.last[uid] = max(known.last.get(uid, 0), number)
        self._files[key] = known
        return known


def _behind(torn: bytes, lines: list[_Line]) -> bytes:
    """Return the bytes to append so that the file has these lines, with a job's lines in order."""
    texts = {id(line): line.text.encode() for line in lines}
    if not torn:
        return b"".join(texts.values())
    first_of = {line.uid: line for line in reversed(lines)}
    begun = next((line for line in first_of.values() if texts[id(line)].startswith(torn)), None)
    if begun is None:
        return _CUT_OFF + b"".join(texts.values())
    return texts.pop(id(begun))[len(torn) :] + b"".join(texts.values())
