"""Output on its way to the bucket, in files on the host's disk: first in, first out, bounded.

A reader thread puts, an uploader thread takes. `<number>.chunk` holds the records of a chunk, in order, at most one
segment. An empty file `<first>-<last>-<bytes>-<microseconds>.gap` says that these chunks were dropped, how many bytes
of output they held and the time of the first; a rename is atomic, so a crash leaves no wrong count.

Invariants:
* `put` never waits for the bucket; memory holds no output but the chunk being uploaded.
* The files never exceed the capacity, or a tenth of the free disk. Otherwise the oldest chunk that is not being
  uploaded is dropped, and a gap line counts its bytes: the end of a log is worth more than the middle (ADR 19).
* Output survives the agent's death: `open` finds it, and an unconfirmed chunk is taken again unchanged. At worst a gap
  line is repeated.
"""

from __future__ import annotations

import contextlib
import os
import struct
import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path

from bastion.agent.logs.lines import LogRecord, gap_record, halves
from bastion.core.bucket.gap_lines import GAP

SPOOL_MAX_BYTES = 1024**3
# A part of the free disk: several jobs share the bastion's own VM.
_DISK_SHARE = 10
_STREAMS = ("stdout", "stderr", GAP)
# Stream, time, length of the bytes that follow.
_HEADER = struct.Struct("<BdI")
_FULL = "the upload was slower than the output, and the host's spool was full"


@dataclass(frozen=True, slots=True, kw_only=True)
class _Loss:
    """Dropped chunks, `first` to `last`; `at` is the time of the first."""

    first: int
    last: int
    lost_bytes: int
    at: float

    @property
    def name(self) -> str:
        return f"{self.first:010d}-{self.last:010d}-{self.lost_bytes}-{round(self.at * 1e6)}.gap"

    @classmethod
    def of_name(cls, name: str) -> _Loss | None:
        parts = name.removesuffix(".gap").split("-")
        if not name.endswith(".gap") or len(parts) != 4 or not all(part.isdigit() for part in parts):
            return None
        first, last, lost_bytes, microseconds = map(int, parts)
        return cls(first=first, last=last, lost_bytes=lost_bytes, at=microseconds / 1e6)

    def with_later(self, later: _Loss) -> _Loss:
        return replace(self, last=later.last, lost_bytes=self.lost_bytes + later.lost_bytes)


@dataclass(slots=True, kw_only=True)
class _Chunk:
    """One chunk file, and the loss before it.

    Attributes:
        ready_at: When its first record came, on the monotonic clock.
        at: The time of that record.
        held_bytes: Bytes on the disk.
        output_bytes: Bytes of the command's output.
        cost: An upper bound of the bytes to upload.
    """

    number: int
    ready_at: float
    at: float
    held_bytes: int = 0
    output_bytes: int = 0
    cost: int = 0
    loss: _Loss | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Waiting:
    """`ready_at`: since when there is something to take; `full`: whether a full segment is ready."""

    ready_at: float
    full: bool


