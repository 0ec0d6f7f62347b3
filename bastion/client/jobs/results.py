"""How a job ended, by `jobs/complete/<job>`. Pure.

Reading is lenient: the ancestor's daemons write no `result`, and one odd field must not hide the others.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from bastion.core import documents, limits
from bastion.core.errors import EXIT_CANCELLED, EXIT_REFUSED, InvalidDocument


@dataclass(frozen=True, slots=True, kw_only=True)
class PastAttempt:
    """One past attempt. Instants are RFC 3339; `running_since` is empty if no host ever ran the command.

    Attributes:
        zone: Empty on the bastion itself, or if it was not recorded.
        tries: The failed tries before the last, as (number, exit code, first worker to fail).
    """

    number: int
    started_at: str
    running_since: str
    ended_at: str
    cause: str
    message: str
    exit_code: int | None
    failed_worker: int | None
    zone: str = ""
    tries: tuple[tuple[int, int | None, int | None], ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """A job's end.

    Attributes:
        uid: Empty in a document by another implementation.
        outcome: `succeeded`, `failed`, `cancelled` or `refused`; `unknown` if the document does not say.
        exit_code: For `--wait`: the command's own, 75 for infrastructure, 143 cancelled, 64 refused.
        document: The spec with `result`.
    """

    name: str
    uid: str
    outcome: str
    exit_code: int
    message: str
    failed_worker: int | None
    by: str
    queued_at: str
    attempts: tuple[PastAttempt, ...]
    document: Mapping[str, Any]


def read_result(data: bytes, *, name: str) -> Result:
    """Parse `jobs/complete/<job>`. Raises `InvalidDocument` if it is not a JSON object."""
    try:
        document = documents.loads(data, max_bytes=limits.RESULT_MAX_BYTES)
    except documents.DocumentError as error:
        raise InvalidDocument(f"cannot read the result of {name}: {error}") from error
    if not isinstance(document, dict):
        raise InvalidDocument(f"the result of {name} is not a JSON object")
    result = _mapping(document.get("result"))
    outcome = _text(result.get("outcome")) or "unknown"
    attempts = result.get("attempts")
    return Result(
        name=_text(document.get("name")) or name,
        uid=_text(result.get("uid")),
        outcome=outcome,
        exit_code=_exit_code(outcome, _integer(result.get("exit_code"))),
        message=_text(result.get("message")),
        failed_worker=_integer(result.get("failed_worker")),
        by=_text(result.get("by")),
        queued_at=_text(result.get("queued_at")),
        attempts=tuple(_attempt(_mapping(a)) for a in attempts) if isinstance(attempts, list) else (),
        document=document,
    )


def _attempt(fields: Mapping[str, Any]) -> PastAttempt:
    tries = fields.get("tries")
    return PastAttempt(
        number=_integer(fields.get("number")) or 0,
        started_at=_text(fields.get("started_at")),
        running_since=_text(fields.get("running_since")),
        ended_at=_text(fields.get("ended_at")),
        cause=_text(fields.get("cause")),
        message=_text(fields.get("message")),
        exit_code=_integer(fields.get("exit_code")),
        failed_worker=_integer(fields.get("failed_worker")),
        zone=_text(fields.get("zone")),
        tries=tuple(_try(_mapping(each)) for each in tries) if isinstance(tries, list) else (),
    )


def _try(fields: Mapping[str, Any]) -> tuple[int, int | None, int | None]:
    return (
        _integer(fields.get("number")) or 0,
        _integer(fields.get("exit_code")),
        _integer(fields.get("failed_worker")),
    )


def _exit_code(outcome: str, code: int | None) -> int:
    if outcome == "cancelled":
        return EXIT_CANCELLED
    if outcome == "refused":
        return EXIT_REFUSED
    if outcome == "succeeded":
        return 0
    # A failure must never look like a success, whatever its number.
    return code if code is not None and 0 < code < 256 else 1


def _mapping(value: object) -> Mapping[str, Any]:
    return value if isinstance(value, dict) else {}


def _text(value: object) -> str:
    return value if isinstance(value, str) else ""


def _integer(value: object) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) else None
