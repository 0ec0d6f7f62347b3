"""Folders as buckets (skeleton).

Layer: emulator.
"""

from __future__ import annotations

from pathlib import Path

from bastion.emulator.gcs.objects import Bucket, OpenObject, Source

__all__ = ["Bucket", "Buckets", "OpenObject", "Source"]


class Buckets:
    """Every direct subfolder with a valid bucket name is a bucket."""

    def __init__(self, folder: Path, *, fsync: bool = False) -> None:
        raise NotImplementedError

    def names(self) -> list[str]:
        raise NotImplementedError

    def open(self, name: str) -> Bucket:
        raise NotImplementedError

    def create(self, name: str) -> Bucket:
        raise NotImplementedError

    def delete(self, name: str) -> None:
        raise NotImplementedError
