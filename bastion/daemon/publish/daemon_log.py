"""The daemon's own log in the bucket: `logs/<bastion>`, rolled at 16 MiB or midnight (UTC).

Lines are collected and appended once a tick; a bucket that does not answer costs nothing but the delay, up to a bound
beyond which the oldest lines are dropped and the number of them is said. Lines of which nobody knows whether they
landed are written again: one may be there twice, none is missing.
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
        """Says each problem when it begins and when it is over, not in every tick."""
        current = set(problems)
        for problem in sorted(current - self._last_problems):
            self.say(f"problem: {problem}")
        for problem in sorted(self._last_problems - current):
            self.say(f"no longer: {problem}")
        self._last_problems = current

    def flush(self) -> None:
        """Appends what was said.

        Raises:
            StoreError: nothing was written; the lines are kept for the next time.
        """
        if not self._lines:
            return
        if self._generation is None:
            self._learn()
        self._roll()
        lines = list(self._lines)
        if self._dropped:
            lines.insert(
                0, f"{to_rfc3339(self._clock.now())} {self._dropped} lines were dropped: the bucket did not answer\n"
            )
        data = "".join(lines).encode()
        # Whatever fails, the generation is looked up again next time: the lines may have landed all the same.
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
        """Moves a full or yesterday's log to `logs/<bastion>-<YYYYMMDD>[.n]`."""
        today = utc_day(self._clock.now())
        if not self._generation or (self._size < limits.DAEMON_LOG_ROLL_BYTES and self._day in ("", today)):
            return
        # Others can write there, too. What is far larger than a log of ours is not taken into memory: its end is kept.
        skipped = max(0, self._size - limits.DAEMON_LOG_READ_MAX_BYTES)
        try:
            stored = self._store.get(self._key, start=skipped, max_bytes=limits.DAEMON_LOG_READ_MAX_BYTES)
        except NotFound:
            self._generation, self._size, self._day = 0, 0, ""
            return
        except ObjectTooLarge:
            self._generation = None  # it grew since it was looked up: look again at the next flush
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
            self.say(f"the first {skipped} bytes of {self._key} were dropped: the object was too large to be kept")
        self._generation, self._size, self._day = 0, 0, ""
