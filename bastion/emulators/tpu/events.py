"""The event log: what happened to each node and queued resource, one JSON object a line in `events.jsonl`.

For whoever checks a run afterwards. A line is `{"at", "event", "name", "type", "units"}`: seconds since 1970, what
happened, the resource, its accelerator type, and the units of quota that the resource holds from then on. A queued
resource holds them from `accepted` to `gone`, also while it is FAILED or SUSPENDED, and its nodes hold none of their
own; so the sum over all names is never counted twice. A line `started` means that what is not listed right after it
(with the event `known`) is no more: a crash can cost the log its last lines.
"""

from __future__ import annotations

import contextlib
import json
import os
import time
from pathlib import Path

_MAX_BYTES = 16 * 1024 * 1024


class EventLog:
    """Appends events; the file before the last change of files has the ending `.1`. Not thread-safe. Never raises."""

    def __init__(self, path: Path, *, max_bytes: int = _MAX_BYTES) -> None:
        self._path = path
        self._max_bytes = max_bytes

    def note(self, event: str, name: str = "", accelerator_type: str = "", units: int = 0) -> None:
        line = {"at": round(time.time(), 6), "event": event, "name": name, "type": accelerator_type, "units": units}
        with contextlib.suppress(OSError):  # a full disk costs lines, never a node
            if self._path.exists() and self._path.stat().st_size > self._max_bytes:
                self._path.replace(self._path.with_name(self._path.name + ".1"))
            with open(self._path, "a", encoding="utf-8", opener=_private) as stream:
                stream.write(json.dumps(line) + "\n")


def _private(path: str, flags: int) -> int:
    return os.open(path, flags, 0o600)
