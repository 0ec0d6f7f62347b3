"""The event log `events.jsonl`: what happened to each node and queued resource, one JSON object a line.

A line is `{"at", "event", "name", "type", "units"}`: seconds since 1970, the event, the resource, its accelerator type,
and the units of quota that it holds from then on. A queued resource holds them from `accepted` to `gone`, also while
FAILED or SUSPENDED; its nodes hold none, so a sum over all names counts each unit once. After a line `started`,
resources without a following `known` line no longer exist: a crash can lose the last lines.
"""

from __future__ import annotations

import contextlib
import json
import os
import time
from pathlib import Path

_MAX_BYTES = 16 * 1024 * 1024


class EventLog:
    """Appends events; the previous file ends in `.1`. Not thread-safe. Never raises."""

    def __init__(self, path: Path, *, max_bytes: int = _MAX_BYTES) -> None:
        self._path = path
        self._max_bytes = max_bytes

    def note(self, event: str, name: str = "", accelerator_type: str = "", units: int = 0) -> None:
        line = {"at": round(time.time(), 6), "event": event, "name": name, "type": accelerator_type, "units": units}
        with contextlib.suppress(OSError):  # A full disk may lose lines, but no node.
            if self._path.exists() and self._path.stat().st_size > self._max_bytes:
                self._path.replace(self._path.with_name(self._path.name + ".1"))
            with open(self._path, "a", encoding="utf-8", opener=_private) as stream:
                stream.write(json.dumps(line) + "\n")


def _private(path: str, flags: int) -> int:
    return os.open(path, flags, 0o600)