class LogSpool:
    """Records in order. Call `open` first."""

    def __init__(
        self,
        folder: Path,
        *,
        chunk_bytes: int,
        cost_of: Callable[[LogRecord], int],
        monotonic: Callable[[], float],
        capacity_bytes: int = SPOOL_MAX_BYTES,
    ) -> None:
        """Make the spool; `open` finds what an earlier agent left in the folder.

        Args:
            folder: Used by this spool only; created if needed.
            chunk_bytes: The maximum cost of a chunk.
            cost_of: An upper bound of the bytes to upload for a record.
            monotonic: The uploader's clock.
        """
        self._folder = folder
        self._chunk_bytes = chunk_bytes
        self._cost_of = cost_of
        self._monotonic = monotonic
        self._capacity = capacity_bytes
        self._allowed = capacity_bytes
        self._lock = threading.Lock()
        self._chunks: deque[_Chunk] = deque()
        self._file: int | None = None  # descriptor of the last chunk while it grows
        self._taken = False  # whether the first chunk is being uploaded
        self._loss: _Loss | None = None  # after the last chunk
        self._held_bytes = 0
        self._next_number = 1
        self._closed = False
        # Set when output arrives in an empty spool, when a chunk is full, and at the end.
        self.changed = threading.Event()

    def open(self) -> float:
        """Find what an earlier agent left; return the time of its last record, or 0."""
        for folder in (self._folder.parent, self._folder):  # a job's command may pass the folder above them
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        names = sorted(path.name for path in self._folder.iterdir())
        losses = self._losses(names)
        numbers = [int(stem) for name in names if name.endswith(".chunk") and (stem := name[:-6]).isdigit()]
        latest = 0.0
        for number in numbers:
            if any(loss.first <= number <= loss.last for loss in losses):
                self._remove(f"{number:010d}.chunk")
                continue
            while losses and losses[0].last < number:
                self._append_loss(losses.pop(0))
            chunk = self._append_chunk(number)
            for record in _records((self._folder / f"{number:010d}.chunk").read_bytes()):
                self._count(chunk, record, self._cost_of(record))
                chunk.at = chunk.at or record.at
                latest = record.at
        for loss in losses:
            self._append_loss(loss)
        return max(latest, self._loss.at if self._loss else 0.0)

    def put(self, records: Iterable[LogRecord]) -> None:
        """Add records. Never blocks; what cannot be kept is counted."""
        with self._lock:
            for record in records:
                self._put(record)

    def close(self) -> None:
        with self._lock:
            self._closed = True
            self._seal()
            self.changed.set()

    @property
    def closed(self) -> bool:
        return self._closed

    @property
    def held_bytes(self) -> int:
        return self._held_bytes

    def waiting(self) -> Waiting | None:
        """What there is to take, if anything."""
        with self._lock:
            if not self._chunks and self._loss is not None:
                # A loss without a later chunk: a chunk without a file.
                self._append_chunk(self._next_number)
            if not self._chunks:
                return None
            return Waiting(ready_at=self._chunks[0].ready_at, full=len(self._chunks) > 1)

    def take(self) -> list[LogRecord]:
        """The oldest chunk, which stays until `confirm`. Something must be waiting."""
        with self._lock:
            chunk = self._chunks[0]
            if len(self._chunks) == 1:
                self._seal()
            self._taken = True
        before = [] if chunk.loss is None else [gap_record(chunk.loss.lost_bytes, _FULL, at=chunk.loss.at)]
        if not chunk.held_bytes:
            return before
        try:
            return [*before, *_records(self._path(chunk).read_bytes())]
        except OSError as error:
            reason = f"the host's disk lost them ({error.strerror})"
            return [*before, gap_record(chunk.output_bytes, reason, at=chunk.at)]

    def confirm(self) -> None:
        """The chunk that was taken is stored."""
        with self._lock:
            chunk = self._chunks.popleft()
            self._taken = False
            self._held_bytes -= chunk.held_bytes
        self._remove(self._path(chunk).name)
        if chunk.loss is not None:
            self._remove(chunk.loss.name)

    # -- put --------------------------------------------------------------------------------------------------

    def _put(self, record: LogRecord) -> None:
        cost = self._cost_of(record)
        if cost > self._chunk_bytes and len(record.data) > 1:
            for half in halves(record):
                self._put(half)
            return
        if self._file is None or self._chunks[-1].cost + cost > self._chunk_bytes:
            self._seal()
            self._look_at_disk()
        fits = True
        while fits and self._held_bytes + _HEADER.size + len(record.data) > self._allowed:
            fits = self._drop_oldest()
        if not (fits and self._write(record)):
            self._seal()
            number, self._next_number = self._next_number, self._next_number + 1
            lost = _Loss(first=number, last=number, lost_bytes=record.output_bytes, at=record.at)
            self._loss = self._merged(self._loss, lost)
            self.changed.set()
            return
        self._count(self._chunks[-1], record, cost)

    def _write(self, record: LogRecord) -> bool:
        """Append the record to the last chunk's file; False on a disk error (the file may end in a partial record)."""
        try:
            if self._file is None:
                path = self._folder / f"{self._next_number:010d}.chunk"
                self._file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
                self._append_chunk(self._next_number).at = record.at
                self.changed.set()
            header = _HEADER.pack(_STREAMS.index(record.stream), record.at, len(record.data))
            written = os.writev(self._file, [header, record.data])
            while written < len(header) + len(record.data):
                written += os.write(self._file, (header + record.data)[written:])
        except OSError:
            return False
        return True

    def _append_chunk(self, number: int) -> _Chunk:
        chunk = _Chunk(number=number, ready_at=self._monotonic(), at=0.0, loss=self._loss)
        self._loss = None
        self._chunks.append(chunk)
        self._next_number = number + 1
        return chunk

    def _append_loss(self, loss: _Loss) -> None:
        self._loss = self._merged(self._loss, loss)
        self._next_number = loss.last + 1

    def _count(self, chunk: _Chunk, record: LogRecord, cost: int) -> None:
        held = _HEADER.size + len(record.data)
        chunk.held_bytes += held
        chunk.output_bytes += record.output_bytes
        chunk.cost += cost
        self._held_bytes += held

    def _seal(self) -> None:
        if self._file is not None:
            os.close(self._file)
            self._file = None
            self.changed.set()

    def _look_at_disk(self) -> None:
        with contextlib.suppress(OSError):
            disk = os.statvfs(self._folder)
            free = disk.f_bavail * disk.f_frsize
            self._allowed = min(self._capacity, (free + self._held_bytes) // _DISK_SHARE)

    # -- drop -------------------------------------------------------------------------------------------------

    def _drop_oldest(self) -> bool:
        """Drop the oldest chunk that is not being uploaded; False if there is none."""
        place = 1 if self._taken else 0
        if place >= len(self._chunks):
            return False
        if place == len(self._chunks) - 1:
            self._seal()
        chunk = self._chunks[place]
        del self._chunks[place]
        self._held_bytes -= chunk.held_bytes
        loss = _Loss(first=chunk.number, last=chunk.number, lost_bytes=chunk.output_bytes, at=chunk.at)
        after = self._chunks[place] if place < len(self._chunks) else None
        later = self._loss if after is None else after.loss
        merged = self._merged(self._merged(chunk.loss, loss), later)
        if after is None:
            self._loss = merged
        else:
            after.loss = merged
        self._remove(self._path(chunk).name)
        return True

    def _merged(self, earlier: _Loss | None, later: _Loss | None) -> _Loss:
        """Merge two losses, also on the disk. At least one must be a loss."""
        if earlier is None or later is None:
            loss = earlier or later
            assert loss is not None, "at least one argument must be a loss"
            with contextlib.suppress(OSError):
                (self._folder / loss.name).touch()
            return loss
        merged = earlier.with_later(later)
        # After a disk error the count is lost only if the agent also dies.
        with contextlib.suppress(OSError):
            (self._folder / earlier.name).rename(self._folder / merged.name)
        self._remove(later.name)
        return merged

    def _losses(self, names: Iterable[str]) -> list[_Loss]:
        """The recorded losses in order; after a crash one may contain another."""
        found = [loss for name in names if (loss := _Loss.of_name(name)) is not None]
        kept: list[_Loss] = []
        for loss in sorted(found, key=lambda each: (each.first, -each.last)):
            if kept and loss.last <= kept[-1].last:
                self._remove(loss.name)
            else:
                kept.append(loss)
        return kept

    def _path(self, chunk: _Chunk) -> Path:
        return self._folder / f"{chunk.number:010d}.chunk"

    def _remove(self, name: str) -> None:
        with contextlib.suppress(OSError):
            (self._folder / name).unlink()


def _records(data: bytes) -> Iterator[LogRecord]:
    """The records of a chunk's file, which may end in a partial one."""
    place = 0
    while place + _HEADER.size <= len(data):
        stream, at, length = _HEADER.unpack_from(data, place)
        place += _HEADER.size
        if stream >= len(_STREAMS) or place + length > len(data):
            return
        yield LogRecord(stream=_STREAMS[stream], at=at, data=data[place : place + length])
        place += length
