"""Who may run a cleanup command on the bastion's host."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

from bastion.core import limits


class CleanupSlots:
    """Whose cleanup commands run. A user may have another one run only while more slots are free than the user holds.

    So nobody takes them all, however long these commands run (`scheduler.decide.ledger` does the same for jobs).
    """

    def __init__(self, users: Iterable[str] = ()) -> None:
        self._held = Counter(users)

    def take(self, user: str) -> bool:
        """Takes a slot for the user, if the user may have one."""
        may = limits.CLEANUP_COMMANDS_MAX - self._held.total() > self._held[user]
        self._held[user] += may
        return may
