"""Pieces of a job's output: read from the text of a segment, and joined to whole lines.

Layer: client, pure. The format of a line is `bastion.worker.log_lines`'s.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

_STREAMS = ("stdout", "stderr", "gap")


@dataclass(frozen=True, slots=True, kw_only=True)
class LogPiece:
    """A line of output, or a piece of one.

    Attributes:
        at: RFC 3339, by the worker's clock.
        stream: `stdout`, `stderr`, or `gap`: `text` says what is missing.
        ends: Whether the line ends here; if not, the worker's next piece of that stream continues it.
        text: UTF-8, without the newline; terminal control sequences are passed on as the job wrote them.
    """

    worker: int
    at: str
    stream: str
    ends: bool
    text: bytes


def gap(worker: int, at: str, text: str) -> LogPiece:
    """A piece that says what is missing."""
    return LogPiece(worker=worker, at=at, stream="gap", ends=True, text=text.encode())


def read_pieces(data: bytes, *, worker: int, not_before: str) -> Iterator[LogPiece]:
    """The pieces in a segment's text; a line of another format is shown as a gap.

    Args:
        not_before: Instants never go back behind it: the merge of several workers relies on that.
    """
    instant = not_before
    for line in data.removesuffix(b"\n").split(b"\n"):
        at, _, rest = line.partition(b" ")
        stream, _, rest = rest.partition(b" ")
        kind, _, text = rest.partition(b" ")
        name = stream.decode("ascii", "replace")
        if name in _STREAMS and kind in (b"F", b"P"):
            instant = max(instant, at.decode("ascii", "replace"))
            yield LogPiece(worker=worker, at=instant, stream=name, ends=kind == b"F", text=text)
        elif line:
            problem = b"a log line of another format: " + line[:200]
            yield LogPiece(worker=worker, at=instant, stream="gap", ends=True, text=problem)


@dataclass(slots=True)
class LineJoiner:
    """Joins the pieces of lines; `show` gets whole lines only.

    A line without an end is given up to at `max_bytes`, so that a program that never writes a newline costs no memory.
    """

    show: Callable[[LogPiece], None]
    max_bytes: int = 1024 * 1024
    _begun: dict[tuple[int, str], bytes] = field(default_factory=dict)

    def add(self, piece: LogPiece) -> None:
        place = (piece.worker, piece.stream)
        text = self._begun.pop(place, b"") + piece.text
        if not piece.ends and len(text) < self.max_bytes:
            self._begun[place] = text
            return
        self.show(LogPiece(worker=piece.worker, at=piece.at, stream=piece.stream, ends=True, text=text))

    def finish(self) -> None:
        """The output is over: lines that never ended are shown as they are."""
        for (worker, stream), text in sorted(self._begun.items()):
            self.show(LogPiece(worker=worker, at="", stream=stream, ends=True, text=text))
        self._begun.clear()
