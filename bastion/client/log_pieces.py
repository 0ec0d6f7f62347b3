"""Pieces of a job's output: read from the text of a segment, and joined to whole lines.

Layer: client, pure. The format of a line is `bastion.worker.log_lines`'s.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace

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
    place = 0
    # One line at a time: all lines of a segment as objects would take several times its size.
    while place < len(data):
        end = data.find(b"\n", place)
        line = data[place:] if end < 0 else data[place:end]
        place = len(data) if end < 0 else end + 1
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
    """Joins the pieces of lines; `show` gets whole lines only, each with the instant of its last piece.

    Lines without an end cost no memory: one of `max_bytes` is given out as it is, and so is the longest one where all
    that have begun have more than `max_bytes_of_all`.
    """

    show: Callable[[LogPiece], None]
    max_bytes: int = 1024 * 1024
    max_bytes_of_all: int = 16 * 1024 * 1024
    _begun: dict[tuple[int, str], LogPiece] = field(default_factory=dict)
    _size: int = 0

    def add(self, piece: LogPiece) -> None:
        place = (piece.worker, piece.stream)
        begun = self._begun.pop(place, None)
        if begun is not None:
            self._size -= len(begun.text)
            piece = replace(piece, text=begun.text + piece.text)
        if piece.ends or len(piece.text) >= self.max_bytes:
            self.show(replace(piece, ends=True))
            return
        self._begun[place] = piece
        self._size += len(piece.text)
        if self._size > self.max_bytes_of_all:
            self._give_out(max(self._begun, key=lambda place: len(self._begun[place].text)))

    def finish(self) -> None:
        """The output is over: lines that never ended are shown as they are."""
        for place in sorted(self._begun):
            self._give_out(place)

    def _give_out(self, place: tuple[int, str]) -> None:
        piece = self._begun.pop(place)
        self._size -= len(piece.text)
        self.show(replace(piece, ends=True))
