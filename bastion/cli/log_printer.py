"""Showing a job's output: its stdout on ours, its stderr on ours, workers told apart by a prefix.

Layer: cli. The bytes of the job pass as they are, control sequences included: it is the user's own program. A job on
one host appears exactly as it wrote, unfinished lines too; with several hosts only whole lines are mixed.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable
from typing import BinaryIO

from bastion.cli.output import say
from bastion.client.log_pieces import LineJoiner, LogPiece


class LogPrinter:
    """Shows pieces of one attempt after another.

    Args:
        prefixed: Put `[worker N] ` before each line; None: where an attempt has more than one host.
        as_json: One JSON object per line on stdout instead.
        stdout_free: Keep our stdout free: the job's stdout goes to stderr as well.
    """

    def __init__(self, *, prefixed: bool | None = None, as_json: bool = False, stdout_free: bool = False) -> None:
        self._wanted = prefixed
        self._prefixed = bool(prefixed)
        self._as_json = as_json
        self._stdout_free = stdout_free
        self._attempt = 0
        self._joiner = LineJoiner(self._line)

    def begin(self, attempt: int, hosts: int | None) -> None:
        """Output from here on is that of another attempt, with so many hosts (None: unknown)."""
        self.finish()
        self._attempt = attempt
        self._prefixed = hosts != 1 if self._wanted is None else self._wanted

    def show(self, pieces: Iterable[LogPiece]) -> None:
        for piece in pieces:
            if piece.stream == "gap" or self._prefixed or self._as_json:
                self._joiner.add(piece)
            else:
                self._out(piece.stream).write(piece.text + (b"\n" if piece.ends else b""))
        _flush()

    def finish(self) -> None:
        """No more output comes: shows lines that never ended."""
        self._joiner.finish()
        _flush()

    def _line(self, piece: LogPiece) -> None:
        if self._as_json:
            document = {
                "attempt": self._attempt,
                "worker": piece.worker,
                "at": piece.at,
                "stream": piece.stream,
                "line": piece.text.decode("utf-8", "replace"),
            }
            print(json.dumps(document))
            return
        prefix = f"[worker {piece.worker}] ".encode() if self._prefixed else b""
        if piece.stream == "gap":
            sys.stdout.flush()
            say(f"{prefix.decode()}--- {piece.text.decode('utf-8', 'replace')} ---")
            return
        self._out(piece.stream).write(prefix + piece.text + b"\n")

    def _out(self, stream: str) -> BinaryIO:
        text = sys.stderr if stream == "stderr" or self._stdout_free else sys.stdout
        return text.buffer


def _flush() -> None:
    sys.stdout.flush()
    sys.stderr.flush()
