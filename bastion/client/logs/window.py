"""Which lines of a job's output to show. Pure."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Generic, TypeVar

from bastion.client.logs.pieces import LogPiece
from bastion.core.instants import to_rfc3339

T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class LogWindow:
    """The lines to show; by default all.

    Attributes:
        since: Lines from this instant on, by the workers' clocks; seconds since the epoch.
        tail: The last lines of the existing output, of all attempts and workers together; later lines always count.
        matches: Only lines for which this is true; gaps always count.
    """

    since: float | None = None
    tail: int | None = None
    matches: Callable[[bytes], bool] | None = None
    _since_text: str = field(init=False, default="")

    def __post_init__(self) -> None:
        if self.since is not None:
            object.__setattr__(self, "_since_text", to_rfc3339(self.since))

    @property
    def narrow(self) -> bool:
        """Whether anything is left out."""
        return self.since is not None or self.tail is not None or self.matches is not None

    @property
    def lines_back(self) -> int | None:
        """How many of the last lines to read; None: unknown, so all."""
        return self.tail if self.matches is None else None

    def wants(self, line: LogPiece) -> bool:
        """Whether `since` and `matches` accept a whole line."""
        if line.at < self._since_text:
            return False
        return self.matches is None or line.stream == "gap" or self.matches(line.text)


@dataclass(slots=True)
class LastLines(Generic[T]):
    """Holds the last lines of the existing output, and passes later ones on.

    Attributes:
        tail: Number of lines; None: all are passed on at once.
        show: Called with each line.
        max_bytes: Maximum size held, whatever `tail` says.
        cut: Whether lines were left out because of that.
    """

    tail: int | None
    show: Callable[[T], None]
    max_bytes: int = 64 * 1024 * 1024
    cut: bool = False
    _held: deque[tuple[T, int]] = field(default_factory=deque)
    _size: int = 0
    _too_large: bool = False

    def add(self, line: T, size: int) -> None:
        """Take the next line, of that size in bytes."""
        if self.tail is None:
            self.show(line)
            return
        self._held.append((line, size))
        self._size += size
        while len(self._held) > self.tail or (self._size > self.max_bytes and len(self._held) > 1):
            self._too_large = self._too_large or len(self._held) <= self.tail
            self._size -= self._held.popleft()[1]

    def release(self) -> None:
        """Show the lines held; the existing output is complete."""
        self.cut = self._too_large and self.tail is not None and len(self._held) < self.tail
        self.tail = None
        while self._held:
            self.show(self._held.popleft()[0])
        self._size = 0
