"""The bounded memory between the command's output and the bucket.

Layer: worker; a thread that reads pipes puts, a thread that uploads takes. No I/O.

Invariants:

* At most `capacity_bytes` are held (plus one block), whatever the command prints and however long the store is away.
* While uploads succeed, a fast command is slowed down and nothing is lost. Once no upload has succeeded for
  `patience_seconds`, the command is never blocked: the oldest lines go, and the next segment begins with a gap line
  that says how many bytes went.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from bastion.core import limits
from bastion.worker.log_lines import LogBlock, gap_text

CAPACITY_BYTES = 8 * 1024 * 1024
PATIENCE_SECONDS = 10.0
_LOST_REASON = "the bucket could not be written for so long that the host's log buffer was full"


@dataclass(frozen=True, slots=True, kw_only=True)
class Segment:
    """What one upload stores: formatted lines, and the raw bytes for the raw log (empty unless kept)."""

    text: bytes
    raw: bytes


class LogBuffer:
    """Blocks of log lines in order, bounded."""

    def __init__(
        self,
        *,
        monotonic: Callable[[], float],
        capacity_bytes: int = CAPACITY_BYTES,
        patience_seconds: float = PATIENCE_SECONDS,
    ) -> None:
        self._monotonic = monotonic
        self._capacity = capacity_bytes
        self._patience = patience_seconds
        self._changed = threading.Condition()
        self._blocks: deque[LogBlock] = deque()
        self._pending_bytes = 0  # of _blocks
        self._taken_bytes = 0  # of the segment that is being uploaded
        self._lost_bytes = 0  # dropped since the last take; they came before _blocks[0]
        self._progress_at = monotonic()  # last success, or when the buffer stopped being empty
        self._oldest_since = 0.0
        self._closed = False

    def put(self, blocks: Iterable[LogBlock]) -> None:
        """Adds blocks; waits for space only while uploads succeed."""
        with self._changed:
            for block in blocks:
                cost = len(block.text) + len(block.raw)
                while self._held() + cost > self._capacity and self._store_is_alive():
                    self._changed.wait(0.1)
                while self._blocks and self._held() + cost > self._capacity:
                    self._drop_oldest()
                if not self._blocks:
                    self._oldest_since = self._monotonic()
                    if not self._taken_bytes:
                        self._progress_at = self._oldest_since
                self._blocks.append(block)
                self._pending_bytes += cost
            self._changed.notify_all()

    def close(self) -> None:
        """No more blocks will come: `ready` becomes true at once, so that the rest is uploaded."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()

    @property
    def drained(self) -> bool:
        """Closed, and everything was taken and confirmed."""
        with self._changed:
            return self._closed and not self._blocks and not self._taken_bytes and not self._lost_bytes

    def wait_ready(self, interval_seconds: float) -> bool:
        """Waits until a segment is due: it is full, its oldest line has waited for the interval, or the end has come.

        Returns:
            Whether there is something to take; False only when the buffer is closed and empty.
        """
        with self._changed:
            while True:
                if self._closed:
                    return bool(self._blocks or self._lost_bytes)
                if self._pending_bytes >= limits.LOG_SEGMENT_MAX_BYTES:
                    return True
                if self._blocks:
                    remaining = self._oldest_since + interval_seconds - self._monotonic()
                    if remaining <= 0:
                        return True
                    self._changed.wait(min(remaining, interval_seconds))
                else:
                    self._changed.wait()

    def take(self) -> Segment:
        """The oldest blocks, as many as one segment holds; `confirm` must follow before the next take."""
        with self._changed:
            texts: list[bytes] = []
            raws: list[bytes] = []
            size = 0
            if self._lost_bytes:
                # Its instant is that of the line after it, so that instants do not go back.
                at = self._blocks[0].at if self._blocks else 0.0
                texts.append(gap_text(at, self._lost_bytes, _LOST_REASON))
                size = len(texts[0])
                if self._blocks and self._blocks[0].raw:
                    raws.append(texts[0])
                self._lost_bytes = 0
            while self._blocks and size + len(self._blocks[0].text) <= limits.LOG_SEGMENT_MAX_BYTES:
                block = self._blocks.popleft()
                cost = len(block.text) + len(block.raw)
                self._pending_bytes -= cost
                self._taken_bytes += cost
                size += len(block.text)
                texts.append(block.text)
                raws.append(block.raw)
            self._oldest_since = self._monotonic()
            return Segment(text=b"".join(texts), raw=b"".join(raws))

    def confirm(self) -> None:
        """The segment that was taken last is stored."""
        with self._changed:
            self._taken_bytes = 0
            self._progress_at = self._monotonic()
            self._changed.notify_all()

    def _held(self) -> int:
        return self._pending_bytes + self._taken_bytes

    def _store_is_alive(self) -> bool:
        return self._monotonic() - self._progress_at < self._patience

    def _drop_oldest(self) -> None:
        block = self._blocks.popleft()
        self._pending_bytes -= len(block.text) + len(block.raw)
        self._lost_bytes += block.size
