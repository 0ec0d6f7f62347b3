"""The settings of the emulated kubelet."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any


@dataclass(frozen=True, slots=True, kw_only=True)
class KubeletSettings:
    """Settings of all emulated nodes.

    Attributes:
        orphan_seconds: How long pods outlive their emulator.
        close_grace_seconds: Between SIGTERM and SIGKILL of all pods when the emulator closes.
        image_backoff_seconds: Between two attempts to pull an image; doubles up to 300 s.
        first_pull_fails: Whether the registry does not answer a pod's first pull.
        project, zone: What the metadata server tells pods; a node's label for its zone wins.
    """

    state_dir: Path
    orphan_seconds: float = 60.0
    close_grace_seconds: float = 5.0
    image_backoff_seconds: float = 10.0
    first_pull_fails: Callable[[dict[str, Any]], bool] = lambda _pod: False
    project: str = "emulated"
    zone: str = "us-central2-b"
