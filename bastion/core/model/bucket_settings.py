"""The settings of a bucket of Cloud Storage that matter to a bastion."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True, kw_only=True)
class BucketSettings:
    """`lifecycle`: the rules as in the API's documents, `{"action": {...}, "condition": {...}}`."""

    uniform_access: bool
    public_access_prevented: bool
    versioned: bool
    retention_seconds: int
    held_by_default: bool
    soft_delete_seconds: int
    lifecycle: Sequence[Mapping[str, Any]]
