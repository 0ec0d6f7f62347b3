"""The document `jobs/invalid/<job>`: why a spec is refused."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict, ValidationError

from bastion.core import documents
from bastion.core.bucket import keys
from bastion.core.bucket.objects import check_key
from bastion.core.errors import InvalidDocument


class Refusal(BaseModel):
    """One refused spec. It holds while the spec object has that generation."""

    model_config = ConfigDict(frozen=True, extra="ignore")

    format: int = 1
    name: str
    generation: int  # of the spec object
    problem: str = ""

    def to_bytes(self) -> bytes:
        return documents.dumps(self.model_dump(mode="json"))


def read(data: bytes) -> Refusal:
    """Raise `InvalidDocument` if no daemon wrote it."""
    try:
        refusal = Refusal.model_validate(documents.loads(data))
        check_key(keys.active(refusal.name))
    except (ValidationError, ValueError) as error:
        raise InvalidDocument(f"not ours: {error}") from error
    return refusal
