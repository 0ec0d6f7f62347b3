"""Turn raw output into log lines: `<RFC 3339 UTC µs> <stdout|stderr|gap> <F|P> <line>`. Pure.

A flood of output must not wait for formatting: `LineCutter` cuts bytes into records at almost no cost, and `text_of`
formats a record when it is uploaded.

Invariants:
* The records of a stream, joined, are its bytes (except lines that the filter drops from the text).
* A line becomes zero or more P pieces and one F piece; joined, they are the line. Output without a final newline ends
  in a P piece.
* A line is cut only between UTF-8 characters; invalid bytes become U+FFFD. One CR before the newline is dropped.
* Times never go back within one cutter.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from bastion.core import instants, limits
from bastion.core.bucket.gap_lines import GAP, missing

# A prompt or progress bar without a newline is shown after this time. Together with the longest segment interval of the
# first hosts it stays below 2 s.
IDLE_FLUSH_SECONDS = 0.4
# A time, a stream and an F or P, each with its space, and the newline.
_LINE_OVERHEAD_BYTES = 38
# Larger pieces cost more: the allocator returns memory of their size to the kernel each time.
_PIECE_BYTES = 64 * 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class LogRecord:
    """Output of one stream: whole lines, or the beginning of a line.

    Attributes:
        stream: "stdout", "stderr", or "gap" (`data` then says what is missing).
        at: When it was read, seconds since the epoch.
    """

    stream: str
    at: float
    data: bytes

    @property
    def output_bytes(self) -> int:
        """Bytes of the command's output in this record."""
        return 0 if self.stream == GAP else len(self.data)


def gap_record(lost_bytes: int | None, reason: str, *, at: float) -> LogRecord:
    """A line that says how many bytes are missing here (None: unknown) and why."""
    return LogRecord(stream=GAP, at=at, data=f"{missing(lost_bytes, reason)}\n".encode())


def text_bytes_at_most(record: LogRecord) -> int:
    """An upper bound of the length of `text_of(record)`, without formatting."""
    data = record.data
    lines = data.count(b"\n") + 1 + len(data) // (limits.LOG_LINE_MAX_BYTES - _UTF8_MAX_TAIL)
    return _width(data) + lines * _LINE_OVERHEAD_BYTES


def text_of(record: LogRecord, drop_line: Callable[[bytes], bool] | None = None) -> bytes:
    """Format the record as log lines, without the whole lines that `drop_line` selects."""
    data = record.data
    if drop_line is not None:
        lines = data.split(b"\n")
        data = b"\n".join([*(line for line in lines[:-1] if not drop_line(line)), lines[-1]])
    prefix = f"{instants.to_rfc3339(record.at)} {record.stream} ".encode()
    texts: list[bytes] = []
    begin = 0
    while begin < len(data):
        # As many whole lines as fit a piece, or one longer line.
        end = data.rfind(b"\n", begin, begin + _PIECE_BYTES) + 1 or data.find(b"\n", begin) + 1
        if not end:
            texts += _partial_texts(prefix, data[begin:])
            break
        texts += _whole_texts(prefix, data[begin:end])
        begin = end
    return b"".join(texts)


def raw_of(record: LogRecord) -> bytes:
    """The record in a raw log: the command's bytes, or the whole line of a gap."""
    return text_of(record) if record.stream == GAP else record.data


@dataclass(slots=True)
class _Partial:
    data: bytes = b""
    since: float = 0.0


