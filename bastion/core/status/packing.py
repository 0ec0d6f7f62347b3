"""`status/current.json` as bytes: queued jobs as rows of columns, with shared values written once.

`pack` and `read` are inverse. Queued jobs are most of a large status and differ only in name, position and the numbers
of their reason. Other jobs stay objects.
"""

from __future__ import annotations

import math
import operator
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeAlias

from pydantic import ValidationError

from bastion.core import documents, limits
from bastion.core.errors import InvalidDocument
from bastion.core.model.mode import Mode
from bastion.core.status.document import JobEntry, Phase, StatusDocument

FORMAT = 2
# One object for every job under `jobs`; read, no longer written.
_PLAIN_FORMAT = 1

COLUMNS = (
    "name",
    "uid",
    "owner",
    "shape",
    "priority",
    "queued_at",
    "attempts_before",
    "position",
    "position_in_project",
    "reason",
    "since",
    "numbers",
)
_OWNER = ("project_id", "user_id")
_SHAPE = ("resources", "instance_type", "num_replicas")
_IN_COLUMNS = frozenset({*COLUMNS, *_OWNER, *_SHAPE})
# The other fields have their defaults in nearly all rows. Those that differ follow the columns, as an object.
_OTHERS = tuple(name for name in JobEntry.model_fields if name not in _IN_COLUMNS)
_USUAL = tuple(JobEntry.model_fields[name].default for name in _OTHERS)
_others = operator.attrgetter(*_OTHERS)
# Whole numbers as words; numbers in names and types (`v4`, `job-7`) stay in the text.
_NUMBER = re.compile(r"(?<![\w.,:/+-])(0|[1-9][0-9]{0,15})(?![\w./:-]|,\d)")

# Name, project, user and instance type of a queued job: whether to read the rest of it.
Wanted: TypeAlias = Callable[[str, str, str, object], bool]


class _Table:
    """Numbered values, each once, in order of arrival."""

    def __init__(self) -> None:
        self.values: list[Any] = []
        self._numbers: dict[Any, int] = {}

    def number(self, key: Any, value: Any) -> int:
        number = self._numbers.get(key)
        if number is None:
            number = self._numbers[key] = len(self.values)
            self.values.append(value)
        return number


def pack(status: StatusDocument) -> dict[str, Any]:
    """The JSON document."""
    owners, shapes, reasons = _Table(), _Table(), _Table()
    whole, rows = [], []
    for entry in status.jobs:
        if entry.phase != Phase.QUEUED:
            whole.append(entry.model_dump(mode="json"))
            continue
        reason, since, numbers = _reason(entry, reasons)
        owner = (entry.project_id, entry.user_id)
        shape_key = (tuple(entry.resources.items()), entry.instance_type, entry.num_replicas)
        row = [
            entry.name,
            entry.uid,
            owners.number(owner, owner),
            shapes.number(shape_key, [entry.resources, entry.instance_type, entry.num_replicas]),
            entry.priority,
            _micros(entry.queued_at),
            entry.attempts_before,
            entry.position,
            entry.position_in_project,
            reason,
            since,
            numbers,
        ]
        if _others(entry) != _USUAL:
            row.append(_differing(entry))
        rows.append(row)
    queued = {
        "columns": COLUMNS,
        "rows": rows,
        "owners": owners.values,
        "shapes": shapes.values,
        "reasons": reasons.values,
    }
    rest = status.model_dump(mode="json", exclude={"jobs", "mode"} if status.mode == Mode.OPEN else {"jobs"})
    return {**rest, "format": FORMAT, "jobs": whole, "queued": queued}


def read(data: bytes, *, wanted: Wanted | None = None) -> StatusDocument:
    """The status, from either format.

    Args:
        wanted: Only the jobs of which it says so; in a long queue that takes a tenth of the time.

    Raises:
        InvalidDocument: It has another format, or is malformed.
    """
    try:
        document = documents.loads(data, max_bytes=limits.STATUS_MAX_BYTES, max_values=limits.STATUS_MAX_VALUES)
    except documents.DocumentError as error:
        raise InvalidDocument(f"it cannot be read: {error}") from error
    form = document.get("format") if isinstance(document, dict) else None
    if not isinstance(document, dict) or form not in (_PLAIN_FORMAT, FORMAT):
        raise InvalidDocument(f"it has format {str(form)[:40]}; this version reads {_PLAIN_FORMAT} and {FORMAT}")
    try:
        if form == FORMAT:
            queued = document.pop("queued")
            if tuple(queued["columns"]) != COLUMNS:
                raise InvalidDocument("its queued jobs have other columns")
            if wanted is not None:
                _leave_out(document, queued, wanted)
            jobs = [*document["jobs"], *(_expanded(row, queued) for row in queued["rows"])]
            document["jobs"] = sorted(jobs, key=lambda entry: str(entry["name"]))
        return StatusDocument.model_validate(document)
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(str(part) for part in first["loc"])
        raise InvalidDocument(f"it is not as a daemon writes it: {where}: {first['msg']}") from error
    except (KeyError, TypeError, ValueError, IndexError, AttributeError, OverflowError) as error:
        raise InvalidDocument(f"its queued jobs are not as a daemon writes them: {error!r}") from error


