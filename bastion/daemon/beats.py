"""How long each host has been silent, by its beat's generation and our own clock alone."""

from __future__ import annotations

from collections.abc import Iterable

from bastion.core import keys
from bastion.ports import Clock, ObjectMeta


class Beats:
    """Remembers when each beat last moved. A restarted daemon starts counting anew: it only ever waits longer."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._seen: dict[str, tuple[int, float]] = {}
        self._by_run: dict[str, dict[int, float]] = {}

    def observe(self, listing: Iterable[ObjectMeta]) -> None:
        now = self._clock.monotonic()
        seen: dict[str, tuple[int, float]] = {}
        by_run: dict[str, dict[int, float]] = {}
        for meta in listing:
            run, _, host = meta.key[len(keys.BEATS) :].rpartition(".")
            if not (host.isascii() and host.isdigit()) or len(host) > 6:
                continue
            before = self._seen.get(meta.key)
            since = before[1] if before is not None and before[0] == meta.generation else now
            seen[meta.key] = (meta.generation, since)
            by_run.setdefault(run, {})[int(host)] = now - since
        self._seen, self._by_run = seen, by_run

    def silent_seconds(self, run: str) -> dict[int, float]:
        """Seconds since each host's beat last moved, by host index; hosts that never beat are missing."""
        return self._by_run.get(run, {})

    def runs(self) -> set[str]:
        return set(self._by_run)
