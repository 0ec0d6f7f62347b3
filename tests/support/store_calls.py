"""What wrappers of stores in tests need to override `ForwardingStore._call`."""

from __future__ import annotations

from typing import TypeVar

T = TypeVar("T")
WRITES = frozenset({"put", "append", "delete"})
