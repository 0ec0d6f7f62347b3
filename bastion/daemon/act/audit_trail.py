"""The audit trail: one line for each request, none lost, none doubled, with one append in a tick that has some.

Lines are collected with `note...` and appended with `flush`, between the states and everything else:

* A line of an accepted request is part of its history line in the state. It is appended after the state was written; a
  successor finds it there, and the trail of its day shows whether it has it.
* A line of a refused or ignored request is appended before its author is answered, and before the request is deleted. A
  successor that finds the request unanswered decides again, and knows the line by its id.

While the trail cannot be written, lines wait in memory, up to a bound. Answers wait with them for a minute; then jobs
and answers go on. What is dropped has a gap line.
"""

from __future__ import annotations

import hashlib
from collections import Counter, deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

from bastion.core import limits
from bastion.core.bucket import keys
from bastion.core.errors import NotFound, PreconditionFailed, StoreError
from bastion.core.instants import utc_day
from bastion.core.model import audit_lines
from bastion.core.model.audit import Audited, Came, Proof, Request
from bastion.core.model.job_record import JobRecord
from bastion.core.plurals import count
from bastion.core.reconcile.effects import DropJobRequest, DropUserRequest, Effect, PutInvalid
from bastion.ports import ObjectMeta, ObjectStore

_TRIES = 3
_READ_BYTES = 4 * 1024 * 1024
# Around midnight, and after a takeover with jobs that wait for long, lines of several days are checked.
_DAYS_KEPT = 4
_HOUR = 3600.0


@dataclass(slots=True)
class _Day:
    """The trail of one day: its newest part, that part's generation and size, and the digests of all ids."""

    part: int = 0
    generation: int = 0
    size: int = 0
    torn: bool = False  # the last line lacks its newline
    ids: set[int] = field(default_factory=set)


@dataclass(frozen=True, slots=True)
class _Line:
    id: str
    day: str
    data: bytes


