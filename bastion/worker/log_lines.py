"""Raw output in, log lines out: `<RFC 3339 UTC µs> <stdout|stderr|gap> <F|P> <line>`.

Layer: worker, pure (the caller brings bytes and instants). Works on whole blocks of lines, not on single ones, because
a training job that prints a megabyte a second must not cost a core.

Invariants:

* Each line of the command becomes zero or more P pieces followed by one F piece; joined, the pieces are the line. The
  last piece of output that never ended in a newline is P.
* A line is cut only between UTF-8 characters; bytes that are not UTF-8 become U+FFFD. One CR before the newline is
  dropped.
* Instants never go back within one splitter.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from bastion.core import instants, limits

# A prompt or a progress bar without a newline is shown so long after it began.
IDLE_FLUSH_SECONDS = 1.0
_UTF8_MAX_TAIL = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class LogBlock:
    """Some whole log lines, at most `limits.LOG_SEGMENT_MAX_BYTES` of text.

    Attributes:
        text: The formatted lines, each ending in a newline.
        at: The instant of its first line, seconds since the epoch.
        size: How many bytes of the command's output they stand for; what a gap counts if the block is lost.
        raw: Those bytes as they came, if somebody wants them, else empty.
    """

    text: bytes
    at: float
    size: int
    raw: bytes = b""


def gap_text(at: float, lost_bytes: int | None, reason: str) -> bytes:
    """A line that says that output is missing here: how many bytes (None: nobody knows) and why."""
    amount = "an unknown number of" if lost_bytes is None else str(lost_bytes)
    return f"{instants.to_rfc3339(at)} gap F {amount} bytes of output are missing here: {reason}\n".encode()


def last_instant(text: bytes) -> float:
    """The instant of the last line of a stored segment; 0 if that is not one of ours."""
    line = text.rstrip(b"\n").rpartition(b"\n")[2]
    try:
        return instants.from_rfc3339(line.split(b" ", 1)[0].decode("ascii"))
    except ValueError:
        return 0.0


@dataclass(slots=True)
class _Partial:
    """The beginning of a line whose end has not been read yet."""

    data: bytes = b""
    since: float = 0.0


@dataclass(slots=True)
class LineSplitter:
    """Cuts the output of one command into blocks of log lines.

    Attributes:
        keep_raw: Whether blocks carry the raw bytes too.
        drop_line: Lines for which this is true are left out (noise that the command did not write itself); it is
            asked only about blocks that contain one of `drop_hints`.
    """

    keep_raw: bool = False
    drop_line: Callable[[bytes], bool] | None = None
    drop_hints: tuple[bytes, ...] = ()
    not_before: float = 0.0
    _partials: dict[str, _Partial] = field(default_factory=dict)

    def feed(self, stream: str, data: bytes, *, at: float, monotonic: float) -> list[LogBlock]:
        """Adds bytes that were read from `stream` ("stdout" or "stderr").

        Args:
            at: Instant for the lines, seconds since the epoch; an earlier one than the last is raised to it.
            monotonic: Seconds of the clock that idle flushing uses.
        """
        partial = self._partials.setdefault(stream, _Partial())
        data = partial.data + data
        end = data.rfind(b"\n") + 1
        blocks = self._whole_lines(stream, data[:end], at) if end else []
        rest = data[end:]
        if end or not partial.data:
            partial.since = monotonic
        while len(rest) > limits.LOG_LINE_MAX_BYTES:
            cut = _character_cut(rest, limits.LOG_LINE_MAX_BYTES)
            blocks.append(self._block(stream, b"P", rest[:cut], rest[:cut], at))
            rest = rest[cut:]
            partial.since = monotonic
        partial.data = rest
        return blocks

    def flush_idle(self, *, at: float, monotonic: float) -> list[LogBlock]:
        """P pieces of lines that were begun `IDLE_FLUSH_SECONDS` ago and not ended."""
        blocks = []
        for stream, partial in self._partials.items():
            if partial.data and monotonic - partial.since >= IDLE_FLUSH_SECONDS:
                cut = _character_cut(partial.data, len(partial.data))
                # A CR may be the first half of a line's end.
                if partial.data[:cut].endswith(b"\r"):
                    cut -= 1
                if cut:
                    piece = partial.data[:cut]
                    blocks.append(self._block(stream, b"P", piece, piece, at))
                    partial.data = partial.data[cut:]
                partial.since = monotonic
        return blocks

    def idle_in(self, monotonic: float) -> float | None:
        """Seconds until `flush_idle` has something to do; None if no line is unfinished."""
        since = [partial.since for partial in self._partials.values() if partial.data]
        return max(0.0, min(since) + IDLE_FLUSH_SECONDS - monotonic) if since else None

    def close(self, stream: str, *, at: float) -> list[LogBlock]:
        """The stream has ended: what is left of it, as P."""
        partial = self._partials.pop(stream, None)
        if partial is None or not partial.data:
            return []
        return [self._block(stream, b"P", partial.data, partial.data, at)]

    def note(self, text: str, *, at: float) -> LogBlock:
        """A line of the agent's own, shown as stderr."""
        data = f"bastion: {text}".replace("\n", " ").encode("utf-8", "replace")
        return self._block("stderr", b"F", data, data + b"\n", at)

    def gap(self, lost_bytes: int | None, reason: str, *, at: float) -> LogBlock:
        """A gap line as a block."""
        instant = self._instant(at)
        text = gap_text(instant, lost_bytes, reason)
        return LogBlock(text=text, at=instant, size=0, raw=text if self.keep_raw else b"")

    def _instant(self, at: float) -> float:
        self.not_before = max(self.not_before, at)
        return self.not_before

    def _block(self, stream: str, kind: bytes, line: bytes, raw: bytes, at: float) -> LogBlock:
        text = line.decode("utf-8", "replace").encode("utf-8")
        instant = self._instant(at)
        prefix = f"{instants.to_rfc3339(instant)} {stream} ".encode() + kind + b" "
        return LogBlock(text=prefix + text + b"\n", at=instant, size=len(raw), raw=raw if self.keep_raw else b"")

    def _whole_lines(self, stream: str, data: bytes, at: float) -> list[LogBlock]:
        """Formats lines that all end in a newline, as few blocks as the size limit allows."""
        if self.drop_line is not None and any(hint in data for hint in self.drop_hints):
            drop = self.drop_line
            data = b"".join(line + b"\n" for line in data[:-1].split(b"\n") if not drop(line))
            if not data:
                return []
        blocks: list[LogBlock] = []
        self._format(stream, data, at, blocks)
        return blocks

    def _format(self, stream: str, data: bytes, at: float, blocks: list[LogBlock]) -> None:
        instant = self._instant(at)
        prefix = f"{instants.to_rfc3339(instant)} {stream} F ".encode()
        lines = data.count(b"\n")
        # U+FFFD takes three bytes for one bad byte, so text could be three times its source.
        widest = len(data) if data.isascii() else 3 * len(data)
        fits = widest + lines * len(prefix) <= limits.LOG_SEGMENT_MAX_BYTES
        if not fits and lines > 1:
            middle = data.find(b"\n", len(data) // 2) + 1
            if not 0 < middle < len(data):
                middle = data.rfind(b"\n", 0, len(data) // 2) + 1
            self._format(stream, data[:middle], at, blocks)
            self._format(stream, data[middle:], at, blocks)
            return
        if len(data) > limits.LOG_LINE_MAX_BYTES and _longest_line(data) > limits.LOG_LINE_MAX_BYTES:
            self._format_long(stream, data, at, blocks)
            return
        text = data.decode("utf-8", "replace").encode("utf-8").replace(b"\r\n", b"\n")
        # The last newline ends the block and begins no line.
        formatted = prefix + text[:-1].replace(b"\n", b"\n" + prefix) + b"\n"
        blocks.append(LogBlock(text=formatted, at=instant, size=len(data), raw=data if self.keep_raw else b""))

    def _format_long(self, stream: str, data: bytes, at: float, blocks: list[LogBlock]) -> None:
        for line in data[:-1].split(b"\n"):
            rest = line
            while len(rest) > limits.LOG_LINE_MAX_BYTES:
                cut = _character_cut(rest, limits.LOG_LINE_MAX_BYTES)
                blocks.append(self._block(stream, b"P", rest[:cut], rest[:cut], at))
                rest = rest[cut:]
            blocks.append(self._block(stream, b"F", rest.removesuffix(b"\r"), rest + b"\n", at))


def _longest_line(data: bytes) -> int:
    return max(map(len, data.split(b"\n")))


def _character_cut(data: bytes, length: int) -> int:
    """The largest cut at or before `length` that does not split a UTF-8 character (at least 1 for broken bytes)."""
    for back in range(min(_UTF8_MAX_TAIL, length)):
        byte = data[length - 1 - back]
        if byte < 0x80:
            return length
        if byte >= 0xC0:
            needed = 2 if byte < 0xE0 else 3 if byte < 0xF0 else 4
            # The character that begins here is whole, or is left for the next piece.
            return length if needed <= back + 1 else length - 1 - back
    return length
