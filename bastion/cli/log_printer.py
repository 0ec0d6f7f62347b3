"""Showing a job's output: its stdout on ours, its stderr on ours, workers told apart by a prefix.

Layer: cli. The bytes of the job pass as they are, control sequences included: it is the user's own program. A job on
one host appears exactly as it wrote, unfinished lines too; with several hosts, and where only some lines are wanted,
whole lines are shown.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterable
from dataclasses import dataclass
from typing import BinaryIO

from bastion.cli.output import say
from bastion.client.log_pieces import LineJoiner, LogPiece
from bastion.client.log_window import LastLines, LogWindow

# SGR codes that can be read on dark and on light ground; worker i always has the one at i modulo their number.
_COLOURS = (36, 33, 32, 35, 34, 96, 93, 92, 95, 94)
_EVERYTHING = LogWindow()


@dataclass(frozen=True, slots=True, kw_only=True)
class _Attempt:
    """Whose output it is; `hosts` is None if nobody knows."""

    number: int
    hosts: int | None
    slices: int

    def prefix(self, worker: int) -> str:
        """`[w03 2/4] `: the worker's number in the whole job, and of several slices which one is its own."""
        digits = max(2, len(str((self.hosts or 1) - 1)))
        text = f"w{worker:0{digits}d}"
        if self.hosts and self.slices > 1:
            text += f" {worker * self.slices // self.hosts + 1}/{self.slices}"
        return f"[{text}] "


class LogPrinter:
    """Shows pieces of one attempt after another, each attempt's first line under a mark.

    Args:
        prefixed: Put `[w03] ` before each line; None: where an attempt has more than one host.
        as_json: One JSON object per line on stdout instead.
        stdout_free: Keep our stdout free: the job's stdout goes to stderr as well.
        marks: Mark the attempts' beginnings; None: only of attempts after the first one.
        timestamps: Begin each line with its instant.
        window: Which lines are wanted.

    Attributes:
        shown: Whether anything was shown.
    """

    def __init__(
        self,
        *,
        prefixed: bool | None = None,
        as_json: bool = False,
        stdout_free: bool = False,
        marks: bool | None = None,
        timestamps: bool = False,
        window: LogWindow = _EVERYTHING,
    ) -> None:
        self._wanted = prefixed
        self._prefixed = bool(prefixed)
        self._as_json = as_json
        self._stdout_free = stdout_free
        self._marks = marks
        self._timestamps = timestamps
        self._window = window
        self._attempt = _Attempt(number=0, hosts=None, slices=1)
        self._marked = 0
        self._joiner = LineJoiner(self._whole)
        self._last: LastLines[tuple[_Attempt, LogPiece]] = LastLines(window.tail, self._line)
        self._coloured = {stream: _coloured(stream) for stream in ("stdout", "stderr")}
        self.shown = False

    def begin(self, attempt: int, hosts: int | None, slices: int = 1) -> None:
        """Output from here on is that of another attempt, with so many hosts (None: unknown) in so many slices."""
        self._joiner.finish()
        self._attempt = _Attempt(number=attempt, hosts=hosts, slices=slices)
        self._prefixed = hosts != 1 if self._wanted is None else self._wanted

    def show(self, pieces: Iterable[LogPiece]) -> None:
        whole = self._prefixed or self._as_json or self._timestamps or self._window.narrow
        for piece in pieces:
            if whole or piece.stream == "gap":
                self._joiner.add(piece)
            else:
                self._mark(self._attempt.number)
                self._out(piece.stream).write(piece.text + (b"\n" if piece.ends else b""))
        _flush()

    def caught_up(self) -> None:
        """All that was there at first was given: shows the last lines of it, and from here on each line as it comes."""
        self._last.release()
        if self._last.cut:
            say("bastion: fewer lines than --tail says, since no more than 64 MiB of them are held")
        _flush()

    def finish(self) -> None:
        """No more output comes: shows lines that never ended, and those that were held back."""
        self._joiner.finish()
        self.caught_up()

    def _whole(self, piece: LogPiece) -> None:
        if self._window.wants(piece):
            self._last.add((self._attempt, piece), len(piece.text))

    def _line(self, line: tuple[_Attempt, LogPiece]) -> None:
        attempt, piece = line
        self._mark(attempt.number)
        if self._as_json:
            document = {
                "attempt": attempt.number,
                "worker": piece.worker,
                "at": piece.at,
                "stream": piece.stream,
                "line": piece.text.decode("utf-8", "replace"),
            }
            print(json.dumps(document))
            return
        stream = "stdout" if piece.stream == "stdout" and not self._stdout_free else "stderr"
        head = f"{piece.at} " if self._timestamps and piece.at else ""
        if self._prefixed:
            prefix = attempt.prefix(piece.worker)
            colour = _COLOURS[piece.worker % len(_COLOURS)]
            # The reset also ends what the line before may have left on.
            head += f"\x1b[0;{colour}m{prefix[:-1]}\x1b[0m " if self._coloured[stream] else prefix
        if piece.stream == "gap":
            sys.stdout.flush()
            say(f"{head}--- {piece.text.decode('utf-8', 'replace')} ---")
            return
        self._out(piece.stream).write(head.encode() + piece.text + b"\n")

    def _mark(self, attempt: int) -> None:
        self.shown = True
        if attempt == self._marked:
            return
        self._marked = attempt
        if attempt > 1 if self._marks is None else self._marks:
            _flush()
            say(f"--- attempt {attempt} ---")

    def _out(self, stream: str) -> BinaryIO:
        text = sys.stderr if stream == "stderr" or self._stdout_free else sys.stdout
        return text.buffer


def _coloured(stream: str) -> bool:
    """Whether prefixes on that stream have colours: on a terminal that has them, unless $NO_COLOR forbids it."""
    terminal = getattr(sys, stream).isatty()
    return terminal and not os.environ.get("NO_COLOR") and os.environ.get("TERM", "dumb") != "dumb"


def _flush() -> None:
    sys.stdout.flush()
    sys.stderr.flush()
