"""Pieces of a job's output: parsed from a segment (format: `bastion.agent.logs.lines`), and joined to lines. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace

_STREAMS = ("stdout", "stderr", "gap")


@dataclass(frozen=True, slots=True, kw_only=True)
class LogPiece:
    """A line of output, or a piece of one.

    Attributes:
        at: RFC 3339, by the worker's clock.
        stream: `stdout`, `stderr`, or `gap`: then `text` says what is missing.
        ends: Whether the line ends here; otherwise the worker's next piece of that stream continues it.
        text: UTF-8 without the newline; terminal control sequences are unchanged.
    """

    worker: int
    at: str
    stream: str
    ends: bool
    text: bytes


def gap(worker: int, at: str, text: str) -> LogPiece:
    """Make a piece that says what is missing."""
    return LogPiece(worker=worker, at=at, stream="gap", ends=True, text=text.encode())


def read_pieces(data: bytes, *, worker: int, not_before: str) -> Iterator[LogPiece]:
    """Parse a segment; a line of another format becomes a gap.

    Args:
        not_before: No instant goes back before it; merging several workers relies on that.
    """
    instant = not_before
    place = 0
    # One line at a time: all lines as objects would take several times the segment's size.
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
class _Begun:
    """An unfinished line.

    Attributes:
        piece: Its text that was not shown.
        since: When it was first seen unfinished, or last shown; by the caller's clock.
        told: The text last shown.
    """

    piece: LogPiece
    since: float | None = None
    told: bytes | None = None


@dataclass(slots=True)
class LineJoiner:
    """Joins pieces to lines; `show` gets whole lines, each with the instant of its last piece.

    Memory is bounded: a line that reaches `max_bytes` is passed on as it is, and so is the longest unfinished one when
    all together reach `max_bytes_of_all`.

    Attributes:
        rewriting: A carriage return starts the line again, as on a terminal: of a progress bar only the latest state
            is kept. Otherwise it is an ordinary character.
    """

    show: Callable[[LogPiece], None]
    max_bytes: int = 1024 * 1024
    max_bytes_of_all: int = 16 * 1024 * 1024
    rewriting: bool = False
    _begun: dict[tuple[int, str], _Begun] = field(default_factory=dict)
    _size: int = 0

    def add(self, piece: LogPiece) -> None:
        """Take the next piece."""
        place = (piece.worker, piece.stream)
        begun = self._begun.pop(place, None) or _Begun(replace(piece, text=b""))
        self._size -= len(begun.piece.text)
        text = begun.piece.text + piece.text
        begun.piece = replace(piece, text=_latest_state(text) if self.rewriting else text)
        if piece.ends or len(begun.piece.text) >= self.max_bytes:
            self._end(begun)
            return
        self._begun[place] = begun
        self._size += len(begun.piece.text)
        if self._size > self.max_bytes_of_all:
            self._give_out(max(self._begun, key=lambda place: len(self._begun[place].piece.text)))

    def show_unfinished(self, now: float, *, every: float) -> None:
        """Show the present text of lines unfinished for `every` seconds.

        A rewritten line is shown again when its state has changed; any other line continues in a new one.

        Args:
            now: Monotonic, in seconds.
        """
        for place in sorted(self._begun):
            begun = self._begun[place]
            if begun.since is None:
                begun.since = now
            text = begun.piece.text
            state = text.removesuffix(b"\r")
            if now - begun.since < every or not state or state == begun.told:
                continue
            self.show(replace(begun.piece, text=state, ends=True))
            begun.since, begun.told = now, state
            self._size -= len(text)
            # It may still be rewritten; if it continues instead, its beginning was shown.
            begun.piece = replace(begun.piece, text=b"")

    def finish(self) -> None:
        """Show all unfinished lines; no more output follows."""
        for place in sorted(self._begun):
            self._give_out(place)

    def _give_out(self, place: tuple[int, str]) -> None:
        begun = self._begun.pop(place)
        self._size -= len(begun.piece.text)
        self._end(begun)

    def _end(self, begun: _Begun) -> None:
        text = begun.piece.text
        if self.rewriting:
            text = text.removesuffix(b"\r")
        # A line that was shown may end without more text.
        if begun.told is None or text not in (b"", begun.told):
            self.show(replace(begun.piece, text=text, ends=True))


def _latest_state(text: bytes) -> bytes:
    """What a terminal shows of a line with carriage returns; keeps the final one if the next text follows it.

    A bar that clears itself with spaces is shown as it was before.
    """
    if b"\r" not in text:
        return text
    state = next((part for part in reversed(text.split(b"\r")) if part.strip(b" ")), b"")
    return state + b"\r" if text.endswith(b"\r") else state
