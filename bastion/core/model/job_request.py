"""`requests/<job>/<id>`: what a user asks of a job besides its end: hold, release, requeue, and the note of an `exec`.

Create-only, and deleted once it is answered. The object's server time orders requests, not `at`.
"""

from __future__ import annotations

from enum import Enum

from pydantic import BaseModel, ConfigDict, Field, StrictInt, StrictStr, ValidationError

from bastion.core import documents, limits
from bastion.core.errors import InvalidDocument
from bastion.core.plain_text import plain_line

FORMAT = 1


class RequestKind(str, Enum):
    HOLD = "hold"  # do not start it, nor start it again
    RELEASE = "release"  # end the hold
    REQUEUE = "requeue"  # end the running attempt; the job waits again
    EXEC = "exec"  # note that its author entered a worker


class JobRequest(BaseModel):
    """The content of a request.

    Attributes:
        by: Who asks; only a name in mode `open`, and not read in mode `inbox`.
        at: When it was written, for people.
        uid: Of the job; empty: of whichever job has the name when the request is written.
        reason: HOLD, REQUEUE: why, for people.
        worker: EXEC: which one.
    """

    model_config = ConfigDict(frozen=True, extra="ignore", defer_build=True)

    format: StrictInt = FORMAT
    kind: RequestKind
    by: StrictStr = ""
    at: StrictStr = ""
    uid: StrictStr = ""
    reason: StrictStr = ""
    worker: StrictInt = Field(default=0, ge=0, le=limits.REQUEST_WORKER_MAX)

    def to_bytes(self) -> bytes:
        return documents.dumps(self.model_dump(mode="json", exclude_defaults=True) | {"format": self.format})


def read(data: bytes) -> JobRequest:
    """Read a request; texts are cut and made plain. Raises InvalidDocument."""
    try:
        found = JobRequest.model_validate(documents.loads(data))
    except ValidationError as error:
        where = ".".join(str(part) for part in error.errors()[0]["loc"]) or "it"
        raise InvalidDocument(f"the request is not valid: {where}: {error.errors()[0]['msg']}") from error
    except ValueError as error:
        raise InvalidDocument(f"the request is not valid: {error}") from error
    if found.format != FORMAT:
        raise InvalidDocument(f"the request has format {found.format}; this version reads {FORMAT}")
    texts = {
        "by": _cut(found.by, limits.NAME_MAX_CHARS),
        "uid": found.uid[: limits.NAME_MAX_CHARS],
        "reason": _cut(found.reason, limits.REQUEST_REASON_MAX_CHARS),
    }
    return found.model_copy(update=texts)


def _cut(text: str, most: int) -> str:
    """The text as it is shown, cut afterwards: what is escaped becomes longer."""
    return plain_line(text)[:most].rstrip()