@dataclass(slots=True)
class LineCutter:
    """Cuts the output of one command into records. No record gets an earlier time than `not_before`."""

    not_before: float = 0.0
    _partials: dict[str, _Partial] = field(default_factory=dict)
    # Streams whose last record ends within a line; only the same process may continue it.
    _unended: set[str] = field(default_factory=set)

    def feed(self, stream: str, data: bytes, *, at: float, monotonic: float) -> list[LogRecord]:
        """Add bytes read from `stream` ("stdout" or "stderr").

        Args:
            at: Time of the record, seconds since the epoch; raised to the last record's if earlier.
            monotonic: Seconds of the clock for idle flushing.
        """
        if stream not in self._partials and stream in self._unended:
            data = b"\n" + data  # a new process must not continue the line of the last one
        partial = self._partials.setdefault(stream, _Partial())
        if partial.data:
            data = partial.data + data
        end = data.rfind(b"\n") + 1
        if end or not partial.data:
            partial.since = monotonic
        rest = data[end:]
        if len(rest) > limits.LOG_LINE_MAX_BYTES:
            end += _character_cut(rest, len(rest))
            # A CR may be the first half of a line end.
            end -= data[:end].endswith(b"\r")
            rest = data[end:]
            partial.since = monotonic
        partial.data = rest
        return [self._record(stream, data[:end], at)] if end else []

    def flush_idle(self, *, at: float, monotonic: float) -> list[LogRecord]:
        """The beginnings of lines that have been unfinished for `IDLE_FLUSH_SECONDS`."""
        records = []
        for stream, partial in self._partials.items():
            if partial.data and monotonic - partial.since >= IDLE_FLUSH_SECONDS:
                cut = _character_cut(partial.data, len(partial.data))
                # A CR may be the first half of a line end.
                if partial.data[:cut].endswith(b"\r"):
                    cut -= 1
                if cut:
                    records.append(self._record(stream, partial.data[:cut], at))
                    partial.data = partial.data[cut:]
                partial.since = monotonic
        return records

    def idle_in(self, monotonic: float) -> float | None:
        """Seconds until `flush_idle` has work; None if no line is unfinished."""
        since = [partial.since for partial in self._partials.values() if partial.data]
        return max(0.0, min(since) + IDLE_FLUSH_SECONDS - monotonic) if since else None

    def close(self, stream: str, *, at: float) -> list[LogRecord]:
        """End a stream; return its unfinished line."""
        partial = self._partials.pop(stream, None)
        return [self._record(stream, partial.data, at)] if partial is not None and partial.data else []

    def note(self, text: str, *, at: float) -> LogRecord:
        line = "bastion: " + text.replace("\n", " ") + "\n"
        if "stderr" in self._unended:
            line = "\n" + line
        return self._record("stderr", line.encode("utf-8", "replace"), at)

    def gap(self, lost_bytes: int | None, reason: str, *, at: float) -> LogRecord:
        return gap_record(lost_bytes, reason, at=self._instant(at))

    def _instant(self, at: float) -> float:
        self.not_before = max(self.not_before, at)
        return self.not_before

    def _record(self, stream: str, data: bytes, at: float) -> LogRecord:
        if data.endswith(b"\n"):
            self._unended.discard(stream)
        else:
            self._unended.add(stream)
        return LogRecord(stream=stream, at=self._instant(at), data=data)


def halves(record: LogRecord) -> tuple[LogRecord, LogRecord]:
    """Split a record in two: between lines if it has several, else between characters."""
    data = record.data
    middle = len(data) // 2
    cut = data.rfind(b"\n", 0, middle) + 1 or data.find(b"\n", middle, len(data) - 1) + 1
    cut = cut or _character_cut(data, middle)
    # Not inside a line end: the CR would be shown.
    if data[cut - 1 : cut + 1] == b"\r\n" and cut > 1:
        cut -= 1
    return (
        LogRecord(stream=record.stream, at=record.at, data=data[:cut]),
        LogRecord(stream=record.stream, at=record.at, data=data[cut:]),
    )


def _whole_texts(prefix: bytes, data: bytes) -> list[bytes]:
    """Format lines that all end in a newline."""
    if len(data) > limits.LOG_LINE_MAX_BYTES and max(map(len, data.split(b"\n"))) > limits.LOG_LINE_MAX_BYTES:
        texts = []
        for line in data[:-1].split(b"\n"):
            *pieces, last = _pieces(line.removesuffix(b"\r"))
            texts += [prefix + b"P " + _as_text(piece) + b"\n" for piece in pieces]
            texts.append(prefix + b"F " + _as_text(last) + b"\n")
        return texts
    if not data.isascii():
        data = _as_text(data)
    if b"\r" in data:
        data = data.replace(b"\r\n", b"\n")
    prefix += b"F "
    # The last newline ends the text and begins no line.
    return [prefix, data[:-1].replace(b"\n", b"\n" + prefix), b"\n"]


def _partial_texts(prefix: bytes, data: bytes) -> list[bytes]:
    return [prefix + b"P " + _as_text(piece) + b"\n" for piece in _pieces(data)]


def _pieces(line: bytes) -> list[bytes]:
    """Split a line into at least one piece of at most `LOG_LINE_MAX_BYTES`."""
    pieces = []
    while len(line) > limits.LOG_LINE_MAX_BYTES:
        cut = _character_cut(line, limits.LOG_LINE_MAX_BYTES)
        pieces.append(line[:cut])
        line = line[cut:]
    return [*pieces, line]


def _as_text(data: bytes) -> bytes:
    return data.decode("utf-8", "replace").encode("utf-8")


def _width(data: bytes) -> int:
    """An upper bound of the text's length: U+FFFD takes three bytes for an invalid one."""
    if not data.isascii():
        try:
            data.decode("utf-8")
        except UnicodeDecodeError:
            return 3 * len(data)
    return len(data)


_UTF8_MAX_TAIL = 3


def _character_cut(data: bytes, length: int) -> int:
    """The largest cut at or before `length` that splits no UTF-8 character (at least 1 for invalid bytes)."""
    for back in range(min(_UTF8_MAX_TAIL, length)):
        byte = data[length - 1 - back]
        if byte < 0x80:
            return length
        if byte >= 0xC0:
            needed = 2 if byte < 0xE0 else 3 if byte < 0xF0 else 4
            # The character at the cut is complete, or goes to the next piece.
            return length if needed <= back + 1 else max(1, length - 1 - back)
    return length
