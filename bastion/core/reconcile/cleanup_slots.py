"""Slots for cleanup commands on the bastion's host."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

from bastion.core import limits


class CleanupSlots:
    """Slots by user. A user may take another one only while more are free than the user holds."""

    def __init__(self, users: Iterable[str] = ()) -> None:
        self._held = Counter(users)

    def take(self, user: str) -> bool:
        may = limits.CLEANUP_COMMANDS_MAX - self._held.total() > self._held[user]
        self._held[user] += may
        return may
