"""Resumable uploads (skeleton).

Layer: emulator.
"""

from __future__ import annotations

from collections.abc import Iterable

from bastion.emulator.gcs.buckets import Buckets
from bastion.emulator.gcs.resources import Attributes, Declared, ObjectResource, Preconditions

_NOTHING = Declared()


class Upload:
    """One session."""

    resource: ObjectResource | None

    @property
    def persisted(self) -> int:
        raise NotImplementedError

    def append(self, offset: int, pieces: Iterable[bytes]) -> None:
        raise NotImplementedError

    def finish(self, declared: Declared = _NOTHING) -> ObjectResource:
        raise NotImplementedError

    def cancel(self) -> None:
        raise NotImplementedError


class Uploads:
    """Every session."""

    def __init__(self, buckets: Buckets) -> None:
        raise NotImplementedError

    def begin(
        self,
        bucket: str,
        name: str,
        attributes: Attributes,
        preconditions: Preconditions,
        *,
        size: int | None = None,
        declared: Declared = _NOTHING,
    ) -> str:
        raise NotImplementedError

    def find(self, upload_id: str) -> Upload:
        raise NotImplementedError
