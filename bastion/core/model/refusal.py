"""The document `jobs/invalid/<job>`: why a spec is refused."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict, ValidationError

from bastion.core import documents
from bastion.core.bucket import keys
from bastion.core.bucket.objects import check_key
from bastion.core.errors import InvalidDocument


class Refusal(BaseModel):
    """One refused spec. It holds while the spec object has that generation.

    Attributes:
        generation: Of the refused object.
        owner: Whose inbox has the object; empty in mode `open`, and for what lies in `jobs/active/` beside the inboxes.
        request: It is about a request of that user.
    """

    model_config = ConfigDict(frozen=True, extra="ignore", defer_build=True)

    format: int = 1
    name: str
    generation: int
    problem: str = ""
    owner: str = ""
    request: bool = False

    def to_bytes(self) -> bytes:
        unset = {name for name in ("owner", "request") if not getattr(self, name)}
        return documents.dumps(self.model_dump(mode="json", exclude=unset))


def read(data: bytes) -> Refusal:
    """Raise `InvalidDocument` if no daemon wrote it."""
    try:
        refusal = Refusal.model_validate(documents.loads(data))
        check_key(keys.active(refusal.name))
        if refusal.owner and not keys.is_inbox_user(refusal.owner):
            raise InvalidDocument(f"not ours: it is about an object of {refusal.owner[:80]!r}")
    except (ValidationError, ValueError) as error:
        raise InvalidDocument(f"not ours: {error}") from error
    return refusal
