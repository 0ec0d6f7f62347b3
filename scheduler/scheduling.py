"""One pass."""

from __future__ import annotations

from scheduler.model import Plan, Snapshot


def schedule(snapshot: Snapshot, now: float) -> Plan:
    """Decides what becomes of every job of the snapshot."""
    raise NotImplementedError
