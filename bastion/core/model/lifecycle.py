"""The states of a job and all transitions between them; the docs render this table.

PENDING ──start──▶ ACTIVE ──ended──▶ CLEANING ──▶ COMPLETED
   ▲  └──cancel──┐   │ │                ▲
   │             ▼   │ └───────┐        │
   └──evicted────────┘      CANCELLING ─┘
"""

from __future__ import annotations

from enum import Enum


class Status(str, Enum):
    """A job's status, in the bucket contract's spelling."""

    PENDING = "PENDING"
    ACTIVE = "ACTIVE"
    CANCELLING = "CANCELLING"
    CLEANING = "CLEANING"
    COMPLETED = "COMPLETED"


TRANSITIONS: dict[tuple[Status, Status], str] = {
    (Status.PENDING, Status.ACTIVE): "the scheduler starts it: an attempt begins",
    (Status.PENDING, Status.CANCELLING): "its owner cancels it, or its spec is deleted or replaced",
    (
        Status.ACTIVE,
        Status.PENDING,
    ): "the attempt ended and another may follow: evicted, updated, or infrastructure lost",
    (Status.ACTIVE, Status.CANCELLING): "its owner cancels it, or its spec is deleted or replaced",
    (Status.ACTIVE, Status.CLEANING): "its last attempt ended: succeeded, failed or refused",
    (Status.CANCELLING, Status.CLEANING): "all processes have stopped",
    (Status.CLEANING, Status.COMPLETED): "its cleanup command, if any, has ended",
}


def check(before: Status, after: Status) -> None:
    """Check a transition, also in production; raises AssertionError if the table has no such transition."""
    if before is not after and (before, after) not in TRANSITIONS:
        raise AssertionError(f"a job cannot go from {before.value} to {after.value}")
