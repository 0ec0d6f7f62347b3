"""Which lines of a job's output are wanted: since when, how many of the last ones, matching what.

Layer: client, pure.
"""

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
    """What is wanted of the output; by default all of it.

    Attributes:
        since: Lines from this instant on, by their workers' clocks; seconds since the epoch.
        tail: So many of the last lines, of all attempts and workers together; what comes later comes anyhow.
        matches: Only lines for which this is true; gaps are wanted always.
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
        """How many of the last lines of the bucket have to be read; None: nobody knows, so all of them."""
        return self.tail if self.matches is None else None

    def wants(self, line: LogPiece) -> bool:
        """Whether that whole line is wanted, as far as itself can tell."""
        if line.at < self._since_text:
            return False
        return self.matches is None or line.stream == "gap" or self.matches(line.text)


@dataclass(slots=True)
class LastLines(Generic[T]):
    """Holds back all but the last so many lines of what was there at first, and passes on what comes later.

    Attributes:
        tail: How many; None: all are passed on at once.
        show: Gets each line when it is its turn.
        max_bytes: So much is held at most, whatever `tail` says.
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
        """The next line, of so many bytes."""
        if self.tail is None:
            self.show(line)
            return
        self._held.append((line, size))
        self._size += size
        while len(self._held) > self.tail or (self._size > self.max_bytes and len(self._held) > 1):
            self._too_large = self._too_large or len(self._held) <= self.tail
            self._size -= self._held.popleft()[1]

    def release(self) -> None:
        """That was all there was at first."""
        self.cut = self._too_large and self.tail is not None and len(self._held) < self.tail
        self.tail = None
        while self._held:
            self.show(self._held.popleft()[0])
        self._size = 0