def _differing(entry: JobEntry) -> dict[str, Any]:
    """The fields outside of the columns that differ from their defaults."""
    fields = entry.model_dump(mode="json")
    values = zip(_OTHERS, _others(entry), _USUAL, strict=True)
    return {name: fields[name] for name, value, usual in values if value != usual}


def _reason(entry: JobEntry, table: _Table) -> tuple[int, Any, list[int]]:
    """The reason's index in the table, its `since` (0: since it was queued), and the numbers in its text."""
    reason = entry.reason
    if reason is None:
        return -1, 0, []
    message, first = _split(reason.message)
    unblock, second = _split(reason.unblock)
    key = (reason.code, message, unblock, reason.holders, reason.also)
    shown = {
        "code": reason.code,
        "message": message,
        "unblock": unblock,
        "holders": reason.holders,
        "also": reason.also,
    }
    since = _micros(reason.since)
    return table.number(key, shown), 0 if since == _micros(entry.queued_at) else since, first + second


def _split(text: str | None) -> tuple[tuple[str, ...] | None, list[int]]:
    if text is None:
        return None, []
    pieces = _NUMBER.split(text)
    return tuple(pieces[::2]), list(map(int, pieces[1::2]))


def _join(pieces: Sequence[str] | None, numbers: Sequence[int]) -> str | None:
    if pieces is None:
        return None
    text = [pieces[0]]
    for number, piece in zip(numbers, pieces[1:], strict=True):
        text += (str(int(number)), piece)
    return "".join(text)


def _micros(seconds: float) -> int:
    """Rounded as `to_rfc3339` rounds."""
    fraction, whole = math.modf(seconds)
    return int(whole) * 1_000_000 + round(fraction * 1e6)


def _seconds(instant: float | str) -> float | str:
    """Return seconds. Earlier versions wrote an instant as text if its microseconds did not convert back.

    Another's writer may have fractions of microseconds; the document written again would not have them.
    """
    return instant if isinstance(instant, str) else round(instant) / 1e6


def _leave_out(document: dict[str, Any], queued: dict[str, Any], wanted: Wanted) -> None:
    """Take out the jobs that are not wanted, but for their names and users."""
    whole, rows, names, users = [], [], [], set()
    for entry in document["jobs"]:
        if wanted(entry["name"], entry["project_id"], entry["user_id"], entry.get("instance_type")):
            whole.append(entry)
        else:
            names.append(entry["name"])
            users.add(entry["user_id"])
    for row in queued["rows"]:
        project_id, user_id = queued["owners"][row[2]]
        if wanted(row[0], project_id, user_id, queued["shapes"][row[3]][1]):
            rows.append(row)
        else:
            names.append(row[0])
            users.add(user_id)
    document["jobs"], queued["rows"] = whole, rows
    document["left_out"], document["other_users"] = names, users


def _expanded(row: Sequence[Any], queued: Mapping[str, Any]) -> dict[str, Any]:
    name, uid, owner, shape, priority, queued_at, before, position, in_project, reason, since, numbers, *others = row
    reason_fields = None
    if reason >= 0:
        shown = queued["reasons"][reason]
        first = len(shown["message"]) - 1
        reason_fields = {
            **shown,
            "message": _join(shown["message"], numbers[:first]),
            "since": _seconds(since or queued_at),
            "unblock": _join(shown["unblock"], numbers[first:]),
        }
    project_id, user_id = queued["owners"][owner]
    resources, instance_type, num_replicas = queued["shapes"][shape]
    return {
        "name": name,
        "uid": uid,
        "project_id": project_id,
        "user_id": user_id,
        "priority": priority,
        "resources": resources,
        "instance_type": instance_type,
        "num_replicas": num_replicas,
        "queued_at": _seconds(queued_at),
        "attempts_before": before,
        "position": position,
        "position_in_project": in_project,
        "reason": reason_fields,
        **(others[0] if others else {}),
    }
