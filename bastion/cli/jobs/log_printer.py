"""Show a job's output: its stdout on ours, its stderr on ours, with a prefix for each worker.

The output of a single host goes to files and pipes unchanged, unfinished lines included; a terminal gets it through
`bastion.cli.terminal`. With several hosts or a filter, whole lines are shown. Of a line that carriage returns rewrite
(a progress bar), the latest state is shown at intervals, and once when it ends.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterable
from dataclasses import dataclass
from typing import TextIO

from bastion.cli.output import plain, say
from bastion.cli.terminal import OutputCleaner, clean_line
from bastion.client.logs.pieces import LineJoiner, LogPiece
from bastion.client.logs.window import LastLines, LogWindow

# SGR codes that are readable on dark and on light backgrounds; worker i uses the code at i modulo their number.
_COLORS = (36, 33, 32, 35, 34, 96, 93, 92, 95, 94)
_EVERYTHING = LogWindow()
# Minimum intervals between showing unfinished lines: in all, and per worker.
_UNFINISHED_SECONDS = 5.0
_UNFINISHED_SECONDS_OF_EACH = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class _Attempt:
    """The attempt that wrote the output; `hosts` is None if unknown."""

    number: int
    hosts: int | None
    slices: int

    def prefix(self, worker: int) -> str:
        """`[w03 2/4] `: the worker's number in the job, and with several slices the slice's."""
        digits = max(2, len(str((self.hosts or 1) - 1)))
        text = f"w{worker:0{digits}d}"
        if self.hosts and self.slices > 1:
            text += f" {worker * self.slices // self.hosts + 1}/{self.slices}"
        return f"[{text}] "


class LogPrinter:
    """Shows the output of one attempt after another.

    Args:
        prefixed: Put `[w03] ` before each line; None: if the attempt has several hosts.
        as_json: Print one JSON object per line on stdout instead.
        stdout_free: Send the job's stdout to stderr as well.
        marks: Print a line before each attempt; None: only after the first one.
        timestamps: Start each line with its time.
        window: The lines to show.
        raw: Write the job's bytes to a terminal unchanged, and treat a carriage return like any other character.

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
        raw: bool = False,
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
        # JSON holds lines as they were written.
        self._joiner = LineJoiner(self._whole, rewriting=not raw and not as_json)
        self._last: LastLines[tuple[_Attempt, LogPiece]] = LastLines(window.tail, self._line)
        self._colored = {stream: _colored(stream) for stream in ("stdout", "stderr")}
        # One per stream of ours that is a terminal.
        self._cleaners = {
            stream: OutputCleaner(carriage_returns=True)
            for stream in ("stdout", "stderr")
            if not raw and getattr(sys, stream).isatty()
        }
        self._unended: set[str] = set()
        self._caught_up = False
        self.shown = False

    def begin(self, attempt: int, hosts: int | None, slices: int = 1) -> None:
        """Switch to another attempt, on `hosts` hosts (None: unknown) in `slices` slices."""
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
                self._pass_on(piece)
        _flush()

    def show_unfinished(self, now: float) -> None:
        """Show the present text of lines that have not ended for long; `now` is monotonic, in seconds."""
        if self._caught_up and not self._as_json:
            of_each = _UNFINISHED_SECONDS_OF_EACH * (self._attempt.hosts or 1)
            self._joiner.show_unfinished(now, every=max(_UNFINISHED_SECONDS, of_each))
            _flush()

    def interrupt(self) -> None:
        """End an unfinished line before a line of ours."""
        _flush()
        if "stderr" in self._unended or ("stdout" in self._unended and _same_place()):
            sys.stderr.write("\n")
            self._unended.clear()

    def caught_up(self) -> None:
        """Show the last lines of the existing output; later lines are shown as they come."""
        self._caught_up = True
        self._last.release()
        if self._last.cut:
            say("bastion: showing fewer lines than --tail asks for: at most 64 MiB are held")
        _flush()

    def finish(self) -> None:
        """Show unfinished lines and lines that were held back; no more output follows."""
        self._joiner.finish()
        self.caught_up()
        for stream in self._unended & set(self._cleaners):
            # The cleaner may hold the beginning of an unfinished sequence.
            _text(stream).buffer.write(self._cleaners[stream].clean(b"", ends=True))
        self.interrupt()

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
        stream = self._stream(piece)
        head = f"{plain(piece.at)} " if self._timestamps and piece.at else ""
        if self._prefixed:
            prefix = attempt.prefix(piece.worker)
            color = _COLORS[piece.worker % len(_COLORS)]
            # The reset also ends a style that the previous line left on.
            head += f"\x1b[0;{color}m{prefix[:-1]}\x1b[0m " if self._colored[stream] else prefix
        text = piece.text
        if piece.stream == "gap":
            text = f"--- {plain(text.decode('utf-8', 'replace'))} ---".encode()
            sys.stdout.flush()
            self.interrupt()
        elif stream in self._cleaners:
            text = clean_line(text)
        _text(stream).buffer.write(head.encode("utf-8", "replace") + text + b"\n")

    def _pass_on(self, piece: LogPiece) -> None:
        stream = self._stream(piece)
        cleaner = self._cleaners.get(stream)
        text = piece.text if cleaner is None else cleaner.clean(piece.text, ends=piece.ends)
        _text(stream).buffer.write(text + (b"\n" if piece.ends else b""))
        if piece.ends:
            self._unended.discard(stream)
        else:
            self._unended.add(stream)

    def _mark(self, attempt: int) -> None:
        self.shown = True
        if attempt == self._marked:
            return
        self._marked = attempt
        if attempt > 1 if self._marks is None else self._marks:
            self.interrupt()
            say(f"--- attempt {attempt} ---")

    def _stream(self, piece: LogPiece) -> str:
        """The stream of ours that shows it."""
        return "stdout" if piece.stream == "stdout" and not self._stdout_free else "stderr"


def _text(stream: str) -> TextIO:
    return sys.stdout if stream == "stdout" else sys.stderr


def _same_place() -> bool:
    """Whether our stdout and stderr are the same terminal, file or pipe."""
    try:
        out, err = os.fstat(sys.stdout.fileno()), os.fstat(sys.stderr.fileno())
    except (OSError, ValueError):  # sys.stdout or sys.stderr was replaced
        return False
    return (out.st_dev, out.st_ino) == (err.st_dev, err.st_ino)


def _colored(stream: str) -> bool:
    """Whether to color prefixes: on a terminal with colors, unless $NO_COLOR is set."""
    terminal = getattr(sys, stream).isatty()
    return terminal and not os.environ.get("NO_COLOR") and os.environ.get("TERM", "dumb") != "dumb"


def _flush() -> None:
    sys.stdout.flush()
    sys.stderr.flush()
