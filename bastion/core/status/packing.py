"""`status/current.json` as bytes: queued jobs as rows of columns, with shared values written once.

`pack` and `read` are inverse. Queued jobs are most of a large status and differ only in name, position and the numbers
of their reason. Other jobs stay objects.
"""

from __future__ import annotations

import functools
import operator
import re
from collections.abc import Mapping, Sequence
from typing import Any

from bastion.core import documents, limits
from bastion.core.errors import InvalidDocument
from bastion.core.instants import from_rfc3339, to_rfc3339
from bastion.core.model.lifecycle import Status

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
# Fields of a row's object; differing fields follow the columns, as an object.
_SAME_FOR_ALL = {
    "status": Status.PENDING.value,
    "phase": "queued",
    "attempt": None,
    "started_at": None,
    "running_since": None,
    "hosts": None,
    "hosts_up": None,
    "hosts_running": None,
    "tier": None,
    "stopping": None,
    "problem": None,
}
_OWNER = ("project_id", "user_id")
_SHAPE = ("resources", "instance_type", "num_replicas")
_IN_COLUMNS = frozenset(
    (
        *_OWNER,
        *_SHAPE,
        *("name", "uid", "priority", "queued_at", "attempts_before", "position", "position_in_project", "reason"),
    )
)
_CONSTANTS = tuple(_SAME_FOR_ALL.values())
_constants = operator.itemgetter(*_SAME_FOR_ALL)
_ALWAYS = _IN_COLUMNS | _SAME_FOR_ALL.keys()
_REASON = frozenset({"code", "message", "since", "holders", "unblock", "also"})
# Whole numbers as words; numbers in names and types (`v4`, `job-7`) stay in the text.
_NUMBER = re.compile(r"(?<![\w.,:/+-])(0|[1-9][0-9]{0,15})(?![\w./:-]|,\d)")


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


def pack(status: Mapping[str, Any]) -> dict[str, Any]:
    """The packed document. `status`: with every job as an object under `jobs`, in order of the names."""
    owners, shapes, reasons = _Table(), _Table(), _Table()
    whole, rows = [], []
    for entry in status["jobs"]:
        if not _fits(entry):
            whole.append(entry)
            continue
        reason, since, numbers = _reason(entry["reason"], entry["queued_at"], reasons)
        owner = tuple(entry[key] for key in _OWNER)
        shape_key = (tuple(entry["resources"].items()), entry["instance_type"], entry["num_replicas"])
        row = [
            entry["name"],
            entry["uid"],
            owners.number(owner, owner),
            shapes.number(shape_key, [entry[key] for key in _SHAPE]),
            entry["priority"],
            _instant(entry["queued_at"]),
            entry["attempts_before"],
            entry["position"],
            entry["position_in_project"],
            reason,
            since,
            numbers,
        ]
        if len(entry) > len(_ALWAYS) or _constants(entry) != _CONSTANTS:
            row.append(_others(entry))
        rows.append(row)
    queued = {
        "columns": COLUMNS,
        "rows": rows,
        "owners": owners.values,
        "shapes": shapes.values,
        "reasons": reasons.values,
    }
    return {**status, "format": FORMAT, "jobs": whole, "queued": queued}


def read(data: bytes) -> dict[str, Any]:
    """The status in format 1, with every job as an object under `jobs`, from either format.

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
    if form == _PLAIN_FORMAT:
        return document
    try:
        queued = document.pop("queued")
        if tuple(queued["columns"]) != COLUMNS:
            raise InvalidDocument("its queued jobs have other columns")
        jobs = [*document["jobs"], *(_expanded(row, queued) for row in queued["rows"])]
        return {**document, "format": _PLAIN_FORMAT, "jobs": sorted(jobs, key=lambda entry: str(entry["name"]))}
    except (KeyError, TypeError, ValueError, IndexError, AttributeError, OverflowError) as error:
        raise InvalidDocument(f"its queued jobs are not as a daemon writes them: {error!r}") from error


def _fits(entry: Mapping[str, Any]) -> bool:
    if entry["phase"] != "queued" or not entry.keys() >= _ALWAYS:
        return False
    reason = entry["reason"]
    return reason is None or reason.keys() == _REASON


def _others(entry: Mapping[str, Any]) -> dict[str, Any]:
    """Fields that neither the columns nor the common values cover."""
    return {
        key: value
        for key, value in entry.items()
        if key not in _IN_COLUMNS and (key not in _SAME_FOR_ALL or value != _SAME_FOR_ALL[key])
    }


def _reason(reason: Mapping[str, Any] | None, queued_at: str, table: _Table) -> tuple[int, Any, list[int]]:
    """The reason's index in the table, its `since` (0: since it was queued), and the numbers in its text."""
    if reason is None:
        return -1, 0, []
    message, first = _split(reason["message"])
    unblock, second = _split(reason["unblock"])
    key = (reason["code"], message, unblock, tuple(reason["holders"]), tuple(reason["also"]))
    shown = {
        "code": reason["code"],
        "message": message,
        "unblock": unblock,
        "holders": reason["holders"],
        "also": reason["also"],
    }
    since = reason["since"]
    return table.number(key, shown), 0 if since == queued_at else _instant(since), first + second


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


@functools.lru_cache(16_384)  # a job's instant rarely changes
def _instant(text: str) -> int | str:
    """Microseconds since the epoch, if they convert back to the same text; otherwise the text."""
    try:
        micros = round(from_rfc3339(text) * 1e6)
        return micros if to_rfc3339(micros / 1e6) == text else text
    except (ValueError, OverflowError):  # the calendar's last microsecond
        return text


def _told(instant: int | str) -> str:
    return instant if isinstance(instant, str) else to_rfc3339(instant / 1e6)


def _expanded(row: Sequence[Any], queued: Mapping[str, Any]) -> dict[str, Any]:
    name, uid, owner, shape, priority, queued_at, before, position, in_project, reason, since, numbers, *others = row
    queued_since = _told(queued_at)
    told = None
    if reason >= 0:
        shown = queued["reasons"][reason]
        first = len(shown["message"]) - 1
        told = {
            "code": shown["code"],
            "message": _join(shown["message"], numbers[:first]),
            "since": _told(since) if since else queued_since,
            "holders": shown["holders"],
            "unblock": _join(shown["unblock"], numbers[first:]),
            "also": shown["also"],
        }
    project_id, user_id = queued["owners"][owner]
    resources, instance_type, num_replicas = queued["shapes"][shape]
    return {
        **_SAME_FOR_ALL,
        "name": name,
        "uid": uid,
        "project_id": project_id,
        "user_id": user_id,
        "priority": priority,
        "resources": resources,
        "instance_type": instance_type,
        "num_replicas": num_replicas,
        "queued_at": queued_since,
        "attempts_before": before,
        "position": position,
        "position_in_project": in_project,
        "reason": told,
        **(others[0] if others else {}),
    }
