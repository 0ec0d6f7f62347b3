"""The daemon's own log in the bucket: `logs/<bastion>`, rolled at 16 MiB or midnight (UTC).

Lines are appended once a tick. During an outage they are kept up to a bound; then the oldest are dropped, and the log
says how many. Lines of an ambiguous write are written again: doubled at worst, never missing.
"""

from __future__ import annotations

import contextlib
from collections import deque

from bastion.core import limits
from bastion.core.bucket import keys
from bastion.core.errors import NotFound, ObjectTooLarge, PreconditionFailed
from bastion.core.instants import to_rfc3339, utc_day
from bastion.core.plain_text import plain_line
from bastion.ports import Clock, ObjectStore

_LINES_MAX = 10_000


class DaemonLog:
    """Collects lines with `say`, writes them with `flush`."""

    def __init__(self, store: ObjectStore, clock: Clock, bastion: str) -> None:
        self._store = store
        self._clock = clock
        self._key = keys.log(bastion)
        self._lines: deque[str] = deque()
        self._dropped = 0
        self._generation: int | None = None
        self._size = 0
        self._day = ""
        self._last_problems: set[str] = set()

    def say(self, text: str) -> None:
        if len(self._lines) >= _LINES_MAX:
            self._lines.popleft()
            self._dropped += 1
        self._lines.append(f"{to_rfc3339(self._clock.now())} {plain_line(text)}\n")

    def say_problems(self, problems: list[str]) -> None:
        """Log each problem when it begins and when it ends."""
        current = set(problems)
        for problem in sorted(current - self._last_problems):
            self.say(f"problem: {problem}")
        for problem in sorted(self._last_problems - current):
            self.say(f"resolved: {problem}")
        self._last_problems = current

    def flush(self) -> None:
        """Append the collected lines. Raises StoreError if nothing was written; then the lines are kept."""
        if not self._lines:
            return
        if self._generation is None:
            self._learn()
        self._roll()
        lines = list(self._lines)
        if self._dropped:
            lines.insert(
                0, f"{to_rfc3339(self._clock.now())} dropped {self._dropped} lines: the bucket did not answer\n"
            )
        data = "".join(lines).encode()
        # After any failure the generation is looked up again: the lines may have landed.
        generation, self._generation = self._generation or 0, None
        try:
            meta = self._store.append(self._key, data, generation=generation)
        except PreconditionFailed:
            return  # another daemon's line
        self._generation, self._size, self._dropped = meta.generation, meta.size, 0
        self._day = self._day or utc_day(self._clock.now())
        self._lines.clear()

    def _learn(self) -> None:
        meta = self._store.head(self._key)
        self._generation = meta.generation if meta else 0
        self._size = meta.size if meta else 0
        self._day = utc_day(meta.updated) if meta else ""

    def _roll(self) -> None:
        """Move a full log, or yesterday's, to `logs/<bastion>-<YYYYMMDD>[.n]`."""
        today = utc_day(self._clock.now())
        if not self._generation or (self._size < limits.DAEMON_LOG_ROLL_BYTES and self._day in ("", today)):
            return
        # Others can write there too. Of a far larger object only the end is kept.
        skipped = max(0, self._size - limits.DAEMON_LOG_READ_MAX_BYTES)
        try:
            stored = self._store.get(self._key, start=skipped, max_bytes=limits.DAEMON_LOG_READ_MAX_BYTES)
        except NotFound:
            self._generation, self._size, self._day = 0, 0, ""
            return
        except ObjectTooLarge:
            self._generation = None  # it grew; look again at the next flush
            raise
        number = 0
        while True:
            suffix = f".{number}" if number else ""
            with contextlib.suppress(PreconditionFailed):
                self._store.put(f"{self._key}-{self._day or today}{suffix}", stored.data, generation=0)
                break
            number += 1
        self._store.delete(self._key, generation=stored.meta.generation)
        if skipped:
            self.say(f"dropped the first {skipped} bytes of {self._key}: the object was too large")
        self._generation, self._size, self._day = 0, 0, ""
