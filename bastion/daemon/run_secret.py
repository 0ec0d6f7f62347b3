"""The secret that the keys of all runs follow from: made once, in the daemon's private place, and never shown.

Where there is a private bucket it is there, beside the quota file; only the daemon may read it. A daemon keeps it in
memory. It is not in any log, status or recorded tick.
"""

from __future__ import annotations

from collections.abc import Callable

from bastion.core import limits
from bastion.core.bucket import keys
from bastion.core.errors import AccessDenied, InvalidDocument, NotFound, ObjectTooLarge, PreconditionFailed, StoreError
from bastion.core.run_keys import SECRET_BYTES, RunKeys
from bastion.ports import ObjectStore


def read_run_keys(store: ObjectStore, *, shown: str, draw: Callable[[int], bytes]) -> RunKeys:
    """Read the secret, or make it if there is none.

    Args:
        store: The ROOT of the quota file.
        shown: That ROOT, for messages.
        draw: Returns so many random bytes.

    Raises:
        StoreError: It cannot be read or made now.
        InvalidDocument: The object is not a secret that a daemon made.
    """
    try:
        try:
            return _read(store, shown)
        except NotFound:
            pass
        made = draw(SECRET_BYTES)
        try:
            store.put(keys.RUN_SECRET, made.hex().encode() + b"\n", generation=0)
        except PreconditionFailed:
            return _read(store, shown)  # another daemon was first
        return RunKeys(made)
    except AccessDenied as error:
        raise AccessDenied(
            f"the secret of the runs {shown}/{keys.RUN_SECRET} cannot be read or made, so nothing starts: {error}; "
            f"grant the daemon reader and creator on {shown}/{keys.SECRETS}"
        ) from error
    except StoreError as error:
        raise StoreError(f"the secret of the runs {shown}/{keys.RUN_SECRET} cannot be read or made: {error}") from error


def _read(store: ObjectStore, shown: str) -> RunKeys:
    try:
        data = store.get(keys.RUN_SECRET, max_bytes=limits.RUN_SECRET_MAX_BYTES).data
        return RunKeys(bytes.fromhex(data.decode("ascii").strip()))
    except (ValueError, ObjectTooLarge):
        raise InvalidDocument(
            f"{shown}/{keys.RUN_SECRET} is not a secret that a daemon made; restore it from a copy, or delete it: then "
            "attempts under way end as infrastructure failures and start again"
        ) from None
