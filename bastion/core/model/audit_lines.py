"""The audit trail `audit/<YYYYMMDD>[.<n>]`: one JSON document a line, at most `limits.AUDIT_LINE_MAX_BYTES` long.

Each line has an id. If an id is there twice, the first line counts. What is not a whole line of this form (a write that
broke off) is no line: the whole one follows.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

from pydantic import BaseModel, ConfigDict, ValidationError

from bastion.core import documents, limits
from bastion.core.bucket import keys
from bastion.core.instants import to_rfc3339
from bastion.core.model.audit import Audited, Came, Proof, Request
from bastion.core.plain_text import plain_line

_VERSION = 1
_PART = re.compile(r"(?P<day>[0-9]{8})(?:\.(?P<part>[1-9][0-9]{0,5}))?")
_ID = re.compile(rb'"id":"([^"\\]{1,64})"')
_NAME_MAX_CHARS = 128
_WHY_MAX_CHARS = 500


class AuditLine(BaseModel):
    """One line, as it is read. `count`: further requests of the same kind that have no lines of their own."""

    model_config = ConfigDict(frozen=True, extra="ignore", defer_build=True)

    v: int
    id: str
    at: str
    request: Request
    outcome: Came
    job: str = ""
    uid: str = ""
    who: str = ""
    proof: Proof | None = None
    generation: int = 0
    object_time: str = ""
    sha256: str = ""
    why: str = ""
    count: int = 1


def to_bytes(audited: Audited, *, line_id: str, at: float, job: str = "", uid: str = "", count: int = 1) -> bytes:
    """Make one line. Texts are cut and made plain, so that nobody's name breaks the line or makes it long."""
    fields: dict[str, Any] = {
        "v": _VERSION,
        "id": line_id,
        "at": to_rfc3339(at),
        "request": audited.request.value,
        "outcome": audited.outcome.value,
        "job": _cut(job, _NAME_MAX_CHARS),
        "uid": uid or audited.uid,
        "who": _cut(audited.who, _NAME_MAX_CHARS),
        "proof": audited.proof.value if audited.proof is not None else "",
        "generation": audited.generation,
        "object_time": to_rfc3339(audited.object_time) if audited.object_time else "",
        "sha256": audited.sha256,
        "why": _cut(audited.why, _WHY_MAX_CHARS),
        "count": count if count != 1 else 0,
    }
    return documents.dumps({name: value for name, value in fields.items() if value}) + b"\n"


def _cut(text: str, most: int) -> str:
    """Escapes make a character up to ten long; cut before, so that few are made, and after."""
    line = plain_line(text[: 4 * most])
    return line if len(line) <= most else line[: most - 3] + "..."


def read(line: bytes) -> AuditLine | None:
    """One line without its newline; None if no daemon wrote it whole."""
    if len(line) > limits.AUDIT_LINE_MAX_BYTES:
        return None
    try:
        return AuditLine.model_validate(documents.loads(line))
    except (documents.DocumentError, ValidationError):
        return None


def ids(data: bytes) -> Iterator[bytes]:
    """The ids of all lines in it, without reading them as documents."""
    return (found[1] for found in _ID.finditer(data))


def part_of(key: str) -> tuple[str, int] | None:
    """The day and number of a part of the trail; None if the key is none."""
    found = _PART.fullmatch(key.removeprefix(keys.AUDIT)) if key.startswith(keys.AUDIT) else None
    return (found["day"], int(found["part"] or 0)) if found is not None else None
