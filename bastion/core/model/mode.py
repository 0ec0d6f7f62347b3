"""Where specs and requests come from."""

from __future__ import annotations

from enum import Enum


class Mode(str, Enum):
    """`mode` of `config/identity.json`."""

    OPEN = "open"  # from `jobs/active/`, written by anybody; `user_id` is self-declared
    INBOX = "inbox"  # from `inbox/<user>/`, written by that user only