class AuditTrail:
    """Collects lines and appends them.

    Attributes:
        alarm: Why lines wait; empty if none does.
    """

    def __init__(self, store: ObjectStore, now: Callable[[], float], monotonic: Callable[[], float]) -> None:
        """Write through `store`. `now`: of new lines, in seconds since the epoch."""
        self._store = store
        self._now = now
        self._monotonic = monotonic
        self._lines: deque[_Line] = deque()
        self._waiting: set[str] = set()  # their ids
        self._dropped = 0
        self._drops = 0
        self._days: dict[str, _Day] = {}
        self._hour = 0
        self._refusals: Counter[str] = Counter()  # of this hour by user; "" are those of all
        self._counted: set[int] = set()
        self._more: Counter[tuple[Request, Came]] = Counter()
        self._numbers = 0
        self._failing_since: float | None = None
        self._owner = ""
        self.alarm = ""

    @property
    def waiting(self) -> int:
        """Number of lines that the bucket does not have."""
        return len(self._lines) + self._dropped

    @property
    def holds_up(self) -> bool:
        """Whether answers wait for lines that could not be written."""
        since = self._failing_since
        return since is not None and self._monotonic() - since < limits.AUDIT_PATIENCE_SECONDS

    def begin_epoch(self, epoch: int, text: str) -> None:
        """Forget what another daemon may have written, and say that this one acts."""
        self._days.clear()
        self._owner = f"{epoch}"
        self.note_daemon(Request.DAEMON, f"epoch#{epoch}", text)

    # -- what lines there are -----------------------------------------------------------------------------------

    def note_record(self, record: JobRecord) -> None:
        """Take the requests that were accepted, from the lines that the state still has."""
        for line in record.history:
            if line.asked is not None:
                asked = line.asked if line.asked.why else line.asked.model_copy(update={"why": line.text})
                self._note(f"{record.uid}#{line.number}", asked, line.at, job=record.name, uid=record.uid)

    def note_effects(self, effects: Iterable[Effect]) -> None:
        """Take the requests that these effects refuse or ignore."""
        for effect in effects:
            if isinstance(effect, (PutInvalid, DropUserRequest, DropJobRequest)) and effect.asked is not None:
                self._note_answer(effect, effect.asked)

    def note_daemon(self, request: Request, line_id: str, why: str, **about: object) -> None:
        """Take what no job asked for. `about`: further fields of `Audited`."""
        fields: dict[str, Any] = {"outcome": Came.APPLIED, "proof": Proof.DAEMON, **about}
        self._note(line_id, Audited(request=request, why=why, **fields), self._now())

    def _note_answer(self, effect: PutInvalid | DropUserRequest | DropJobRequest, asked: Audited) -> None:
        if isinstance(effect, DropJobRequest):
            key = effect.key
        else:
            place = keys.user_state if isinstance(effect, DropUserRequest) else keys.active
            key = place(effect.name, effect.owner)
        digest = hashlib.sha256(f"{asked.request.value} {asked.outcome.value} {key} {asked.generation}".encode())
        line_id = digest.hexdigest()[:20]
        now = self._now()
        if now // _HOUR != self._hour:
            self._hour = int(now // _HOUR)
            self._refusals.clear()
            self._counted.clear()
        if self._is_known(line_id, utc_day(now)) or _digest(line_id.encode()) in self._counted:
            return
        user = asked.who or "\0unknown"
        room = self._refusals[user] < limits.AUDIT_REFUSALS_OF_USER_MAX
        if room and self._refusals[""] < limits.AUDIT_REFUSALS_MAX:
            self._refusals[user] += 1
            self._refusals[""] += 1
            self._note(line_id, asked, now, job=effect.name)
        else:
            self._more[asked.request, asked.outcome] += 1
            self._counted.add(_digest(line_id.encode()))

    def _is_known(self, line_id: str, day: str) -> bool:
        known = self._days.get(day)
        return line_id in self._waiting or (known is not None and _digest(line_id.encode()) in known.ids)

    def _note(self, line_id: str, asked: Audited, at: float, *, job: str = "", uid: str = "", number: int = 1) -> None:
        day = utc_day(at)
        if self._is_known(line_id, day):
            return
        data = audit_lines.to_bytes(asked, line_id=line_id, at=at, job=job, uid=uid, count=number)
        self._lines.append(_Line(line_id, day, data))
        self._waiting.add(line_id)

    # -- appending them -----------------------------------------------------------------------------------------

    def flush(self) -> bool:
        """Append what waits; return whether all of it is in the bucket. What fails waits for the next tick."""
        self._add_counts()
        if not self._lines:
            return True
        days: dict[str, list[_Line]] = {}
        for line in self._lines:
            days.setdefault(line.day, []).append(line)
        try:
            for day, lines in sorted(days.items()):
                self._append(day, self._with_gap(lines))
                self._drop_written(lines)
        except StoreError as error:
            self._failing_since = self._monotonic() if self._failing_since is None else self._failing_since
            while len(self._lines) > limits.AUDIT_LINES_WAITING_MAX:
                self._waiting.discard(self._lines.popleft().id)
                self._dropped += 1
            self.alarm = (
                f"the audit trail {keys.AUDIT} cannot be written, so {count(self.waiting, 'line')} of it wait in "
                f"memory: {error}; give the daemon the right to write there"
            )
            return False
        self._failing_since, self.alarm = None, ""
        return True

    def _add_counts(self) -> None:
        for (request, outcome), number in sorted(self._more.items()):
            self._numbers += 1
            text = "more of this hour, counted together"
            asked = Audited(request=request, outcome=outcome, why=text, proof=Proof.DAEMON)
            self._note(f"more#{self._owner}-{self._numbers}", asked, self._now(), number=number)
        self._more.clear()

    def _with_gap(self, lines: list[_Line]) -> list[_Line]:
        """With what was dropped before them."""
        if not self._dropped:
            return lines
        text = (
            f"{count(self._dropped, 'line')} of the audit trail were dropped before this one: it could not be written"
        )
        gap = Audited(request=Request.GAP, outcome=Came.LOST, why=text, proof=Proof.DAEMON)
        line_id, at = f"gap#{self._owner}-{self._drops}-{self._dropped}", self._now()
        data = audit_lines.to_bytes(gap, line_id=line_id, at=at, count=self._dropped)
        return [_Line(line_id, lines[0].day, data), *lines]

    def _drop_written(self, lines: list[_Line]) -> None:
        written = {line.id for line in lines}
        self._lines = deque(line for line in self._lines if line.id not in written)
        self._waiting -= written
        self._drops += self._dropped > 0
        self._dropped = 0

    def _append(self, day: str, lines: list[_Line]) -> None:
        for _ in range(_TRIES):
            known = self._days.get(day) or self._learn(day)
            missing = [line for line in lines if _digest(line.id.encode()) not in known.ids]
            if not missing:
                return
            if known.size >= limits.AUDIT_PART_BYTES:
                known.part, known.generation, known.size, known.torn = known.part + 1, 0, 0, False
            data = b"\n" * known.torn + b"".join(line.data for line in missing)
            self._days.pop(day)  # after a failure it is read again: the lines may have landed
            try:
                meta = self._store.append(keys.audit(day, known.part), data, generation=known.generation)
            except PreconditionFailed:
                continue
            known.generation, known.size, known.torn = meta.generation, meta.size, False
            known.ids.update(_digest(line.id.encode()) for line in missing)
            self._days[day] = known
            return
        raise PreconditionFailed(f"{keys.audit(day)} keeps changing; another daemon may be appending to it")

    def _learn(self, day: str) -> _Day:
        """Read which lines the day's parts have."""
        known = _Day()
        for meta in self._store.list(keys.audit(day)):
            found = audit_lines.part_of(meta.key)
            if found is None or found[0] != day:
                continue
            present, torn = self._read(meta.key, known.ids)
            if present is not None and found[1] >= known.part:
                known.part, known.generation, known.size, known.torn = found[1], present.generation, present.size, torn
        while len(self._days) >= _DAYS_KEPT:
            self._days.pop(min(self._days))
        self._days[day] = known
        return known

    def _read(self, key: str, found: set[int]) -> tuple[ObjectMeta | None, bool]:
        """Add the ids of its lines; return its metadata, and whether its last line lacks the newline."""
        start, rest = 0, b""
        while True:
            try:
                stored = self._store.get_range(key, start=start, size=_READ_BYTES)
            except NotFound:
                return None, False
            start += len(stored.data)
            whole, newline, rest = (rest + stored.data).rpartition(b"\n")
            found.update(_digest(each) for each in audit_lines.ids(whole + newline))
            rest = rest[-2 * limits.AUDIT_LINE_MAX_BYTES :]
            if not stored.data or start >= stored.meta.size:
                break
        if rest and (line := audit_lines.read(rest)) is not None:
            found.add(_digest(line.id.encode()))
        return stored.meta, bool(rest)


def _digest(line_id: bytes) -> int:
    return int.from_bytes(hashlib.sha256(line_id).digest()[:8], "big")
