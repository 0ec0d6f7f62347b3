"""The tap in a host's log that keeps the lines of MLPerf's logging library, `:::MLLOG {...}`.

As in the library's own parser, a line counts from the token on (mlperf_logging: compliance_checker/mlp_parser), because
launchers put a rank before it. The lines wait in a file, so that an agent that dies loses none.
"""

from __future__ import annotations

import logging
import os
from pathlib import Path

from bastion.agent.logs.lines import LogRecord
from bastion.core import limits

_log = logging.getLogger(__name__)

TOKEN = b":::MLLOG "


class MllogTap:
    """Copies MLLOG lines of one try's output into a file; called by the thread that reads the output.

    It never holds up the output: of other lines it only searches the bytes for the token, and when the file cannot be
    written it gives up.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._descriptor: int | None = None
        self._left = limits.RESULTS_MAX_BYTES
        # Beginnings of lines that were cut in the middle, by stream.
        self._begun: dict[str, bytes] = {}

    def look(self, record: LogRecord) -> None:
        data = record.data
        if self._begun:
            data = self._begun.pop(record.stream, b"") + data
        if not data.endswith(b"\n"):
            begin = data.rfind(b"\n") + 1
            # Longer lines are cut; the rest of one is no line of its own.
            self._begun[record.stream] = data[begin : begin + limits.RESULTS_LINE_MAX_BYTES]
            data = data[:begin]
        # One byte is found 20 times as fast as the token, and most output has no brace.
        if b"{" in data and TOKEN in data:
            self._keep(data)

    def close(self) -> None:
        """Keep what was begun, and close the file."""
        for data in self._begun.values():
            if TOKEN in data:
                self._keep(data + b"\n")
        self._begun.clear()
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None

    def _keep(self, data: bytes) -> None:
        found = []
        at = data.find(TOKEN)
        while at >= 0:
            end = data.find(b"\n", at) + 1 or len(data)
            found.append(data[data.rfind(TOKEN, at, end) : end])
            at = data.find(TOKEN, end)
        text = b"".join(found)
        if self._left <= 0:
            return
        try:
            if self._descriptor is None:
                flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
                self._descriptor = os.open(self._path, flags, 0o600)
            # A little more than is stored, so that the reader sees that there is more.
            self._left -= os.write(self._descriptor, text)
        except OSError as error:
            _log.warning("MLLOG lines cannot be kept: %s", error)
            self._left = 0
