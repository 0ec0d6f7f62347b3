"""`jobs/user_states/<job>`: a user's request to cancel a job.

`status` and `metadata` are the contract: other clients write the bare status or both keys, and build an object from
exactly these two. Ours adds under `metadata` who asked, when, and for which uid.
"""

from __future__ import annotations

from dataclasses import dataclass

from bastion.core import documents
from bastion.core.errors import InvalidDocument
from bastion.core.model.lifecycle import Status
from bastion.core.plain_text import plain

_UID_MAX_CHARS = 128
_BY_MAX_CHARS = 128


@dataclass(frozen=True, slots=True, kw_only=True)
class CancelRequest:
    """The content of a request. `cancel` is false for any other request; `uid` and `by` are empty if absent."""

    cancel: bool
    uid: str = ""
    by: str = ""


def to_bytes(*, by: str, at: str, uid: str = "") -> bytes:
    """Make a cancel request; without `uid` it is for the job of that name that was queued before `at` (RFC 3339)."""
    metadata = {"by": by, "at": at} | ({"uid": uid} if uid else {})
    return documents.dumps({"status": Status.CANCELLING.value, "metadata": metadata})


def read(data: bytes) -> CancelRequest:
    """Read a request: ours, one with its keys at the top level (older versions), another client's, or a bare status.

    Raises InvalidDocument if it has none of these forms.
    """
    text = data.strip().decode("utf-8", "replace")
    if text.upper() == Status.CANCELLING.value:
        return CancelRequest(cancel=True)
    try:
        document = documents.loads(data)
    except documents.DocumentError as error:
        raise InvalidDocument(str(error)) from error
    if not isinstance(document, dict):
        raise InvalidDocument("a cancel request must be a JSON object")
    metadata = document.get("metadata")
    ours = {**document, **metadata} if isinstance(metadata, dict) else document
    uid, by = ours.get("uid"), ours.get("by")
    return CancelRequest(
        cancel=str(document.get("status", "")).strip().upper() == Status.CANCELLING.value,
        uid=uid[:_UID_MAX_CHARS] if isinstance(uid, str) else "",
        by=plain(by[:_BY_MAX_CHARS]) if isinstance(by, str) else "",
    )
