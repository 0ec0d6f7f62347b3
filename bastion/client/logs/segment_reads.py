"""Read segments while memory suffices, and tell those of the run from what others put among them."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from enum import Enum
from functools import partial
from typing import TypeAlias

from bastion.client.concurrently import concurrently
from bastion.client.logs.cursor import Cursor
from bastion.core import limits
from bastion.core.bucket import keys, segment_proofs
from bastion.core.errors import ObjectTooLarge, StoreError
from bastion.ports import ObjectStore


class Skipped(Enum):
    """Marks a segment that was not requested because enough is in memory."""

    SKIPPED = "skipped"


class Unproved(Enum):
    """Marks an object in a segment's place that proves no host of the run."""

    UNPROVED = "unproved"


Answer: TypeAlias = bytes | StoreError | Skipped | Unproved


class SegmentReads:
    """Reads the segments of one run.

    Attributes:
        checks: Whether segments must prove their run.
        unproved: Number of objects that do not.
    """

    def __init__(self, store: ObjectStore, *, public_key: str, connections: int) -> None:
        self._store = store
        self._public_key = public_key
        self._connections = connections
        self._below: dict[str, None] = {}
        self.checks = bool(public_key)
        self.unproved = 0

    @property
    def unproved_below(self) -> list[str]:
        """The folders of the objects that prove nothing."""
        return list(self._below)

    def get(self, wanted: Sequence[tuple[Cursor, int]], *, room: int) -> list[Answer]:
        """Get segments, without their proofs, until `room` bytes are full; the last ones may be skipped."""
        lock = threading.Lock()
        if room <= 0:
            return [Skipped.SKIPPED] * len(wanted)

        def segment(cursor: Cursor, number: int) -> bytes | Skipped | Unproved:
            nonlocal room
            if room <= 0:
                return Skipped.SKIPPED
            text = self._text(keys.segment_in(cursor.folder, number))
            if text is None:
                return Unproved.UNPROVED
            with lock:
                room -= len(text)
            return text

        answers = concurrently([partial(segment, *each) for each in wanted], connections=self._connections)
        for (cursor, number), answer in zip(wanted, answers, strict=True):
            if isinstance(answer, Unproved) and number not in cursor.left_out:
                self._below[cursor.folder] = None
                self.unproved += 1
        return answers

    def _text(self, key: str) -> bytes | None:
        try:
            data = self._store.get(key, max_bytes=limits.LOG_SEGMENT_READ_MAX_BYTES).data
        except ObjectTooLarge:
            if not self.checks:
                raise
            return None  # no host stores one of that size
        if not self.checks:
            return segment_proofs.without_proof(data)
        return segment_proofs.proved(key, data, self._public_key)
