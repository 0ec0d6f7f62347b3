"""What the audit trail says of one request: who asked for what, how that is proved, and what came of it.

An accepted request is a part of its history line in the job's state, so it is as durable as the state's change. Of
what is refused or ignored, the effect that says so to its author carries it. No values of the spec are kept, only its
digest.
"""

from __future__ import annotations

from enum import Enum

from pydantic import BaseModel, ConfigDict, Field


class Request(str, Enum):
    """What was asked for, or what else changes who may do what."""

    SUBMIT = "submit"  # a new job
    UPDATE = "update"  # of the spec of a live job
    REPLACE = "replace"  # a live job's spec was overwritten by another job's
    DELETE = "delete"  # a live job's spec was deleted
    CANCEL = "cancel"
    HOLD = "hold"
    RELEASE = "release"
    REQUEUE = "requeue"
    EXEC = "exec"  # somebody entered a worker
    ASK = "ask"  # a request about a job that was not read
    ROOT = "root"  # an attempt starts whose command is root on its hosts (`runner.root`)
    END = "end"  # a job has ended
    QUOTA = "quota"  # a quota file is in force
    SETTINGS = "settings"  # operator settings are in force
    IDENTITY = "identity"  # where specs come from, and whose the inboxes are
    DAEMON = "daemon"  # a daemon begins to act
    GAP = "gap"  # lines were lost


class Proof(str, Enum):
    """How it is known who asked. Without one nobody is named."""

    INBOX = "inbox folder"  # only that user may write there
    FILE_OWNER = "file owner"  # of the file in the inbox, in a folder bucket
    SELF_DECLARED = "self-declared"  # the document says so, and everybody may write it
    GENERATION = "generation"  # whoever wrote that generation of a file that only administrators may write
    DAEMON = "daemon"  # it decided that itself


class Came(str, Enum):
    """What came of it."""

    ACCEPTED = "accepted"
    WAITING = "waiting"  # accepted, and the quota file does not allow it to start
    REFUSED = "refused"
    IGNORED = "ignored"  # there was nothing to do any more
    APPLIED = "applied"
    SUCCEEDED = "succeeded"
    FAILED = "failed"
    CANCELLED = "cancelled"
    LOST = "lost"


class Audited(BaseModel):
    """One request.

    Attributes:
        who: A user; in mode `open` the one that the document names. Empty: unknown, or nobody.
        generation: Of the object that asked; 0 if none did.
        object_time: Its server time.
        sha256: Of the object's bytes, if they were read.
        why: Empty: the text of the history line.
        uid: Of the job, where no history line says it.
    """

    model_config = ConfigDict(frozen=True, extra="ignore", defer_build=True)

    request: Request
    outcome: Came
    who: str = ""
    proof: Proof | None = None
    generation: int = Field(default=0, ge=0)
    object_time: float = Field(default=0.0, ge=0)
    sha256: str = ""
    why: str = ""
    uid: str = ""
