"""Bindings of roles, wherever they are written: in Terraform's module, or as gcloud lines of a page."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True, kw_only=True)
class Granted:
    """`folder` is a managed folder's name, with "/" at its end; "": the bucket. `condition` is its document."""

    bucket: str
    folder: str
    role: str
    member: str
    condition: Mapping[str, str] | None

    @property
    def told(self) -> str:
        """In one line, for comparisons."""
        of = f" if {self.condition['expression']}" if self.condition else ""
        return f"{self.member} {self.role} on {self.bucket}/{self.folder}{of}"


def policy(granted: Sequence[Granted]) -> dict[str, Any]:
    """The policy of one resource, as setIamPolicy takes it."""
    bindings: list[dict[str, Any]] = [
        {"role": one.role, "members": [one.member], **({"condition": dict(one.condition)} if one.condition else {})}
        for one in granted
    ]
    return {"version": 3, "bindings": bindings}
