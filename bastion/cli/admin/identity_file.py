"""The identity document in the bucket, for the commands that change it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from bastion.core import limits
from bastion.core.bucket import keys
from bastion.core.errors import InvalidDocument, NotFound, PreconditionFailed, Refused
from bastion.core.model import identity
from bastion.core.model.identity import Identity

if TYPE_CHECKING:
    from bastion.client import Client

CHANGED = f"somebody else has changed {keys.IDENTITY} in the meantime; try again"


def read(client: Client) -> tuple[Identity, int]:
    """The document and its generation; the default and 0 without one. Raises Refused if it is not valid."""
    try:
        stored = client.store.get(keys.IDENTITY, max_bytes=limits.DOCUMENT_MAX_BYTES)
    except NotFound:
        return identity.OPEN, 0
    try:
        return identity.read(stored.data), stored.meta.generation
    except InvalidDocument as error:
        raise Refused(
            f"{keys.IDENTITY} is not valid: {error}; correct it, or restore it from {keys.IDENTITY_IN_FORCE}"
        ) from error


def write(client: Client, changed: Identity, generation: int) -> None:
    """Replace the document of that generation. Raises Refused if it has another one by now."""
    data = changed.to_bytes()
    if len(data) > limits.DOCUMENT_MAX_BYTES:
        raise Refused(
            f"{keys.IDENTITY} would be {len(data)} bytes long, and the maximum is {limits.DOCUMENT_MAX_BYTES}; "
            "remove inboxes that nobody uses"
        )
    try:
        client.store.put(keys.IDENTITY, data, generation=generation)
    except PreconditionFailed as error:
        raise Refused(CHANGED) from error
