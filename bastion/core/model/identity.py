"""The document `config/identity.json`: whether the bucket proves who wrote a spec, and whose the inboxes are.

Only administrators and the daemon may write it.
"""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from bastion.core import documents
from bastion.core.bucket import keys
from bastion.core.errors import InvalidDocument
from bastion.core.model.mode import Mode

_USERS_MAX = 10_000


class Inbox(BaseModel):
    """One inbox: of the user of that name, or of a project.

    Attributes:
        member: The principal that may write it, as in IAM (`user:alice@example.com`).
        uid: The Unix user whose files count in a folder bucket; default: the one of that name.
        project: Of an inbox that a group shares: its jobs must be this project's, and their `user_id` is self-declared.
    """

    model_config = ConfigDict(frozen=True, extra="ignore", strict=True, defer_build=True)

    member: str = ""
    uid: Annotated[int, Field(ge=0, lt=2**32)] | None = None
    project: str = ""


class Identity(BaseModel):
    """The whole document."""

    model_config = ConfigDict(frozen=True, extra="ignore", defer_build=True)

    format: Literal[1] = 1
    mode: Mode = Mode.OPEN
    users: dict[str, Inbox] = Field(default_factory=dict, max_length=_USERS_MAX)

    @model_validator(mode="after")
    def _check_names(self) -> Identity:
        for name in self.users:
            if not keys.is_inbox_user(name):
                raise ValueError(f"{name[:80]!r} is no name of an inbox: it has 1 to 63 of a-z, 0-9, '.', '_', '-'")
        return self

    @property
    def inbox(self) -> bool:
        return self.mode is Mode.INBOX

    def of(self, user: str) -> Inbox:
        return self.users.get(user, _UNKNOWN)

    def to_bytes(self) -> bytes:
        return documents.dumps(self.model_dump(mode="json", exclude_defaults=True) | {"format": 1, "mode": self.mode})


_UNKNOWN = Inbox()
OPEN = Identity()


def read(data: bytes) -> Identity:
    """Raise `InvalidDocument` if it is not valid, with what is wrong."""
    try:
        return Identity.model_validate(documents.loads(data))
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(str(part) for part in first["loc"])
        raise InvalidDocument(f"{where}: {first['msg']}" if where else first["msg"]) from error
    except documents.DocumentError as error:
        raise InvalidDocument(str(error)) from error
