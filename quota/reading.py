"""Reads a quota file."""

from __future__ import annotations

from quota.policy import Policy


def load(data: bytes) -> Policy:
    """Reads and checks a quota file."""
    raise NotImplementedError
